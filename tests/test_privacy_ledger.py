"""Ledgers: what left is written down, and what departs from an approved plan keeps the budget."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_privacy_budget import ONE, Repeated

import dpmesh as dm
from dpmesh.keys import Purpose
from dpmesh.privacy import Budget, Laplace, Ledger, OverBudget, Plan, Release, Sensitivity
from dpmesh.privacy.door import kept_by
from dpmesh.privacy.foreseen import strangers


def test_a_ledger_takes_no_more_than_the_budget() -> None:
    goal, plan = Budget(1.0), Repeated(4.0, Laplace).plan(10)
    ledger = Ledger(plan, goal)
    assert Ledger(plan).allows(*plan.releases)
    for release in plan.releases[:4]:
        assert ledger.allows(release)
        ledger.admit(release)
        ledger.add(release)
    assert not ledger.allows(plan.releases[4])
    with pytest.raises(
        OverBudget, match=r"release: wanted at most epsilon = 1 .*got 1\.25 with it"
    ):
        ledger.admit(plan.releases[4])
    assert ledger.plan == Repeated(4.0, Laplace).plan(4)
    assert ledger.allows(Release(0, Laplace(1.0), Sensitivity(0.0, "l2", "a constant")))
    ledger.add(plan.releases[4])
    assert ledger.plan.cost().epsilon == 1.25


def test_a_ledger_watches_what_departs_from_an_approved_plan() -> None:
    planned = Repeated(4.0, Laplace).plan(4)
    ledger = Ledger(planned, Budget(1.0))
    for release in (planned.releases[0], Release(1, Laplace(2.0), ONE), planned.releases[2]):
        ledger.admit(release)
        ledger.add(release)
    with pytest.raises(OverBudget):
        ledger.admit(planned.releases[3])
    free = Ledger(planned)
    free.admit(Release(0, Laplace(1e-3), ONE))
    assert free.plan.cost().epsilon == 1e3


def test_what_was_planned_is_looked_up_and_not_searched() -> None:
    def calls(rounds: int) -> int:
        plan, count = Repeated(4.0, Laplace).plan(rounds), 0
        ledger = Ledger(plan, Budget(1e9))

        def counter(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(counter)
        try:
            ledger.admit(plan.releases[0])
            ledger.add(plan.releases[0])
        finally:
            sys.setprofile(None)
        return count

    assert calls(1000) == calls(10)


def test_a_departure_is_paid_for_by_rounds_that_were_planned() -> None:
    """As planned alone the last of them would leave; what was not planned has spent its part."""
    planned = Repeated(4.0, Laplace).plan(4)
    ledger = Ledger(planned, Budget(1.0))
    for release in (Release(0, Laplace(4.0), ONE, batch=None, nodes=(0,)), *planned.releases[:3]):
        ledger.admit(release)
        ledger.add(release)
    with pytest.raises(OverBudget, match=r"got 1\.25 with it"):
        ledger.admit(planned.releases[3])


def test_what_was_not_planned_leaves_less_for_what_was_in_the_same_round() -> None:
    planned = Repeated(1.0, Laplace).plan(1)
    ledger = Ledger(planned, Budget(1.0))
    ledger.admit(Release(0, Laplace(2.0), ONE))
    with pytest.raises(OverBudget, match=r"got 1\.5 with it"):
        ledger.admit(planned.releases[0])


def test_pieces_of_one_planned_batch_are_counted_once() -> None:
    whole = Repeated(4.0, Laplace).plan(4)
    planned = whole.with_releases(replace(r, batch=r.round) for r in whole.releases)
    ledger = Ledger(planned, Budget(1.0))
    for release in planned.releases:
        for _ in range(3):
            ledger.admit(release)
        assert ledger.plan.releases[-2:].count(release) == 1
        ledger.add(release)
    assert ledger.plan == planned


def test_pieces_of_what_was_not_planned_are_releases_each() -> None:
    ledger = Ledger(Repeated(4.0, Laplace).plan(1))
    release = Release(0, Laplace(4.0), ONE, batch=9)
    for _ in range(2):
        ledger.admit(release)
    assert ledger.plan.releases == (release, release)


def test_a_second_release_of_a_batch_is_no_piece_of_the_first() -> None:
    """Noise of another purpose is that of a release of its own; two that are planned are two."""
    batches = Repeated(4.0, Laplace).plan(2)
    once = batches.with_releases(replace(r, batch=r.round) for r in batches.releases)
    release = once.releases[0]
    twice = once.with_releases((release, *once.releases))
    for plan in (once, twice):
        ledger = Ledger(plan)
        for purpose in (Purpose.NOISE, 1000, Purpose.NOISE, 1000):  # two nodes, each sends two
            ledger.admit(release, purpose)
        with pytest.raises(ValueError, match="releases: wanted all that left in the round"):
            ledger.add(release)
        ledger.add(release, release)
        assert ledger.plan.releases == (release, release)


def test_what_left_must_be_written_down() -> None:
    planned = Repeated(4.0, Laplace).plan(2).releases[0]
    more = Release(0, Laplace(1.0), ONE, nodes=(1, 2))
    some, others = replace(planned, nodes=(0, 1)), replace(more, nodes=(1, 3))
    for told in ((), (more,), (planned,), (planned, others), (some, more)):
        ledger = Ledger(Repeated(4.0, Laplace).plan(2))
        ledger.admit(planned)
        ledger.admit(more)
        with pytest.raises(ValueError, match="releases: wanted all that left in the round, such"):
            ledger.add(*told)
    ledger.add(more, planned)  # in any order
    assert ledger.plan.releases == (more, planned)
    twice = Ledger(Repeated(4.0, Laplace).plan(2))
    for _ in range(2):
        twice.admit(more)
    with pytest.raises(ValueError, match="releases: wanted all"):
        twice.add(more)
    twice.add(replace(more, nodes=(2, 1)), replace(more, nodes=(0, 1, 2)))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1.0, 2.0])), min_size=1, max_size=8),
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
)
def test_a_run_that_is_as_planned_costs_no_more(of_plan, batches: list[int]) -> None:
    """Batches that chance gave out otherwise are told apart where one of them pays more."""

    def release(t: int, batch: int) -> Release:
        return Release(t, Laplace(of_plan[t][1]), ONE, batch=batch)

    rounds = range(len(of_plan))
    planned = Plan(tuple(release(t, of_plan[t][0]) for t in rounds), "replace_one", "record")
    ledger = Ledger(planned)
    ledger.add(*(release(t, batches[t]) for t in rounds))
    more = ledger.plan.cost().epsilon > planned.cost().epsilon
    assert strangers(planned, planned.releases) == 0
    assert not more or "not in the algorithm's plan" in ledger.plan.assumptions[-1]


def test_a_batch_that_pays_twice_is_not_as_planned() -> None:
    planned = Plan(
        tuple(Release(t, Laplace(1.0), ONE, batch=t) for t in range(3)), "replace_one", "record"
    )
    cases = ((2, 0, 1), 0), ((7, 0, 5), 0), ((0, 1, 0), 1), ((1, 1, 1), 2), ((7, 7, 5), 1)
    for batches, expected in cases:
        run = [Release(t, Laplace(1.0), ONE, batch=batch) for t, batch in enumerate(batches)]
        assert strangers(planned, run) == expected
    assert strangers(planned, [Release(0, Laplace(1.0), ONE)]) == 1


def test_what_a_round_releases_twice_is_not_as_planned() -> None:
    planned = Repeated(1.0).plan(3)
    assert strangers(planned, 2 * planned.releases) == 3
    ledger = Ledger(planned, Budget(planned.cost(1e-5).epsilon, 1e-5))
    ledger.add(planned.releases[0])
    assert ledger.allows(*planned.releases[1:])
    assert not ledger.allows(*planned.releases)


def test_batches_by_chance_are_part_of_the_approved_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each release was accounted for anew: of 1,000 rounds that took 300 times as long."""
    planned = Plan(
        tuple(Release(t, Laplace(1.0), ONE, batch=t // 2) for t in range(4)), "replace_one", "record"
    )
    ledger = Ledger(planned, Budget(2.0))

    def costs(plan: Plan, delta: float) -> None:
        raise AssertionError("accounted for anew")

    monkeypatch.setattr(Plan, "cost", costs)
    for t, batch in enumerate((1, 7, 1)):
        release = Release(t, Laplace(1.0), ONE, batch=batch)
        ledger.admit(release)
        ledger.add(release)
    with pytest.raises(AssertionError, match="anew"):
        ledger.admit(Release(3, Laplace(1.0), ONE, batch=1))


def test_a_release_of_all_data_that_leaves_twice_is_no_piece_of_one() -> None:
    planned = Repeated(4.0).plan(2)
    ledger = Ledger(planned)
    for _ in range(2):
        ledger.admit(planned.releases[0])
    with pytest.raises(ValueError, match="releases: wanted all that left in the round"):
        ledger.add(planned.releases[0])
    ledger.add(*2 * planned.releases[:1])
    assert ledger.plan.cost(1e-5) == planned.cost(1e-5)


def test_a_keeper_stands_at_the_door_within_the_block_only() -> None:
    def refuse(release: Release, purpose: int) -> None:
        raise OverBudget("closed")

    def leave() -> None:
        stream = dm.Key.seeded(0).stream(Purpose.NOISE, 0)
        Laplace(1.0).release(np.zeros((1, 2)), ONE, stream)

    for _ in range(2):
        with pytest.raises(OverBudget, match="closed"), kept_by(refuse):
            leave()
        leave()
