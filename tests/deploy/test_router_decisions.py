"""Decisions of a router of secure sums, without messages: cohorts, suspects, pauses, agreement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dpmesh.deploy.router_attempt import Attempt
from dpmesh.deploy.router_faults import Faults
from dpmesh.deploy.router_pauses import FIRST_PAUSE, Pauses
from dpmesh.deploy.sums import Header, MaskedPart
from dpmesh.deploy.wire import Position

ALL = {0, 1, 2, 3}


def faults(reserve: int = 2, quorum: int = 3, steps: int = 4) -> Faults:
    """Return the faults of a contract with one kind of sum."""
    planned = SimpleNamespace(
        kind_at=lambda step: 0,
        reserve_by_kind=(reserve,),
        later_sums=tuple(reversed(range(steps))),
        rounds_before=lambda step: step,
    )
    contract: Any = SimpleNamespace(planned=planned, terms=SimpleNamespace(quorum=quorum))
    return Faults(contract)


def attempt(agreements: dict[int, bytes], cohort: tuple[int, ...] = (0, 1, 2, 3)) -> Attempt:
    """Return an attempt in which parties sent parts with these agreements."""
    header = Header(Position(0), cohort, 0)
    opened = Attempt(cohort=frozenset(cohort), dealer=0)
    for party, agreement in agreements.items():
        opened.parts[party] = [MaskedPart(header, agreement, b"", 0)]
    return opened


def test_a_cohort_leaves_out_parties_at_fault_as_long_as_a_quorum_remains() -> None:
    counted = faults()
    assert counted.next_cohort(ALL) == ALL
    counted.blame({1})
    assert counted.next_cohort(ALL) == {0, 2, 3}
    counted.blame({1, 2})
    assert counted.next_cohort(ALL) == {0, 2, 3}  # it cost fewer attempts than the other
    assert counted.parties_at_fault == {1, 2}
    counted.begin_search_without(0, 1)
    assert counted.next_cohort(ALL) == {1, 2, 3}  # the suspect comes last


def test_repeated_attempts_use_up_the_reserve_and_the_first_beyond_it_is_told_once() -> None:
    counted = faults(reserve=2)
    beyond = []
    for _ in range(4):
        assert counted.has_reserve(0) == (len(beyond) < 2)
        beyond.append(counted.count_repeated_attempt(0))
    assert beyond == [False, False, True, False]


def test_a_search_suspects_only_parties_of_all_wrong_totals() -> None:
    search = faults(reserve=9)
    suspects = []
    cohort = (0, 1, 2, 3)
    for _ in range(2):
        search.clear_suspect()
        suspect = search.next_suspect(1, cohort, ALL, ALL)
        assert suspect is not None
        suspects.append(suspect)
        search.begin_search_without(suspect, 1)
        cohort = tuple(party for party in range(4) if party != suspect)
    assert suspects == [0, 1]
    assert search.parties_at_fault == {1}  # the total without 0 was wrong, too: 0 is cleared
    assert search.end_search((0, 2, 3)) == 1
    assert search.suspect is None
    assert search.parties_at_fault == {1}


def test_a_suspect_that_took_part_after_all_is_cleared() -> None:
    search = faults()
    search.begin_search_without(1, 1)
    assert search.end_search((0, 1, 2)) is None
    assert search.parties_at_fault == set()


@pytest.mark.parametrize(
    ("reserve", "step", "able"), [(0, 1, ALL), (9, 1, {0, 1}), (9, 1, {0, 1, 2})]
)
def test_no_party_is_left_out_without_a_reserve_or_a_quorum(
    reserve: int, step: int, able: set[int]
) -> None:
    assert faults(reserve).next_suspect(step, (0, 1, 2, 3), ALL, able) is None


def test_a_search_ends_no_run_without_a_model() -> None:
    """In the first step only the attempts beyond those of later steps may be used."""
    search = faults(reserve=1, steps=1)
    assert search.next_suspect(0, (0, 1, 2, 3), ALL, ALL) == 0
    search.count_repeated_attempt(0)
    assert search.next_suspect(0, (0, 1, 2, 3), ALL, ALL) is None


def test_an_attempt_is_complete_with_one_agreement_of_its_whole_cohort() -> None:
    same = attempt(dict.fromkeys(range(4), b"same"))
    ((first, *others),) = same.complete_sums(1)
    assert (first.agreement, len(others)) == (b"same", 3)
    assert same.unanswered == same.minority() == same.disagreeing() == set()
    del same.parts[2]
    assert same.complete_sums(1) == []
    assert same.unanswered == {2}


def test_parties_of_the_minority_are_at_fault_and_none_without_a_majority() -> None:
    three_to_one = attempt({0: b"a", 1: b"a", 2: b"b", 3: b"a"})
    assert three_to_one.complete_sums(1) == []
    assert three_to_one.minority() == {2}
    assert three_to_one.failing(set()) == {2}
    halves = attempt({0: b"a", 1: b"a", 2: b"b", 3: b"b"})
    assert halves.minority() == set()
    assert halves.disagreeing() == ALL


def test_an_attempt_that_charged_nobody_else_is_nobodys_fault() -> None:
    opened = attempt({1: b"a"})
    opened.refused.add(3)
    assert opened.failing({0}) == {0, 3}
    assert opened.failing({0, 1}) == set()  # party 1 alone was charged


def test_pauses_double_up_to_the_longest_and_begin_anew() -> None:
    pauses = Pauses(longest=3.0)
    assert pauses.pause(0, now=10.0)
    assert not pauses.is_over(0, 10.0 + FIRST_PAUSE - 0.1)
    assert pauses.is_over(0, 10.0 + FIRST_PAUSE)
    assert pauses.is_over(1, 0.0)
    assert not pauses.pause(0, now=20.0)
    assert not pauses.pause(0, now=30.0)
    assert not pauses.is_over(0, 32.9)
    assert pauses.is_over(0, 33.0)
    pauses.begin_attempt()
    assert pauses.pause(0, now=40.0)
    assert pauses.is_over(0, 40.0 + FIRST_PAUSE)
    assert [pauses.pause_all({0, 1}, 50.0), pauses.pause_all({0, 1}, 60.0)] == [2.0, 3.0]
    assert not pauses.is_over(1, 62.9)
    pauses.end_pauses_of_all()
    assert pauses.pause_all({0, 1}, 70.0) == 2.0
