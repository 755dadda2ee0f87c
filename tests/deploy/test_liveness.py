"""Runs end, whoever restarts and whoever is lost: nodes and router in this process, virtual time.

A schedule restarts any process at any step, several at once, and loses up to as many parties as
the contract allows, for good. Each run must end with a model, sealed if it is of sums, or with a
named reason, within a few deadlines. ``python tests/deploy/test_liveness.py 2000`` runs as many.
"""

from __future__ import annotations

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
    "neighbour sums",
)
NEEDS_ALL = "neighbour sums"
MEMORY = Path("/dev/shm")
"""Where files lie in memory, on Linux: a commit to a disk takes most of a schedule's time."""
DEADLINE = 10.0
MOST_STEPS = 600


class Run:
    """One run under a random schedule.

    Parameters
    ----------
    number
        Of the schedule.
    folder
        Where the parties' folders lie.
    """

    def __init__(self, number: int, folder: Path) -> None:
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
        self.deadlines = 0
        self.restarts = 0
        self.restart_probability = float(self.random.choice([0.0, 0.02, 0.1]))
        self.loses_at: int | None = None
        if kind != NEEDS_ALL and self.random.random() < 0.7:
            self.loses_at = int(self.random.integers(0, 60))

    def _started_router(self) -> Router:
        return Router(self.parties.contract, clock=lambda: self.now)

    def disturb(self, step: int) -> None:
        """Lose a party for good, and restart any processes."""
        if step == self.loses_at:
            self.lost = int(self.random.integers(4))
            self.alive.discard(self.lost)
        if self.restarts >= 4:
            return
        for party in sorted(self.alive):
            if self.random.random() < self.restart_probability:
                self.restarts += 1
                self.parties.nodes[party] = self.parties.node(party)
        if self.random.random() < self.restart_probability:
            self.restarts += 1
            self.router = self._started_router()

    def to_the_end(self) -> None:
        """Run until it is over for everybody who is alive; fail if that takes too long."""
        for step in range(MOST_STEPS):
            self.disturb(step)
            if self.router.failure or self.is_over() or self.is_unsigned():
                return
            moved = False
            for party, message in self.router.requests().items():
                if party in self.alive and self.random.random() < 0.9:
                    self.router.take(party, self.parties.nodes[party].answer(message))
                    moved = True
            self.now += 0.01 if moved else 1.0
            if self.router.waits_since() > DEADLINE:
                self.deadlines += self.router.close()
        waiting = self.router.at, self.router.waits_for, self.router.gone, self.lost
        raise AssertionError(f"it does not end: {waiting}")

    def is_unsigned(self) -> bool:
        """Whether a party was lost before the others began, and this router lacks its word."""
        names = [] if self.lost is None else [self.parties.names[self.lost]]
        begun = any(self.parties.nodes[party].at is not None for party in self.alive)
        waits = self.router.at is None and self.router.waits_for == names != []
        return waits and not begun and self.router.waits_since() > DEADLINE

    def is_over(self) -> bool:
        nodes = self.parties.nodes
        return self.router.done and all(nodes[party].is_done for party in self.alive)


def run_schedules(numbers: range) -> dict[str, int]:
    """Run schedules; return how they ended."""
    ends = {"ended": 0, "over budget": 0, "unsigned": 0}
    for number in numbers:
        with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            run = Run(number, Path(folder))
            try:
                run.to_the_end()
                if run.is_unsigned():
                    ends["unsigned"] += 1
                elif run.router.failure:
                    assert set(run.router.gone.values()) == {"over budget"}
                    assert run.lost is not None
                    ends["over budget"] += 1
                else:
                    if run.parties.contract.has_one_model:
                        assert all(run.parties.nodes[party].is_sealed for party in run.alive)
                    ends["ended"] += 1
                # One deadline for the lost party in each life of a router, and one for each party
                # that it holds up then.
                assert run.deadlines <= 4 * (1 + run.restarts)
            except AssertionError as error:
                raise AssertionError(f"schedule {number}: {error}") from error
            finally:
                for party in run.parties.folders:
                    party.close()
    return ends


@pytest.mark.parametrize("first", range(0, 3 * len(KINDS), len(KINDS)))
def test_every_run_ends_whoever_restarts_and_whoever_is_lost(first: int) -> None:
    ends = run_schedules(range(first, first + len(KINDS)))
    assert ends["ended"] >= len(KINDS) - 2


@pytest.mark.slow
def test_every_one_of_many_runs_ends() -> None:
    ends = run_schedules(range(3 * len(KINDS), 1000))
    assert ends["ended"] > 50 * ends["over budget"]


if __name__ == "__main__":
    print(run_schedules(range(int(sys.argv[1]))))
