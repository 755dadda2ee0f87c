"""Random schedules for node and router: replays, losses, duplicates, delays and kills.

``python tests/helpers/mesh_fuzz.py 10000`` runs as many, each from its own number.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from mesh_parties import Parties

from dpmesh.deploy import Folder, Router, files
from dpmesh.deploy.row import ROW, Row
from dpmesh.deploy.sums import PART, Part
from dpmesh.deploy.wire import kind_of
from dpmesh.privacy.plan import Plan

NAMES = (
    *("online", "quantized", "several mixings", "without replacement", "with replacement"),
    *("sums", "in time", "both"),
)
MOST_STEPS = 2_000
MOST_DELAYED = 20
"""Answers on their way at once; where more and more are, hardly any that arrives is news."""


class Killed(BaseException):
    """The process of a node ends."""


class Schedule:
    """One random schedule, of a number."""

    def __init__(self, number: int, folder: Path) -> None:
        self.rng = np.random.default_rng(number)
        self.may_lose, self.may_kill = self.rng.random(2) < 0.5
        name = NAMES[number % len(NAMES)]
        size: dict[str, Any] = {"nodes": 3, "rounds": 3, "dim": 2, "quorum": 2 + number // 4 % 2}
        self.parties = Parties(folder, name, rehearsal=bool(number % 3), **size)
        self.router = Router(self.parties.contract)
        self.rows: dict[tuple[Any, int], bytes] = {}
        self.past: list[tuple[int, bytes]] = []
        self.on_the_way: list[tuple[int, bytes]] = []
        self.lost = False

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def run(self) -> None:
        """Run to the end; fail on a second release or a hang."""
        for _ in range(MOST_STEPS):
            if self.router.done:
                break
            requests = [*self.router.requests().items()]
            if self.past and self.chance(0.2):
                requests.append(self.past[self.rng.integers(len(self.past))])
            elif self.may_lose and self.chance(0.02):
                self.lost |= bool(self.router.waits_for)
                self.router.close()
            if requests:
                party, message = requests[self.rng.integers(len(requests))]
                self.past.append((party, message))
                self.ask(party, message)
            while self.on_the_way and (len(self.on_the_way) > MOST_DELAYED or self.chance(0.7)):
                self.router.take(*self.on_the_way.pop(self.rng.integers(len(self.on_the_way))))
        else:
            raise AssertionError(f"it hangs at {self.router.at} for {self.router.waits_for}")
        while requests := self.router.requests():  # who is late comes in
            for party, message in requests.items():
                self.router.take(party, self.parties.nodes[party].answer(message))
        self.check()

    def ask(self, party: int, message: bytes) -> None:
        """Deliver a question, perhaps to a node that dies; the answer may get lost."""
        if self.may_lose and self.chance(0.1):
            return
        folder = self.parties.folders[party]
        try:
            with dying(self) if self.may_kill and self.chance(0.3) else alive():
                answer = self.parties.nodes[party].answer(message)
        except Killed:
            self.parties.nodes[party] = self.parties.node(party)
            return
        contract = self.parties.contract
        kind = kind_of(answer)
        if kind in (ROW, PART):
            row = Row.read(answer, contract) if kind == ROW else Part.read(answer, contract).header
            before = self.rows.setdefault((row.at, party), answer)
            assert before == answer, f"{party} released twice at {row.at}"
        assert not folder.has_stopped(self.parties.contract)
        self.on_the_way += [(party, answer)] * (2 if self.chance(0.1) else 1)

    def check(self) -> None:
        """The ledgers are within the plan; where nothing was lost, the bits are the simulator's."""
        contract = self.parties.contract
        assert not any(
            seen.disputed or seen.equivocating
            for seen in (node.travel.witness for node in self.parties.nodes)
            if seen is not None
        )
        for folder in self.parties.folders:
            spent = folder.ledger(contract)
            assert folder.last_sent(contract.hash).at == self.router.schedule.end
            if self.router.schedule.gossips:
                assert spent == contract.plan
            keys = [(release.round, release.batch) for release in spent.releases]
            assert len(set(keys)) == len(keys)
            assert spent.cost(1e-5).epsilon <= contract.plan.cost(1e-5).epsilon * (1 + 1e-9)
        if self.parties.rehearsal and not self.lost:
            simulated = self.parties.simulated().parameters
            np.testing.assert_array_equal(self.parties.models()[: len(simulated)], simulated)


@contextmanager
def alive() -> Iterator[None]:
    yield


@contextmanager
def dying(schedule: Schedule) -> Iterator[None]:
    """Kill the node's process before, within or after one of its transactions."""
    transaction = Folder.transaction
    left = int(schedule.rng.integers(2))
    moment = schedule.rng.integers(3)

    @contextmanager
    def killed(folder: Folder) -> Iterator[None]:
        nonlocal left
        left -= 1
        if left >= 0:
            with transaction(folder):
                yield
            return
        if moment == 0:
            raise Killed
        with transaction(folder):
            yield
            if moment == 1:
                raise Killed
        raise Killed

    Folder.transaction = killed  # type: ignore[method-assign]
    try:
        yield
    finally:
        Folder.transaction = transaction  # type: ignore[method-assign]


def run_schedules(numbers: range) -> None:
    """Run these schedules, in files that need not survive a power cut."""
    connect = files.connect
    cost = Plan.cost
    costs = dict[Any, Any]()

    def once(plan: Plan, *arguments: Any, **named: Any) -> Any:
        """Return the cost of a plan, whose accounting takes longer than a schedule."""
        question = json.dumps([plan.as_dict(), arguments, named], default=repr)
        if question not in costs:
            costs[question] = cost(plan, *arguments, **named)
        return costs[question]

    def fast(path: Any) -> Any:
        connection = connect(path)
        connection.execute("pragma synchronous = off")
        connection.execute("pragma journal_mode = memory")
        return connection

    files.connect, Plan.cost = fast, once  # type: ignore[assignment, method-assign]
    try:
        for number in numbers:
            with TemporaryDirectory() as folder:
                schedule = Schedule(number, Path(folder))
                try:
                    schedule.run()
                except Exception as error:
                    raise AssertionError(f"schedule {number}") from error
                finally:
                    for each in schedule.parties.folders:
                        each.close()
    finally:
        files.connect, Plan.cost = connect, cost  # type: ignore[method-assign]


if __name__ == "__main__":
    run_schedules(range(int(sys.argv[1])))
