"""Pictures and pages of answers: what is drawn, and what two-way tables show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dpmesh as dm
from dpmesh.statistics import (
    Answer,
    Histogram,
    Mean,
    Regression,
    Row,
    Statistics,
    Survival,
    TwoWay,
    ask,
)

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

RANGES: dict[str, Any] = {
    "age": {"range": [0, 100], "missing": True},
    "sex": ["f", "m"],
    "arm": ["standard", "new"],
    "died": {"flag": True},
    "months": [0, 24],
}


@pytest.fixture(scope="module")
def found() -> Statistics:
    draw = np.random.default_rng(0)
    records = 3000
    age = np.where(draw.random(records) < 0.1, np.nan, draw.uniform(0, 100, records))
    table = {
        "age": age,
        "sex": draw.choice(["f", "m"], records),
        "arm": draw.choice(["standard", "new"], records),
        "died": draw.integers(0, 2, records),
        "months": draw.integers(1, 25, records),
    }
    asked = [
        Survival("months", "died", "arm", bins=8),
        Histogram("age", bins=5),
        Regression("died", "age", "arm"),
        TwoWay("sex", "arm"),
        TwoWay("sex", "arm", missing=True),
        Mean("months"),
    ]
    return ask(asked, table, ranges=RANGES, epsilon=20.0, key=dm.Key.seeded(0))


def test_curves_are_steps_with_bands(found: Statistics) -> None:
    from dpmesh.statistics.pictures import picture_of

    picture = picture_of(found.answers[0])
    assert picture is not None
    (axes,) = picture.figure.axes
    assert [line.get_label() for line in axes.lines] == ["standard", "new"]
    curve = found.answers[0].curves[0]
    assert list(axes.lines[0].get_xdata()) == list(curve.times)
    assert axes.lines[0].get_drawstyle() == "steps-post"
    assert len(axes.collections) == 2
    assert axes.get_xlabel() == "months"
    assert axes.get_legend().get_title().get_text() == "arm"


def test_histograms_are_bars_and_regressions_are_intervals(found: Statistics) -> None:
    from dpmesh.statistics.pictures import picture_of

    bars, forest = (picture_of(answer) for answer in found.answers[1:3])
    assert bars is not None
    assert forest is not None
    (axes,) = bars.figure.axes
    heights = [patch.get_height() for patch in axes.patches]
    assert heights == pytest.approx([row.estimate for row in found.answers[1].rows])
    labels = [text.get_text() for text in axes.get_xticklabels()]
    assert axes.get_xlabel() == "age"
    assert labels == ["[0, 20)", "[20, 40)", "[40, 60)", "[60, 80)", "[80, 100]", "missing"]
    (axes,) = forest.figure.axes
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["age, over its range", "arm, new against standard"]
    assert axes.get_xlabel() == "difference in log odds"
    (middles, _, _) = axes.containers[0]
    slope, contrast = (row.estimate for row in found.answers[2].rows[1:])
    assert list(middles.get_xdata()) == pytest.approx([100 * slope, contrast])
    assert picture_of(found.answers[5]) is None


def test_two_way_tables_are_tables_and_hide_what_is_missing(found: Statistics) -> None:
    without, whole = found.answers[3:5]
    assert list(without.table().heads) == ["sex by arm", "standard", "new"]
    assert [row[0] for row in without.table().rows] == ["f", "m"]
    assert list(whole.table().heads) == ["sex by arm", "standard", "new", "missing"]
    assert len(without.rows) == len(whole.rows) == 9
    first = without.rows[0]
    shown = f"{first.estimate:.0f} ({first.low:.0f} to {first.high:.0f})"
    assert without.table().rows[0][1] == shown


def test_the_page_has_pictures_and_says_what_they_show(found: Statistics) -> None:
    from dpmesh.cli._pages import answers_page

    page = answers_page(found)
    for text in (
        "Private Kaplan-Meier curves with 95% bands",
        "age, count in each bin with 95% intervals",
        "Coefficients of died ~ age + arm (logistic) with 95% intervals",
        "sex by arm",
        "Statistics of 3,000 records at 1 site<",
        "halves of 95% intervals",
        "<li>hazard ratios assume that hazards are proportional",
    ):
        assert text in page
    assert page.count("<figure>") == 3


def test_a_linear_regression_has_a_picture_in_units_of_its_target() -> None:
    from dpmesh.statistics.pictures import picture_of

    draw = np.random.default_rng(0)
    age = draw.uniform(0, 100, 3000)
    table = {"age": age, "months": np.clip(age / 10 + draw.normal(8, 2, 3000), 0, 24)}
    asked = Regression("months", "age")
    key = dm.Key.seeded(0)
    (answer,) = ask(asked, table, ranges=RANGES, epsilon=20.0, key=key).answers
    picture = picture_of(answer)
    assert picture is not None
    (axes,) = picture.figure.axes
    assert axes.get_xlabel() == "difference in months"
    (middles, _, _) = axes.containers[0]
    assert list(middles.get_xdata()) == pytest.approx([100 * answer.rows[1].estimate])


def test_a_median_that_is_not_reached_is_shown_without_decimals() -> None:
    low = 1140.0
    median = Row("median days", np.inf, np.inf, np.inf, low, np.inf)
    shown = Answer(title="survival", rows=(), medians=(median,)).tables()[0]
    assert list(shown.rows[0]) == ["median days", "not reached", "-", "-", "1140 to not reached"]
