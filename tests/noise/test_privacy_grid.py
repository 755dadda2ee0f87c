"""Noise on a grid: what comes out, how far rounding moves rows apart, what it costs.

Statistical checks raise a false alarm with probability 1e-6 over the choice of its key.
"""

from __future__ import annotations

from math import comb, exp, expm1, log, sqrt
from unittest import mock

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import (
    from_discrete_gaussian_mechanism,
    from_discrete_laplace_mechanism,
)
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from refused import refused
from sampled_calls import poisson_epsilon
from scipy import stats

from dpmesh import accounting
from dpmesh.accounting import discrete
from dpmesh.accounting._pairs import integer_laplace
from dpmesh.accounting.discrete import FINE, SMOOTHING, rounding_slack
from dpmesh.audit import audit_mechanism
from dpmesh.keys import Key, Purpose, Stream
from dpmesh.noise import Gaussian, Laplace, Mechanism, NoNoise, Sensitivity
from dpmesh.noise.grid import MOST_NUMBERS, add_on_grid, round_to_grid
from dpmesh.privacy import FixedSizeSampling, Plan, PoissonSampling, Release

FALSE_ALARM = 1e-6
ONE = Sensitivity(1.0, "l2", "a test")
MECHANISMS = [Laplace, Gaussian]


def stream() -> Stream:
    return Key.seeded(3).stream(Purpose.NOISE, 0)


def law(mechanism: type[Mechanism], k: np.ndarray, scale: float) -> np.ndarray:
    weights = np.exp(-abs(k) / scale) if mechanism is Laplace else np.exp(-((k / scale) ** 2) / 2)
    return weights / weights.sum()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("grid", [0.25, 2.0])
def test_released_steps_have_the_exact_law(mechanism, dtype, grid: float) -> None:
    dim, runs = 3, 40_000
    noisy = mechanism(1.5, grid=grid)
    values = np.full((runs, dim), 5.1, dtype=dtype)
    released = noisy.release(values, ONE, stream())
    assert released.dtype == dtype
    steps = released.astype(np.float64) / grid
    assert (steps == np.rint(steps)).all()
    noise = (steps - np.rint(5.1 / grid)).astype(np.int64).ravel()
    scale = noisy.drawn_scale(values, ONE) / grid
    rounding = {Laplace: dim * grid + sqrt(dim), Gaussian: sqrt(dim) * grid + 1}[mechanism]
    assert scale == pytest.approx(1.5 * rounding / grid * noisy.rounding_factor(values))

    def fits(scale: float) -> bool:
        k = np.arange(-int(45 * scale) - 1, int(45 * scale) + 2)
        expected = noise.size * law(mechanism, k, scale)
        seen = np.bincount(noise - k[0], minlength=k.size)
        body = expected >= 10
        statistic = ((seen[body] - expected[body]) ** 2 / expected[body]).sum()
        return stats.chi2.sf(statistic, body.sum() - 1) > FALSE_ALARM

    assert fits(scale)
    assert not fits(1.05 * scale)
    assert not fits(scale / 1.05)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@given(data=st.data())
def test_rounding_moves_rows_no_further_apart_than_the_noise_covers(mechanism, data) -> None:
    dim = data.draw(st.integers(1, 20))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    width = 8 * np.dtype(dtype).itemsize
    row = arrays.arrays(dtype, dim, elements=st.floats(-1e6, 1e6, width=width))
    x, other = data.draw(row), data.draw(row)
    grid = 2.0 ** data.draw(st.integers(-10, 10))
    distance = x.astype(np.float64) - other
    rounded = round_to_grid(x, grid).astype(np.float64) - round_to_grid(other, grid)
    assert (abs(rounded - distance) <= grid).all()
    noisy, norm = mechanism(1.0, grid=grid), {Laplace: 1, Gaussian: 2}[mechanism]
    for kind, order in (("l1", 1), ("l2", 2)):
        claimed = Sensitivity(float(np.linalg.norm(distance, order)), kind, "a test")
        if claimed.bound > 0:
            moved = np.linalg.norm(rounded, norm)
            assert moved <= noisy.noise_scale(claimed, dim) * (1 + 1e-12)


def test_rounding_saturates_and_keeps_what_is_on_the_grid() -> None:
    x = np.array([1e300, -1e300, 3.0, 0.0])
    np.testing.assert_array_equal(round_to_grid(x, 0.5), [2.0**51, -(2.0**51), 3.0, 0.0])
    assert round_to_grid(x, 2.0**-100)[0] == 2.0**-48
    on_grid = np.array([3.1], dtype=np.float32)
    np.testing.assert_array_equal(round_to_grid(on_grid, 2.0**-40), on_grid)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_noise_is_added_in_steps_of_the_grid(dtype) -> None:
    values, noise = np.array([1.5, -2.0, 0.0], dtype), np.array([3, -1, 2**40])
    noisy = add_on_grid(values, noise, 0.5)
    assert noisy.dtype == dtype
    np.testing.assert_array_equal(noisy, [3.0, -2.5, 2.0**39])


def test_integers_have_noise_in_steps_of_the_grid_too() -> None:
    """They were cut to whole numbers again."""
    mechanism, one = Gaussian(1.0, grid=2.0**-10), Sensitivity(1.0, "l2", "a test")
    values = np.arange(8).reshape(2, 4)
    noisy = [
        mechanism.release(x, one, Key.seeded(3).stream(Purpose.NOISE))
        for x in (values, values.astype(np.float64))
    ]
    np.testing.assert_array_equal(*noisy, strict=True)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_grid_of_whole_numbers_is_that_of_floats(mechanism) -> None:
    values, far = np.array([[3e19, -1e25, 0.0]]), Sensitivity(2.0**62, mechanism.norm, "a test")
    one, other = (
        mechanism(2.0, grid=grid).release(values, far, stream()) for grid in (2.0**40, 2**40)
    )
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_release_names_its_law(mechanism) -> None:
    for power in (-100, 100):
        assert mechanism(2.0, grid=2.0**power).grid == 2.0**power
    release = Release(0, mechanism(2.0, grid=2.0**-20), ONE)
    assert release.name == {Laplace: "discrete_laplace", Gaussian: "discrete_gaussian"}[mechanism]


def plan(*releases) -> Plan:
    return Plan(releases=releases, neighboring_relation="add_remove", unit="record")


@pytest.mark.slow
@given(st.lists(st.floats(0.8, 0.99), min_size=1, max_size=2), st.sampled_from([1e-5, 1e-7]))
def test_noise_on_a_coarse_grid_costs_what_its_concentration_proves(
    multipliers: list[float], delta: float
) -> None:
    laplace = [Release(t, Laplace(z, grid=0.5), ONE) for t, z in enumerate(multipliers)]
    assert plan(*laplace).cost().epsilon == pytest.approx(sum(1 / z for z in multipliers))
    gaussian = [Release(t, Gaussian(z, grid=0.5), ONE) for t, z in enumerate(multipliers)]
    cost = plan(*gaussian).cost(delta)
    exact = plan(*(Release(0, Gaussian(z), ONE) for z in multipliers)).cost(delta)
    assert exact.epsilon < cost.epsilon < 1.5 * exact.epsilon
    assert "exact" not in cost.accountant
    rho = sum(1 / (2 * z**2) for z in multipliers)
    orders = np.geomspace(1.001, 1e6, 200_000)
    concentrated = accounting.rdp_epsilon(delta=delta, rdp=rho * orders, orders=orders).epsilon
    assert concentrated * (1 - 1e-9) <= cost.epsilon <= 1.01 * concentrated


@pytest.mark.parametrize("z", [1.0, 1.3, 1.7, 2.1])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_between_3_and_6_steps_the_better_proof_counts(z: float, delta: float) -> None:
    """Smoothing or moments: at scale 3 to 6.3, of a move by 3 steps."""
    found = plan(Release(0, Gaussian(z, grid=0.5), ONE)).cost(delta)
    smoothed = accounting.gdp_epsilon(delta=delta, mu=1 / (z * sqrt(1 - (1.2 / (3 * z)) ** 2)))
    moments = discrete_epsilon("add_remove", delta, noise_to_sensitivity=z)
    assert found.epsilon == pytest.approx(min(smoothed, moments), rel=1e-3)
    assert ("Rényi" in found.accountant) == (moments < smoothed)


def test_samples_on_a_grid_cost_a_little_more_and_never_more_than_unsampled() -> None:
    def cost(relation: str, sampling, grid: float | None) -> float:
        releases = [Release(t, Gaussian(2.0, grid=grid), ONE, sampling=sampling) for t in range(50)]
        return (
            Plan(releases=tuple(releases), neighboring_relation=relation, unit="record")
            .cost(1e-5)
            .epsilon
        )

    for relation, sampling in (
        ("add_remove", PoissonSampling(0.05)),
        ("replace_one", FixedSizeSampling(size=5, population=100)),
    ):
        real, discrete = cost(relation, sampling, None), cost(relation, sampling, 0.5)
        assert real < discrete < cost(relation, None, 0.5)
    unsampled = cost("replace_one", None, 0.5)
    everybody = cost("replace_one", FixedSizeSampling(size=100, population=100), 0.5)
    assert everybody == pytest.approx(unsampled, rel=1e-6)
    assert cost("replace_one", PoissonSampling(0.5), 0.5) < unsampled


LATTICES = {Laplace: from_discrete_laplace_mechanism, Gaussian: from_discrete_gaussian_mechanism}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_numbers_on_a_grid_cost_what_their_lattice_says(mechanism) -> None:
    """At most 5% more, for a plan that knows neither the dimension nor the direction."""
    rounds = [(2.0, 3), (3.1, 4), (1.5, 9), (2.5, 33)]
    truth = None
    for z, steps in rounds:
        pld = LATTICES[mechanism](
            1 / (z * steps) if mechanism is Laplace else z * steps,
            sensitivity=steps,
            value_discretization_interval=1e-3,
            pessimistic_estimate=False,
        )
        truth = pld if truth is None else truth.compose(pld)
    releases = [
        Release(t, mechanism(z, grid=0.5), Sensitivity((steps - 1) / 2, "l1", "one number"))
        for t, (z, steps) in enumerate(rounds)
    ]
    for delta in (1e-5, 1e-8):
        least = truth.get_epsilon_for_delta(delta)
        assert least * (1 - 1e-6) <= plan(*releases).cost(delta).epsilon <= 1.05 * least


def test_vectors_on_a_fine_grid_cost_what_their_lattice_says() -> None:
    """Of two numbers that move by 3 and 4 steps, by summation."""
    scale, steps = 8.0, 5.0
    x = np.arange(-100, 101)
    log_one = -(x**2) / (2 * scale**2) - np.log(np.exp(-(x**2) / (2 * scale**2)).sum())
    chances = np.exp(log_one[:, np.newaxis] + log_one)
    loss = (2 * (3 * x[:, np.newaxis] + 4 * x) + steps**2) / (2 * scale**2)
    # the same distance on a grid of 1, as a row of a single number would have it
    release = Release(0, Gaussian(scale / steps, grid=1.0), Sensitivity(steps - 1, "l2", "a test"))

    def spent(epsilon: float) -> float:
        return float((chances * np.maximum(0, -np.expm1(epsilon - loss))).sum())

    for delta in (1e-3, 1e-6):
        found = plan(release).cost(delta).epsilon
        assert spent(found) <= delta < spent(found / 1.05)


@given(st.integers(1, 40), st.integers(0, 200), st.floats(0.1, 5))
def test_one_pair_dominates_all_moves_on_integers_of_some_length(least, more, z) -> None:
    """Each move's best half-line, by summation; a single step is the pair itself."""
    steps = least + more
    scale = z * steps
    at = np.arange(1, steps + 1)  # Q(x >= at); by symmetry P(x >= at) = 1 - Q(x >= steps - at + 1)
    beyond = np.exp(-at / scale) / (1 + np.exp(-1 / scale))
    losses = np.linspace(0, 1 / z, 50)
    exact = (1 - beyond[::-1] - np.exp(losses)[:, np.newaxis] * beyond).max(axis=1)
    found = integer_laplace(least).profile(losses, z, 0.0, losses).values
    assert (found >= exact - 1e-12).all()
    if steps == 1:
        np.testing.assert_allclose(found, exact, atol=1e-12)


@pytest.mark.parametrize("scale", [0.9, 1.2, 3.0, 6.0])
@pytest.mark.parametrize("smoothing", [0.3, 0.45, 0.6])
def test_gaussian_noise_rounded_at_random_is_discrete_noise(scale: float, smoothing: float) -> None:
    """By quadrature, with less smoothing than is charged, where the factor is not 1 in all digits.

    The slack is the supremum up to a factor of 3: it does not vanish as the scale grows.
    """
    spread = np.sqrt(scale**2 - smoothing**2)
    x = np.arange(-12 * scale, 12 * scale, smoothing / 100)
    k = np.arange(-int(9 * scale) - 1, int(9 * scale) + 2)
    near = np.arange(-40, 41) + np.rint(x)[:, np.newaxis]
    sums = np.exp(-((near - x[:, np.newaxis]) ** 2) / (2 * smoothing**2)).sum(axis=1)
    density = np.exp(-(x**2) / (2 * spread**2)) / sums
    steps = np.exp(-((k[:, np.newaxis] - x) ** 2) / (2 * smoothing**2))
    rounded = (steps * density).sum(axis=1)
    exact = np.exp(-(k**2) / (2 * scale**2))
    ratio = np.log((rounded / rounded.sum()) / (exact / exact.sum()))
    with mock.patch.object(discrete, "SMOOTHING", smoothing):
        bound = rounding_slack(scale)
    assert np.abs(ratio[exact > 1e-9]).max() <= bound + 1e-12


def test_slack_falls_as_the_scale_grows_and_is_nil_for_all_that_is_drawn() -> None:
    found = [rounding_slack(scale) for scale in (FINE, 4.0, 6.0, 20.0, 1e7)]
    assert found == sorted(found, reverse=True)
    assert found[0] == pytest.approx(7.81e-23, rel=1e-3)  # 2 a of the proof; not 1e-24
    assert found[2] == pytest.approx(3.37e-24, rel=1e-3)
    assert 2 * MOST_NUMBERS * 1e6 * found[0] < 1e-9
    assert SMOOTHING < FINE


def test_noise_on_a_grid_is_charged_for_what_samplers_err() -> None:
    """By 2**-73 for each number of rows of `MOST_NUMBERS`, where that is not nil."""

    def epsilon(z: float, delta: float, rounds: int = 100) -> float:
        return plan(*(Release(t, Gaussian(z, grid=2.0**-12), ONE) for t in range(rounds))).cost(
            delta
        )[0]

    for z, delta in ((10.0, 1e-5), (30.0, 1e-11), (5.0, 1e-5)):
        exact = accounting.gdp_epsilon(delta=delta, mu=10 / z)
        found = epsilon(z, delta)
        errors = 100 * MOST_NUMBERS * 2.0**-73 * (1 + exp(found))
        assert accounting.gdp_epsilon(delta=delta - errors, mu=10 / z) <= found <= 1.03 * exact
    assert epsilon(1.0, 1e-5) == np.inf  # an epsilon of 92 would rest on exp(92) 2**-46
    many = plan(*(Release(t, Gaussian(1.0, grid=2.0**-12), ONE) for t in range(100)))
    assert many.cost(1e-5).accountant.startswith("none: what samplers")
    laplace = plan(*(Release(t, Laplace(1.0, grid=2.0**-12), ONE) for t in range(100)))
    assert laplace.cost(1e-5).epsilon == laplace.cost().epsilon == pytest.approx(100)


def test_rows_that_no_plan_is_charged_for_are_refused() -> None:
    wanted = "grid: wanted None for rows of more than 1048576 numbers, got rows of 1048577"
    with pytest.raises(ValueError, match=wanted):
        Gaussian(1.0, grid=0.5).release(np.zeros((1, MOST_NUMBERS + 1)), ONE, stream())


SAMPLED = pytest.mark.parametrize(
    ("rate", "multiplier", "count", "delta"),
    [(0.05, 1.0, 50, 1e-5), (0.2, 2.0, 10, 1e-3), (0.01, 0.8, 300, 1e-6)],
)


def discrete_epsilon(relation: str, delta: float, **rounds: float) -> float:
    return accounting.discrete_gaussian_epsilon(
        delta=delta, neighboring_relation=relation, **rounds
    )


@SAMPLED
def test_poisson_samples_cost_what_integer_orders_prove(rate, multiplier, count, delta) -> None:
    """As for Gaussian noise: Mironov, Talwar and Zhang prove no more for discrete noise."""
    accountant = RdpAccountant(range(2, 64))
    gaussian = dp_accounting.GaussianDpEvent(multiplier)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian), count)
    found = discrete_epsilon(
        "add_remove", delta, noise_to_sensitivity=multiplier, sampling_rate=rate, count=count
    )
    assert found == pytest.approx(accountant.get_epsilon(delta), rel=1e-9)
    finer = poisson_epsilon(delta, rate, multiplier, count=count, accountant="rdp")
    assert finer < found * (1 - 1e-6)  # by orders between the integers


@SAMPLED
def test_samples_of_fixed_size_cost_less_than_theorem_9_proves(
    rate, multiplier, count, delta
) -> None:
    """Their moments exceed 1 by twice what Poisson samples' do; by less than Theorem 9 allows."""

    def moment(order: int, *, twice: bool) -> float:
        grown = [exp(j * (j - 1) / (2 * multiplier**2)) for j in range(order + 1)]
        if twice:
            chances = (
                comb(order, j) * rate**j * (1 - rate) ** (order - j) for j in range(order + 1)
            )
            return 1 + 2 * (sum(p * g for p, g in zip(chances, grown, strict=True)) - 1)
        least = min(4 * expm1(1 / multiplier**2), 2 * grown[2])
        terms = (comb(order, j) * rate**j * 2 * grown[j] for j in range(3, order + 1))
        return 1 + comb(order, 2) * rate**2 * least + sum(terms)

    orders = range(2, 30)

    def epsilon(twice: bool) -> float:
        curve = [count * log(moment(order, twice=twice)) / (order - 1) for order in orders]
        return compute_epsilon(orders, curve, delta)[0]

    found = discrete_epsilon(
        "replace_one", delta, noise_to_sensitivity=multiplier, sampling_rate=rate, count=count
    )
    assert found == pytest.approx(epsilon(True), rel=1e-9)
    assert found < epsilon(False)


@pytest.mark.parametrize(("q", "s"), [(0.05, 1.0), (0.3, 3.0), (0.9, 0.6)])
@pytest.mark.parametrize("order", [2, 3, 7])
def test_twice_the_moment_of_poisson_samples_bounds_that_of_fixed_size(q, s, order) -> None:
    """Of the dominating pair, by integration of its profile against the order's weights."""
    both = accounting.rdp_fixed_size_gaussian(
        sampling_rate=q, noise_to_sensitivity=s, neighboring_relation="replace_one", orders=order
    )
    one = accounting.rdp_poisson_gaussian(
        sampling_rate=q, noise_to_sensitivity=s, neighboring_relation="add_remove", orders=order
    )
    assert expm1((order - 1) * both[0]) <= 2 * expm1((order - 1) * one[0]) * (1 + 1e-9)


def test_events_are_what_is_proved() -> None:
    zcdp = Release(0, Gaussian(3.0, grid=0.5), ONE).event
    assert zcdp == dp_accounting.ZCDpEvent(1 / 18)
    laplace = plan(*(Release(t, Laplace(2.0, grid=0.5), ONE) for t in range(3)))
    accountant = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(laplace.event())
    assert accountant.get_epsilon(1e-12) == pytest.approx(laplace.cost().epsilon, rel=1e-3)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_last_bits_tell_nothing(mechanism) -> None:
    """What an audit of every bit finds in floating-point sums is not there on a grid."""
    half = mechanism(1.0, grid=2.0**-12)
    found = audit_mechanism(
        half, ONE, delta=1e-5, runs=20_000, confidence=1 - 1e-6, every_bit=True, key=Key.seeded(2)
    )
    assert not found.violated


test_bad_input_is_named = refused(
    (lambda: Laplace(1.0, grid=0.1), "grid: wanted a power of 2 between .*, got 0.1"),
    (lambda: Gaussian(1.0, grid=2.0**101), "grid: wanted a power of 2 between"),
    (lambda: Gaussian(1.0, grid=2.0**-101), "grid: wanted a power of 2 between"),
    (lambda: NoNoise(grid=0.5), "grid: wanted None, since there is no noise, got 0.5"),
    (
        lambda: Gaussian(1.0, grid=2.0**-25).release(np.ones((1, 1)), ONE, stream()),
        r"grid: wanted at least a 2\*\*-25th of the noise",
    ),
)


@pytest.mark.parametrize("mechanism", [Laplace, Gaussian])
def test_last_bits_tell_0_from_1_without_a_grid_as_the_docs_say(mechanism) -> None:
    """A share of 0.26, within 13 standard errors of 0.2."""

    def fine(value: float, grid: float | None) -> float:
        rows = np.full((10_000, 1), value)
        stream = Key.generate().stream(Purpose.NOISE)
        noisy = mechanism(1.0, grid=grid)
        released = noisy.release(rows, Sensitivity(1.0, "l1", "0 or 1"), stream)
        return float((np.ldexp(released, 53) % 1 != 0).mean())

    assert fine(0.0, None) > 0.2
    assert fine(1.0, None) == 0
    assert fine(0.0, 2.0**-20) == fine(1.0, 2.0**-20) == 0
