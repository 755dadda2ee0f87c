"""Measure the gain of joining a federation on three populations of test records.

    python -m dpmesh_papers.studies.populations [SPLITS]

A private federated model is compared with non-private models of single sites, on seven tasks at one
epsilon. The populations are those of `dpmesh.sklearn.evaluate`: the records of all sites, each
site's own records, and the records of the rarest class. A row on the worst-served site follows the
second. All rows of a task share their splits into training and test records. Forest cover and MNIST
need DPMESH_DATA. Results go to
``docs/results/populations.csv``, and as text to ``populations.txt``, the table of docs/verdicts.md.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine

import dpmesh as dm
from dpmesh.run.measures import shown, shown_difference
from dpmesh.run.verdict import PopulationRow
from dpmesh_papers._scaffold import Row, kinds, pick
from dpmesh_papers.public_tables import (
    dense,
    evenly_spread,
    extremes,
    two_classes_per_site,
    varying_columns,
    wilderness_areas,
)
from dpmesh_papers.studies.results import write_rows

EPSILON = 2.0

SPLITS = 5

MNIST_SAMPLE = 2_000
"""Number of records of MNIST that are used."""
FOREST_SAMPLE = 2_000
"""Number of records of forest cover that are used."""

DIABETES_RANGE = (25, 346)
"""Public range of the target of the diabetes data."""


class Task(NamedTuple):
    """A table with the site of each record.

    Attributes
    ----------
    name
        Name of the data, and how its records are partitioned among sites ("alike": at random).
    x, y, site
        Columns, shape (records, columns); labels or targets, and sites, shape (records,).
    ranges
        Public ranges of the columns.
    target
        Public range of a regression's target; None for classes.
    """

    name: str
    x: Any
    y: Any
    site: Any
    ranges: Any
    target: tuple[float, float] | None = None


def tasks() -> Iterator[Task]:
    """Yield the seven tasks."""
    x, y = load_digits(return_X_y=True)
    yield Task("digits, two of ten a site", x, y, two_classes_per_site(y), (0, 16))
    yield Task("digits, even or odd, sites alike", x, y % 2, evenly_spread(len(y), 16), (0, 16))
    x, y = load_breast_cancer(return_X_y=True)
    yield Task("breast cancer, sites alike", x, y, evenly_spread(len(y), 5), extremes(x))
    x, y = load_wine(return_X_y=True)
    yield Task("wine, sites alike", x, y, evenly_spread(len(y), 3), extremes(x))
    x, y = load_diabetes(return_X_y=True)
    yield Task("diabetes, sites alike", x, y, evenly_spread(len(y), 5), extremes(x), DIABETES_RANGE)
    generator = np.random.default_rng(0)
    forest = dm.data.covertype(2).take(generator.permutation(581_012)[:FOREST_SAMPLE])
    areas = wilderness_areas(dense(forest))
    x = varying_columns(forest)
    yield Task("forest cover, a site is an area", x, forest.labels, areas, extremes(x))
    images = dm.data.mnist("train").take(generator.permutation(60_000)[:MNIST_SAMPLE])
    x, y = np.asarray(images.features, np.float64), np.asarray(images.labels)
    yield Task("MNIST, two of ten digits a site", x, y, two_classes_per_site(y), (0, 1))


def evaluate(task: Task, splits: int) -> list[Row]:
    """Fit and evaluate a task on all splits; return a row for each population."""
    model: Any
    if task.target is None:
        model = dm.sklearn.PrivateClassifier(EPSILON, ranges=task.ranges, random_state=0)
    else:
        model = dm.sklearn.PrivateRegressor(
            EPSILON, ranges=task.ranges, target_range=task.target, random_state=0
        )
    evaluation = dm.sklearn.evaluate(model, task.x, task.y, groups=task.site, splits=splits)
    privacy = evaluation.estimator.report_.privacy
    common = {
        "task": task.name,
        "sites": len(np.unique(task.site)),
        "records": len(task.y),
        "epsilon": EPSILON,
        "unit": privacy.unit,
        "adversary": privacy.adversary_in_brief,
        "splits": splits,
    }
    return [common | _numbers(row) for row in evaluation.verdict.rows_by_population]


def _numbers(row: PopulationRow) -> Row:
    """Return the scores and the verdict of one population."""
    assert row.gain is not None
    return {
        "population": row.name,
        "measure": row.measure,
        "federation": round(row.federation, 4),
        "single_site": round(row.single_site, 4),
        "low": round(row.gain.low, 4),
        "high": round(row.gain.high, 4),
        "joining": row.word or "-",
    }


def as_text(rows: list[Row]) -> str:
    """Return a table of all tasks and populations."""
    first = rows[0]
    lines = [
        f"Epsilon {first['epsilon']:g} of one {first['unit']} (replace-one, delta 1e-5) beside "
        "single sites without privacy:",
        f"means of {first['splits']} splits, and the 95% interval of the difference.",
    ]
    width = max(len(row["population"]) for row in rows)
    for task in kinds(rows, "task"):
        rows_of_task = pick(rows, task=task)
        setting = rows_of_task[0]
        sites = f"{setting['sites']} sites, {setting['records']} records; {setting['adversary']}"
        lines += ["", f"{task} ({sites})"]
        lines += [_line(row, width) for row in rows_of_task]
    return "\n".join(lines)


def _line(row: Row, width: int) -> str:
    """Return the line of a population, whose name has this width."""
    measure = row["measure"]
    if measure == "recall":
        measure = "accuracy"  # both are shown in percent
    federation = shown(measure, float(row["federation"]))
    single_site = shown(measure, float(row["single_site"]))
    interval = shown_difference(measure, float(row["low"]), float(row["high"]))
    return (
        f"  {row['population']:<{width}}  {row['measure']:<8}  "
        f"{federation:>6}  {single_site:>6}  {interval:<22}  {row['joining']}".rstrip()
    )


def main(splits: int = SPLITS) -> None:
    """Evaluate, print and write all tasks."""
    rows: list[Row] = []
    for task in tasks():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows += evaluate(task, splits)
        print(rows[-1], flush=True)
    write_rows("populations", rows, as_text(rows) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
