"""Rényi curves against dp-accounting, against high precision, and at the extremes."""

from __future__ import annotations

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import pld
from dp_accounting import rdp as reference
from dp_accounting.rdp import rdp_privacy_accountant as internals
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_checks import laplace_cost
from refused import refused
from sampled_calls import fixed_size_epsilon, poisson_epsilon

from dpmesh import accounting

INTEGERS = [2, 3, 4, 5, 8, 16, 32, 64, 128, 256, 512, 1024]
RATES = st.floats(math.log(1e-6), 0).map(math.exp)
MULTIPLIERS = st.floats(math.log(0.1), math.log(1e4)).map(math.exp)
ANY_MULTIPLIER = st.floats(math.log(0.05), math.log(1e4)).map(math.exp)
DELTAS = st.floats(math.log(1e-15), math.log(0.5)).map(math.exp)

ADD_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE


def poisson(rate: object, multiplier: object, **options: object) -> np.ndarray:
    return accounting.rdp_poisson_gaussian(
        sampling_rate=rate,
        noise_to_sensitivity=multiplier,
        neighboring_relation="add_remove",
        **options,
    )


def fixed_size(rate: object, multiplier: object, **options: object) -> np.ndarray:
    return accounting.rdp_fixed_size_gaussian(
        sampling_rate=rate,
        noise_to_sensitivity=multiplier,
        neighboring_relation="replace_one",
        **options,
    )


def exact_divergence(rate: float, multiplier: float, order: float, *, symmetrised: bool) -> float:
    """The divergence by Gauss-Legendre quadrature in 30 digits, panel by panel."""
    with mpmath.workdps(30):
        q, s, a = map(mpmath.mpf, (rate, multiplier, order))

        def excess(w: mpmath.mpf, alpha: mpmath.mpf) -> mpmath.mpf:
            if abs(w) < mpmath.mpf(10) ** -8:
                return sum(mpmath.binomial(alpha, k) * w**k for k in range(2, 8))
            return (1 + w) ** alpha - 1 - alpha * w

        def integrand(t: mpmath.mpf) -> mpmath.mpf:
            w = q * mpmath.expm1((t - 1 / (2 * s)) / s)
            value = excess(w, a) + (excess(w, 1 - a) if symmetrised else 0)
            return mpmath.npdf(t) * value

        start, end = (1 / (2 * s) if symmetrised else mpmath.mpf(-12)), a / s + 12
        panels = math.ceil((end - start) / (2 * min(1, s)))
        points = mpmath.linspace(start, end, panels + 1)
        moment = mpmath.quad(integrand, points, method="gauss-legendre", maxdegree=4)
        return float(mpmath.log1p(moment) / (a - 1))


@pytest.mark.parametrize(
    ("rate", "multiplier"),
    [(0.01, 1.0), (0.05, 0.7), (0.3, 4.0), (0.001, 2.0), (0.2, 0.3), (0.9, 1.5), (1.0, 2.0)],
)
def test_integer_orders_equal_dp_accounting(rate: float, multiplier: float) -> None:
    gaussian = dp_accounting.GaussianDpEvent(multiplier)
    accountant = reference.RdpAccountant(INTEGERS, ADD_REMOVE)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian), 7)
    ours = poisson(rate, multiplier, count=7, orders=INTEGERS)
    np.testing.assert_allclose(ours, accountant._rdp, rtol=1e-9)

    accountant = reference.RdpAccountant(INTEGERS, REPLACE_ONE)
    event = dp_accounting.SampledWithoutReplacementDpEvent(1000, int(1000 * rate), gaussian)
    accountant.compose(event, 7)
    ours = fixed_size(rate, multiplier, count=7, orders=INTEGERS, bound="theorem_27")
    np.testing.assert_allclose(ours, accountant._rdp, rtol=1e-9)


@pytest.mark.parametrize(
    ("rate", "multiplier", "order"),
    [
        (0.2, 1.6, 3.3),
        (0.2, 1.0, 2.2),
        (0.05, 1.5, 7.1),
        (1e-6, 1.0, 1.5),
        (1e-6, 0.3, 3.7),
        (0.01, 30.0, 1.01),
        (0.7, 0.5, 10.9),
        (0.999, 3.0, 1.1),
        (0.001, 0.8, 25.5),
        (0.03, 12.0, 700.5),
    ],
)
def test_fractional_orders_equal_high_precision(
    rate: float, multiplier: float, order: float
) -> None:
    exact = exact_divergence(rate, multiplier, order, symmetrised=False)
    np.testing.assert_allclose(poisson(rate, multiplier, orders=order), exact, rtol=1e-9)
    exact = exact_divergence(rate, multiplier, order, symmetrised=True)
    np.testing.assert_allclose(fixed_size(rate, multiplier, orders=order), exact, rtol=1e-9)


@given(st.lists(st.tuples(RATES, MULTIPLIERS, st.integers(0, 9)), min_size=1, max_size=6))
def test_rounds_add(rounds: list[tuple[float, float, int]]) -> None:
    rate, multiplier, count = map(np.array, zip(*rounds, strict=True))
    for curve in (poisson, fixed_size):
        separately = [n * curve(q, s, orders=[1.5, 2, 40]) for q, s, n in rounds]
        together = curve(rate, multiplier, count=count, orders=[1.5, 2, 40])
        np.testing.assert_allclose(together, np.sum(separately, axis=0), rtol=1e-12)


@given(RATES, ANY_MULTIPLIER, DELTAS, st.integers(1, 10**6), st.floats(1e-3, 1))
def test_epsilon_is_monotone_in_every_parameter(
    rate: float, multiplier: float, delta: float, count: int, step: float
) -> None:
    for curve in (poisson, fixed_size):

        def epsilon(q: float, s: float, d: float, n: int, curve: object = curve) -> float:
            return accounting.rdp_epsilon(delta=d, rdp=curve(q, s, count=n)).epsilon

        here = epsilon(rate, multiplier, delta, count)
        slack = 1e-9 * here
        assert 0 <= here < math.inf
        assert epsilon(min(1, rate * (1 + step)), multiplier, delta, count) >= here - slack
        assert epsilon(rate, multiplier * (1 + step), delta, count) <= here + slack
        assert epsilon(rate, multiplier, delta * (1 - step / 2), count) >= here - slack
        assert epsilon(rate, multiplier, delta, count + 1) >= here - slack


@pytest.mark.parametrize("rate", [1e-6, 1.0])
@pytest.mark.parametrize("epsilon", [1e-6, 50.0])
def test_extremes_of_a_million_rounds(rate: float, epsilon: float) -> None:
    # the noise that spends about epsilon, were every round a Gaussian of mu = rate / multiplier
    mu = 1 / accounting.analytic_gaussian_noise_to_sensitivity(
        target_epsilon=epsilon, target_delta=1e-15
    )
    multiplier = rate * 1e3 / mu
    curve = poisson(rate, multiplier, count=10**6)
    assert np.all(np.isfinite(curve))
    found = accounting.rdp_epsilon(delta=1e-15, rdp=curve)
    assert epsilon / 2 < found.epsilon < 2 * epsilon or multiplier < 1
    assert found.order in accounting.DEFAULT_ORDERS


@given(st.lists(st.floats(1e-6, 100), min_size=3, max_size=3), DELTAS)
def test_conversion_equals_dp_accounting(rdp: list[float], delta: float) -> None:
    orders = [1.5, 8.0, 200.0]
    ours = accounting.rdp_epsilon(delta=delta, rdp=rdp, orders=orders)
    theirs, order = internals.compute_epsilon(orders, rdp, delta)
    assert ours.epsilon == pytest.approx(theirs, rel=1e-12, abs=1e-12)
    assert ours.order == order or ours.epsilon == 0


def test_conversion_of_mironov() -> None:
    older = accounting.rdp_epsilon(delta=1e-5, rdp=[0.1, 0.2], orders=[2, 9], conversion="mironov")
    assert older.epsilon == pytest.approx(0.2 + math.log(1e5) / 8)
    assert older.order == 9


def test_laplace_curve_equals_dp_accounting() -> None:
    orders = [1.05, 1.5, 2, 10, 500]
    accountant = reference.RdpAccountant(orders, ADD_REMOVE)
    accountant.compose(dp_accounting.LaplaceDpEvent(0.7), 3)
    ours = accounting.rdp_laplace(0.7, count=3, orders=orders)
    np.testing.assert_allclose(ours, accountant._rdp, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "multiplier", "count"),
    [
        ([0.05], [1.5], [200]),
        ([0.01], [0.8], [1000]),
        ([0.3, 0.05, 0.3], [3.0, 1.0, 2.0], [9, 5, 7]),
    ],
)
def test_loss_distributions_equal_dp_accounting(
    rate: list[float], multiplier: list[float], count: list[int]
) -> None:
    accountant = pld.PLDAccountant(ADD_REMOVE)
    for q, s, n in zip(rate, multiplier, count, strict=True):
        gaussian = dp_accounting.GaussianDpEvent(s)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(q, gaussian), n)
    for delta in (1e-3, 1e-6, 1e-9):
        ours = poisson_epsilon(delta, rate, multiplier, count=count, accountant="pld")
        assert ours == pytest.approx(accountant.get_epsilon(delta), rel=1e-6 + 1e-13 / delta)


def test_loss_distributions_of_laplace_equal_dp_accounting() -> None:
    accountant = pld.PLDAccountant(ADD_REMOVE)
    accountant.compose(dp_accounting.LaplaceDpEvent(10.0), 50)
    accountant.compose(dp_accounting.LaplaceDpEvent(5.0), 7)
    ours = laplace_cost(delta=1e-6, noise_to_sensitivity=[10.0, 5.0], count=[50, 7])
    assert ours == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-6)


@pytest.mark.slow
@given(RATES, MULTIPLIERS, st.integers(1, 10**6), st.floats(math.log(1e-9), -1).map(math.exp))
def test_loss_distributions_hold_at_the_extremes(
    rate: float, multiplier: float, count: int, delta: float
) -> None:
    for epsilon in (poisson_epsilon, fixed_size_epsilon):
        found, by_curve = (
            epsilon(delta, rate, multiplier, count=count, accountant=accountant)
            for accountant in ("pld", "rdp")
        )
        assert found >= 0
        # the curve costs more, unless delta is nearly lost in the rounding of the distribution
        assert found <= by_curve * 1.02 + 1e-9 or found == math.inf


def test_the_tighter_accountant_is_taken() -> None:
    def epsilon(delta: float, accountant: str) -> float:
        return poisson_epsilon(delta, [0.1, 0.2], [1.0, 2.0], count=[5, 7], accountant=accountant)

    assert epsilon(1e-6, "best") == epsilon(1e-6, "pld") < epsilon(1e-6, "rdp")
    assert epsilon(1e-15, "best") == epsilon(1e-15, "pld") < epsilon(1e-15, "rdp")


def test_without_sampling_every_accountant_is_gaussian() -> None:
    exact = accounting.gdp_epsilon(delta=1e-6, mu=accounting.gdp_mu(3.0, count=10))
    for epsilon in (poisson_epsilon, fixed_size_epsilon):
        found = epsilon(1e-6, 1.0, 3.0, count=10)
        assert exact <= found == pytest.approx(exact, rel=1e-6)


@pytest.mark.slow
@settings(max_examples=15)
@given(RATES, st.floats(0.5, 100), st.integers(1, 1000))
def test_fixed_size_costs_no_less_than_poisson(rate: float, multiplier: float, count: int) -> None:
    lower = poisson_epsilon(1e-6, rate, multiplier, count=count)
    upper = fixed_size_epsilon(1e-6, rate, multiplier, count=count)
    assert lower <= upper * (1 + 1e-6) + 1e-9


test_bad_input_is_named = refused(
    (lambda: poisson(0.1, 1, orders=[]), "orders: wanted at least 1 order"),
    (lambda: poisson(0.1, 1, orders=[[2, 3]]), "orders: wanted at least 1 order on one axis"),
    (
        lambda: poisson([0.1, 0.2], [1, 2, 3]),
        "sampling_rate: wanted one number for each round, as noise_to_sensitivity has 3, got 2",
    ),
    (
        lambda: accounting.rdp_poisson_gaussian(
            sampling_rate=0.1, noise_to_sensitivity=1, neighboring_relation="replace_one"
        ),
        "neighboring_relation: wanted 'add_remove': a Poisson sample has no fixed size",
    ),
    (
        lambda: accounting.rdp_fixed_size_gaussian(
            sampling_rate=0.1, noise_to_sensitivity=1, neighboring_relation="add_remove"
        ),
        "neighboring_relation: wanted 'replace_one': a sample of fixed size",
    ),
    (
        lambda: fixed_size(0.1, 1, bound="theorem_9", orders=1e6),
        "orders: wanted orders up to 65536",
    ),
    (
        lambda: accounting.rdp_epsilon(delta=0.1, rdp=[1]),
        "rdp: wanted one divergence for each of 195",
    ),
    (
        lambda: accounting.rdp_epsilon(delta=0.1, rdp=[-1], orders=2),
        "rdp: wanted divergences of at",
    ),
    (
        lambda: accounting.rdp_epsilon(delta=0.1, rdp=[math.nan], orders=2),
        "rdp: wanted divergences of",
    ),
)
