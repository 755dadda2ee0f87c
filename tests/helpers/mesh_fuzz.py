"""Random schedules for node and router: replays, losses, duplicates, delays, kills and restarts.

A node is killed within its transactions, or while it computes a step, and starts anew from its
folder. A router starts anew between any two answers.

``python tests/helpers/mesh_fuzz.py 10000`` runs as many, each from its own number.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from mesh_parties import Parties

from dpmesh.deploy import Folder, Node, Router, files
from dpmesh.deploy.row import ROW, Row
from dpmesh.deploy.signing import unpack
from dpmesh.deploy.steps import StoredStep
from dpmesh.deploy.sums import MASKED_PARTS, MaskedPart
from dpmesh.deploy.wire import kind_of
from dpmesh.privacy.plan import Plan

NAMES = (
    *("online", "quantized", "several mixings", "without replacement", "with replacement"),
    *("sums", "in time", "both", "neighbour sums"),
)
MOST_STEPS = 2_000
MOST_DELAYED = 20
"""Largest number of delayed answers; with more, most answers that arrive are outdated."""


class Killed(BaseException):
    """The process of a node ends."""


class Schedule:
    """A random schedule of questions, answers, losses and deaths, drawn from its number."""

    def __init__(self, number: int, folder: Path) -> None:
        self.rng = np.random.default_rng(number)
        self.may_lose, self.may_kill = self.rng.random(2) < 0.5
        self.may_restart = bool(self.rng.random() < 0.5)
        name = NAMES[number % len(NAMES)]
        nodes = 3
        quorum = 2 + number // 4 % 2
        if name == "neighbour sums":
            nodes = 4
            quorum = 4  # no party may be missing
        size: dict[str, Any] = {"nodes": nodes, "rounds": 3, "dim": 2, "quorum": quorum}
        self.parties = Parties(folder, name, rehearsal=bool(number % 3), **size)
        self.router = Router(self.parties.contract)
        self.rows: dict[tuple[Any, int], bytes] = {}
        self.parts: dict[tuple[Any, int, int], bytes] = {}
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
            assert not self.router.failure, self.router.failure
            if self.may_restart and self.chance(0.01):
                self.router = Router(self.parties.contract)
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
            raise AssertionError(
                f"it hangs at {self.router.open_position} for {self.router.waits_for}"
            )
        requests_of_late = self.router.requests()
        while requests_of_late:
            for party, message in requests_of_late.items():
                self.router.take(party, self.parties.nodes[party].answer(message))
            requests_of_late = self.router.requests()
        self.check()

    def ask(self, party: int, message: bytes) -> None:
        """Deliver a question, perhaps to a node that dies; the answer may get lost."""
        if self.may_lose and self.chance(0.1):
            return
        folder = self.parties.folders[party]
        try:
            may_die = nullcontext()
            if self.may_kill and self.chance(0.3):
                may_die = dying(self)
            with may_die:
                answer = self.parties.nodes[party].answer(message)
        except Killed:
            self.parties.nodes[party] = self.parties.node(party)
            return
        contract = self.parties.contract
        if kind_of(answer) == ROW:
            position = Row.read(answer, contract).position
            before = self.rows.setdefault((position, party), answer)
            assert before == answer, f"{party} released twice at {position}"
        elif kind_of(answer) == MASKED_PARTS:
            self.check_parts(party, answer)
        assert not folder.has_stopped(self.parties.contract)
        self.on_the_way.append((party, answer))
        if self.chance(0.1):  # it arrives twice
            self.on_the_way.append((party, answer))

    def check_parts(self, party: int, answer: bytes) -> None:
        """Require one part of each sum of an attempt, however often it is asked for."""
        contract = self.parties.contract
        for message in unpack(answer)[1:]:
            header = MaskedPart.read(message, contract).header
            before = self.parts.setdefault((header.position, header.dealer, party), message)
            assert before == message, f"{party} released two parts at {header.position}"

    def check(self) -> None:
        """Require ledgers within the plan, and the simulator's bits where nothing was lost."""
        contract = self.parties.contract
        assert not any(
            witness.disputed or witness.equivocating
            for witness in (node.protocol.witness for node in self.parties.nodes)
            if witness is not None
        )
        for folder in self.parties.folders:
            ledger = folder.ledger(contract)
            assert folder.last_sent(contract.hash).position == self.router.schedule.end
            if self.router.schedule.is_gossip:
                assert ledger == contract.plan
            keys = [(release.round, release.batch) for release in ledger.releases]
            assert len(set(keys)) == len(keys)
            assert ledger.cost(1e-5).epsilon <= contract.plan.cost(1e-5).epsilon * (1 + 1e-9)
        if self.parties.rehearsal and not self.lost:
            simulated = self.parties.simulated().parameters
            np.testing.assert_array_equal(self.parties.models()[: len(simulated)], simulated)


@contextmanager
def dying(schedule: Schedule) -> Iterator[None]:
    """Kill the node's process around one of its transactions, or while it computes a step.

    Around a transaction is before it, within it or after it. While it computes is before its noise
    is drawn, or with a computed message that is not stored.
    """
    if schedule.chance(0.3):
        with dying_in_computation(is_computed=schedule.chance(0.5)):
            yield
        return
    transaction = Folder.transaction
    transactions_left = int(schedule.rng.integers(2))
    moment = schedule.rng.integers(3)

    @contextmanager
    def killed(folder: Folder) -> Iterator[None]:
        nonlocal transactions_left
        transactions_left -= 1
        if transactions_left >= 0:
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


@contextmanager
def dying_in_computation(*, is_computed: bool) -> Iterator[None]:
    """Kill the node's process while it computes a charged step, perhaps with the message made."""
    compute = Node._computed

    def killed(node: Node, step: StoredStep) -> tuple[Any, bytes]:
        if is_computed:
            compute(node, step)
        raise Killed

    Node._computed = killed  # type: ignore[method-assign]
    try:
        yield
    finally:
        Node._computed = compute  # type: ignore[method-assign]


def run_schedules(numbers: range) -> None:
    """Run these schedules, in files that need not survive a power cut."""
    connect = files.connect
    cost = Plan.cost
    costs = dict[Any, Any]()

    def cached_cost(plan: Plan, *arguments: Any, **options: Any) -> Any:
        """Return the cost of a plan, whose accounting takes longer than a schedule."""
        question = json.dumps([plan.as_dict(), arguments, options], default=repr)
        if question not in costs:
            costs[question] = cost(plan, *arguments, **options)
        return costs[question]

    def connect_without_sync(path: Any) -> Any:
        connection = connect(path)
        connection.execute("pragma synchronous = off")
        connection.execute("pragma journal_mode = memory")
        return connection

    files.connect = connect_without_sync
    Plan.cost = cached_cost  # type: ignore[assignment, method-assign]
    try:
        for number in numbers:
            with TemporaryDirectory() as folder:
                schedule = Schedule(number, Path(folder))
                try:
                    schedule.run()
                except Exception as error:
                    raise AssertionError(f"schedule {number}") from error
                finally:
                    for folder_of_party in schedule.parties.folders:
                        folder_of_party.close()
    finally:
        files.connect = connect
        Plan.cost = cost  # type: ignore[method-assign]


if __name__ == "__main__":
    run_schedules(range(int(sys.argv[1])))
