"""Accuracy that default features and private centering add to linear models of tables.

`tables` is the experiment ``dpmesh reproduce tables``. Each task is learned twice at the same
proved epsilon: with the columns alone, and with the features and the first stage (private
centering) of the default rule. Tasks are the benchmark's, and Covertype by the estimator, with the
public ranges of a file that a user would fill in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmesh.data import covertype, train_test_split
from dpmesh.defaults import Sizes, choose
from dpmesh.keys import Key, Purpose, generator
from dpmesh.run import Metrics, simulate
from dpmesh.sklearn import PrivateClassifier
from dpmesh.tables.features import COLUMNS
from dpmesh.tables.models import Outline
from dpmesh_papers._figure import Panel, drawn, lines_of
from dpmesh_papers._scaffold import Experiment, Progress, Row, pick, repeated
from dpmesh_papers.benchmark.tasks import FOREST_RANGES, TASKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DELTA = 1e-5
EPSILONS = (1.0, 2.0, 4.0)
FOREST = "covertype"
FOREST_HELD_OUT = 0.2
WITHOUT = "columns alone"
RULE = "by the rule"
"""Values of the column ``features``."""


def tables(
    folder: Path, *, seeds: int = 5, records: int | None = None, progress: Progress = print
) -> list[Path]:
    """Learn each task with and without features and a first stage, on `seeds` splits.

    `records` limits the records of Covertype, for training and test together; None uses all.
    """
    experiment = Experiment(folder, "tables", progress)
    experiment.measure(_cells(), lambda cell: _measured(cell, seeds, records), _in_words)
    return experiment.write(as_text, _figure)


def _cells() -> Iterator[Row]:
    for task in ("digits-by-class", "digits-alike", "breast-cancer", FOREST):
        for method in ("secure", "gossip"):
            epsilons = EPSILONS[:1] if task == FOREST else EPSILONS
            for epsilon in epsilons:
                for features in (WITHOUT, RULE):
                    yield {"task": task, "method": method, "epsilon": epsilon, "features": features}


def _measured(cell: Row, seeds: int, records: int | None) -> Row:
    """Return mean accuracy in percent with its interval, and the features (column ``made``)."""
    if cell["task"] == FOREST:
        results = [_forest(cell, seed, records) for seed in range(seeds)]
        held_out = FOREST_HELD_OUT
    else:
        results = [of_benchmark(cell, seed) for seed in range(seeds)]
        held_out = TASKS[cell["task"]].held_out
    percent = [100 * accuracy for accuracy, _ in results]
    return {"made": results[0][1]} | repeated(percent, held_out=held_out)


def of_benchmark(cell: Row, seed: int) -> tuple[float, str]:
    """Return the accuracy on a split of a benchmark's task, and the features in words."""
    problem = TASKS[cell["task"]].problem(Key.seeded(seed))
    return _learned(cell, seed, problem, problem.accuracy)


def _forest(cell: Row, seed: int, records: int | None) -> tuple[float, str]:
    """Return the accuracy on a split of Covertype, and the features in words."""
    split_generator = generator(Key.seeded(seed), Purpose.SPLIT)
    data = _cover().take(split_generator.permutation(_cover().records)[:records])
    train, test = train_test_split(data, FOREST_HELD_OUT, split_generator)
    classifier = PrivateClassifier(
        cell["epsilon"], ranges=FOREST_RANGES, algorithm=cell["method"], random_state=seed
    )
    areas = np.asarray(train.features)[:, 10:14].argmax(axis=1)
    training = train.features, train.labels, areas
    if cell["features"] == RULE:
        classifier.fit(*training)
        name = getattr(classifier.model_.columns, "features", COLUMNS).name
        return float(classifier.score(test.features, test.labels)), f"{name}, first stage"
    encoded = classifier.set_params(features="columns")._encoded_problem(*training)
    outline = Outline(columns=encoded.columns, classes=classifier.classes_)

    def accuracy(released: Any) -> Any:
        model = outline.model(released.mean(axis=0))
        return model.predict(test.features) == test.labels

    return _learned(cell, seed, encoded.problem, accuracy)


def _learned(cell: Row, seed: int, problem: Any, accuracy: Any) -> tuple[float, str]:
    """Learn with default settings; return mean accuracy of released models, and the features."""
    sizes = Sizes.of(problem)
    if cell["features"] == WITHOUT:
        sizes = replace(sizes, features=0)
    chosen = choose(sizes, epsilon=cell["epsilon"], delta=DELTA, algorithm=cell["method"])
    run = simulate(
        chosen.algorithm,
        problem,
        chosen.topology,
        rounds=chosen.rounds,
        key=Key.seeded(seed),
        delta=DELTA,
        metrics=Metrics([], progress=False),
    )
    features = "columns"
    if hasattr(chosen.algorithm, "mean"):
        features = "columns, first stage"
    return float(np.mean(accuracy(run.released))), features


@cache
def _cover() -> Any:
    return covertype(7)


def _in_words(row: Row) -> str:
    where = f"{row['task']}, {row['method']}, epsilon {row['epsilon']:g}, {row['features']}"
    return f"{where} ({row['made']}): {row['accuracy']:.1f} +- {row['interval']:.1f}"


def as_text(rows: list[Row]) -> str:
    """Return all cells as a table."""
    lines = [
        "Test accuracy (%) of released models at a proved epsilon (delta 1e-5, replace one record;",
        "a secure sum: 1 site may collude), with half of the 95% interval, which counts that",
        "splits of one table overlap.",
        "",
        f"{'task':<17}{'method':<8}{'epsilon':>8}{WITHOUT:>18}{RULE:>18}{'splits':>8}  made",
    ]
    for with_rule in pick(rows, features=RULE):
        setting = {name: with_rule[name] for name in ("task", "method", "epsilon")}
        pair = [*pick(rows, **setting, features=WITHOUT), with_rule]
        texts = [f"{row['accuracy']:.1f} +- {row['interval']:.1f}" for row in pair]
        cells = "".join(f"{text:>18}" for text in texts)
        lines.append(
            f"{setting['task']:<17}{setting['method']:<8}{setting['epsilon']:>8g}{cells}"
            f"{with_rule['seeds']:>8}  {with_rule['made']}"
        )
    return "\n".join(lines)


def _figure(rows: list[Row]) -> Figure:
    """Draw accuracy over epsilon; needs the extra ``plots``."""
    panels = []
    for task, method in dict.fromkeys((row["task"], row["method"]) for row in rows):
        points = pick(rows, task=task, method=method)
        lines = lines_of(points, by="features", x="epsilon", y="accuracy", spread="interval")
        title = f"{task}, {method}"
        y = "accuracy (%)"
        panels.append(Panel(title=title, x="epsilon", y=y, log="x", lines=lines))
    return drawn(panels, columns=4)
