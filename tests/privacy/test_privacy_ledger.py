"""Ledgers: every release is recorded, and what departs from an approved plan keeps the budget."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_privacy_budget import ONE, Repeated

import dpmesh as dm
from dpmesh.noise import Gaussian, Laplace, Sensitivity, correlated
from dpmesh.privacy import Budget, Ledger, OverBudget, Plan, Release, UnplannedRelease
from dpmesh.privacy.foreseen import unplanned
from dpmesh.privacy.sampling import FixedSizeSampling, PoissonSampling, RandomAllocation


def release_all(ledger: Ledger, *releases: Release) -> None:
    """Release each of these in a round of its own, of all nodes."""
    for release in releases:
        ledger.admit(release, None)
        ledger.end_round()


def test_a_ledger_takes_no_more_than_the_budget() -> None:
    plan = Repeated(4.0, Laplace).plan(10)
    ledger = Ledger(plan, Budget(1.0))
    release_all(ledger, *plan.releases[:4])
    with pytest.raises(
        OverBudget, match=r"would cost epsilon 1\.25, more than the budget of .* = 1 "
    ):
        ledger.admit(plan.releases[4], None)
    assert ledger.plan == Repeated(4.0, Laplace).plan(4)
    constant = Release(4, Laplace(1.0), Sensitivity(0.0, "l2", "a constant"))
    release_all(ledger, constant)
    assert ledger.plan.releases[4:] == (constant,)


def test_without_a_budget_a_ledger_records_what_departs_from_its_plan() -> None:
    ledger = Ledger(Repeated(4.0, Laplace).plan(4))
    ledger.admit(Release(0, Laplace(1e-3), ONE), None)
    assert ledger.plan.cost().epsilon == 1e3


def test_nodes_that_send_one_after_the_other_make_one_release() -> None:
    """Unless it is another release, or a node sends again."""
    plan = Plan(releases=(), neighboring_relation="replace_one", unit="record")
    first, other = (Release(0, Laplace(z), ONE) for z in (2.0, 1.0))
    for sent, recorded in [
        ([(first, (0,)), (first, (1, 2))], [first]),
        ([(first, (0,)), (other, (1,))], [first, other]),
        ([(first, (0,)), (first, (1,)), (first, (0,)), (first, (2,))], [first, first]),
        ([(first, None), (first, (1,))], [first, first]),
    ]:
        ledger = Ledger(plan, nodes=3)
        for release, nodes in sent:
            ledger.admit(release, nodes)
        ledger.end_round()
        assert ledger.releases == recorded
        ledger.admit(first, (0,))
        assert ledger.in_round == [first]


def test_a_ledger_watches_what_departs_from_an_approved_plan() -> None:
    planned = Repeated(4.0, Laplace).plan(4)
    ledger = Ledger(planned, Budget(1.0))
    release_all(ledger, planned.releases[0], Release(1, Laplace(2.0), ONE), planned.releases[2])
    with pytest.raises(OverBudget):
        ledger.admit(planned.releases[3], None)


def test_a_ledger_goes_on_from_the_releases_before_a_checkpoint() -> None:
    planned = Repeated(4.0, Laplace).plan(4)
    ledger = Ledger(planned, Budget(0.75))
    ledger.restore(planned.releases[:3])
    with pytest.raises(OverBudget):
        ledger.admit(planned.releases[3], None)


def test_what_was_planned_is_looked_up_and_not_searched() -> None:
    def calls(rounds: int) -> int:
        plan, count = Repeated(4.0, Laplace).plan(rounds), 0
        ledger = Ledger(plan, Budget(1e9))

        def counter(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(counter)
        try:
            release_all(ledger, plan.releases[0])
        finally:
            sys.setprofile(None)
        return count

    assert calls(1000) == calls(10)


def test_what_was_not_planned_leaves_less_for_what_was() -> None:
    """In a later round and in the same one, although alone it would be as planned."""
    for planned in (Repeated(4.0, Laplace).plan(4), Repeated(1.0, Laplace).plan(1)):
        *most, last = planned.releases
        ledger = Ledger(planned, Budget(1.0))
        release_all(ledger, *most)
        ledger.admit(Release(last.round, Laplace(4.0), ONE, nodes=(0,)), None)
        with pytest.raises(OverBudget, match=r"would cost epsilon 1\.25"):
            ledger.admit(last, None)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1.0, 2.0])), min_size=1, max_size=8),
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
)
def test_a_run_that_is_as_planned_costs_no_more(of_plan, batches: list[int]) -> None:
    """Batches that chance gave out otherwise are distinguished where one of them pays more."""

    def release(t: int, batch: int) -> Release:
        return Release(t, Laplace(of_plan[t][1]), ONE, batch=batch)

    rounds = range(len(of_plan))
    planned = Plan(
        releases=tuple(release(t, of_plan[t][0]) for t in rounds),
        neighboring_relation="replace_one",
        unit="record",
    )
    ledger = Ledger(planned)
    ledger.restore(release(t, batches[t]) for t in rounds)
    more = ledger.plan.cost().epsilon > planned.cost().epsilon
    assert unplanned(planned, planned.releases) == 0
    assert not more or "not in the algorithm's plan" in ledger.plan.assumptions[-1]


def test_a_batch_that_pays_twice_is_not_as_planned() -> None:
    planned = Plan(
        releases=tuple(Release(t, Laplace(1.0), ONE, batch=t) for t in range(3)),
        neighboring_relation="replace_one",
        unit="record",
    )
    cases = ((2, 0, 1), 0), ((7, 0, 5), 0), ((0, 1, 0), 1), ((1, 1, 1), 2), ((7, 7, 5), 1)
    for batches, expected in cases:
        run = [Release(t, Laplace(1.0), ONE, batch=batch) for t, batch in enumerate(batches)]
        assert unplanned(planned, run) == expected
    assert unplanned(planned, [Release(0, Laplace(1.0), ONE)]) == 1


def test_what_a_round_releases_twice_is_not_as_planned() -> None:
    planned = Repeated(1.0).plan(3)
    assert unplanned(planned, 2 * planned.releases) == 3
    ledger = Ledger(planned, Budget(planned.cost(1e-5).epsilon, delta=1e-5))
    release_all(ledger, *planned.releases)
    with pytest.raises(OverBudget):
        ledger.admit(planned.releases[0], None)


def test_batches_by_chance_are_part_of_the_approved_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each release was accounted for anew: of 1,000 rounds that took 300 times as long."""
    planned = Plan(
        releases=tuple(Release(t, Laplace(1.0), ONE, batch=t // 2) for t in range(4)),
        neighboring_relation="replace_one",
        unit="record",
    )
    ledger = Ledger(planned, Budget(2.0))

    def costs(plan: Plan, delta: float) -> None:
        raise AssertionError("accounted for anew")

    monkeypatch.setattr(Plan, "cost", costs)
    for t, batch in enumerate((1, 7, 1)):
        release = Release(t, Laplace(1.0), ONE, batch=batch)
        release_all(ledger, release)
    with pytest.raises(AssertionError, match="anew"):
        ledger.admit(Release(3, Laplace(1.0), ONE, batch=1), None)


L2 = Sensitivity(1.0, "l2", "x")
IN_TIME = correlated.InTime(topology=dm.topology.ring(3), rounds=3, bands=2)
JOINT_PLANS = {
    "allocation": tuple(
        Release(t, Gaussian(1.0), L2, sampling=RandomAllocation(rounds=2)) for t in range(2)
    ),
    "allocation by node": tuple(
        Release(t, Gaussian(1.0), L2, sampling=RandomAllocation(rounds=2), nodes=(node,))
        for t in range(2)
        for node in range(3)
    ),
    "Poisson samples": tuple(
        Release(t, Gaussian(1.0), L2, sampling=PoissonSampling(0.1)) for t in range(2)
    ),
    "samples of fixed size": tuple(
        Release(t, Laplace(1.0), ONE, sampling=FixedSizeSampling(size=1, population=9))
        for t in range(2)
    ),
    "correlated noise": dm.OnlineLearning(delta=1e-5, noise=IN_TIME).plan(3).releases[1:],
}


@pytest.mark.parametrize("budget", [None, Budget(1e6, delta=1e-5)])
@pytest.mark.parametrize("planned", JOINT_PLANS.values(), ids=JOINT_PLANS)
def test_parts_of_an_event_are_planned_or_refused(planned, budget: Budget | None) -> None:
    """A release that is not in the plan, or is made again, never leaves; the plan still does."""
    plan = Plan(releases=planned, neighboring_relation="replace_one", unit="record")
    ledger = Ledger(plan, budget, nodes=3)
    first, last = planned[0], planned[-1]
    strangers = (
        replace(last, round=last.round + 1),
        replace(first, sensitivity=replace(first.sensitivity, bound=0.5)),
        replace(first, nodes=(0, 1)),
    )
    for release in planned:
        for stranger in strangers:
            with pytest.raises(UnplannedRelease, match="the plan has no such release"):
                ledger.admit(stranger, stranger.nodes)
        ledger.admit(release, release.nodes)
        with pytest.raises(UnplannedRelease, match="or has it less often"):
            ledger.admit(release, release.nodes)
        ledger.end_round()
    assert ledger.plan == plan
    resumed = Ledger(plan, budget, nodes=3)
    resumed.restore(planned)
    with pytest.raises(UnplannedRelease):
        resumed.admit(first, first.nodes)


@pytest.mark.parametrize(
    ("release", "refused"),
    [
        (Release(0, Gaussian(0.1), ONE, sampling=RandomAllocation(rounds=5)), UnplannedRelease),
        (Release(0, Gaussian(0.1), ONE), OverBudget),
    ],
    ids=["unplanned", "over budget"],
)
def test_what_is_refused_to_one_node_is_refused_to_the_next(release: Release, refused) -> None:
    plan = Plan(
        releases=(Release(0, Gaussian(5.0), ONE),),
        neighboring_relation="replace_one",
        unit="record",
    )
    ledger = Ledger(plan, Budget(1.0, delta=1e-5), nodes=3)
    for nodes in ([0], [1], None, [0, 2]):
        with pytest.raises(refused):
            ledger.admit(release, nodes)
    assert not ledger.in_round
    ledger.admit(plan.releases[0], [1])
    assert ledger.plan == plan
