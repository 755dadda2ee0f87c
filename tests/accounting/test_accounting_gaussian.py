"""Gaussian and Laplace accounting against high precision, at the extremes, and on bad input."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle_checks import laplace_cost
from refused import refused

from dpmesh import accounting

MUS = st.floats(math.log(1e-6), math.log(100)).map(math.exp)
EPSILONS = st.floats(math.log(1e-6), math.log(50)).map(math.exp)
DELTAS = st.floats(math.log(1e-15), math.log(0.5)).map(math.exp)


def exact_delta(epsilon: float, mu: float) -> float:
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)

        def upper(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.erfc(x / mpmath.sqrt(2)) / 2

        return float(upper(e / m - m / 2) - mpmath.exp(e) * upper(e / m + m / 2))


@given(EPSILONS, MUS)
def test_delta_equals_high_precision(epsilon: float, mu: float) -> None:
    # Rounding epsilon / mu moves ln(delta) by its square in units of the last place.
    tolerance = 1e-13 + 4e-16 * (epsilon / mu + mu) ** 2
    assert accounting.gdp_delta(epsilon=epsilon, mu=mu) == pytest.approx(
        exact_delta(epsilon, mu), rel=tolerance, abs=1e-300
    )


@given(DELTAS, MUS)
def test_epsilon_inverts_delta(delta: float, mu: float) -> None:
    epsilon = accounting.gdp_epsilon(delta=delta, mu=mu)
    if epsilon == 0:
        assert math.erf(mu / math.sqrt(8)) <= delta * (1 + 1e-12)
    else:
        assert accounting.gdp_delta(epsilon=epsilon, mu=mu) == pytest.approx(delta, rel=1e-9)


@given(EPSILONS, DELTAS)
def test_calibrated_noise_never_overshoots(epsilon: float, delta: float) -> None:
    sigma = accounting.analytic_gaussian_noise_to_sensitivity(
        target_epsilon=epsilon, target_delta=delta
    )
    assert accounting.gdp_epsilon(delta=delta, mu=1 / sigma) <= epsilon
    assert accounting.gdp_epsilon(delta=delta, mu=1 / (sigma * (1 - 1e-6))) > epsilon


@given(DELTAS, MUS, st.floats(1e-6, 1))
def test_epsilon_is_monotone(delta: float, mu: float, step: float) -> None:
    epsilon = accounting.gdp_epsilon(delta=delta, mu=mu)
    assert accounting.gdp_epsilon(delta=delta, mu=mu * (1 + step)) >= epsilon * (1 - 1e-12)
    assert accounting.gdp_epsilon(delta=delta * (1 - step / 2), mu=mu) >= epsilon * (1 - 1e-12)


def test_arrays_are_taken_element_by_element() -> None:
    mu = np.array([[0.0, 0.5], [1.0, 2.0]])
    epsilons = accounting.gdp_epsilon(delta=1e-5, mu=mu)
    deltas = accounting.gdp_delta(epsilon=1.0, mu=mu)
    for index in np.ndindex(mu.shape):
        assert epsilons[index] == accounting.gdp_epsilon(delta=1e-5, mu=float(mu[index]))
        assert deltas[index] == accounting.gdp_delta(epsilon=1.0, mu=float(mu[index]))
    assert epsilons[0, 0] == deltas[0, 0] == 0


def test_composition_adds_squares() -> None:
    assert accounting.gdp_mu(2.0, count=100) == pytest.approx(5)
    assert accounting.gdp_mu([2.0, 4.0], count=[1, 4]) == pytest.approx(math.sqrt(0.5))
    assert accounting.gdp_mu(1e-3, count=10**6) == pytest.approx(1e6)


@pytest.mark.parametrize("multiplier", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("count", [1, 10**6])
def test_extreme_compositions_stay_finite(multiplier: float, count: int) -> None:
    epsilon = accounting.gdp_epsilon(delta=1e-15, mu=accounting.gdp_mu(multiplier, count=count))
    assert 0 < epsilon < math.inf


def test_pure_laplace_adds() -> None:
    assert laplace_cost(delta=0, noise_to_sensitivity=2.0, count=10) == 5
    assert laplace_cost(delta=0, noise_to_sensitivity=[1.0, 4.0]) == 1.25
    assert laplace_cost(delta=1e-5, noise_to_sensitivity=1.0, count=0) == 0


@given(st.floats(0.05, 20), DELTAS)
def test_one_laplace_release_has_its_closed_form(multiplier: float, delta: float) -> None:
    # delta(epsilon) = 1 - exp((epsilon - 1/multiplier) / 2)
    exact = max(0.0, 1 / multiplier + 2 * math.log1p(-delta))
    epsilon = laplace_cost(delta=delta, noise_to_sensitivity=multiplier)
    assert exact - 1e-9 <= epsilon <= exact + 1e-4


def test_many_small_laplace_releases_are_nearly_gaussian() -> None:
    # Each loss has standard deviation 1/multiplier to first order, as that of a Gaussian release.
    epsilon = laplace_cost(delta=1e-5, noise_to_sensitivity=1e3, count=10**4)
    assert epsilon == pytest.approx(accounting.gdp_epsilon(delta=1e-5, mu=0.1), rel=3e-3)
    assert epsilon < laplace_cost(delta=0, noise_to_sensitivity=1e3, count=10**4) / 10


def test_different_laplace_releases_compose() -> None:
    same = laplace_cost(delta=1e-6, noise_to_sensitivity=4.0, count=30)
    assert laplace_cost(
        delta=1e-6, noise_to_sensitivity=[4.0, 4.0], count=[10, 20]
    ) == pytest.approx(same)
    assert laplace_cost(delta=1e-6, noise_to_sensitivity=[4.0, 40.0], count=[30, 30]) > same


test_bad_input_is_named = refused(
    (lambda: accounting.gdp_mu([]), "noise_to_sensitivity: wanted a number or one for each round"),
    (lambda: accounting.gdp_mu([[1.0]]), "noise_to_sensitivity: wanted .*, got shape"),
    (
        lambda: accounting.gdp_mu([1, 2, 3], count=[1, 2]),
        "count: wanted one number for each round, as noise_to_sensitivity has 3, got 2",
    ),
    (
        lambda: accounting.analytic_gaussian_noise_to_sensitivity(
            target_epsilon=0, target_delta=0.1
        ),
        "epsilon: wanted a finite number greater than 0, got 0",
    ),
    (
        lambda: accounting.analytic_gaussian_noise_to_sensitivity(target_epsilon=1, target_delta=0),
        r"delta: wanted a number in \(0, 1\), got 0",
    ),
)
