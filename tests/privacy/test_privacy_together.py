"""Laplace noise and Gaussian noise on the same data: one loss distribution of all releases."""

from __future__ import annotations

from math import exp, expm1, inf

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from scipy.integrate import quad
from scipy.stats import norm

from dpmesh.accounting import _compose
from dpmesh.accounting._merge import Merged
from dpmesh.accounting._pairs import GAUSSIAN, LAPLACE, DominatingPair
from dpmesh.noise import Gaussian, Laplace, Sensitivity
from dpmesh.privacy import FixedSizeSampling, Plan, PoissonSampling, Release
from dpmesh.privacy.cost import MOST_COMPOSITIONS

ONE = Sensitivity(1.0, "l2", "a test")
LARGE = st.floats(0.5, 30)
FEW = st.integers(1, 20)


def plan(*releases, relation="add_remove"):
    return Plan(releases=releases, neighboring_relation=relation, unit="record")


def rounds(T, mechanism, sampling=None, **where):
    return [Release(t, mechanism, ONE, sampling=sampling, **where) for t in range(T)]


def oracle(delta, laplace, gaussian):
    """Epsilon by an independent implementation, of rounds (number, multiplier, sampling rate)."""
    (T, z, p), (S, sigma, q) = laplace, gaussian
    grid = {"value_discretization_interval": 1e-4}
    loss = pld.from_laplace_mechanism(z, sampling_prob=p, **grid).self_compose(T)
    if S:
        relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        other = pld.from_gaussian_mechanism(
            sigma, sampling_prob=q, neighboring_relation=relation, **grid
        )
        loss = loss.compose(other.self_compose(S))
    return loss.get_epsilon_for_delta(delta)


def sampled_rounds(number, noise, rate):
    return rounds(number, noise, None if rate == 1 else PoissonSampling(rate))


@pytest.mark.parametrize(
    ("laplace", "gaussian"),
    [
        ((10, 20.0, 1), (1000, 1.2, 0.01)),
        ((3, 2.0, 1), (5, 1.0, 0.3)),
        ((1, 0.4, 1), (40, 4.0, 0.5)),
        ((50, 30.0, 1), (20, 5.0, 1)),
        ((40, 10.0, 1), (0, 1.0, 1)),
        ((200, 1.0, 0.1), (0, 1.0, 1)),
        ((50, 0.3, 0.02), (0, 1.0, 1)),
        ((100, 2.0, 0.3), (50, 1.5, 0.1)),
        ((30, 0.5, 0.7), (1, 3.0, 1)),
    ],
)
def test_cost_is_that_of_an_independent_implementation(laplace, gaussian) -> None:
    """Within the grids' 2e-3; and smaller than the sum of the two parts' costs."""
    delta = 1e-6
    pure, noisy = sampled_rounds(laplace[0], Laplace(laplace[1]), laplace[2]), []
    if gaussian[0]:
        noisy = sampled_rounds(gaussian[0], Gaussian(gaussian[1]), gaussian[2])
    cost = plan(*noisy, *pure).cost(delta)
    assert cost.epsilon == pytest.approx(oracle(delta, laplace, gaussian), abs=2e-3)
    what = "Laplace and Gaussian noise" if noisy else "Laplace noise"
    on = "all data" if laplace[2] == gaussian[2] == 1 else "Poisson samples"
    assert cost.accountant == f"privacy loss distribution of {what} on {on}"
    assert cost.epsilon < plan(*pure).cost().epsilon + plan(*noisy).cost(delta).epsilon


@pytest.mark.parametrize("rate", [1e-4, 0.3, 1.0])
@pytest.mark.parametrize("z", [1e-3, 0.5, 30.0])
def test_sampling_amplifies_pure_epsilon(z: float, rate: float) -> None:
    """By the theorem; in the relation of the sampling only, on the integers too; for each release.

    A record in a sample with probability q moves a chance p to at most q e^epsilon p + (1-q) p.
    """
    epsilon = float(mp.log(1 + mp.mpf(rate) * mp.expm1(1 / mp.mpf(z))))
    poisson, fixed = (
        PoissonSampling(rate),
        FixedSizeSampling(size=round(10_000 * rate), population=10_000),
    )
    for relation, sampling in [("add_remove", poisson), ("replace_one", fixed)]:
        for noise in [Laplace(z), Laplace(z, grid=2**-20)]:
            cost = plan(*rounds(3, noise, sampling), relation=relation).cost()
            assert cost.epsilon == pytest.approx(3 * epsilon, rel=1e-12)
            assert cost.accountant == (
                "pure differential privacy of Laplace noise, amplified by sampling"
            )
    of_all, amplified = rounds(1, Laplace(z)), rounds(1, Laplace(z), fixed)
    both = [*rounds(1, Laplace(z), poisson), *amplified, *of_all]
    for delta in (0, 1e-6):
        wanted = plan(*amplified, *of_all, *of_all, relation="replace_one").cost(delta).epsilon
        assert wanted <= (epsilon + 2 / z) * (1 + 1e-12)
        found = plan(*both, relation="replace_one").cost(delta).epsilon
        assert found == pytest.approx(wanted) if delta == 0 else found <= wanted * (1 + 1e-9)
    with pytest.raises(ValueError, match=r"^neighboring_relation: wanted 'replace_one'"):
        plan(*both).cost()


def profile(epsilon, z, sigma):
    """The exact delta of one Laplace and one Gaussian release, by integration over the first."""

    def gaussian(e):
        above, below = 0.5 / sigma - e * sigma, -0.5 / sigma - e * sigma
        return norm.cdf(above) - exp(e) * norm.cdf(below)

    between, _ = quad(lambda x: exp(-x / z) * gaussian(epsilon - (1 - 2 * x) / z), 0, 1)
    ends = gaussian(epsilon - 1 / z) + exp(-1 / z) * gaussian(epsilon + 1 / z)
    return (ends + between / z) / 2


@settings(deadline=None, max_examples=12)
@given(z=LARGE, sigma=LARGE, exponent=st.floats(-8, -2))
def test_two_releases_cost_what_integration_says(z: float, sigma: float, exponent: float) -> None:
    delta = 10**exponent
    epsilon = plan(*rounds(1, Laplace(z)), *rounds(1, Gaussian(sigma))).cost(delta).epsilon
    assert profile(epsilon, z, sigma) <= delta * (1 + 1e-9)
    if epsilon > 0.01:
        assert profile(epsilon * (1 - 1e-3) - 1e-3, z, sigma) > delta


@pytest.mark.parametrize("z", [0.3, 0.7, 1.9])
@pytest.mark.parametrize("less", [1e-5, 4e-5, 1e-3])
def test_the_largest_loss_of_laplace_noise_lies_on_the_grid(z: float, less: float) -> None:
    """Half a step beside it would cost most of what two releases pay less than their sum."""
    delta = -expm1(-less / 2) - less / 4 * exp(-less / 2)  # integrated by hand, for less < 2 / z
    epsilon = plan(*rounds(2, Laplace(z))).cost(delta).epsilon
    assert epsilon == pytest.approx(2 / z - less, abs=1e-7)


def laplace_profile(epsilon, shift):
    """The exact delta of Laplace noise of scale 1 on a number."""
    if epsilon >= shift:
        return 0.0
    return -expm1(epsilon) if epsilon <= -shift else -expm1((epsilon - shift) / 2)


@given(st.floats(0.01, 5), st.floats(0.01, 5), st.floats(0, 1))
def test_a_shift_of_one_number_dominates_that_of_two(a: float, b: float, share: float) -> None:
    """Which is why the loss of a vector is accounted by its L1 norm: more follow by two."""
    epsilon = share * (a + b)
    between, _ = quad(lambda x: exp(-x) * laplace_profile(epsilon - (b - 2 * x), a), 0, b)
    ends = laplace_profile(epsilon - b, a) + exp(-b) * laplace_profile(epsilon + b, a)
    assert (ends + between) / 2 <= laplace_profile(epsilon, a + b) + 1e-7  # of the quadrature


@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@given(T=FEW, S=FEW, z=LARGE, sigma=LARGE, clients=st.integers(1, 10), of_all=st.booleans())
def test_together_is_between_the_larger_and_the_sum(T, S, z, sigma, clients, of_all) -> None:
    delta = 1e-5
    for relation, sampling in [
        ("add_remove", PoissonSampling(clients / 10)),
        ("replace_one", FixedSizeSampling(size=clients, population=10)),
    ]:
        pure = rounds(T, Laplace(z), None if of_all else sampling)
        noisy = rounds(S, Gaussian(sigma), sampling)
        together = plan(*pure, *noisy, relation=relation).cost(delta).epsilon
        alone = [plan(*each, relation=relation).cost(delta).epsilon for each in (pure, noisy)]
        assert max(alone) <= together + 1e-3  # of the grids
        assert together <= plan(*pure, relation=relation).cost().epsilon + alone[1]


def test_samples_of_everybody_are_all_data() -> None:
    pure, delta = rounds(3, Laplace(3.0)), 1e-6
    everybody = FixedSizeSampling(size=10, population=10)
    whole = plan(*pure, *rounds(4, Gaussian(2.0)), relation="replace_one").cost(delta)
    drawn = plan(*pure, *rounds(4, Gaussian(2.0), everybody), relation="replace_one").cost(delta)
    assert whole.epsilon == pytest.approx(drawn.epsilon, abs=1e-3)
    assert whole.accountant.endswith("of Laplace and Gaussian noise on all data")
    assert drawn.accountant.endswith("of Laplace and Gaussian noise on samples of fixed size")
    few = rounds(4, Gaussian(2.0), FixedSizeSampling(size=1, population=10))
    assert plan(*pure, *few, relation="replace_one").cost(delta).epsilon < whole.epsilon / 2


def test_a_published_sample_costs_what_its_share_of_releases_does() -> None:
    """Under replace-one a Poisson sample amplifies as if it were published who took part."""

    def cost(*releases):
        return plan(*releases, relation="replace_one").cost(1e-6)

    poisson = cost(*rounds(10, Laplace(20.0), PoissonSampling(0.5)))
    whole = cost(*rounds(10, Laplace(20.0)))
    assert cost(*rounds(4, Laplace(20.0))).epsilon < poisson.epsilon < whole.epsilon
    assert poisson.accountant == "privacy loss distribution of Laplace noise on Poisson samples"
    everybody = cost(*rounds(10, Laplace(20.0), PoissonSampling(1.0)))
    assert everybody.epsilon == pytest.approx(whole.epsilon, rel=1e-6)


@pytest.mark.parametrize("z", [30.0, 1e4, 1e7])
def test_a_small_loss_beside_a_large_one_leaves_the_grid_as_coarse(z: float) -> None:
    """It filled gigabytes: steps as small as the largest loss of Laplace noise, also of 1e-4."""
    sigma, delta = 0.1, 1e-6
    both = [
        Merged(DominatingPair(law), one, multiplier * one, 2 * one, None)
        for law, multiplier in [(GAUSSIAN, sigma), (LAPLACE, z)]
        for one in [np.ones(1)]
    ]
    grid, largest = _compose._grid(both, delta, 1.0)
    assert grid.points(float(largest[0][0])).size < 2**20
    gaussian = rounds(2, Gaussian(sigma))
    alone = plan(*gaussian).cost(delta).epsilon
    assert alone <= plan(*rounds(2, Laplace(z)), *gaussian).cost(delta).epsilon <= alone + 2 / z


def test_where_the_sum_remains() -> None:
    """One Laplace release; delta 0."""
    for cost in [
        plan(*rounds(1, Laplace(2.0))).cost(1e-6),
        plan(*rounds(10, Laplace(20.0))).cost(),
    ]:
        assert cost == (pytest.approx(0.5), "pure differential privacy of Laplace noise")
    without_delta = plan(*rounds(3, Laplace(2.0)), *rounds(3, Gaussian(2.0))).cost()
    assert without_delta == (inf, "none: Gaussian noise needs a delta above 0, such as 1e-5")


def test_small_deltas_and_many_kinds_and_noise_on_a_grid_are_composed() -> None:
    """All were summed: noise on integers is dominated by randomized response."""
    small = plan(*rounds(10, Laplace(20.0))).cost(1e-11)
    assert 0.3 < small.epsilon < 0.5
    various = plan(*(r for t in range(100) for r in rounds(1, Laplace(20.0 + t)))).cost(1e-6)
    assert (
        various.epsilon
        < 0.5 * plan(*(rounds(1, Laplace(20.0 + t))[0] for t in range(100))).cost().epsilon
    )
    for cost in (small, various):
        assert cost.accountant == "privacy loss distribution of Laplace noise on all data"
    on_grid = plan(*rounds(30, Laplace(20.0, grid=2**-10))).cost(1e-6)
    real = plan(*rounds(30, Laplace(20.0))).cost(1e-6)
    assert real.epsilon < on_grid.epsilon < 1.02 * real.epsilon
    what = "discrete Laplace noise on all data"
    assert on_grid.accountant == f"privacy loss distribution of {what}"
    gaussian = plan(*rounds(3, Laplace(2.0)), *rounds(3, Gaussian(2.0))).cost(1e-6)
    both = plan(*rounds(3, Laplace(2.0)), *rounds(3, Gaussian(2.0, grid=2**-10))).cost(1e-6)
    assert gaussian.epsilon < both.epsilon < gaussian.epsilon * (1 + 1e-4)
    what = "discrete Gaussian and Laplace noise on all data"
    assert both.accountant == f"privacy loss distribution of {what}"
    both = plan(*rounds(3, Laplace(2.0)), *rounds(3, Gaussian(1.4, grid=1))).cost(1e-6)
    assert both.accountant.startswith("Rényi curve of discrete Gaussian")
    assert both.accountant.endswith("pure differential privacy of Laplace noise")


def test_nodes_have_costs_of_their_own() -> None:
    """Node 0 releases twice, node 1 with Gaussian noise alone, node 2 with Laplace noise alone."""
    delta = 1e-6
    releases = [*rounds(10, Laplace(20.0), nodes=(0, 2)), *rounds(5, Gaussian(3.0), nodes=(0, 1))]
    by_node = plan(*releases).costs_by_node(delta, nodes=4)
    alone = [
        plan(*rounds(10, Laplace(20.0)), *rounds(5, Gaussian(3.0))).cost(delta).epsilon,
        plan(*rounds(5, Gaussian(3.0))).cost(delta).epsilon,
        plan(*rounds(10, Laplace(20.0))).cost(delta).epsilon,
        0.0,
    ]
    assert by_node.tolist() == pytest.approx(alone, abs=1e-9)
    assert alone[0] < 0.5 + alone[1]


def test_a_node_pays_by_its_own_kinds_of_releases_alone() -> None:
    """What is on a grid, or sampled, at another node costs it nothing."""
    delta, own = 1e-6, rounds(10, Laplace(20.0), nodes=(1,))
    others = [
        *rounds(1, Laplace(0.5, grid=2**-10), nodes=(0,)),
        *rounds(1, Laplace(0.5), PoissonSampling(0.5), nodes=(2,)),
    ]
    alone = plan(*own).cost(delta).epsilon
    assert alone < plan(*own).cost().epsilon
    for other in others:
        assert plan(*own, other).costs_by_node(delta)[1] == alone


@pytest.mark.slow
def test_of_many_different_nodes_those_that_pay_most_are_composed() -> None:
    """The others keep the sum of their releases, which is more than they cost."""
    nodes, delta = MOST_COMPOSITIONS + 4, 1e-6
    number = [2 + 3 * node for node in range(nodes)]
    pure = [
        release
        for node in range(nodes)
        for release in rounds(number[node], Laplace(10.0), nodes=(node,))
    ]
    most = plan(*rounds(max(number), Laplace(10.0))).cost(delta)
    assert plan(*pure).cost(delta) == most
    by_node = plan(*pure).costs_by_node(delta, nodes)
    assert by_node[0] == pytest.approx(0.2)
    assert (
        by_node[nodes // 2] == plan(*rounds(number[nodes // 2], Laplace(10.0))).cost(delta).epsilon
    )
    assert (np.diff(by_node) > 0).sum() >= nodes - 2


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(
    st.lists(st.integers(1, 30), min_size=16, max_size=16),
    st.sampled_from([None, PoissonSampling(0.2)]),
    st.booleans(),
)
def test_a_ledger_costs_no_more_than_its_plan(taking_part, sampling, beside) -> None:
    """However different the nodes' shares of the rounds are: a budget would stop the run.

    Also where every other node has more noise.
    """

    def cost(shares):
        return plan(
            *(
                release
                for node, share in enumerate(shares)
                for noise in [Gaussian(2.0 + node % 2), Laplace(9.0 + node % 2)][: 1 + beside]
                for release in rounds(share, noise, sampling, nodes=(node,))
            )
        ).cost(1e-6)

    assert cost(taking_part).epsilon <= cost([30] * 16).epsilon * (1 + 1e-12)


class Half(PoissonSampling):
    """A sample that only says that it is a Poisson one."""


def test_a_sampling_of_ones_own_is_refused() -> None:
    """What was proved of Poisson samples holds for them alone, not for what derives from them."""
    with pytest.raises(ValueError, match=r"^sampling: wanted PoissonSampling, FixedSizeSampling"):
        Release(0, Gaussian(1.0), ONE, sampling=Half(0.5))
