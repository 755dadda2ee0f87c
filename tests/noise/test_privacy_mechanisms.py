"""Mechanisms and their releases: how much noise, of which distribution, and what it costs."""

from __future__ import annotations

from math import inf, sqrt

import dp_accounting
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from dpmesh.keys import Key, Purpose, Stream
from dpmesh.noise import Gaussian, Laplace, Mechanism, NoNoise, Sensitivity
from dpmesh.privacy import Plan, PoissonSampling, Release, report

ONE = Sensitivity(1.0, "l2", "a test")
HALF = PoissonSampling(0.5)
NOTHING = Sensitivity(0.0, "l2", "does not depend on the data")


def let_out(values: object, sensitivity: object = ONE, noise: object = None) -> object:
    return Laplace(1.0).release(values, sensitivity, noise or stream())


def stream(round: int = 0) -> Stream:
    return Key.seeded(5).stream(Purpose.NOISE, round)


@pytest.mark.parametrize(
    ("mechanism", "spread"),
    [
        # Sample standard deviation of n draws: relative error below 6 sqrt((kurtosis - 1) / 4n),
        # which a correct sampler exceeds once in 5e8; the kurtosis is 3 (Gaussian) or 6 (Laplace).
        (Gaussian(2.0), 2.0 * 3.0),
        (Laplace(2.0), 2.0 * 3.0 * sqrt(50) * sqrt(2)),
    ],
)
def test_noise_is_calibrated_to_the_sensitivity(mechanism: Mechanism, spread: float) -> None:
    zeros = np.zeros((4000, 50))
    released = mechanism.release(zeros, Sensitivity(3.0, "l2", "a test"), stream())
    tolerance = 6 * sqrt((6 - 1) / (4 * zeros.size))
    assert abs(released.std() / spread - 1) < tolerance
    assert abs(released.std() / (2 * spread) - 1) > tolerance


def test_an_l1_sensitivity_needs_no_factor_for_laplace_noise() -> None:
    assert Laplace(2.0).noise_scale(Sensitivity(3.0, "l1", "a test"), 100) == 6.0
    assert Laplace(2.0).noise_scale(Sensitivity(3.0, "l2", "a test"), 100) == 60.0
    assert Gaussian(2.0).noise_scale(Sensitivity(3.0, "l1", "a test"), 100) == 6.0


@pytest.mark.parametrize("law", [Laplace, Gaussian])
def test_what_does_not_depend_on_the_data_has_no_noise_on_a_grid_either(law) -> None:
    mechanism, values = law(2.0, grid=0.5), np.array([[0.3, -1.2, 7.0]])
    assert mechanism.noise_scale(NOTHING, 3) == 0
    released = mechanism.release(values, NOTHING, stream())
    np.testing.assert_array_equal(released, mechanism.prepared(values))


def test_what_does_not_depend_on_the_data_has_no_mechanism() -> None:
    release = Release(0, Laplace(2.0, grid=0.5), NOTHING)
    assert (release.mechanism, release.name, release.noise_to_sensitivity) == (
        NoNoise(),
        "none",
        0.0,
    )


@pytest.mark.parametrize(
    ("law", "long", "clipped"),
    [(Gaussian, [3.0, 4.0], [1.5, 2.0]), (Laplace, [3.0, 2.0], [1.5, 1])],
)
def test_clipping_bounds_what_is_released(law, long, clipped) -> None:
    short = [0.9, 1.2]
    mechanism = law(1e-9, clipping_norm=2.5)
    one = Sensitivity(2.5, law.norm, "1 x clipping norm, add_remove")
    out = mechanism.release(np.array([long, short]), one, stream())
    np.testing.assert_allclose(out, [clipped, short], atol=1e-6)


def test_events_are_dp_accounting_events() -> None:
    assert Release(1, Laplace(2.0), ONE).event == dp_accounting.LaplaceDpEvent(2.0)
    assert Release(1, Gaussian(2.0), ONE).event == dp_accounting.GaussianDpEvent(2.0)
    assert Release(1, NoNoise(), ONE).event == dp_accounting.NonPrivateDpEvent()
    assert Release(1, Gaussian(2.0), NOTHING).event == dp_accounting.NoOpDpEvent()


def plan(*releases: Release) -> Plan:
    return Plan(releases=releases, neighboring_relation="replace_one", unit="record")


@pytest.mark.slow
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=8))
def test_disjoint_batches_compose_in_parallel_and_shared_data_in_sequence(eps: list[float]) -> None:
    disjoint = [Release(t, Laplace(1 / e), ONE, batch=t) for t, e in enumerate(eps)]
    shared = [Release(t, Laplace(1 / e), ONE) for t, e in enumerate(eps)]
    assert plan(*disjoint).cost().epsilon == pytest.approx(max(eps))
    assert plan(*shared).cost().epsilon == pytest.approx(sum(eps))
    noisy = Release(0, Gaussian(2.0), ONE)
    most = sum(eps) + plan(noisy).cost(1e-11).epsilon
    assert max(sum(eps), plan(noisy).cost(1e-11).epsilon) < plan(*shared, noisy).cost(1e-11).epsilon
    assert plan(*shared, noisy).cost(1e-11).epsilon <= most * (1 + 1e-9)
    assert plan(*shared, noisy).cost().epsilon == inf
    assert plan(*shared, *disjoint).cost().epsilon == pytest.approx(sum(eps) + max(eps))


@given(st.lists(st.floats(0.5, 10), min_size=1, max_size=6), st.sampled_from([1e-5, 1e-9]))
def test_gaussian_plans_cost_no_more_than_renyi_says(
    multipliers: list[float], delta: float
) -> None:
    releases = [Release(t, Gaussian(z), ONE) for t, z in enumerate(multipliers)]
    accountant = dp_accounting.rdp.RdpAccountant()
    accountant.compose(plan(*releases).event(delta))
    renyi = accountant.get_epsilon(delta)
    assert 0.5 * renyi < plan(*releases).cost(delta).epsilon <= renyi


@pytest.mark.parametrize("number", [int, np.int64, np.float32])
@pytest.mark.parametrize("law", [Laplace, Gaussian])
def test_noises_to_sensitivity_may_be_numbers_of_any_kind(law, number) -> None:
    for sampling in (None, HALF) if law is Gaussian else (None,):
        exact, same = (Release(0, law(z), ONE, sampling=sampling) for z in (2.0, number(2)))
        costs = [
            Plan(releases=(r,), neighboring_relation="add_remove", unit="record").cost(1e-5)
            for r in (exact, same)
        ]
        assert costs[0] == costs[1]


def test_reports_say_what_there_is() -> None:
    private = report(plan(Release(1, Laplace(0.5), ONE)))
    assert private.epsilon == 2.0
    assert "epsilon = 2, delta = 0" in str(private)
    assert "replace-one: two datasets differ in the value of one record" in str(private)
    users = report(Plan(releases=(), neighboring_relation="add_remove", unit="user"))
    assert "neighbours  add-remove: one dataset has one user more" in str(users)
    open_ = report(plan(Release(1, NoNoise(), ONE)), seeded=True)
    assert open_.epsilon == inf
    assert "privacy     none (epsilon is infinite)" in str(open_)
    assert "NOT private: seeded noise" in str(open_)
    assert plan().cost() == (0.0, "nothing depends on the data")
    assert report(plan()).epsilon == 0.0


@pytest.mark.parametrize("law", [Laplace, Gaussian])
def test_reports_say_that_real_valued_noise_hides_no_last_bits(law) -> None:
    (said,) = report(plan(Release(0, law(1.0), ONE)), 1e-5).assumptions
    assert "floating-point rounding" in said
    for release in (Release(0, law(1.0, grid=0.5), ONE), Release(0, law(1.0), NOTHING)):
        assert report(plan(release), 1e-5).assumptions == ()


test_bad_input_is_named = refused(
    (lambda: NoNoise(1.0), "noise_to_sensitivity: wanted 0"),
    (lambda: Release(0, Laplace(1.0), 1.0), "sensitivity: wanted a Sensitivity, .* got 1.0"),
    (lambda: let_out(np.ones((2, 3)), 1.0), "sensitivity: wanted a Sensitivity, .* got 1.0"),
    (lambda: let_out([[1.0]]), r"values: wanted .* shape \(nodes, dim\), got list$"),
    (lambda: let_out(np.ones((2, 3, 4))), r"values: .*, got ndarray of shape \(2, 3, 4\)"),
    (lambda: let_out(np.ones((2, 3, 4)), NOTHING), "values: wanted an array of shape"),
    (lambda: let_out(np.ones(())), r"values: .*, got ndarray of shape \(\)"),
    (lambda: let_out(np.ones((2, 3), np.float16)), "values: wanted .* got dtype float16"),
    (lambda: let_out(np.ones((2, 0))), r"values: wanted at least 1 element, got shape"),
    (lambda: let_out(np.ones((2, 3)), noise=Key.seeded(1)), "stream: wanted .* got Key"),
    (lambda: Release(0, "laplace", ONE), "mechanism: wanted a mechanism, such as .*'laplace'"),
    (lambda: Release(0, Laplace(2.0), ONE, sampling=0.1), "sampling: wanted Poisson.* 0.1"),
    (lambda: plan(Release(0, Gaussian(1e-120), ONE)).cost(), "noise_to_sensitivity: .* 1e-100 and"),
    (
        lambda: Plan(
            releases=Release(0, Laplace(1.0), ONE),
            neighboring_relation="replace_one",
            unit="record",
        ),
        "releases: wanted a",
    ),
    (
        lambda: Plan(releases=(1,), neighboring_relation="replace_one", unit="record"),
        "releases: wanted releases alone, got 1",
    ),
    (
        lambda: Plan(
            releases=(), neighboring_relation="replace_one", unit="record", assumptions="one"
        ),
        "assumptions: wanted a tuple of texts",
    ),
    (lambda: NoNoise(clipping_norm=np.nan), "clipping_norm: wanted a finite number, got nan"),
    (lambda: report(Gaussian(1.0)), "plan: wanted a Plan, such as .*, got Gaussian"),
)


class OwnNoise(Gaussian):
    def _add_noise(self, values, scale, source):
        return values + scale


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    "mechanism",
    [
        *(Gaussian(1.0), Laplace(1.0), NoNoise(), OwnNoise(1.0)),
        *(Gaussian(1.0, clipping_norm=1.0), Laplace(1.0, grid=0.5)),
    ],
)
@pytest.mark.parametrize("sensitivity", [ONE, NOTHING])
def test_only_finite_values_pass(
    mechanism: Mechanism, sensitivity: Sensitivity, bad: float
) -> None:
    values = np.zeros((3, 100_000), np.float32)
    values[2, 77_777] = bad
    with pytest.raises(ValueError, match="values: wanted finite values, got NaN or in"):
        mechanism.release(values, sensitivity, stream())


def test_a_list_of_releases_that_grows_leaves_its_plan_as_it_was() -> None:
    releases = [Release(0, Laplace(1.0), ONE)]
    plan = Plan(releases=releases, neighboring_relation="replace_one", unit="record")  # type: ignore[arg-type]
    before = plan.cost(0.0)
    releases.append(releases[0])
    assert plan.cost(0.0) == before
    assert len(plan.releases) == 1


@pytest.mark.parametrize("mechanism", [Gaussian(1.0), Laplace(1.0, grid=0.5), NoNoise()])
@pytest.mark.parametrize("sensitivity", [ONE, NOTHING])
def test_what_was_released_stays_as_it_was(mechanism: Mechanism, sensitivity: Sensitivity) -> None:
    """Without noise it was the node's own array, which later steps in place changed."""
    values = np.zeros((3, 2))
    released = mechanism.release(values, sensitivity, stream())
    before = released.copy()
    values += 1
    np.testing.assert_array_equal(released, before)
