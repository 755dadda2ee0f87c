"""Accuracy that default features and private centering add to linear models of tables.

`tables` is the experiment ``dpmesh reproduce tables``. Each task is learned twice at the same
proved epsilon: with the columns alone, and with the features and the first stage (private
centering) of the default rule. Tasks are the benchmark's, and Covertype by the estimator, with the
public ranges of a file that a user would fill in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh.algorithms.first_stage import FirstStage
from dpmesh.data import Dataset, covertype, train_test_split
from dpmesh.defaults import Method, Sizes, choose
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import LinearProblem
from dpmesh.run import Metrics, simulate
from dpmesh.sklearn import PrivateClassifier
from dpmesh.tables.features import COLUMNS
from dpmesh.tables.models import Outline
from dpmesh_papers._figure import Panel, drawn, lines_of
from dpmesh_papers._scaffold import Experiment, Progress, Row, pick, repeated, with_spread
from dpmesh_papers.benchmark.tasks import TASKS
from dpmesh_papers.public_tables import COVERTYPE_RANGES, wilderness_areas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DELTA = 1e-5
EPSILONS = (1.0, 2.0, 4.0)
FOREST = "covertype"
FOREST_HELD_OUT = 0.2

Features: TypeAlias = Literal["columns alone", "by the rule"]
WITHOUT: Features = "columns alone"
RULE: Features = "by the rule"

Accuracy: TypeAlias = Callable[[npt.NDArray[np.floating]], npt.NDArray[Any]]
"""Returns the accuracy of each released model, or of their mean on each test record."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A cell of the table: a task, and the way it is learned. Fields are named as the columns.

    Parameters
    ----------
    task
        A task of the benchmark, or `FOREST`.
    method
        Secure aggregation, or gossip.
    epsilon
        Budget of the run; its delta is `DELTA`.
    features
        The columns alone, or the features and the first stage of the default rule.
    """

    task: str
    method: Method
    epsilon: float
    features: Features


class Learned(NamedTuple):
    """A private run on one split.

    Attributes
    ----------
    accuracy
        Mean test accuracy of the released models, a share.
    features
        Features that the rule chose, in words.
    """

    accuracy: float
    features: str


def tables(
    folder: Path, *, seeds: int = 5, records: int | None = None, progress: Progress = print
) -> list[Path]:
    """Learn each task with and without features and a first stage, on `seeds` splits.

    `records` limits the records of Covertype, for training and test together; None uses all.
    """

    def measured(cell: Row) -> Row:
        return _measured(Setting(**cell), seeds, records)

    experiment = Experiment(folder, "tables", progress)
    experiment.measure(map(asdict, _settings()), measured, _in_words)
    return experiment.write(as_text, _figure)


def _settings() -> Iterator[Setting]:
    methods: tuple[Method, ...] = ("secure", "gossip")
    for task in ("digits-by-class", "digits-alike", "breast-cancer", FOREST):
        for method in methods:
            epsilons = EPSILONS[:1] if task == FOREST else EPSILONS
            for epsilon in epsilons:
                for features in (WITHOUT, RULE):
                    yield Setting(task=task, method=method, epsilon=epsilon, features=features)


def _measured(setting: Setting, seeds: int, records: int | None) -> Row:
    """Return mean accuracy in percent with its interval, and the features (column ``made``)."""
    if setting.task == FOREST:
        runs = [_learn_forest(setting, seed, records) for seed in range(seeds)]
        held_out = FOREST_HELD_OUT
    else:
        runs = [learn_task(setting, seed) for seed in range(seeds)]
        held_out = TASKS[setting.task].held_out
    percent = [100 * run.accuracy for run in runs]
    return {"made": runs[0].features} | repeated(percent, held_out=held_out)


def learn_task(setting: Setting, seed: int) -> Learned:
    """Learn a split of a benchmark's task."""
    problem = TASKS[setting.task].problem(Key.seeded(seed))
    return _learn(setting, seed, problem, problem.accuracy)


def _learn_forest(setting: Setting, seed: int, records: int | None) -> Learned:
    """Learn a split of Covertype, whose sites are wilderness areas, by the estimator."""
    split_generator = generator(Key.seeded(seed), Purpose.SPLIT)
    forest = _forest()
    sample = forest.take(split_generator.permutation(forest.records)[:records])
    train, test = train_test_split(sample, FOREST_HELD_OUT, split_generator)
    classifier = PrivateClassifier(
        setting.epsilon, ranges=COVERTYPE_RANGES, algorithm=setting.method, random_state=seed
    )
    columns = np.asarray(train.features)
    areas = wilderness_areas(columns)
    if setting.features == RULE:
        classifier.fit(columns, train.labels, groups=areas)
        name = getattr(classifier.model_.columns, "features", COLUMNS).name
        return Learned(float(classifier.score(test.features, test.labels)), f"{name}, first stage")
    classifier.set_params(features="columns")
    encoded = classifier._encoded_problem(columns, train.labels, areas)
    outline = Outline(columns=encoded.columns, classes=classifier.classes_)

    def accuracy(released: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
        """Return True for each test record on which the mean model is right."""
        model = outline.model(released.mean(axis=0))
        return np.asarray(model.predict(test.features) == test.labels)

    assert isinstance(encoded.problem, LinearProblem)
    return _learn(setting, seed, encoded.problem, accuracy)


def _learn(setting: Setting, seed: int, problem: LinearProblem, accuracy: Accuracy) -> Learned:
    """Learn a problem with default settings."""
    sizes = Sizes.of(problem)
    if setting.features == WITHOUT:
        sizes = replace(sizes, features=0)  # for which the rule has no first stage
    choice = choose(sizes, epsilon=setting.epsilon, delta=DELTA, algorithm=setting.method)
    run = simulate(
        choice.algorithm,
        problem,
        choice.topology,
        rounds=choice.rounds,
        key=Key.seeded(seed),
        delta=DELTA,
        metrics=Metrics([], progress=False),
    )
    features = "columns"
    if isinstance(choice.algorithm, FirstStage):
        features = "columns, first stage"
    return Learned(float(np.mean(accuracy(run.released))), features)


@cache
def _forest() -> Dataset:
    """Return Covertype with its seven classes."""
    return covertype(7)


def _in_words(row: Row) -> str:
    setting = f"{row['task']}, {row['method']}, epsilon {row['epsilon']:g}, {row['features']}"
    return f"{setting} ({row['made']}): {with_spread(row['accuracy'], row['interval'], 1)}"


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
        texts = [with_spread(row["accuracy"], row["interval"], 1) for row in pair]
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
