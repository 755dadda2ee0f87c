"""Laws of cost, over kinds of noise x samplings x nodes x batches x copies.

To drop a release, to add noise to one, or to put the releases of one random allocation in fewer
groups never makes a plan dearer; several runs together cost no less than each, and no less than one
run of all their releases. A grid of an accountant may add 1.5%.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from dpmesh.accounting import random_allocation_epsilon
from dpmesh.accounting._allocated import GaussianStep, PureStep, WorseStep, log_profile
from dpmesh.noise import Gaussian, Laplace, Mechanism, Sensitivity
from dpmesh.privacy import (
    FixedSizeSampling,
    Plan,
    PoissonSampling,
    RandomAllocation,
    Release,
    total_cost,
)

DELTA = 1e-5


@dataclass(frozen=True)
class Weaker(Gaussian):
    """Noise from outside the package, whose event states a tenth of its multiplier."""

    @property
    def event(self):
        import dp_accounting

        return dp_accounting.GaussianDpEvent(self.noise_to_sensitivity / 10)


KINDS: tuple[tuple[type[Mechanism], float | None], ...] = (
    (Gaussian, None),
    (Laplace, None),
    (Gaussian, 0.5),
    (Laplace, 2.0**-12),
    (Weaker, None),
)


def release(t: int, mechanism: Mechanism, **about: object) -> Release:
    return Release(t, mechanism, Sensitivity(1.0, mechanism.norm, "x"), **about)  # type: ignore[arg-type]


def plan_of(releases: Sequence[Release], relation: str, copies: int = 1) -> Plan:
    return Plan(
        releases=tuple(releases),
        neighboring_relation=relation,  # type: ignore[arg-type]
        unit="record",
        copies=copies,
    )


def random_releases(rng: np.random.Generator, relation: str) -> list[Release]:
    """Two or three releases; those of an allocation may have different kinds of noise."""
    count, allocated = int(rng.integers(2, 4)), rng.random() < 0.5
    by_node = rng.random() < 0.3
    releases = []
    for t in range(count):
        kind, grid = KINDS[rng.integers(len(KINDS))]
        multiplier = float(rng.choice([0.8, 1.0, 2.0])) * (10 if kind is Weaker else 1)
        sampling: object = None
        if allocated:
            sampling = RandomAllocation(rounds=count, failure=float(rng.choice([0, 1e-8])))
        elif rng.random() < 0.4:
            sampling = PoissonSampling(float(rng.choice([0.1, 0.9])))
        elif relation == "replace_one" and rng.random() < 0.5:
            sampling = FixedSizeSampling(size=3, population=10)
        nodes = (int(rng.integers(2)),) if by_node else None
        batch = int(rng.integers(2)) if not allocated and rng.random() < 0.3 else None
        about = {"sampling": sampling, "nodes": nodes, "batch": batch}
        releases.append(release(t, kind(multiplier, grid=grid), **about))
    if allocated:  # of one event: failure is part of it
        releases = [replace(each, sampling=releases[0].sampling) for each in releases]
    return releases


def less_revealing(releases: Sequence[Release]) -> Iterator[list[Release]]:
    for i, dropped in enumerate(releases):
        yield [*releases[:i], *releases[i + 1 :]]
        more = replace(
            dropped.mechanism, noise_to_sensitivity=2 * dropped.mechanism.noise_to_sensitivity
        )
        yield [*releases[:i], replace(dropped, mechanism=more), *releases[i + 1 :]]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_less_is_revealed_for_no_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    relation = ("replace_one", "add_remove")[seed % 2]
    releases = random_releases(rng, relation)
    allocated = isinstance(releases[0].sampling, RandomAllocation)
    copies = 2 if seed % 3 == 0 and not allocated else 1
    whole = plan_of(releases, relation, copies).cost(DELTA).epsilon
    assert whole > 0
    fewer_of = list(less_revealing(releases))
    for fewer in [fewer_of[i] for i in rng.permutation(len(fewer_of))[:3]]:
        assert plan_of(fewer, relation, copies).cost(DELTA).epsilon <= whole * 1.015 + 1e-6
    first, rest = plan_of(releases[:1], relation, copies), plan_of(releases[1:], relation, copies)
    together = total_cost([first, rest], DELTA).epsilon
    assert together >= whole / 1.015 - 1e-6
    assert together >= first.cost(DELTA).epsilon / 1.015 - 1e-6
    assert together >= rest.cost(DELTA).epsilon / 1.015 - 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [(Gaussian, Gaussian), (Laplace, Gaussian), (Laplace, Weaker)])
@pytest.mark.parametrize("relation", ["replace_one", "add_remove"])
def test_an_allocation_that_is_split_costs_no_less(kinds, relation: str) -> None:
    """Each part is drawn anew, so that a record is in a release of each."""
    noise = [kind(20.0 if kind is Weaker else 2.0) for kind in kinds] * 2
    one = RandomAllocation(rounds=4)
    two = [RandomAllocation(rounds=4, cycle=t % 2) for t in range(4)]
    whole = plan_of([release(t, each, sampling=one) for t, each in enumerate(noise)], relation)
    split = plan_of([release(t, each, sampling=two[t]) for t, each in enumerate(noise)], relation)
    assert split.cost(DELTA).epsilon >= whole.cost(DELTA).epsilon


def known_least(multiplier: float, q: float) -> float:
    """Exact epsilon of one Gaussian release in which a record is with probability q, removed."""

    def excess(epsilon: float) -> float:
        x = multiplier**2 * np.log((exp(epsilon) - 1 + q) / q) + 0.5
        with_record = q * norm.sf((x - 1) / multiplier)
        without = (1 - q - exp(epsilon)) * norm.sf(x / multiplier)
        return float(with_record + without - DELTA)

    return float(brentq(excess, 1e-6, 60))


@pytest.mark.parametrize(("laplace", "gaussian"), [(1.0, 1.1), (0.5, 0.6), (2.0, 2.1)])
@pytest.mark.parametrize("order", [1, -1])
def test_mixed_kinds_are_charged_for_the_worse_of_both(laplace, gaussian, order: int) -> None:
    """No less than what the Gaussian release alone reveals, no more than both known to all."""
    two = RandomAllocation(rounds=2)
    noises = (Laplace(laplace), Gaussian(gaussian))[::order]
    mixed = plan_of([release(t, z, sampling=two) for t, z in enumerate(noises)], "add_remove")
    cost = mixed.cost(DELTA)
    both = plan_of([release(t, z) for t, z in enumerate(noises)], "add_remove").cost(DELTA)
    assert known_least(gaussian, 0.5) <= cost.epsilon <= both.epsilon
    assert cost.accountant == "dominating pair of Laplace and Gaussian noise on random allocation"
    for kind in ("laplace", "gaussian"):
        z = laplace if kind == "laplace" else gaussian
        alone = random_allocation_epsilon(
            delta=DELTA,
            noise_to_sensitivity=z,
            rounds=2,
            neighboring_relation="add_remove",
            noise=kind,
        )
        assert alone <= cost.epsilon * (1 + 1e-9)


def positive_part(z: float, u: float, v: float, rest: float) -> float:
    """Of a Gaussian step with share 1/2 and shift 0.7, plus the rest, times the density of z."""
    x, y = exp(0.7 * z - 0.245), exp(-0.7 * z - 0.245)
    return max(0.0, 0.5 * (u * x - v * y) + rest) * float(norm.pdf(z))


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
def test_a_profile_of_either_kind_is_above_the_exact_one_of_both(epsilon: float) -> None:
    """One Gaussian step and one of pure privacy, by quadrature over the first."""
    factor = exp(epsilon)
    for u, v, offset in ((1.0, factor, 0.0), (1.0, 0.0, -factor), (0.0, factor, 1.0)):
        gaussian, pure = GaussianStep(0.5, 0.7, u, v), PureStep(0.5, 0.9, u, v)
        either = WorseStep(gaussian, pure)
        values, weights = pure.points()
        exact = 0.0
        for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
            rest = u, v, value + offset
            exact += weight * quad(positive_part, -9, 9, args=rest, limit=400)[0]
        proved = exp(log_profile([(either, 2)], offset))
        assert exact <= proved * (1 + 1e-9)
        same = exp(log_profile([(WorseStep(gaussian, gaussian), 2)], offset))
        assert same == pytest.approx(exp(log_profile([(gaussian, 2)], offset)), rel=1e-12)


@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_releases_of_one_round_are_one_step_with_all_their_noise(kind: type[Mechanism]) -> None:
    """An answer and an update see the same batch: they cost more than the larger of the two."""
    two = RandomAllocation(rounds=2)
    of_round = [release(0, kind(3.0), sampling=two), release(0, kind(4.0), sampling=two)]
    together = 2.4 if kind is Gaussian else 12 / 7
    one = [release(0, kind(together), sampling=two)]
    costs = [plan_of(made, "replace_one").cost(DELTA).epsilon for made in (of_round, one)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-7)  # the tolerance of the solver


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["replace_one", "add_remove"])
@pytest.mark.parametrize("multiplier", [0.02, 0.05, 0.8])
@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_an_allocation_needs_no_time_or_memory_out_of_proportion(
    kind, multiplier, relation
) -> None:
    """Three Laplace(0.8) releases asked for 8.73 TiB; very little noise did not end."""
    three = RandomAllocation(rounds=3)
    noise = kind(multiplier)
    made = plan_of([release(t, noise, sampling=three) for t in range(3)], relation)
    alone = plan_of([release(0, noise)], relation)
    assert 0 < made.cost(1e-8).epsilon <= alone.cost(1e-8).epsilon * (1 + 1e-9)


@pytest.mark.parametrize("nodes", [None, (1,)])
def test_releases_of_one_secret_round_are_of_one_batch_or_of_all(nodes) -> None:
    allocation = RandomAllocation(rounds=20)
    of_all = [release(t, Gaussian(0.8), sampling=allocation, nodes=nodes) for t in range(20)]
    of_batch = [replace(each, batch=0) for each in of_all]
    mixed = plan_of([*of_all, *of_batch], "replace_one")  # composed, they would cost too little
    with pytest.raises(ValueError, match="batch: wanted that of each release of an allocation"):
        mixed.cost(DELTA)
    with pytest.raises(ValueError, match="batch: wanted that of each release of an allocation"):
        total_cost([mixed], DELTA)
    assert plan_of(of_batch, "replace_one").cost(DELTA) == plan_of(of_all, "replace_one").cost(
        DELTA
    )


def test_a_coarser_grid_does_not_lend_its_moments_to_another_grid() -> None:
    allocation = RandomAllocation(shares=(1 - 1e-9, 1e-9))
    coarse, fine = Gaussian(1.6, grid=1.0), Gaussian(1.484, grid=2.0**-20)
    together = [release(t, z, sampling=allocation) for t, z in enumerate((fine, coarse))]
    alone = [release(t, fine, sampling=allocation) for t in range(2)]
    costs = [plan_of(each, "add_remove").cost(DELTA).epsilon for each in (together, alone)]
    assert costs[0] >= costs[1] * (1 - 1e-6)


def known_mixture(epsilon: float, shares: tuple[float, float], laplace: float, z: float) -> float:
    """Delta of a record in a round with Laplace noise, in one with Gaussian noise or in none."""
    x = np.linspace(-0.5 - 12 * laplace, 0.5 + 12 * laplace, 1500)[:, np.newaxis]
    y = np.linspace(-0.5 - 9 * z, 0.5 + 9 * z, 1500)
    cell = (x[1, 0] - x[0, 0]) * (y[1] - y[0])

    def density(part: float) -> np.ndarray:
        first, second = (np.exp(-abs(x - m) / laplace) / (2 * laplace) for m in (0, part))
        other, third = (norm.pdf(y, m, z) for m in (0, part))
        rest = 1 - sum(shares)
        return cell * (shares[0] * second * other + first * (shares[1] * third + rest * other))

    return float(np.maximum(density(0.5) - exp(epsilon) * density(-0.5), 0).sum())


@pytest.mark.parametrize("shares", [(0.33, 0.47), (0.4, 0.6), (0.1, 0.1), (0.7, 0.2)])
def test_mixed_kinds_with_unreleased_records_cost_no_less_than_quadrature_says(shares) -> None:
    allocation = RandomAllocation(shares=shares)
    noise = Laplace(1.46), Gaussian(2.39)
    releases = [release(t, each, sampling=allocation) for t, each in enumerate(noise)]
    epsilon = plan_of(releases, "replace_one").cost(1e-4).epsilon
    assert known_mixture(epsilon, shares, 1.46, 2.39) <= 1.01e-4
