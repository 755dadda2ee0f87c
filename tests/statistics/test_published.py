"""Tables of coverage in the documentation are those of committed runs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "result"),
    [
        ("statistics.md", "statistics-coverage"),
        ("statistics.md", "synthetic-error"),
        ("privacy/regression.md", "regression-coverage"),
    ],
)
def test_a_page_has_the_table_of_its_result(page: str, result: str) -> None:
    table = (DOCS / "results" / f"{result}.txt").read_text()
    assert table in (DOCS / page).read_text()


def test_no_column_of_a_regression_is_covered_less_often_than_is_claimed() -> None:
    with (DOCS / "results" / "regression-coverage.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 15
    for row in rows:
        assert float(row["worst"]) >= 0.935, row


def test_the_errors_of_synthetic_rows_are_within_their_goal() -> None:
    with (DOCS / "results" / "synthetic-error.csv").open() as file:
        rows = list(csv.DictReader(file))
    (row,) = (row for row in rows if (float(row["epsilon"]), row["bins"]) == (1.0, "8"))
    assert float(row["error"]) <= 0.025
    assert abs(float(row["estimate"]) / float(row["error"]) - 1) <= 1 / 3
    assert all(float(row["bound_held"]) == 1 for row in rows)
