"""Accuracy on tables at epsilon 1 by the default rule, and seconds of a fit.

    python -m dpmesh_papers.studies.goals [fits]    # set DPMESH_DATA

Digits and breast cancer are learned on 20 splits. Covertype and MNIST take long: accuracies are
those of ``dpmesh reproduce tables`` and of the study of scattering, whose results it reads. No
constant was chosen on the test records. It times fits to 40,000 records of Covertype by the
estimator, with what the rule makes of columns and with the columns alone. All of it goes to
``docs/results/goals.csv``, and as text beside it.
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
NAMES = {"secure": "secure sum", "gossip": "gossip"}


def main(fits: int = 5) -> None:
    """Print and write all rows."""
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
    """Return the accuracies at epsilon 1."""
    rows = []
    for task, method in TASKS:
        cell = {"task": task, "method": method, "epsilon": 1.0, "features": RULE}
        scores = [100 * of_benchmark(cell, seed)[0] for seed in range(SPLITS)]
        held_out = BENCHMARK[task].held_out
        rows.append(repeated(f"{task}, {NAMES[method]}", scores, "%", held_out=held_out))
    cell = {"task": FOREST, "method": "secure", "epsilon": 1.0, "features": RULE}
    forest = only(read_rows("tables"), **cell)
    forest_row = {"what": f"{FOREST}, {NAMES['secure']}", "unit": "%", "mean": forest["accuracy"]}
    rows.append(forest_row | {"interval": forest["interval"], "repeats": forest["seeds"]})
    images = [float(row["accuracy"]) for row in read_rows("scattering")]
    return [*rows, repeated(f"MNIST, scattering, {NAMES['secure']}", images, "%")]


def repeated(what: str, values: list[float], unit: str, held_out: float = 0.0) -> dict[str, Any]:
    """Return the mean of numbers, and half of its 95% interval."""
    half = interval(values, held_out=held_out)
    numbers = {"mean": float(np.mean(values)), "interval": half}
    return {"what": what, "unit": unit, **numbers, "repeats": len(values)}


def seconds(fits: int) -> list[dict[str, Any]]:
    """Return processor seconds of fits; the first one, which imports, does not count."""
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
        rows.append(repeated(what, times[1:], "processor seconds"))
    return rows


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
