"""Plans of sampled releases: their events, and what they cost."""

from __future__ import annotations

from math import inf

import dp_accounting
import pytest
from refused import refused

from dpmesh.noise import Gaussian, Laplace, Sensitivity
from dpmesh.privacy import FixedSizeSampling, Plan, PoissonSampling, Release

ONE = Sensitivity(1.0, "l2", "a test")


def plan(relation, *releases):
    return Plan(releases=releases, neighboring_relation=relation, unit="user")


def rounds(T, z, sampling):
    return [Release(t, Gaussian(z), ONE, sampling=sampling) for t in range(T)]


@pytest.mark.parametrize(
    ("N", "tau", "T", "z", "poisson", "fixed_size"),
    [
        # "Today's numbers" for the federated paper's tables: composed loss distributions of an
        # independent implementation, converged to 1e-6, printed to these digits.
        (2000, 0.05, 200, 1.5, 1.8192, 2.099),
        (2000, 0.05, 200, 1.0, 3.7005, 4.314),
        (975, 0.2, 100, 1.6, 5.1981, 5.791),
    ],
)
def test_cost_of_the_papers_settings(N, tau, T, z, poisson, fixed_size) -> None:
    delta = N**-1.1
    cost = plan("add_remove", *rounds(T, z, PoissonSampling(tau))).cost(delta)
    assert cost.epsilon == pytest.approx(poisson, abs=6e-5)
    assert "Poisson samples" in cost.accountant
    cost = plan(
        "replace_one", *rounds(T, z, FixedSizeSampling(size=round(tau * N), population=N))
    ).cost(delta)
    assert cost.epsilon == pytest.approx(fixed_size, abs=6e-4)
    assert "samples of fixed size" in cost.accountant


def test_events() -> None:
    gaussian = dp_accounting.GaussianDpEvent(2.0)
    (release,) = rounds(1, 2.0, PoissonSampling(0.1))
    assert release.event == dp_accounting.PoissonSampledDpEvent(0.1, gaussian)
    (release,) = rounds(1, 2.0, FixedSizeSampling(size=3, population=30))
    assert release.event == dp_accounting.SampledWithoutReplacementDpEvent(30, 3, gaussian)
    laplace = Release(0, Laplace(2.0), ONE, sampling=PoissonSampling(0.5))
    inner = dp_accounting.LaplaceDpEvent(2.0)
    assert laplace.event == dp_accounting.PoissonSampledDpEvent(0.5, inner)


def test_sampling_everybody_amplifies_nothing() -> None:
    plain = plan("add_remove", *rounds(3, 2.0, None)).cost(1e-5).epsilon
    everybody = plan("add_remove", *rounds(3, 2.0, PoissonSampling(1.0))).cost(1e-5).epsilon
    assert everybody == pytest.approx(plain, rel=1e-4)
    assert everybody >= plain


def test_mixtures_cost_at_least_what_is_proved() -> None:
    """Rounds with everybody among sampled ones; two kinds of samples; Laplace noise beside."""
    sampled = rounds(4, 2.0, PoissonSampling(0.1))
    mixed = plan("add_remove", *sampled, *rounds(1, 2.0, None)).cost(1e-5).epsilon
    alone = plan("add_remove", *rounds(1, 2.0, None)).cost(1e-5).epsilon
    whole = plan("add_remove", *rounds(5, 2.0, None)).cost(1e-5).epsilon
    assert alone < mixed < whole
    both = plan(
        "replace_one", *sampled, *rounds(1, 2.0, FixedSizeSampling(size=1, population=10))
    ).cost(1e-5)
    of_all = plan("replace_one", *rounds(1, 2.0, None), *rounds(4, 2.0, None)).cost(1e-5)
    assert whole / 3 < both.epsilon < of_all.epsilon
    laplace = Release(0, Laplace(0.5), ONE)
    base = plan("add_remove", *sampled).cost(1e-11).epsilon
    beside = plan("add_remove", *sampled, laplace).cost(1e-11)
    assert base < beside.epsilon < base + 2.0
    assert beside.accountant == (
        "privacy loss distribution of Laplace and Gaussian noise on Poisson samples"
    )
    assert plan("add_remove", *sampled).cost().epsilon == inf


def test_of_two_ways_of_sampling_neither_amplifies_on_a_coarse_grid() -> None:
    on_grid, ways = (
        Gaussian(1.4, grid=1.0),
        (PoissonSampling(0.1), FixedSizeSampling(size=1, population=10)),
    )
    both = [Release(t, on_grid, ONE, sampling=sampling) for t, sampling in enumerate(ways)]
    whole = [Release(t, on_grid, ONE) for t in range(2)]
    cost = plan("replace_one", *both).cost(1e-5)
    assert cost == plan("replace_one", *whole).cost(1e-5)
    assert cost.accountant == "Rényi curve of discrete Gaussian noise on all data"


@pytest.mark.slow
def test_the_proof_is_that_of_the_part_that_pays_most() -> None:
    laplace, gaussian = (
        Release(0, Laplace(0.1), ONE, batch=0),
        Release(1, Gaussian(5.0), ONE, batch=1),
    )
    most = plan("replace_one", laplace, gaussian).cost(1e-5)
    assert most == (10.0, "pure differential privacy of Laplace noise")
    distinct = [
        Release(
            9 * t + batch,
            Gaussian(1.0 + batch / 9),
            ONE,
            batch=batch,
            sampling=PoissonSampling(0.1),
        )
        for batch in range(9)
        for t in range(40)
    ]
    few, many = (plan("add_remove", *distinct[:count]).cost(1e-5) for count in (8 * 40, 9 * 40))
    assert few.accountant == "privacy loss distribution of Poisson samples"
    assert many.accountant == few.accountant
    assert many.epsilon == few.epsilon


def test_few_different_nodes_have_a_loss_distribution_each() -> None:
    releases = [
        Release(
            t, Gaussian(1.0), ONE, sampling=PoissonSampling(0.1), nodes=(0, 1) if t < 5 else (1,)
        )
        for t in range(40)
    ]
    alone = [plan("add_remove", *rounds(T, 1.0, PoissonSampling(0.1))) for T in (5, 40)]
    by_node = plan("add_remove", *releases).costs_by_node(1e-5)
    assert by_node.tolist() == [one.cost(1e-5).epsilon for one in alone]


@pytest.mark.slow
def test_the_event_is_that_of_the_whole_plan() -> None:
    sampled = plan("add_remove", *rounds(20, 1.5, PoissonSampling(0.05)))
    accountant = dp_accounting.pld.PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-3
    )
    accountant.compose(sampled.event(1e-5))
    assert sampled.cost(1e-5).epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize("grid", [None, 2.0**-10, 0.25])
def test_samples_amplify_under_their_own_relation_alone(grid: float | None) -> None:
    """One of fixed size under add-remove proves nothing; a Poisson one under replace-one counts as
    if it was published, which on a grid is as if all took part; a grid makes none cheaper."""
    noise = Gaussian(1.0, grid=grid)
    fixed = Release(0, noise, ONE, sampling=FixedSizeSampling(size=1, population=2))
    with pytest.raises(ValueError, match="neighboring_relation: wanted"):
        plan("add_remove", fixed).cost(1e-5)
    poisson = Release(0, noise, ONE, sampling=PoissonSampling(0.5))
    secret = plan("add_remove", poisson).cost(1e-5).epsilon
    of_all = plan("replace_one", Release(0, noise, ONE)).cost(1e-5).epsilon
    cost = plan("replace_one", poisson).cost(1e-5).epsilon
    assert secret < cost <= of_all * (1 + 1e-9)
    fine = plan("replace_one", *rounds(1, 1.0, PoissonSampling(0.01))).cost(1e-5).epsilon
    rare = Release(0, noise, ONE, sampling=PoissonSampling(0.01))
    assert plan("replace_one", rare).cost(1e-5).epsilon >= fine * (1 - 1e-9)


def test_a_unit_more_in_a_sample_of_fixed_size_is_another_less() -> None:
    """A sum that adding moves by 1 in all the data moves by up to 2 in the sample."""
    fixed = FixedSizeSampling(size=1, population=10)
    for other in (Laplace(1.0), Gaussian(1.0)):
        sampled = Release(0, other, ONE, sampling=fixed)
        for more in ([], rounds(1, 2.0, PoissonSampling(0.1)), rounds(1, 2.0, None)):
            with pytest.raises(ValueError, match="neighboring_relation: wanted 'replace_one'"):
                plan("add_remove", sampled, *more).cost(1e-5)


test_what_is_not_proved_is_refused = refused()
