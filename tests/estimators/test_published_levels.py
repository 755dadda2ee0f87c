"""Committed results about regressions that add up and about the level of verdicts."""

from __future__ import annotations

import csv
from math import sqrt
from pathlib import Path

import pytest

from dpmesh_papers.studies.verdict_level import POPULATIONS, SETTINGS, measure

DOCS = Path(__file__).parents[2] / "docs"


def rows(name: str) -> list[dict[str, str]]:
    with (DOCS / "results" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("result", "page"), [("calibration", "estimator_recipes.md"), ("verdict-level", "verdicts.md")]
)
def test_the_page_shows_the_result(result: str, page: str) -> None:
    assert f'--8<-- "docs/results/{result}.txt"' in (DOCS / page).read_text()


def test_no_table_loses_by_the_calibration_that_is_on_by_default() -> None:
    found = rows("calibration")
    assert len(found) == 60
    for row in found:
        assert float(row["R2 by rule"]) > float(row["R2 off"]) - 0.01, row
    (visits,) = (
        row
        for row in found
        if (row["table"], row["learned"], row["method"], row["epsilon"])
        == ("doctor visits", "numbers", "secure", "1.0")
    )
    assert visits["rule"] == "True"
    assert abs(float(visits["total by rule"])) < 0.02
    assert float(visits["total off"]) < -0.3


def test_arms_that_do_not_differ_are_said_to_differ_at_most_at_the_level() -> None:
    found = rows("verdict-level")
    for row in found:
        runs = int(row["runs"])
        assert runs >= 1_000
        allowed = 0.05 + 2 * sqrt(0.05 * 0.95 / runs)
        if row["exchangeable"] == "True":
            for name in POPULATIONS:
                assert float(row[name]) <= allowed, row
        else:
            assert float(row["better"]) <= 0.025 + 2 * sqrt(0.025 * 0.975 / runs)


def test_a_few_evaluations_have_the_level() -> None:
    """More than 3 of 12 at 5% happen once in 450 times."""
    row = measure(SETTINGS[0], 12, seed=7)
    assert max(row[name] for name in POPULATIONS) <= 3 / 12
    assert row["better"] <= 3 / 12
