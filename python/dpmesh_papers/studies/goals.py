"""Collect accuracies at epsilon 1 with default settings, and time fits.

    python -m dpmesh_papers.studies.goals [FITS]

Digits and breast cancer are learned here, on 20 splits. Covertype and MNIST take long: their
accuracies are read from the results of ``dpmesh reproduce tables`` and of
`dpmesh_papers.studies.scattering`. No constant was chosen on the test records. Fits to 40,000
records of Covertype are timed with the estimator's default features, and with columns alone. All
rows go to ``docs/results/goals.csv``, and as text to ``goals.txt``. Set DPMESH_DATA.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import dpmesh as dm
from dpmesh.defaults import Method
from dpmesh_papers._scaffold import Row, interval, only, with_spread
from dpmesh_papers.benchmark.tasks import TASKS as BENCHMARK
from dpmesh_papers.public_tables import COVERTYPE_RANGES, wilderness_areas
from dpmesh_papers.studies.results import read_rows, write_rows
from dpmesh_papers.tables import FOREST, RULE, Setting, learn_task

EPSILON = 1.0
RECORDS = 40_000
"""Records of a fit whose time is taken."""
SPLITS = 20
TASKS: tuple[tuple[str, Method], ...] = (
    ("digits-by-class", "secure"),
    ("digits-by-class", "gossip"),
    ("breast-cancer", "secure"),
)
"""Tasks of the benchmark, with the estimator's `algorithm`."""

NAMES = {"secure": "secure sum", "gossip": "gossip"}
"""Names of algorithms in the table."""


def main(fits: int = 5) -> None:
    """Measure, write and print all rows."""
    rows = [*accuracies(), *seconds(fits)]
    write_rows("goals", rows, as_text(rows))
    print(as_text(rows))


def as_text(rows: list[Row]) -> str:
    """Return all rows as a table."""
    lines = [
        "At epsilon 1 (delta 1e-5, replace one record; a secure sum: 1 site may collude), with",
        "half of the 95% interval over splits, which counts that they overlap (MNIST: over",
        "divisions into sites), or over fits.",
        "",
    ]
    for row in rows:
        number = with_spread(row["mean"], row["interval"], 1)
        lines.append(f"{row['what']:<46}{number:>14} {row['unit']:<18}{row['repeats']:>3}")
    return "\n".join(lines) + "\n"


def accuracies() -> list[Row]:
    """Return a row for each accuracy at epsilon 1, in percent."""
    rows = []
    for task, method in TASKS:
        setting = Setting(task=task, method=method, epsilon=EPSILON, features=RULE)
        percent = [100 * learn_task(setting, seed).accuracy for seed in range(SPLITS)]
        held_out = BENCHMARK[task].held_out
        rows.append(summarize(f"{task}, {NAMES[method]}", percent, "%", held_out=held_out))
    forest = only(read_rows("tables"), task=FOREST, method="secure", epsilon=EPSILON, features=RULE)
    rows.append(
        {
            "what": f"{FOREST}, {NAMES['secure']}",
            "unit": "%",
            "mean": forest["accuracy"],
            "interval": forest["interval"],
            "repeats": forest["seeds"],
        }
    )
    images = [float(row["accuracy"]) for row in read_rows("scattering")]
    return [*rows, summarize(f"MNIST, scattering, {NAMES['secure']}", images, "%")]


def summarize(name: str, values: list[float], unit: str, held_out: float = 0.0) -> Row:
    """Return a row: mean, half width of its 95% interval, and number of values.

    Parameters
    ----------
    name
        The measured quantity, in words.
    values
        A number for each split or fit.
    unit
        Unit of the values.
    held_out
        Share of the records that a split holds out, as in `dpmesh_papers._scaffold.interval`.
    """
    return {
        "what": name,
        "unit": unit,
        "mean": float(np.mean(values)),
        "interval": interval(values, held_out=held_out),
        "repeats": len(values),
    }


def seconds(fits: int) -> list[Row]:
    """Return rows of the processor seconds of a fit; a first fit, which imports, is not counted."""
    forest = dm.data.covertype(7)
    forest = forest.take(np.random.default_rng(0).permutation(forest.records)[:RECORDS])
    columns = np.asarray(forest.features)
    areas = wilderness_areas(columns)
    rows = []
    for features in (None, "columns"):
        classifier = dm.sklearn.PrivateClassifier(
            EPSILON, ranges=COVERTYPE_RANGES, features=features, random_state=0
        )
        times = []
        for _ in range(fits + 1):
            start = time.process_time()
            classifier.fit(columns, forest.labels, groups=areas)
            times.append(time.process_time() - start)
        size = f"{RECORDS:,} x {columns.shape[1]}"
        name = f"fit of {size}, {features or 'features by the rule'}"
        rows.append(summarize(name, times[1:], "processor seconds"))
    return rows


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
