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
from typing import Any

import numpy as np

import dpmesh as dm
from dpmesh_papers._scaffold import interval, only
from dpmesh_papers.benchmark.tasks import FOREST_RANGES
from dpmesh_papers.benchmark.tasks import TASKS as BENCHMARK
from dpmesh_papers.studies.results import read_rows, write_rows
from dpmesh_papers.tables import FOREST, RULE, of_benchmark

RECORDS = 40_000
SPLITS = 20
TASKS = (("digits-by-class", "secure"), ("digits-by-class", "gossip"), ("breast-cancer", "secure"))
"""Tasks of the benchmark, with the estimator's `algorithm`."""

NAMES = {"secure": "secure sum", "gossip": "gossip"}
"""Names of algorithms in the table."""


def main(fits: int = 5) -> None:
    """Measure, write and print all rows."""
    rows = [*accuracies(), *seconds(fits)]
    write_rows("goals", rows, as_text(rows))
    print(as_text(rows))


def as_text(rows: list[dict[str, Any]]) -> str:
    """Return all rows as a table."""
    lines = [
        "At epsilon 1 (delta 1e-5, replace one record; a secure sum: 1 site may collude), with",
        "half of the 95% interval over splits, which counts that they overlap (MNIST: over",
        "divisions into sites), or over fits.",
        "",
    ]
    for row in rows:
        number = f"{float(row['mean']):.1f} +- {float(row['interval']):.1f}"
        lines.append(f"{row['what']:<46}{number:>14} {row['unit']:<18}{row['repeats']:>3}")
    return "\n".join(lines) + "\n"


def accuracies() -> list[dict[str, Any]]:
    """Return a row for each accuracy at epsilon 1, in percent."""
    rows = []
    for task, method in TASKS:
        cell = {"task": task, "method": method, "epsilon": 1.0, "features": RULE}
        scores = [100 * of_benchmark(cell, seed)[0] for seed in range(SPLITS)]
        held_out = BENCHMARK[task].held_out
        rows.append(summarize(f"{task}, {NAMES[method]}", scores, "%", held_out=held_out))
    cell = {"task": FOREST, "method": "secure", "epsilon": 1.0, "features": RULE}
    forest = only(read_rows("tables"), **cell)
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


def summarize(what: str, values: list[float], unit: str, held_out: float = 0.0) -> dict[str, Any]:
    """Return a row: mean, half width of its 95% interval, and number of values.

    `held_out` is the share of records that a split holds out, see `dpmesh_papers._scaffold`.
    """
    return {
        "what": what,
        "unit": unit,
        "mean": float(np.mean(values)),
        "interval": interval(values, held_out=held_out),
        "repeats": len(values),
    }


def seconds(fits: int) -> list[dict[str, Any]]:
    """Return rows of the processor seconds of a fit; a first fit, which imports, is not counted."""
    data = dm.data.covertype(7)
    data = data.take(np.random.default_rng(0).permutation(data.records)[:RECORDS])
    x = np.asarray(data.features)
    area = x[:, 10:14].argmax(axis=1)
    rows = []
    for features in (None, "columns"):
        classifier = dm.sklearn.PrivateClassifier(
            1.0, ranges=FOREST_RANGES, features=features, random_state=0
        )
        times = []
        for _ in range(fits + 1):
            start = time.process_time()
            classifier.fit(x, data.labels, groups=area)
            times.append(time.process_time() - start)
        what = f"fit of {RECORDS:,} x {x.shape[1]}, {features or 'features by the rule'}"
        rows.append(summarize(what, times[1:], "processor seconds"))
    return rows


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
