"""Losses that are rounded both ways hold the accountant between bounds, for plans of many kinds.

A loop-written twin: each loss is rounded down and up to a coarse grid, all are convolved in the
time domain, and what rounding up proves is at least the truth, what rounding down proves at most.
"""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled_calls import poisson_epsilon
from scipy.signal import fftconvolve
from scipy.stats import norm

from dpmesh import accounting
from dpmesh.noise import Gaussian, Laplace, Sensitivity
from dpmesh.privacy import FixedSizeSampling, Plan, PoissonSampling, Release

STEP = 2e-3
ONE = Sensitivity(1.0, "l2", "a test")


def gaussian_losses(rate: float, z: float) -> tuple[np.ndarray, np.ndarray]:
    """Edges of cells of the noise, as losses of a removed unit, and their chances under P."""
    x = np.linspace(-9 * z, 1 + 9 * z, 4001)
    ratio = (x - 0.5) / z**2
    cells = rate * np.diff(norm.cdf(x - 1, scale=z)) + (1 - rate) * np.diff(norm.cdf(x, scale=z))
    return np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, log(rate) + ratio), cells


def laplace_losses(rate: float, z: float) -> tuple[np.ndarray, np.ndarray]:
    """The same of Laplace noise, with its atoms as cells of no width."""
    y = np.linspace(-1 / z, 1 / z, 1001)
    loss = np.concatenate([[-1 / z], y, [1 / z]])
    at_p = np.concatenate([[exp(-1 / z) / 2], np.diff(np.exp((y - 1 / z) / 2) / 2), [0.5]])
    at_q = np.concatenate([[0.5], -np.diff(np.exp(-(y + 1 / z) / 2) / 2), [exp(-1 / z) / 2]])
    return np.log1p(rate * np.expm1(loss)), rate * at_p + (1 - rate) * at_q


def rounded(edges: np.ndarray, chances: np.ndarray, up: bool) -> tuple[int, np.ndarray]:
    """The first index and the masses of losses on the grid."""
    ends = np.ceil(edges[1:] / STEP) if up else np.floor(edges[:-1] / STEP)
    indices = ends.astype(int)
    return int(indices.min()), np.bincount(indices - indices.min(), weights=chances)


def epsilon_of_rounded(kinds, delta: float, up: bool) -> float:
    first, masses = 0, np.ones(1)
    for edges, chances in kinds:
        start, one = rounded(edges, chances, up)
        first, masses = first + start, np.maximum(fftconvolve(masses, one), 0)
        kept = np.flatnonzero(masses > 1e-18)
        first, masses = first + int(kept[0]), masses[kept[0] : kept[-1] + 1]
    losses = STEP * (first + np.arange(masses.size))
    # what was cut off and lost in transforms is far below a ten-thousandth of delta
    target = delta * (1 - 1e-3 if up else 1 + 1e-3)
    low, high = 0.0, float(losses[-1])
    for _ in range(60):
        middle = (low + high) / 2
        spent = float(np.sum(masses * -np.expm1(np.minimum(0, middle - losses))))
        low, high = (low, middle) if spent <= target else (middle, high)
    return high


def both_bounds(kinds, delta: float) -> tuple[float, float]:
    return epsilon_of_rounded(kinds, delta, up=False), epsilon_of_rounded(kinds, delta, up=True)


MANY = st.integers(2, 300)
RATES = st.floats(log(0.02), 0).map(exp)


@pytest.mark.slow
@settings(deadline=None, max_examples=3)
@given(count=MANY, lowest=RATES, seed=st.integers(0, 2**32), delta=st.sampled_from([1e-3, 1e-6]))
def test_poisson_plans_cost_between_rounded_losses(count, lowest, seed, delta) -> None:
    generator = np.random.default_rng(seed)
    rate = np.exp(generator.uniform(log(lowest), 0, count)) if seed % 2 else np.full(count, lowest)
    z = np.exp(generator.uniform(log(0.7), log(20), count))
    found = poisson_epsilon(delta, rate, z)
    lower, upper = both_bounds(
        [gaussian_losses(*kind) for kind in zip(rate, z, strict=True)], delta
    )
    assert lower <= found * (1 + 1e-9)
    # the plan's cost is the larger direction's; a removed unit's is the larger, or close to it
    assert found <= 1.05 * upper + 0.01


@pytest.mark.slow
@settings(deadline=None, max_examples=3)
@given(count=MANY, seed=st.integers(0, 2**32), delta=st.sampled_from([1e-3, 1e-6]))
def test_plans_of_both_noises_cost_between_rounded_losses(count, seed, delta) -> None:
    generator = np.random.default_rng(seed)
    z, noises = np.exp(generator.uniform(log(2), log(50), count)), (Laplace, Gaussian)
    rate = generator.uniform(0.05, 1, count)
    kind = generator.integers(0, 2, count)
    releases = [
        Release(t, noises[k](s), ONE, sampling=PoissonSampling(q))
        for t, (k, s, q) in enumerate(zip(kind, z, rate, strict=True))
    ]
    found = (
        Plan(releases=tuple(releases), neighboring_relation="add_remove", unit="record")
        .cost(delta)
        .epsilon
    )
    losses = (laplace_losses, gaussian_losses)
    kinds = [losses[k](q, s) for k, s, q in zip(kind, z, rate, strict=True)]
    lower, upper = both_bounds(kinds, delta)
    assert lower <= found * (1 + 1e-9)
    assert found <= 1.05 * upper + 0.01


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12, 1e-60])
def test_many_kinds_of_gaussian_releases_cost_what_their_squares_say(delta: float) -> None:
    """Of all data, so that the truth is known to the last digit, at any delta."""
    z = np.random.default_rng(7).uniform(3, 300, 300)
    exact = accounting.gdp_epsilon(delta=delta, mu=accounting.gdp_mu(z))
    for epsilon_of, relation in [
        (accounting.poisson_gaussian_epsilon, "add_remove"),
        (accounting.fixed_size_gaussian_epsilon, "replace_one"),
    ]:
        found = epsilon_of(
            delta=delta,
            sampling_rate=1.0,
            noise_to_sensitivity=z,
            neighboring_relation=relation,
            accountant="pld",
        )
        assert exact <= found < 1.02 * exact


def replaced_profile(epsilon: float, q: float, s: float) -> float:
    """The delta of one Poisson sample under replace-one, by integration on a grid of the noise."""
    x = np.linspace(-12 * s - 1, 12 * s + 1, 400_001)
    parts = [norm.pdf(x, centre, s) for centre in (0.5, 0.0, -0.5)]
    gain = q * (parts[0] - exp(epsilon) * parts[2]) + (1 - q) * (1 - exp(epsilon)) * parts[1]
    return float(np.sum(np.maximum(gain, 0)) * (x[1] - x[0]))


@settings(deadline=None, max_examples=10)
@given(q=RATES, s=st.floats(0.3, 5), delta=st.sampled_from([1e-2, 1e-4, 1e-6]))
def test_a_poisson_sample_under_replace_one_costs_what_integration_says(q, s, delta) -> None:
    options = {"sampling_rate": q, "noise_to_sensitivity": s, "neighboring_relation": "replace_one"}
    found = accounting.poisson_gaussian_epsilon(delta=delta, **options)
    assert replaced_profile(found, q, s) <= delta * (1 + 1e-6)
    if found > 0.01:
        assert replaced_profile(found * (1 - 1e-4) - 1e-5, q, s) > delta


def published_size_epsilon(delta: float, q: float, population: int, **options) -> float:
    return accounting.published_size_gaussian_epsilon(
        delta=delta, sampling_rate=q, population=population, **options
    )


@pytest.mark.parametrize(
    ("population", "q"),
    [
        (1, 0.5),
        (1, 1e-3),
        (2, 0.01),
        (20, 1.0),
        pytest.param(10, 0.9, marks=pytest.mark.slow),
        pytest.param(500, 0.99, marks=pytest.mark.slow),
    ],
)
def test_a_published_size_of_the_whole_population_reveals_a_unit(population, q) -> None:
    """Without the unit, a sample of so many is impossible: no noise on the sum hides it."""
    whole = q**population  # its probability with the unit
    options = {"noise_to_sensitivity": 100.0, "q": q, "population": population}
    assert published_size_epsilon(0.9 * whole, **options) == np.inf
    assert published_size_epsilon(1e-6 * whole, count=3, **options) == np.inf
    assert published_size_epsilon(1e-5, count=0, **options) == 0
    if q < 1:
        assert published_size_epsilon(min(1.1 * whole + 1e-3, 0.99), **options) < np.inf


def test_a_published_size_of_a_large_population_costs_little_more_with_little_noise() -> None:
    """Half a participation is expected in 50 rounds; its loss is about 22 to 50 a time."""
    options = {"noise_to_sensitivity": 0.3, "count": 50}
    found = published_size_epsilon(1e-5, 0.01, 500, **options)
    secret = accounting.poisson_gaussian_epsilon(
        delta=1e-5, sampling_rate=0.01, neighboring_relation="add_remove", **options
    )
    assert secret < found < 200


@pytest.mark.parametrize("count", [1, 2, 3])
def test_poisson_samples_of_all_units_with_little_noise_are_releases_of_all(count) -> None:
    whole = accounting.gdp_epsilon(delta=1e-5, mu=accounting.gdp_mu(0.01, count=count))
    found = accounting.poisson_gaussian_epsilon(
        delta=1e-5,
        sampling_rate=1.0,
        noise_to_sensitivity=0.01,
        count=count,
        neighboring_relation="replace_one",
        accountant="pld",
    )
    assert whole * (1 - 1e-9) <= found <= whole * 1.001


@pytest.mark.slow
@settings(deadline=None, max_examples=4)
@given(q=RATES, s=st.floats(0.5, 5), count=st.integers(1, 50))
def test_published_samples_and_sizes_cost_between_secret_ones_and_all_data(q, s, count) -> None:
    delta, rounds = 1e-5, {"sampling_rate": q, "count": count}
    secret = accounting.poisson_gaussian_epsilon(
        delta=delta, noise_to_sensitivity=s, neighboring_relation="add_remove", **rounds
    )
    size = accounting.published_size_gaussian_epsilon(
        delta=delta, noise_to_sensitivity=s, population=1000, **rounds
    )
    unit = Sensitivity(1.0, "l2", "each vector is clipped to norm 1/2")
    releases = [Release(t, Gaussian(s), unit, sampling=PoissonSampling(q)) for t in range(count)]
    published = (
        Plan(releases=tuple(releases), neighboring_relation="replace_one", unit="record")
        .cost(delta)
        .epsilon
    )
    replaced = accounting.poisson_gaussian_epsilon(
        delta=delta, noise_to_sensitivity=s, neighboring_relation="replace_one", **rounds
    )
    of_all = accounting.gdp_epsilon(delta=delta, mu=accounting.gdp_mu(s, count=count))
    assert secret <= size * (1 + 1e-6) + 1e-9
    if q <= 0.7:  # where sizes near that of the whole population are rare
        moved_twice = accounting.gdp_mu(s / 2, count=count)
        assert size <= accounting.gdp_epsilon(delta=delta, mu=moved_twice) * (1 + 1e-6)
    assert replaced <= published * (1 + 1e-4) + 1e-4
    assert published <= of_all * (1 + 1e-4) + 1e-4


@pytest.mark.slow
def test_fixed_size_plans_of_many_kinds_cost_between_their_neighbours() -> None:
    """Merged kinds cost no less than each with the most noise in its place, and no more."""
    z = np.random.default_rng(3).uniform(1, 3, 200)
    sample = FixedSizeSampling(size=10, population=1000)

    def cost(multipliers) -> float:
        noises = map(Gaussian, multipliers)
        releases = [Release(t, noise, ONE, sampling=sample) for t, noise in enumerate(noises)]
        return (
            Plan(releases=tuple(releases), neighboring_relation="replace_one", unit="record")
            .cost(1e-6)
            .epsilon
        )

    rounded_up = np.ceil(z * 20) / 20
    assert cost(rounded_up) <= cost(z) <= cost(rounded_up - 0.05) * 1.01
