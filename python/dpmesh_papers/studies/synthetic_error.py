"""Measure the error of private synthetic rows on Covertype.

    python -m dpmesh_papers.studies.synthetic_error

50,000 records of 13 columns (ten numbers, area, soil and cover type) lie at four sites. `Pairs`
releases noisy two-way tables of all pairs of columns; synthetic rows are drawn from these. The
error is the total variation distance between a two-way table of the drawn rows and the same table
of all records: mean and maximum over the 78 pairs of columns, for each epsilon and number of bins.

For comparison: the error of a raw noisy table, the error of independent columns, and the bound and
the estimate that the answer reports from released numbers alone. Results go to
``docs/results/synthetic-error.*``, the table of ``docs/statistics_accuracy.md``. Set DPMESH_DATA.
"""

from __future__ import annotations

from itertools import combinations
from math import pi, sqrt
from typing import Any

import numpy as np

import dpmesh as dm
from dpmesh.statistics import Pairs, ask
from dpmesh.statistics.ask import questions_about, read_columns
from dpmesh.statistics.pairs import pairs_in
from dpmesh.tables import as_table
from dpmesh_papers._scaffold import Row
from dpmesh_papers.public_tables import (
    COVERTYPE_AREAS,
    COVERTYPE_NUMBERS,
    COVERTYPE_SOILS,
    wilderness_areas,
)
from dpmesh_papers.studies.results import markdown_table, write_rows

COVERS = 7
SITES = 4
RECORDS = 50_000
CASES: tuple[tuple[float, int | None], ...] = ((0.3, None), (1.0, 4), (1.0, 8), (4.0, None))
"""Epsilon, and number of bins of a column of numbers; None lets `Pairs` choose from the noise."""


def records() -> dict[str, np.ndarray]:
    """Return the columns of the first records of Covertype, by name."""
    cover = dm.data.covertype(7)
    features = np.asarray(cover.features)[:RECORDS]
    columns = {f"n{number}": features[:, number] for number in range(len(COVERTYPE_NUMBERS))}
    first_soil = len(COVERTYPE_NUMBERS) + COVERTYPE_AREAS
    columns["area"] = wilderness_areas(features)
    columns["soil"] = features[:, first_soil:].argmax(axis=1)  # flags, one of which is set
    columns["cover"] = cover.labels[:RECORDS]
    return columns


def ranges() -> dict[str, Any]:
    """Return the public ranges of all columns, as `dpmesh.statistics.ask` accepts them."""
    ends_of_columns: dict[str, Any] = {
        f"n{number}": list(ends) for number, ends in enumerate(COVERTYPE_NUMBERS)
    }
    ends_of_columns["area"] = list(range(COVERTYPE_AREAS))
    ends_of_columns["soil"] = list(range(COVERTYPE_SOILS))
    ends_of_columns["cover"] = list(range(COVERS))
    return ends_of_columns


def two_way_shares(first: np.ndarray, second: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return the share of records in each cell of the two-way table of two binned columns."""
    cells = first * shape[1] + second
    counts = np.bincount(cells, minlength=shape[0] * shape[1])
    return counts.reshape(shape) / len(cells)


def total_variation(first: np.ndarray, second: np.ndarray) -> float:
    """Return the total variation distance of two tables of shares."""
    return float(np.abs(first - second).sum() / 2)


def measure(table: dict[str, np.ndarray], epsilon: float, bins: int | None) -> Row:
    """Release all two-way tables once, draw as many rows as records, and return the errors."""
    count = len(table["cover"])
    site = np.arange(count) % SITES
    answer = ask(Pairs(*table, bins=bins), table, site, ranges=ranges(), epsilon=epsilon)
    released = pairs_in(answer.answers)
    synthetic = answer.synthesize(count)
    bin_count = len(released.columns[0].edges) - 1
    questions = questions_about([Pairs(*table, bins=bin_count)], ranges())
    columns, _ = read_columns(questions, as_table(table))
    bins_of_records = [columns[name].cell(bin_count) for name in table]
    mean_absolute_noise = released.noise * sqrt(2 / pi)  # of a Gaussian, in each cell's count
    errors, noise_errors, independence_errors = [], [], []
    for (a, size_a), (b, size_b) in combinations(enumerate(released.sizes), 2):
        shape = (size_a, size_b)
        true = two_way_shares(bins_of_records[a], bins_of_records[b], shape)
        drawn = two_way_shares(synthetic.places[:, a], synthetic.places[:, b], shape)
        errors.append(total_variation(true, drawn))
        noise_errors.append(true.size * mean_absolute_noise / 2 / count)
        independent = np.outer(true.sum(axis=1), true.sum(axis=0))
        independence_errors.append(total_variation(true, independent))
    bounds = np.array([error.bound for error in synthetic.errors])
    return {
        "epsilon": epsilon,
        "bins": bin_count,
        "error": round(float(np.mean(errors)), 5),
        "worst": round(float(np.max(errors)), 5),
        "noise": round(float(np.mean(noise_errors)), 5),
        "independence": round(float(np.mean(independence_errors)), 5),
        "bound": round(float(bounds.mean()), 5),
        "estimate": round(float(np.mean([error.estimate for error in synthetic.errors])), 5),
        "bound_held": round(float((bounds >= errors).mean()), 5),
    }


def page(rows: list[Row]) -> str:
    """Return the table of docs/statistics_accuracy.md."""
    heads = ["epsilon, bins", "drawn rows", "worst table", "noise of a raw table"]
    heads += ["independence", "estimate", "usual bound", "bound held"]
    names = ("error", "worst", "noise", "independence", "estimate", "bound")
    lines = [
        [
            f"{row['epsilon']:g}, {row['bins']}",
            *(f"{100 * row[name]:.1f}%" for name in names),
            f"{100 * row['bound_held']:.0f}%",
        ]
        for row in rows
    ]
    return markdown_table(heads, lines)


def main() -> None:
    """Measure, print and write each case."""
    table = records()
    rows: list[Row] = []
    for epsilon, bins in CASES:
        rows.append(measure(table, epsilon, bins))
        print(*rows[-1].values(), sep="\t", flush=True)
    write_rows("synthetic-error", rows, page(rows))


if __name__ == "__main__":
    main()
