"""Gains of joining in three populations of test records: the table of docs/verdicts.md.

    python -m dpmesh_papers.studies.populations [splits]

Forest cover and MNIST need DPMESH_DATA.

Seven tasks at one epsilon, on splits that all rows of a task share. Results go to
``docs/results/populations.csv``, and as text beside it.
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
from dpmesh_papers._scaffold import Row
from dpmesh_papers.studies.estimators_table import evenly_spread, two_classes_per_site
from dpmesh_papers.studies.results import write_rows

EPSILON = 2.0

SPLITS = 5

IMAGES = 2_000
"""Number of records of MNIST."""
PLOTS = 2_000
"""Number of records of forest cover."""

DISEASE = (25, 346)
"""Published range of the target of the diabetes data."""


class Task(NamedTuple):
    """A table with the site of each record.

    Attributes
    ----------
    name
        With the way in which its records lie at sites.
    x, y, site
        Columns, labels or targets, and sites.
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


def extremes(x: Any) -> list[tuple[float, float]]:
    """Return the published ranges of columns."""
    return list(zip(x.min(axis=0).tolist(), x.max(axis=0).tolist(), strict=True))


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
    yield Task("diabetes, sites alike", x, y, evenly_spread(len(y), 5), extremes(x), DISEASE)
    draw = np.random.default_rng(0)
    cover = dm.data.covertype(2).take(draw.permutation(581_012)[:PLOTS])
    columns = cover.features
    if not isinstance(columns, np.ndarray):
        columns = columns.toarray()
    area = columns[:, 10:14].argmax(axis=1)
    varied = columns[:, columns.min(axis=0) < columns.max(axis=0)]
    yield Task("forest cover, a site is an area", varied, cover.labels, area, extremes(varied))
    images = dm.data.mnist("train").take(draw.permutation(60_000)[:IMAGES])
    x, y = np.asarray(images.features, np.float64), np.asarray(images.labels)
    yield Task("MNIST, two of ten digits a site", x, y, two_classes_per_site(y), (0, 1))


def evaluated(task: Task, splits: int) -> list[Row]:
    """Return a row for each population of a task."""
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
    width = max(len(str(row["population"])) for row in rows)
    name = None
    for row in rows:
        if row["task"] != name:
            name = row["task"]
            sites = f"{row['sites']} sites, {row['records']} records; {row['adversary']}"
            lines += ["", f"{name} ({sites})"]
        measure = "accuracy" if row["measure"] == "recall" else str(row["measure"])
        federation, single = (
            shown(measure, float(row[side])) for side in ("federation", "single_site")
        )
        interval = shown_difference(measure, float(row["low"]), float(row["high"]))
        lines.append(
            f"  {row['population']:<{width}}  {row['measure']:<8}  {federation:>6}  {single:>6}  "
            f"{interval:<22}  {row['joining']}".rstrip()
        )
    return "\n".join(lines)


def main(splits: int = SPLITS) -> None:
    """Evaluate, print and write all tasks."""
    rows: list[Row] = []
    for task in tasks():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows += evaluated(task, splits)
        print(rows[-1], flush=True)
    write_rows("populations", rows, as_text(rows) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
