"""Noise from outside the package, end to end: its cost, a run, an audit."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, exp

import numpy as np
import pytest
from problems import contract_problem as make_problem

import dpmesh as dm
from dpmesh import kernels
from dpmesh.accounting import gdp_epsilon
from dpmesh.audit import audit_mechanism
from dpmesh.noise import Gaussian, Laplace, Mechanism, Sensitivity
from dpmesh.privacy import Plan, PoissonSampling, Release

DELTA = 1e-5
ONE = Sensitivity(1.0, "l1", "values in [0, 1]")


@dataclass(frozen=True)
class Logistic(Mechanism):
    """The slope of its log density is at most 1 / scale, so that it loses at most 1 / z."""

    honest: bool = True
    distribution = "logistic"
    norm = "l1"

    @property
    def event(self):
        import dp_accounting

        odds = exp(1 / self.noise_to_sensitivity)
        return dp_accounting.RandomizedResponseDpEvent(2 / (1 + odds), num_buckets=2)

    def _distance(self, sensitivity, dim):
        return sensitivity.bound * (1 if sensitivity.norm == "l1" else dim**0.5)

    def _add_noise(self, values, scale, source):
        x = kernels.add_noise("laplace", np.zeros_like(values), 1.0, source.stream)
        u = np.where(x < 0, 0.5 * np.exp(x), 1 - 0.5 * np.exp(-x))
        return values + (1 if self.honest else 0.25) * scale * np.log(u / (1 - u))


@dataclass(frozen=True)
class ByLoss(Logistic):
    @property
    def privacy_loss(self):
        from dp_accounting.pld import common
        from dp_accounting.pld import privacy_loss_distribution as pld

        pure = common.DifferentialPrivacyParameters(1 / self.noise_to_sensitivity, 0.0)
        return pld.from_privacy_parameters(pure, value_discretization_interval=1e-4)


def plan(*mechanisms: Mechanism) -> Plan:
    releases = tuple(Release(t, one, ONE) for t, one in enumerate(mechanisms))
    return Plan(releases=releases, neighboring_relation="replace_one", unit="record")


def delta_of(epsilon: float, pure: float, times: int) -> float:
    """Of randomized responses, each of them pure: exact, by their binomial loss."""
    p = exp(pure) / (1 + exp(pure))
    losses = ((2 * k - times) * pure for k in range(times + 1))
    masses = (comb(times, k) * p**k * (1 - p) ** (times - k) for k in range(times + 1))
    return sum(m * max(0.0, 1 - exp(epsilon - x)) for m, x in zip(masses, losses, strict=True))


@pytest.mark.parametrize("kind", [Logistic, ByLoss])
@pytest.mark.parametrize("times", [1, 10])
def test_noise_of_ones_own_costs_what_it_states(kind: type[Logistic], times: int) -> None:
    """Not less than the exact composition, and hardly more."""
    epsilon = plan(*[kind(2.0)] * times).cost(DELTA).epsilon
    assert delta_of(epsilon, 0.5, times) <= DELTA * (1 + 1e-9)
    assert delta_of(epsilon - 0.01, 0.5, times) > DELTA


@pytest.mark.parametrize("kind", [Logistic, ByLoss])
def test_it_composes_with_noise_that_is_known(kind: type[Logistic]) -> None:
    both = plan(kind(2.0), Laplace(2.0), Gaussian(3.0)).cost(DELTA).epsilon
    laplace = plan(Laplace(2.0), Laplace(2.0), Gaussian(3.0)).cost(DELTA).epsilon
    assert laplace <= both <= laplace + 0.1  # of the same pure loss, and attained more often
    assert plan(Logistic(2.0), Gaussian(3.0)).cost(0.0).epsilon == np.inf


def test_it_is_not_taken_for_gaussian_noise() -> None:
    """A shift of one logistic scale is no Gaussian one: the tails differ."""
    cost = plan(*[Logistic(1.0)] * 3).cost(1e-12)
    assert cost.epsilon == pytest.approx(3.0, abs=0.01)
    assert "stated" in plan(ByLoss(1.0)).cost(DELTA).accountant


class Odd(dm.OnlineLearning):
    @property
    def mechanism(self) -> Mechanism:
        return Logistic(1 / self.epsilon)


def test_a_run_and_a_budget_take_it() -> None:
    problem, ring = make_problem(), dm.topology.ring(4)
    budget = dm.privacy.Budget(1.0, delta=DELTA)
    run = dm.simulate(Odd(epsilon=1.0), problem, ring, rounds=4, budget=budget)
    assert run.ledger == Odd(epsilon=1.0).plan(4)
    assert 0.99 < run.privacy.epsilon <= 1.0
    with pytest.raises(ValueError, match=r"which cost epsilon = 1\.1"):
        dm.simulate(Odd(epsilon=1.1), problem, ring, rounds=4, budget=budget)


@pytest.mark.parametrize("honest", [True, False])
def test_an_audit_finds_noise_that_is_too_small(honest: bool) -> None:
    """A correct claim is refuted by chance in at most one of 20 audits; the key is fixed."""
    mechanism = Logistic(1.0, honest=honest)
    result = audit_mechanism(mechanism, ONE, runs=20_000, delta=DELTA, key=dm.Key.seeded(1))
    assert result.violated is not honest


def test_losses_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="privacy_loss: wanted a loss distribution of each"):
        plan(ByLoss(2.0), Gaussian(1.0, grid=0.25)).cost(DELTA)


class Weaker(Gaussian):
    """A tenth of the noise, as its event states."""

    @property
    def event(self):
        import dp_accounting

        return dp_accounting.GaussianDpEvent(self.noise_to_sensitivity / 10)


def test_a_subclass_that_states_its_loss_is_not_priced_by_its_name() -> None:
    stated = plan(Weaker(20.0)).cost(DELTA).epsilon
    assert stated == pytest.approx(plan(Gaussian(2.0)).cost(DELTA).epsilon, rel=1e-3)
    assert stated >= plan(Gaussian(2.0)).cost(DELTA).epsilon * (1 - 1e-9)


def test_neither_a_file_nor_an_allocation_takes_it_for_another() -> None:
    """A file names the class and its module; several releases of a round are one if Gaussian."""
    stored = plan(Weaker(20.0)).as_dict()
    assert Plan.from_dict(stored) == plan(Weaker(20.0))
    stored["kinds"][0]["module"] = "not_imported"
    with pytest.raises(ValueError, match=r"mechanism: wanted noise .* imported, got Weaker of not"):
        Plan.from_dict(stored)
    two = (Release(0, Weaker(20.0), ONE, sampling=dm.privacy.RandomAllocation(rounds=4)),) * 2
    with pytest.raises(ValueError, match="release: wanted one kind of noise, Gaussian or Laplace"):
        Plan(releases=two, neighboring_relation="replace_one", unit="record").cost(DELTA)


@dataclass(frozen=True)
class Mine(Gaussian):
    """Gaussian noise by a class of one's own."""

    @property
    def event(self):
        import dp_accounting

        return dp_accounting.GaussianDpEvent(self.noise_to_sensitivity)


@dataclass(frozen=True)
class Concentrated(Gaussian):
    """Noise of which concentrated differential privacy alone is stated: a Renyi curve."""

    @property
    def event(self):
        import dp_accounting

        return dp_accounting.ZCDpEvent(0.5 / self.noise_to_sensitivity**2)


@pytest.mark.parametrize("times", [1, 2, 20])
def test_each_round_of_ones_own_noise_counts(times: int) -> None:
    """By both accountants: T rounds of Gaussian noise are one of 1 / sqrt(T) of the noise."""
    exact = gdp_epsilon(delta=DELTA, mu=times**0.5 / 4)
    assert exact <= plan(*[Mine(4.0)] * times).cost(DELTA).epsilon <= 1.01 * exact
    by_curve = plan(*[Concentrated(4.0)] * times).cost(DELTA)
    assert "curve" in by_curve.accountant
    assert exact <= by_curve.epsilon <= 1.35 * exact


@pytest.mark.slow
@pytest.mark.parametrize(("relation", "amplifies"), [("replace_one", False), ("add_remove", True)])
def test_poisson_samples_amplify_ones_own_noise_where_that_is_proved(relation, amplifies) -> None:
    def cost(sampling: PoissonSampling | None) -> float:
        release = Release(0, Mine(1.0), ONE, sampling=sampling)
        made = Plan(releases=(release,), neighboring_relation=relation, unit="record")
        return made.cost(DELTA).epsilon

    assert cost(PoissonSampling(0.01)) == pytest.approx(cost(None), rel=1e-9) or amplifies
    assert not amplifies or cost(PoissonSampling(0.01)) < 0.5 * cost(None)


@dataclass(frozen=True)
class Pure(Laplace):
    """Laplace noise by a class of one's own."""

    @property
    def event(self):
        import dp_accounting

        return dp_accounting.LaplaceDpEvent(self.noise_to_sensitivity)


@pytest.mark.parametrize("kind", [Gaussian, Mine, Laplace, Pure, Logistic])
def test_rounding_of_real_valued_noise_is_an_assumption(kind: type[Mechanism]) -> None:
    def assumed(mechanism: Mechanism) -> bool:
        texts = dm.privacy.report(plan(mechanism), DELTA).assumptions
        return any("floating-point rounding" in text for text in texts)

    assert assumed(kind(2.0))
    assert kind is Logistic or not assumed(kind(2.0, grid=2.0**-10))


@pytest.mark.parametrize("kind", [Laplace, Pure, Logistic])
def test_pure_releases_add_up_at_delta_zero(kind: type[Mechanism]) -> None:
    assert plan(*[kind(19.0)] * 19).cost(0.0).epsilon == pytest.approx(1.0, abs=1e-9)
