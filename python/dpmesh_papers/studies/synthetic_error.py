"""Errors of synthetic rows on covtype: ``python -m dpmesh_papers.studies.synthetic_error``.

50,000 records of 13 columns (ten numbers, area, soil and cover) at four sites. For each budget and
number of bins: the mean total variation between the two-way tables of drawn rows and those of all
records, beside the noise's own, independence, and what is reported from released numbers alone.
Results go to ``docs/results/synthetic-error.*``; the table is that of ``docs/statistics.md``.
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
from dpmesh_papers.studies.results import markdown_table, write_rows

NUMBERS = (
    (1859, 3858),
    (0, 360),
    (0, 66),
    (0, 1397),
    (-173, 601),
    (0, 7117),
    (0, 254),
    (0, 254),
    (0, 254),
    (0, 7173),
)
"""Public ranges of the ten numbers."""

AREAS = 4
SOILS = 40
COVERS = 7
SITES = 4
MOST = 50_000
CASES: tuple[tuple[float, int | None], ...] = ((0.3, None), (1.0, 4), (1.0, 8), (4.0, None))
"""Epsilons, and bins; None for the rule's."""


def records() -> dict[str, np.ndarray]:
    """Return the columns of covtype."""
    cover = dm.data.covertype(7)
    features = np.asarray(cover.features)[:MOST]
    columns = {f"n{nth}": features[:, nth] for nth in range(len(NUMBERS))}
    columns["area"] = features[:, 10:14].argmax(axis=1)
    columns["soil"] = features[:, 14:54].argmax(axis=1)
    columns["cover"] = cover.labels[:MOST]
    return columns


def ranges() -> dict[str, Any]:
    """Return the public ranges."""
    ends_of_columns: dict[str, Any] = {f"n{nth}": list(ends) for nth, ends in enumerate(NUMBERS)}
    ends_of_columns["area"] = list(range(AREAS))
    ends_of_columns["soil"] = list(range(SOILS))
    ends_of_columns["cover"] = list(range(COVERS))
    return ends_of_columns


def measure(table: dict[str, np.ndarray], epsilon: float, bins: int | None) -> Row:
    """Return the line of one budget."""
    count = len(table["cover"])
    site = np.arange(count) % SITES
    answer = ask(Pairs(*table, bins=bins), table, site, ranges=ranges(), epsilon=epsilon)
    released = pairs_in(answer.answers)
    synthetic = answer.synthesize(count)
    bin_count = len(released.columns[0].edges) - 1
    question = Pairs(*table, bins=bin_count)
    about = questions_about([question], ranges())
    columns, _ = read_columns(about, as_table(table))
    places = [columns[name].cell(bin_count) for name in table]
    errors, noises, independents = [], [], []
    for (a, size_a), (b, size_b) in combinations(enumerate(released.sizes), 2):
        cells = places[a] * size_b + places[b]
        true = np.bincount(cells, minlength=size_a * size_b).reshape(size_a, size_b) / count
        drawn_cells = synthetic.places[:, a] * size_b + synthetic.places[:, b]
        shares = np.bincount(drawn_cells, minlength=size_a * size_b).reshape(true.shape) / count
        errors.append(np.abs(true - shares).sum() / 2)
        noises.append(true.size * released.noise * sqrt(2 / pi) / 2 / count)
        independent = np.outer(true.sum(axis=1), true.sum(axis=0))
        independents.append(np.abs(true - independent).sum() / 2)
    bounds = np.array([error.bound for error in synthetic.errors])
    return {
        "epsilon": epsilon,
        "bins": bin_count,
        "error": round(float(np.mean(errors)), 5),
        "worst": round(float(np.max(errors)), 5),
        "noise": round(float(np.mean(noises)), 5),
        "independence": round(float(np.mean(independents)), 5),
        "bound": round(float(bounds.mean()), 5),
        "estimate": round(float(np.mean([error.estimate for error in synthetic.errors])), 5),
        "bound_held": round(float((bounds >= errors).mean()), 5),
    }


def page(rows: list[Row]) -> str:
    """Return the table of docs/statistics.md."""
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
    """Print and write the lines."""
    table = records()
    rows = list[Row]()
    for epsilon, bins in CASES:
        rows.append(measure(table, epsilon, bins))
        print(*rows[-1].values(), sep="\t", flush=True)
    write_rows("synthetic-error", rows, page(rows))


if __name__ == "__main__":
    main()
