"""At the corners of what may be asked nothing overflows, and every parameter works one way."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampled_calls import NOISE, SAMPLED, poisson_epsilon

import dpmesh as dm
from dpmesh import accounting
from dpmesh.accounting import _compose, _loss
from dpmesh.accounting._merge import Mixtures
from dpmesh.noise import Gaussian, Laplace, Mechanism, Sensitivity
from dpmesh.privacy import FixedSizeSampling, Plan, PoissonSampling, Release

RAREST = PoissonSampling(5e-324)
EPSILONS, DELTAS = (1e-6, 1.0, 50.0), (1e-15, 1e-5)
RATES, COUNTS = (1e-6, 0.01, 1.0), (1, 10**6)
MULTIPLIERS = st.floats(math.log(0.05), math.log(1e4)).map(math.exp)


@pytest.mark.parametrize("sampling", SAMPLED)
@pytest.mark.parametrize(("epsilon", "delta"), list(product(EPSILONS, DELTAS)))
def test_noise_is_found_at_every_corner(sampling: str, epsilon: float, delta: float) -> None:
    epsilon_of, goal = SAMPLED[sampling], {"target_epsilon": epsilon, "target_delta": delta}
    for rate, count in product(RATES, COUNTS):
        rounds = {"count": count, "accountant": "rdp"}
        noise = NOISE[sampling](**goal, sampling_rate=rate, **rounds)
        spent = epsilon_of(delta, rate, noise, **rounds)
        assert 0 <= spent <= epsilon
        # the budget is used up, unless epsilon falls to 0 where delta alone covers the rounds
        more = epsilon_of(delta, rate, noise * (1 - 1e-6), **rounds)
        assert spent >= epsilon - 1e-6 * min(1, epsilon) or more > epsilon


@given(MULTIPLIERS, st.sampled_from(RATES), st.integers(1, 10**6), st.sampled_from(DELTAS))
def test_few_orders_find_the_best_of_all(
    multiplier: float, rate: float, count: int, delta: float
) -> None:
    for sampling, curve, relation in (
        ("poisson", accounting.rdp_poisson_gaussian, "add_remove"),
        ("fixed_size", accounting.rdp_fixed_size_gaussian, "replace_one"),
    ):
        found = SAMPLED[sampling](delta, rate, multiplier, count=count, accountant="rdp")
        rounds = {"neighboring_relation": relation, "count": count}
        rdp = curve(sampling_rate=rate, noise_to_sensitivity=multiplier, **rounds)
        everywhere = accounting.rdp_epsilon(delta=delta, rdp=rdp).epsilon
        assert found == pytest.approx(everywhere, rel=1e-12, abs=1e-300)


@given(MULTIPLIERS, st.integers(1, 10**6), st.sampled_from(DELTAS))
def test_laplace_and_discrete_noise_are_monotone(
    multiplier: float, count: int, delta: float
) -> None:
    def discrete(d: float, s: float, count: int) -> float:
        return accounting.discrete_gaussian_epsilon(
            delta=d,
            noise_to_sensitivity=s,
            neighboring_relation="add_remove",
            sampling_rate=0.01,
            count=count,
        )

    def laplace(d: float, s: float, count: int) -> float:
        curve = accounting.rdp_laplace(s, count=count)
        return accounting.rdp_epsilon(delta=d, rdp=curve).epsilon

    for epsilon in (discrete, laplace):
        here = epsilon(delta, multiplier, count)
        slack = 1e-9 * here + 1e-300
        assert 0 <= here < math.inf
        assert epsilon(delta, 2 * multiplier, count) <= here + slack
        assert epsilon(delta, multiplier, 2 * count) >= here - slack
        assert epsilon(delta / 2, multiplier, count) >= here - slack


def test_curves_keep_every_order_and_never_fall_with_it() -> None:
    orders = np.array(accounting.DEFAULT_ORDERS)
    for rate, multiplier in product(RATES, (0.05, 1.0, 1e4)):
        for curve in (
            accounting.rdp_poisson_gaussian(
                sampling_rate=rate,
                noise_to_sensitivity=multiplier,
                neighboring_relation="add_remove",
            ),
            accounting.rdp_fixed_size_gaussian(
                sampling_rate=rate,
                noise_to_sensitivity=multiplier,
                neighboring_relation="replace_one",
            ),
            accounting.rdp_gaussian(multiplier),
            accounting.rdp_laplace(multiplier),
        ):
            assert np.isfinite(curve).all()
            assert len(curve) == len(orders)
            assert (np.diff(curve) >= -1e-9 * curve[1:]).all()


@pytest.mark.parametrize("multiplier", [8.0, 50.0])
@pytest.mark.parametrize("delta", [2e-10, 1e-9, 1e-5])
def test_rounding_of_many_rounds_takes_nothing_off(delta: float, multiplier: float) -> None:
    exact = accounting.gdp_epsilon(delta=delta, mu=accounting.gdp_mu(multiplier, count=100_000))
    numeric = poisson_epsilon(delta, 1.0, multiplier, count=100_000, accountant="pld")
    assert exact <= numeric < 1.005 * exact


def test_a_loss_that_is_infinite_too_often_has_no_epsilon() -> None:
    loss = _loss.LossDistribution(0, np.array([1 - 1e-5]), infinite=1e-5)
    kinds = np.zeros((1, 1), dtype=np.int64)

    def epsilon(delta: float, times: float) -> float:
        mixtures = Mixtures(nodes=kinds, weights=np.ones((1, 1)), times=np.array([times]))
        return _compose._epsilon_of_losses([loss], mixtures, delta, 1e-4)

    assert epsilon(0.9e-5, 1) == epsilon(2.9e-5, 3) == math.inf
    assert epsilon(1.1e-5, 1) == epsilon(3.1e-5, 3) == 0


@pytest.mark.parametrize("sampling", SAMPLED)
@pytest.mark.parametrize("accountant", ["best", "pld", "rdp"])
def test_no_round_costs_nothing(sampling: str, accountant: str) -> None:
    rounds = {"count": [0, 0], "accountant": accountant}
    assert SAMPLED[sampling](1e-5, 0.1, [1.0, 2.0], **rounds) == 0


@pytest.mark.parametrize("sampling", SAMPLED)
@pytest.mark.parametrize("multiplier", [1e-3, 0.01, 0.02, 0.05])
def test_with_next_to_no_noise_the_best_accountant_is_right(
    sampling: str, multiplier: float
) -> None:
    """Samples of everything are Gaussian releases, of which the truth is known."""
    for count, delta in product((1, 2, 100), (1e-10, 1e-5, 0.999)):
        found = SAMPLED[sampling](delta, 1.0, multiplier, count=count)
        truth = accounting.gdp_epsilon(delta=delta, mu=accounting.gdp_mu(multiplier, count=count))
        assert truth <= found <= 1.2 * truth


@pytest.mark.parametrize("mechanism", [Gaussian, Laplace])
def test_a_rate_without_an_inverse_is_named(mechanism: type[Mechanism]) -> None:
    rare = Release(0, mechanism(1.0), Sensitivity(1.0, "l1", "a test"), sampling=RAREST)
    with pytest.raises(ValueError, match="sampling_rate: wanted numbers of at least 1e-300"):
        Plan(releases=(rare, rare), neighboring_relation="add_remove", unit="record").cost(1e-5)
    with pytest.raises(ValueError, match="sampling_rate: wanted numbers of at least 1e-300"):
        poisson_epsilon(1e-5, 5e-324, 1.0)


@pytest.mark.parametrize(
    ("argument", "of"),
    [
        ("batch_size", lambda n: dm.OnlineLearning(epsilon=1.0, batch_size=n)),
        ("records", lambda n: dm.GradientDescent(records=n, noise_multiplier=2.0)),
        ("models", lambda n: dm.WithoutReplacement(epsilon=1.0, models=n)),
        ("population", lambda n: FixedSizeSampling(size=1, population=n)),
    ],
)
def test_an_integer_that_64_bits_do_not_hold_is_named(argument: str, of) -> None:
    with pytest.raises(ValueError, match=rf"^{argument}: wanted an integer .* below 9223372036854"):
        of(10**400)
