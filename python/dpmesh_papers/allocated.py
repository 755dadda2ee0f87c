"""Random allocation in the two papers that use each record once, at a proved epsilon of 1.

With *arrival* sampling the round that uses a record is public; with *allocation* it is secret and
random, which amplifies privacy. `online` runs online learning on RCV1 as in Table 1 of its paper,
with batches and learning rates by a rule over public numbers. `without_replacement` runs SGD
without replacement on MNIST in the setting of Figure 3, fully collaborative, with the paper's
learning rate and with one by the rule of `dpmesh.defaults`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpmesh.algorithms import OnlineLearning, WithoutReplacement
from dpmesh.algorithms.allocation import BatchSampling
from dpmesh.algorithms.controllers import AlwaysGlobal
from dpmesh.data import rcv1
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import LinearProblem
from dpmesh.run import Metrics, simulate
from dpmesh.schedules import Piecewise
from dpmesh_papers._figure import Panel, drawn, lines_of
from dpmesh_papers._scaffold import Experiment, Progress, Row, repeated
from dpmesh_papers.benchmark.methods import replaced, with_steps
from dpmesh_papers.online import PAPER_ACCURACY
from dpmesh_papers.online_runs import NODES as ONLINE_NODES
from dpmesh_papers.online_runs import changing_graph
from dpmesh_papers.without_replacement_setting import (
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILON = 1.0
DOCUMENTS = 12_160
"""Number of documents of all nodes together."""
NOISE = 0.3
"""Standard deviation of a document's score by the noise of published models; the margin is 1.

Of 0.02, 0.1 and 0.3 it served one node best, on training documents that were split off, and 64
nodes as well as the others."""
LONGEST = 8.0
"""Largest learning rate, as in `dpmesh.defaults`."""
IMAGES_AT = 10
"""Number of nodes that share MNIST."""

NEWS = "RCV1, online learning"
IMAGES = "MNIST, without replacement"
_SETTINGS = {
    NEWS: (
        f"{DOCUMENTS:,} documents, delta 1e-5, hinge, network and paper's numbers of Table 1;\n"
        "rule: steps follow from public numbers, and so do batches above 1."
    ),
    IMAGES: (
        f"delta {DELTA:.1e}, logistic one-vs-all, fully collaborative;\n"
        f"steps of {STEP_SIZE:g}, or by the rule of dpmesh.defaults, from public numbers alone;\n"
        "features by a PCA fitted on all private images, which no epsilon covers."
    ),
}
CLAIMED = {
    (NEWS, nodes): accuracy
    for nodes, accuracy in zip(ONLINE_NODES, PAPER_ACCURACY[EPSILON], strict=True)
}
"""Accuracies of the paper's Table 1 at epsilon 1, in percent."""
ARRIVAL: BatchSampling = "arrival"
ALLOCATION: BatchSampling = "allocation"
REPLACEMENT = "replaced"
RULE = "rule"
PAPER = "paper"


def online(folder: Path, *, seeds: int = 5, progress: Progress = print) -> list[Path]:
    """Run online learning on RCV1: the round that uses a document is public, or secret.

    All runs have a proved epsilon of 1.
    """
    experiment = Experiment(folder, "online-allocated", progress)
    cells = [
        {"task": NEWS, "nodes": nodes, "batch": batch, "step": RULE, "sampling": sampling}
        for nodes in ONLINE_NODES
        for sampling in (ARRIVAL, ALLOCATION)
        for batch in (longest_path_batch(sampling, nodes), 1)
        if batch > 1 or (nodes, sampling) == (max(ONLINE_NODES), ALLOCATION)
    ]
    experiment.measure(cells, lambda cell: _measured(_online, cell, seeds), _in_words)
    return experiment.write(as_text, _figure)


def without_replacement(
    folder: Path, *, seeds: int = 3, records: int | None = None, progress: Progress = print
) -> list[Path]:
    """Run SGD without replacement on MNIST, fully collaborative, with public or secret rounds.

    SGD with replacement is run for comparison. Nodes share the first `records` images; None for
    all.
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
    """Return ``noise_to_sensitivity``, and mean accuracy (%) with its interval over seeds."""
    runs = [run(cell, Key.seeded(seed)) for seed in range(seeds)]
    noise = {"noise_to_sensitivity": runs[0][1]}
    return noise | repeated([100 * accuracy for accuracy, _ in runs])


def _online(cell: Row, key: Key) -> tuple[float, float]:
    """Return the accuracy of published models on RCV1, and the noise multiplier."""
    train, test = _news("train"), _news("test")
    nodes = cell["nodes"]
    split_generator = generator(key, Purpose.SPLIT)
    parts = split_generator.permutation(train.records)[:DOCUMENTS].reshape(nodes, -1)
    problem = LinearProblem(train, tuple(parts), "hinge", test=test)
    learner, _ = by_rule(cell["sampling"], nodes, cell["batch"])
    links = changing_graph(nodes)
    rounds = learner.most_rounds(problem)
    run = simulate(
        learner, problem, links, rounds=rounds, key=key, metrics=Metrics([], progress=False)
    )
    return float(problem.accuracy(run.released).mean()), learner.mechanism.noise_to_sensitivity


def longest_path_batch(
    sampling: BatchSampling, nodes: int, *, epsilon: float = EPSILON, documents: int = DOCUMENTS
) -> int:
    """Return the batch size with the largest sum of learning rates, for 2 to 200 rounds."""
    documents_of_node = documents // nodes
    sizes = {
        documents_of_node // int(rounds)
        for rounds in np.geomspace(2, min(documents_of_node, 200), 30)
    }

    def length_of_path(batch: int) -> float:
        return by_rule(sampling, nodes, batch, epsilon=epsilon, documents=documents)[1]

    return max(sorted(sizes), key=length_of_path)


@cache
def by_rule(
    sampling: BatchSampling,
    nodes: int,
    batch: int,
    *,
    epsilon: float = EPSILON,
    documents: int = DOCUMENTS,
    noise_in_score: float = NOISE,
) -> tuple[OnlineLearning, float]:
    """Return online learning with data-independent learning rates, and the sum of the rates.

    The noise of all steps together has the standard deviation `noise_in_score` in a document's
    score. Mixing leaves a share of the variance of a step's noise in the published models. For a
    given noise of all steps, rates in inverse proportion to these shares have the largest sum
    (Cauchy and Schwarz).
    """
    links = changing_graph(nodes)
    documents_of_node = documents // nodes
    plain = OnlineLearning(
        epsilon=epsilon,
        delta=1e-5,
        step_size=1.0,
        batch_size=batch,
        radius=1e6,
        projection="none",
        sampling=sampling,
        records=documents_of_node if sampling == ALLOCATION else None,
    )
    mixing = np.eye(nodes)
    shares_left = []
    noisy_rounds = documents_of_node // batch
    if sampling == ARRIVAL:  # the first round sends a public start without noise
        noisy_rounds -= 1
    for t in range(noisy_rounds, 0, -1):
        mixing = mixing @ links.matrix(t).weights
        shares_left.append(float((mixing**2).sum() / nodes))
    weights = 1 / np.array(shares_left[::-1])
    noise = plain.noise_std(1, 1) * np.sqrt(weights.sum())
    steps = np.minimum(noise_in_score / noise * weights, LONGEST)
    schedule = Piecewise(starts=tuple(range(1, len(steps) + 1)), values=tuple(steps.tolist()))
    return replace(plain, step_size=schedule), float(steps.sum())


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
    run = simulate(algorithm, problem, rounds=rounds, key=key, metrics=Metrics([], progress=False))
    return float(problem.accuracy(run.released).mean()), algorithm.mechanism.noise_to_sensitivity


def _replaced(cell: Row, setting: Setting, problem: LinearProblem, key: Key) -> tuple[float, float]:
    """Return accuracy and noise multiplier of the paper's baseline, with replacement."""
    problem = in_double_precision(problem)  # much noise takes its models far out
    baseline = with_replacement(setting, problem, "proved", EPSILON)
    if cell["step"] == RULE:
        baseline = replaced(baseline, problem)
    finished = run(baseline, problem, key)
    return float(problem.accuracy(finished.released).mean()), baseline.noise_to_sensitivity or 0.0


def _records(cell: Row, fewest: int) -> int | None:
    return fewest if cell["sampling"] == ALLOCATION else None


_mnist = cache(mnist_setting)
_news = cache(rcv1)


def _in_words(row: Row) -> str:
    where = f"{row['task']}, {row['sampling']}, batches of {row['batch']}, {row['step']} step"
    return f"{where}: {row['accuracy']:.1f} +- {row['interval']:.1f}"


def as_text(rows: list[Row]) -> str:
    """Return all cells as a table."""
    lines = [
        "Test accuracy (%) of released models at a proved epsilon of 1 (replace one record), with",
        "half of the 95% interval. arrival: it is public which round uses a record. allocation:",
        "each record draws its round secretly, and `batch` is the expected size. replaced: SGD",
        "with replacement, the paper's baseline, 5 visits of a record on average.",
        _SETTINGS[rows[0]["task"]],
        "",
        f"{'':<36}{'batch':>6}{'step':>7}{'sampling':>12}{'noise':>8}{'accuracy':>15}{'seeds':>7}"
        f"{'paper':>8}",
    ]
    for row in rows:
        accuracy = f"{row['accuracy']:.1f} +- {row['interval']:.1f}"
        nodes = row.get("nodes", IMAGES_AT)
        lines.append(
            f"{row['task'] + f', {nodes} node(s)':<36}{row['batch']:>6}{row['step']:>7}"
            f"{row['sampling']:>12}{row['noise_to_sensitivity']:>8.3f}{accuracy:>15}{row['seeds']:>7}"
            f"{CLAIMED.get((row['task'], nodes), ''):>8}".rstrip()
        )
    return "\n".join(lines)


def _figure(rows: list[Row]) -> Figure:
    """Draw accuracy by nodes and steps; needs the extra ``plots``."""

    def name(row: Row) -> str:
        single = ", batches of 1" if row["batch"] == 1 else ""
        return f"{row.get('nodes', IMAGES_AT)} node(s){single}\nstep: {row['step']}"

    named = [row | {"name": name(row)} for row in rows]
    lines = lines_of(named, by="sampling", x="name", y="accuracy", spread="interval")
    return drawn([Panel(title=rows[0]["task"], y="accuracy (%) at epsilon 1", lines=lines)])
