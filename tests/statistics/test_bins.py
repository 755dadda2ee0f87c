"""Every value on an edge is in the bin that its name says, whatever floats make of the edge."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpmesh as dm
from dpmesh.statistics import Answer, Histogram, Quantiles, Question, Survival, ask
from dpmesh.statistics.bins import bins_closed_above, bins_of, edges_of, names_of_bins
from dpmesh.statistics.bounds import LEAST, OCTAVES, Bounds
from dpmesh.statistics.geometry import Column
from dpmesh.tables import as_table

SURE = 1e5
"""An epsilon whose noise is a few records at most."""

TIMES = 60


def answered(question: Question, table: dict[str, Any], ranges: dict[str, Any]) -> Answer:
    found = ask(question, table, ranges=ranges, epsilon=SURE, key=dm.Key.seeded(0))
    return found.answers[0]


def counted(question: Question, table: dict[str, Any], ranges: dict[str, Any]) -> list[int]:
    """Count values that each occur so often that the noise is far below one of them."""
    often = {name: np.repeat(values, TIMES) for name, values in table.items()}
    rows = answered(question, often, ranges).rows
    assert max(row.noise for row in rows) < TIMES / 5
    return [round(row.estimate / TIMES) for row in rows]


@st.composite
def decimal_ranges(draw: st.DrawFn) -> tuple[Decimal, Decimal, int]:
    """Draw the low end and the width of bins as people write them, and the number of bins."""
    places = draw(st.integers(0, 4))
    low = Decimal(draw(st.integers(-(10**6), 10**6))).scaleb(-places)
    width = Decimal(draw(st.integers(1, 500))).scaleb(-places)
    return low, width, draw(st.integers(2, 60))


@given(decimal_ranges(), st.booleans())
def test_decimals_on_an_edge_are_cut_as_fractions_are(
    given_range: tuple[Decimal, Decimal, int], closed_above: bool
) -> None:
    low, width, bins = given_range
    kind = dm.tables.Number(low=float(low), high=float(low + bins * width))
    tenth = width / 10
    values = [low + place * tenth for place in range(10 * bins + 1)]
    numbers = np.array([float(str(value)) for value in values])
    exact = [Fraction(value - low) / Fraction(width) for value in values]
    if closed_above:
        found = bins_closed_above(numbers, kind, bins)
        oracle = [max(-(-place // 1) - 1, 0) for place in exact]
    else:
        found = bins_of(numbers, kind, bins)
        oracle = [min(place // 1, bins - 1) for place in exact]
    assert found.tolist() == oracle


@pytest.mark.parametrize(
    ("low", "high", "bins", "values"),
    [
        (0, 100, 10, np.arange(101)),
        (18, 110, 92, np.arange(18, 111)),
        (0, 1.5, 15, np.arange(16) / 10),
        (-0.7, 0.8, 15, np.arange(-7, 9) / 10),
        (0, 7, 49, np.arange(50) / 7),
        (1e6, 1e6 + 3, 30, 1e6 + np.arange(31) / 10),
    ],
)
def test_histograms_are_those_of_numpy_at_these_edges(
    low: float, high: float, bins: int, values: np.ndarray
) -> None:
    edges = values[:: (len(values) - 1) // bins].astype(float)
    table = {"x": values.astype(float)}
    oracle = np.histogram(table["x"], bins=edges)[0]
    assert counted(Histogram("x", bins=bins), table, {"x": [low, high]}) == oracle.tolist()


def test_dates_on_an_edge_begin_their_bin() -> None:
    days = [date(2020, 2, 25) + timedelta(days=nth) for nth in range(11)]
    ranges = {"seen": {"dates": ["2020-02-25", "2020-03-06"]}}
    table = {"seen": np.array(days, dtype="datetime64[D]")}
    assert counted(Histogram("seen"), table, ranges) == [1] * 9 + [2]
    hours = [datetime(2020, 2, 29) + timedelta(hours=nth) for nth in range(25)]
    ranges = {"seen": {"dates": ["2020-02-29", "2020-03-01"]}}
    table = {"seen": np.array(hours, dtype="datetime64[s]")}
    assert counted(Histogram("seen", bins=24), table, ranges) == [1] * 23 + [2]


@pytest.mark.parametrize("day", [0, 1, 5, 9])
def test_the_median_of_one_day_is_that_day(day: int) -> None:
    seen = date(2020, 2, 25) + timedelta(days=day)
    ranges = {"seen": {"dates": ["2020-02-25", "2020-03-06"]}}
    table = {"seen": np.array([seen] * 99, dtype="datetime64[D]")}
    answer = answered(Quantiles("seen", at=(0.5,), bins=10), table, ranges)
    shown = answer.table().rows[0]
    assert shown[1] == str(seen)
    low, _, high = shown[4].partition(" to ")
    assert low <= str(seen) <= high


@given(st.lists(st.integers(0, 40), min_size=30, max_size=200), st.sampled_from([8, 20, 40]))
@settings(max_examples=20, deadline=None)
def test_quantiles_of_whole_numbers_hold_those_of_numpy(values: list[int], bins: int) -> None:
    answer = answered(Quantiles("x", bins=bins), {"x": np.array(values, float)}, {"x": [0, 40]})
    for row, q in zip(answer.rows, (0.25, 0.5, 0.75), strict=True):
        assert row.low <= np.quantile(values, q, method="inverted_cdf") <= row.high


def test_names_say_which_end_belongs_to_a_bin() -> None:
    number = dm.tables.Number(low=0, high=100)
    assert names_of_bins(number, 4) == ["[0, 25)", "[25, 50)", "[50, 75)", "[75, 100]"]
    fine = dm.tables.Number(low=100_000, high=100_010)
    long = dm.tables.Number(low=0, high=18000)
    assert names_of_bins(long, 36)[20] == "[10000, 10500)"
    assert names_of_bins(fine, 10)[1] == "[100001, 100002)"
    days = dm.tables.Dates(dates=("2020-01-01", "2020-01-04"))
    assert names_of_bins(days, 2) == [
        "[2020-01-01, 2020-01-02 12:00)",
        "[2020-01-02 12:00, 2020-01-04]",
    ]


def test_ends_of_ranges_are_decimals_and_not_the_floats_nearest_to_them() -> None:
    kind = dm.tables.Number(low=0.1, high=1.6)
    assert edges_of(kind, 15).tolist() == [float(f"{nth / 10:.1f}") for nth in range(1, 17)]


def test_bounds_tell_a_power_of_two_from_the_number_before_it() -> None:
    power = np.array([2.0**exponent for exponent in range(LEAST, 20)])
    values = np.concatenate([power, np.nextafter(power, 0)])
    kind = dm.tables.Number(low=-(2.0 ** (LEAST + OCTAVES)), high=2.0 ** (LEAST + OCTAVES))
    column, _, _ = Column.read("x", kind, as_table({"x": values}))
    reached, before = np.split(Bounds("x").cell({"x": column}), 2)
    assert reached.tolist() == list(range(OCTAVES + 1, OCTAVES + 1 + len(power)))
    assert (before == reached - 1).all()


def curve_of(time: np.ndarray, died: np.ndarray, high: float, bins: int) -> np.ndarray:
    table = {"t": time, "e": died.astype(int)}
    ranges = {"t": [0, high], "e": {"flag": True}}
    rows = answered(Survival("t", "e", bins=bins), table, ranges).rows
    return np.array([row.estimate for row in rows])


@pytest.mark.parametrize(("high", "bins"), [(5, 5), (52, 52), (1.5, 15), (12, 4)])
def test_without_censoring_the_curve_is_kaplan_meier_at_each_edge(high: float, bins: int) -> None:
    lifelines = pytest.importorskip("lifelines")
    draw = np.random.default_rng(0)
    edges = edges_of(dm.tables.Number(low=0, high=high), bins)
    time = draw.choice(edges, 3000)  # on an edge, and as many at the end of the range
    died = np.ones(3000, bool)
    oracle = lifelines.KaplanMeierFitter().fit(time, died)
    wanted = oracle.survival_function_at_times(edges[1:]).to_numpy()
    np.testing.assert_allclose(curve_of(time, died, high, bins), wanted, atol=1e-3)


def test_whole_times_with_censoring_are_between_the_two_conventions() -> None:
    """Of those censored in a bin Kaplan-Meier has all or none at risk, by their order in it."""
    lifelines = pytest.importorskip("lifelines")
    draw = np.random.default_rng(1)
    time = draw.integers(1, 13, 4000).astype(float)
    died = draw.random(4000) < 0.5
    curves = []
    for shift in (0.0, 0.5):  # censored at the event times, or just before them
        moved = np.where(died, time, time - shift)
        oracle = lifelines.KaplanMeierFitter().fit(moved, died)
        curves.append(oracle.survival_function_at_times(np.arange(1.0, 13)).to_numpy())
    found = curve_of(time, died, 12, 12)
    assert (found <= curves[0] + 1e-3).all()
    assert (found >= curves[1] - 1e-3).all()


def test_all_who_die_at_the_end_of_the_range_have_died_by_it() -> None:
    time = np.full(300, 52.0)
    assert curve_of(time, np.ones(300, bool), 52, 4) == pytest.approx([1, 1, 1, 0], abs=0.02)
    assert curve_of(time, np.zeros(300, bool), 52, 4) == pytest.approx(1, abs=0.02)
    beyond = curve_of(time + 1, np.ones(300, bool), 52, 4)
    assert beyond == pytest.approx(1, abs=0.02)
