"""Runs end, whoever restarts and whoever is lost: nodes and router in this process, virtual time.

A schedule restarts any process at any step, several at once, and loses up to as many parties as
the contract allows, for good. Parties stall for longer than a deadline, and a folder that was
restored may go over its budget. Each run must end with a model, sealed if it is of sums, or with a
named reason, within a few deadlines. ``python tests/deploy/test_liveness.py 2000`` runs as many.

Tests run 120 schedules of mixed faults, 8 of each kind of contract, and two more of each kind of
contract with each kind of fault: 270 in all. A mistake that shows in one of a hundred schedules is
found with a probability of 93%; a rarer one by the weekly workflow, which sets ``DPMESH_SCHEDULES``
to 1000.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from mesh_parties import Parties

from dpmesh.deploy import Router

KINDS = (
    *("online", "sums", "first stage", "gradient descent", "without replacement", "in time"),
    *("quantized", "both", "clients", "second moment", "with replacement", "several mixings"),
    *("neighbour sums", "partners", "public point"),
)
FAULTS = ("nodes", "router", "lost", "stalls", "budget")
"""Kinds of faults: restarted nodes, a restarted router, a party that is lost for good, parties that
stall again and again, and a restored folder that goes over its budget."""
NEEDS_ALL = "neighbour sums"
MEMORY = Path("/dev/shm")
"""Where files lie in memory, on Linux: a commit to a disk takes most of a schedule's time."""
DEADLINE = 10.0
MOST_STEPS = 600
FIRST_SCHEDULES = 3 * len(KINDS)
SCHEDULES = int(os.environ.get("DPMESH_SCHEDULES", "120"))
"""How many schedules of mixed faults run in all; all but the first of each kind are slow."""
MOST_RESTARTS, MOST_STALLS = 8, 4


class Run:
    """One run under a random schedule.

    Parameters
    ----------
    number
        Of the schedule.
    folder
        Where the parties' folders lie.
    """

    def __init__(self, number: int, folder: Path, faults: tuple[str, ...] | None = None) -> None:
        self.random = np.random.default_rng(number)
        kind = KINDS[number % len(KINDS)]
        quorum = 4 if kind == NEEDS_ALL else 3
        changes = {"records": 16} if kind == "with replacement" else None
        sizes = {"nodes": 4, "rounds": 4, "quorum": quorum, "records": 16}
        self.parties = Parties(folder, kind, rehearsal=False, changes=changes, **sizes)
        self.now = 0.0
        self.router = self._started_router()
        self.alive = set(range(4))
        self.lost: int | None = None
        self.spent: int | None = None
        self.deadlines = 0
        self.restarts = 0
        self.stalls = 0
        self._stalled: dict[int, int] = {}
        """Until which step parties hear nothing."""
        if faults is None:
            faults = tuple(fault for fault in FAULTS if self.random.random() < 0.4)
        probability = float(self.random.choice([0.05, 0.2]))
        self.node_probability = probability if "nodes" in faults else 0.0
        self.router_probability = probability if "router" in faults else 0.0
        self.stall_probability = probability / 4 if "stalls" in faults else 0.0
        self.loses_at: int | None = None
        if "lost" in faults and kind != NEEDS_ALL:
            self.loses_at = int(self.random.integers(0, 60))
        self.spends_at = int(self.random.integers(0, 60)) if "budget" in faults else None

    def _started_router(self) -> Router:
        return Router(self.parties.contract, clock=lambda: self.now)

    def disturb(self, step: int) -> None:
        """Lose a party for good, stall others, spend a budget, and restart any processes."""
        if step == self.loses_at:
            self.lost = int(self.random.integers(4))
            self.alive.discard(self.lost)
        if step == self.spends_at:
            self.spent = int(self.random.integers(4))
            self.parties.folders[self.spent].change("update party set over = 1")
        if self.stalls < MOST_STALLS and self.random.random() < self.stall_probability:
            self.stalls += 1
            self._stalled[int(self.random.integers(4))] = step + int(self.random.integers(5, 40))
        if self.restarts >= MOST_RESTARTS:
            return
        for party in sorted(self.alive):
            if self.random.random() < self.node_probability:
                self.restarts += 1
                self.parties.nodes[party] = self.parties.node(party)
        if self.random.random() < self.router_probability:
            self.restarts += 1
            self.router = self._started_router()

    def hears(self, party: int, step: int) -> bool:
        """Return whether a party is there, and does not stall."""
        return party in self.alive and step >= self._stalled.get(party, 0)

    def to_the_end(self) -> None:
        """Run until it is over for everybody who is alive; fail if that takes too long."""
        for step in range(MOST_STEPS):
            self.disturb(step)
            if self.router.failure or self.is_over() or self.is_unsigned() or self.is_paused():
                return
            moved = False
            for party, message in self.router.requests().items():
                if self.hears(party, step) and self.random.random() < 0.9:
                    self.router.take(party, self.parties.nodes[party].answer(message))
                    moved = True
            self.now += 0.01 if moved else 1.0
            if self.router.waits_since() > DEADLINE:
                self.deadlines += self.router.close()
        waiting = self.router.open_position, self.router.waits_for, self.router.gone, self.lost
        raise AssertionError(f"it does not end: {waiting}")

    def is_unsigned(self) -> bool:
        """Whether a party was lost before the others began, and this router lacks its word."""
        names = [] if self.lost is None else [self.parties.names[self.lost]]
        begun = any(self.parties.nodes[party].last_position is not None for party in self.alive)
        waits = self.router.open_position is None and self.router.waits_for == names != []
        return waits and not begun and self.router.waits_since() > DEADLINE

    def is_paused(self) -> bool:
        """Whether rows wait below the quorum for a lost party, as a folder is over its budget."""
        router, name = self.router, self.parties.names[self.lost or 0]
        waits = router.waits_since() > DEADLINE
        few = {*router.gone} == {self.spent} and self.lost is not None
        return (
            self.parties.contract.planned.first_sum is None
            and waits
            and few
            and name in router.waits_for
        )

    def is_over(self) -> bool:
        nodes = self.parties.nodes
        there = self.alive - self.router.gone.keys()
        return self.router.done and all(nodes[party].is_done for party in there)


def run_schedules(numbers: range, faults: tuple[str, ...] | None = None) -> dict[str, int]:
    """Run schedules, with some kinds of faults or with any; return how they ended."""
    ends = {"ended": 0, "early": 0, "over budget": 0, "paused": 0, "unsigned": 0}
    for number in numbers:
        with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            run = Run(number, Path(folder), faults)
            try:
                run.to_the_end()
                if run.is_unsigned():
                    ends["unsigned"] += 1
                elif run.is_paused():
                    ends["paused"] += 1
                elif run.router.failure:
                    assert set(run.router.gone.values()) == {"over budget"}
                    assert run.spent is not None
                    assert not run.parties.contract.has_one_model
                    ends["over budget"] += 1
                else:
                    there = [run.parties.nodes[n] for n in run.alive - run.router.gone.keys()]
                    if run.parties.contract.has_one_model:
                        assert all(node.is_sealed for node in there)
                        assert len({node.transcript for node in there}) == 1
                    is_early = any(node.ended_early for node in there)
                    ends["early" if is_early else "ended"] += 1
                # One deadline for the lost party in each life of a router, and one for each party
                # that it holds up then; one for a party that stalls, and one for whom that leaves.
                assert run.deadlines <= 4 * (1 + run.restarts) + 2 * run.stalls
            except AssertionError as error:
                raise AssertionError(f"schedule {number}: {error}") from error
            finally:
                for party in run.parties.folders:
                    party.close()
    return ends


@pytest.mark.parametrize(
    "first",
    [
        0,
        *(
            pytest.param(first, marks=pytest.mark.slow)
            for first in range(len(KINDS), FIRST_SCHEDULES, len(KINDS))
        ),
    ],
)
def test_every_run_ends_whoever_restarts_and_whoever_is_lost(first: int) -> None:
    ends = run_schedules(range(first, first + len(KINDS)))
    assert ends["ended"] + ends["early"] >= len(KINDS) - 2


@pytest.mark.slow
def test_every_one_of_many_runs_ends() -> None:
    ends = run_schedules(range(FIRST_SCHEDULES, SCHEDULES))
    assert ends["early"] > 0
    assert ends["ended"] > 20 * (ends["over budget"] + ends["paused"])


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_each_kind_of_contract_ends_under_each_kind_of_fault(fault: str) -> None:
    """Beside the fault several processes are killed at once."""
    first = 1000 * len(KINDS)
    faults = tuple(dict.fromkeys(("nodes", "router", fault)))
    ends = run_schedules(range(first, first + 2 * len(KINDS)), faults)
    assert sum(ends.values()) == 2 * len(KINDS)


if __name__ == "__main__":
    print(run_schedules(range(int(sys.argv[1]))))
