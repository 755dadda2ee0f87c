"""What secret rounds buy the two papers that use each record once, at a proved epsilon of 1.

Online learning on RCV1, with the paper's steps, and SGD without replacement on MNIST in the setting
of Figure 3, fully collaborative, with the paper's step and one by the rule of `dpmesh.defaults`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpmesh.algorithms import OnlineLearning, WithoutReplacement
from dpmesh.controllers import AlwaysGlobal
from dpmesh.data import rcv1
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import LinearProblem
from dpmesh.reproduce._scaffold import Experiment, Progress, Row, kinds, pick, repeated
from dpmesh.reproduce.arena.methods import replaced, with_steps
from dpmesh.reproduce.without_replacement_setting import (
    BATCH_SIZE,
    DELTA,
    STEP_SIZE,
    Setting,
    dealt_out,
    in_double_precision,
    mnist_setting,
    run,
    with_replacement,
)
from dpmesh.run import simulate
from dpmesh.schedules import InverseTime
from dpmesh.topology import random_regular

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILON = 1.0
NODES, DOCUMENTS, NEIGHBOURS = 64, 190, 4
STRONGLY_CONVEX = 0.3
"""lambda of the steps 1 / (lambda t) on RCV1."""
IMAGES_AT = 10
"""Nodes of MNIST."""

NEWS, IMAGES = "RCV1, online learning", "MNIST, without replacement"
_SETTINGS = {
    NEWS: (
        f"{NODES} nodes x {DOCUMENTS} documents, delta 1e-5, hinge, "
        f"steps 1 / ({STRONGLY_CONVEX:g} t)."
    ),
    IMAGES: (
        f"{IMAGES_AT} nodes, delta {DELTA:.1e}, logistic one-vs-all, fully collaborative;\n"
        f"steps of {STEP_SIZE:g}, or by the rule of dpmesh.defaults, from public numbers alone."
    ),
}
ARRIVAL, ALLOCATION, REPLACEMENT = "arrival", "allocation", "replaced"
RULE, PAPER = "rule", "paper"


def online(folder: Path, *, seeds: int = 5, progress: Progress = print) -> list[Path]:
    """Run online learning on RCV1: all know which round uses a document, or nobody does.

    All runs keep a proved epsilon of 1.
    """
    experiment = Experiment(folder, "online-allocated", progress)
    cells = [
        {"task": NEWS, "batch": batch, "step": PAPER, "sampling": sampling}
        for batch in (5, 1)
        for sampling in (ARRIVAL, ALLOCATION)
    ]
    experiment.measure(cells, lambda cell: _measured(_online, cell, seeds), _in_words)
    return experiment.write(as_text, _figure)


def without_replacement(
    folder: Path, *, seeds: int = 3, records: int | None = None, progress: Progress = print
) -> list[Path]:
    """Run SGD without replacement on MNIST, fully collaborative, as `online` runs online learning.

    Nodes share the first `records` images; None for all.
    """
    experiment = Experiment(folder, "without-replacement-allocated", progress)
    cells = [
        {"task": IMAGES, "batch": BATCH_SIZE, "step": step, "sampling": sampling}
        for step in (PAPER, RULE)
        for sampling in (ARRIVAL, ALLOCATION, REPLACEMENT)
    ]
    images = partial(_images, images=records)
    experiment.measure(cells, lambda cell: _measured(images, cell, seeds), _in_words)
    return experiment.write(as_text, _figure)


def _measured(run: Callable[[Row, Key], tuple[float, float]], cell: Row, seeds: int) -> Row:
    found = [run(cell, Key.seeded(seed)) for seed in range(seeds)]
    noise = {"noise_multiplier": found[0][1]}
    return noise | repeated([100 * accuracy for accuracy, _ in found])


def _online(cell: Row, key: Key) -> tuple[float, float]:
    """Return the accuracy of published models on RCV1, and the noise multiplier."""
    train, test = _news("train"), _news("test")
    draw = generator(key, Purpose.SPLIT)
    parts = draw.permutation(train.records)[: NODES * DOCUMENTS].reshape(NODES, DOCUMENTS)
    problem = LinearProblem(train, tuple(parts), "hinge", test=test)
    algorithm = OnlineLearning(
        epsilon=EPSILON,
        delta=1e-5,
        batch_size=cell["batch"],
        step_size=InverseTime(scale=1 / STRONGLY_CONVEX),
        radius=10.0,
        projection="mixture",
        sampling=cell["sampling"],
        records=_records(cell, DOCUMENTS),
    )
    links = random_regular(NODES, NEIGHBOURS, key=Key.seeded(0))
    rounds = DOCUMENTS // cell["batch"]
    run = simulate(algorithm, problem, links, rounds=rounds, key=key, metrics=[], progress=False)
    return float(problem.accuracy(run.released).mean()), algorithm.mechanism.noise_multiplier


def _images(cell: Row, key: Key, *, images: int | None) -> tuple[float, float]:
    """Return the accuracy of the released models on MNIST, and the noise multiplier."""
    setting = _mnist(images)
    problem = dealt_out(setting, IMAGES_AT, "convex", key)
    if cell["sampling"] == REPLACEMENT:
        return _replaced(cell, setting, problem, key)
    algorithm = WithoutReplacement(
        epsilon=EPSILON,
        delta=DELTA,
        models=setting.classes,
        batch_size=BATCH_SIZE,
        step_size=STEP_SIZE,
        controller=AlwaysGlobal(),
        decisions="together",
        sampling=cell["sampling"],
        records=_records(cell, problem.fewest_records),
    )
    rounds = problem.rounds(BATCH_SIZE)
    if cell["step"] == RULE:
        algorithm = with_steps(algorithm, problem, rounds, share=1.0)
    run = simulate(algorithm, problem, rounds=rounds, key=key, metrics=[], progress=False)
    return float(problem.accuracy(run.released).mean()), algorithm.mechanism.noise_multiplier


def _replaced(cell: Row, setting: Setting, problem: LinearProblem, key: Key) -> tuple[float, float]:
    """Return the same of the paper's baseline, with replacement."""
    problem = in_double_precision(problem)  # much noise takes its models far out
    baseline = with_replacement(setting, problem, "proved", EPSILON)
    if cell["step"] == RULE:
        baseline = replaced(baseline, problem)
    done = run(baseline, problem, key)
    return float(problem.accuracy(done.released).mean()), baseline.noise_multiplier or 0.0


def _records(cell: Row, fewest: int) -> int | None:
    return fewest if cell["sampling"] == ALLOCATION else None


_mnist, _news = cache(mnist_setting), cache(rcv1)


def _in_words(row: Row) -> str:
    where = f"{row['task']}, {row['sampling']}, batches of {row['batch']}, {row['step']} step"
    return f"{where}: {row['accuracy']:.1f} +- {row['interval']:.1f}"


def as_text(rows: list[Row]) -> str:
    """Return all cells as a table."""
    lines = [
        "Test accuracy (%) of released models at a proved epsilon of 1 (replace one record), with",
        "half of the 95% interval. arrival: everybody knows which round uses a record. allocation:",
        "each record draws its round secretly, and `batch` is the expected size. replaced: SGD",
        "with replacement, the paper's baseline, 5 visits of a record on average.",
        _SETTINGS[rows[0]["task"]],
        "",
        f"{'':<30}{'batch':>6}{'step':>7}{'sampling':>12}{'noise':>8}{'accuracy':>16}{'seeds':>7}",
    ]
    for row in rows:
        accuracy = f"{row['accuracy']:.1f} +- {row['interval']:.1f}"
        lines.append(
            f"{row['task']:<30}{row['batch']:>6}{row['step']:>7}{row['sampling']:>12}"
            f"{row['noise_multiplier']:>8.3f}{accuracy:>16}{row['seeds']:>7}"
        )
    return "\n".join(lines)


def _figure(rows: list[Row]) -> Figure:
    """Draw a bar for each cell."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys((row["task"], row["batch"], row["step"]) for row in rows))
    for place, sampling in enumerate(kinds(rows, "sampling")):
        mine = pick(rows, sampling=sampling)
        at = [names.index((r["task"], r["batch"], r["step"])) + 0.3 * place for r in mine]
        heights, errors = ([r[key] for r in mine] for key in ("accuracy", "interval"))
        axes.bar(at, heights, 0.3, yerr=np.nan_to_num(errors), label=sampling)
    labels = [f"{task.split(',')[0]}\nbatches of {batch}, {step}" for task, batch, step in names]
    axes.set_xticks(np.arange(len(names)) + 0.2, labels)
    axes.set_ylabel("accuracy (%) at epsilon 1")
    axes.legend()
    return figure
