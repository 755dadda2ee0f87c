"""What a person reads of a guarantee never promises more than holds."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpmesh as dm
from dpmesh._epsilons import ROUNDING, as_given, rounded_down, rounded_up
from dpmesh.audit import AuditResult, EpsilonClaim
from dpmesh.privacy.report import Spread

NUMBERS = st.floats(1e-300, 1e300)
DIGITS = st.integers(1, 8)


@given(value=NUMBERS, digits=DIGITS)
def test_a_shown_number_lies_on_the_safe_side_and_close(value: float, digits: int) -> None:
    error, step = ROUNDING * value, 10.0 ** (1 - digits) * value
    up, down = float(rounded_up(value, digits)), float(rounded_down(value, digits))
    assert value - 2 * error <= up <= value + step
    assert value - step <= down <= value + 2 * error
    assert len(rounded_up(value, digits).partition("e")[0].replace(".", "").strip("0")) <= digits


@given(mantissa=st.integers(1, 999_999), exponent=st.integers(-20, 20))
def test_a_number_of_few_digits_is_shown_as_it_is(mantissa: int, exponent: int) -> None:
    value = float(f"{mantissa}e{exponent}")
    for near in (value, value * (1 + 1e-13), value * (1 - 1e-13)):
        assert rounded_up(near) == rounded_down(near) == f"{value:g}"


def test_examples() -> None:
    assert rounded_up(1.0000001) == "1.00001"
    assert rounded_down(1.9999999) == "1.99999"
    assert rounded_up(14.871, 3) == "14.9"
    assert rounded_up(2.7777777777777775e-10) == "2.77778e-10"
    assert rounded_up(1234567.0) == "1.23457e+06"
    assert rounded_up(0.0) == rounded_down(0.0) == "0"
    assert rounded_up(inf) == rounded_down(inf) == "inf"
    assert as_given(1.23456789) == "1.23456789"


def test_reports_round_up() -> None:
    report = dm.privacy.report(dm.OnlineLearning(epsilon=1.0000004).plan(3))
    assert "privacy     epsilon = 1.00001, delta = 0" in str(report)
    assert report.as_dict()["epsilon"] == report.epsilon < 1.000001
    uneven = replace(report, by_node=Spread(0.1234561, 0.1234564, 1.0000001))
    assert "by node     epsilon = 0.123457 to 1.00001, median 0.123457" in str(uneven)


def test_costs_and_their_accountants_round_up() -> None:
    cost = dm.GradientDescent(records=100, noise_multiplier=6.0).plan(2).cost(1e-5)
    assert cost.accountant.endswith("mu = 0.333334")
    assert str(cost) == f"epsilon = {rounded_up(cost.epsilon)} ({cost.accountant})"


def test_a_budget_is_shown_as_given_and_what_exceeds_it_above_it() -> None:
    budget = dm.privacy.Budget(1.0000004)
    assert str(budget) == "epsilon = 1.0000004 at delta = 0"
    with pytest.raises(ValueError, match=r"got 2, which cost epsilon = 1\.00001 \(pure"):
        budget.require(dm.OnlineLearning(epsilon=1.0000005), rounds=2)


def test_an_audit_rounds_what_it_measured_down() -> None:
    text = str(
        AuditResult(
            claim=EpsilonClaim(1.0000001),
            lower_bound=0.9999999,
            confidence=0.9999999,
            method="runs",
            most=2.0,
        )
    )
    assert "claim     epsilon = 1.00001 at" in text
    assert "measured  at least epsilon = 0.999999 at delta = 0, with confidence 0.999999" in text
