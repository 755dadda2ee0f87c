"""What happens in a round, and what a run knows after it."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dpmesh._arrays import read_only
from dpmesh._validate import fail
from dpmesh.algorithms.base import AnyAlgorithm, Exchange, Info
from dpmesh.keys import Key
from dpmesh.privacy.door import check_released, forget_hidden, share_memory
from dpmesh.privacy.events import Release
from dpmesh.privacy.types import Released
from dpmesh.simulator.exchange import Carrier
from dpmesh.simulator.history import History, Value
from dpmesh.simulator.metrics import Metric
from dpmesh.simulator.run import Traffic

Callback: TypeAlias = Callable[[int, dict[str, Any]], None]
"""``callback(round, values)``: each value a number, or an array of one for each node."""


@dataclass
class Progress:
    """Where a run is: everything that its rounds change.

    Parameters
    ----------
    state
        The algorithm's.
    received
        The last messages after their exchange; None before the first round.
    rounds
        How many are done.
    history, ledger, traffic
        As in `Run`.
    metrics, exchange
        What each metric and the exchange remember; see `Rounds.remembered`.
    """

    state: Any
    received: Any = None
    rounds: int = 0
    history: History = field(default_factory=History)
    ledger: list[Release] = field(default_factory=list)
    traffic: Traffic = field(default_factory=lambda: Traffic(0, 0))
    metrics: list[Any] = field(default_factory=list)
    exchange: Any = None


class Share(NamedTuple):
    """What a process runs: the whole, or its own nodes' part of it."""

    algorithm: AnyAlgorithm
    problem: Any
    exchange: Carrier
    key: Key
    rewinds: bool = True
    """Whether a step that fails leaves the state before it as it was."""
    start: Key | None = None
    """Key for the state before round 0, if not `key`."""


class StopRun(Exception):  # noqa: N818
    """What a callback raises to end its run, after the round that it was called with."""


class Step(NamedTuple):
    """A round that has been run."""

    state: Any
    info: Info


def only_released(exchange: Exchange, releases: Callable[[], int]) -> Exchange:
    """Return the exchange of one round, over which no more messages travel than were released.

    `releases` returns the number of releases in this round; a message too many is a ValueError, and
    so is one from before its noise. What it returns cannot be written to: a step in place would
    make it private.
    """
    travelled = 0

    def carried(round: int, messages: Released) -> Released:
        nonlocal travelled
        travelled += 1
        if travelled > releases():
            wanted = "ones from Mechanism.release, with sensitivity 0 if no data is in them"
            fail("messages", wanted, f"{travelled} in round {round}, after {releases()}")
        check_released("messages", messages)
        return Released(read_only(exchange(round, messages)))

    return carried


@dataclass
class Rounds:
    """One round after another, measured every `every` rounds and in the last."""

    own: Share
    meters: list[Metric]
    every: int
    last: int
    callback: Callback | None
    total: Callable[[Traffic], Traffic | None]
    """Adds up what all processes sent, on the root."""
    at: Progress

    def attempt(self, releases: Callable[[], int]) -> Step:
        """Run the next round without recording it yet.

        Parameters
        ----------
        releases
            Returns the number of releases in this round: no more messages travel.

        Raises
        ------
        ValueError
            If a message travels without a release, or the round tells as received what was not.
        """
        own, at = self.own, self.at
        exchange = only_released(own.exchange, releases)
        told = own.algorithm.step(at.state, at.rounds, own.problem, exchange, own.key)
        if not (isinstance(told, tuple) and len(told) == 2 and isinstance(told[1], Info)):
            wanted = "one whose step returns a state and an Info"
            fail("algorithm", wanted, f"{type(own.algorithm).__name__} with {reprlib.repr(told)}")
        self._check_received(*told)
        forget_hidden()
        return Step(*told)

    def _check_received(self, state: Any, info: Info) -> None:
        """Fail if the messages that may be published are nodes' own values."""
        received = np.asarray(info.received)
        check_released("received", received)
        if self.own.algorithm.travels != "gossip":
            return
        own = np.asarray(self.own.algorithm.parameters(state))
        # A state may be what left the door, which cannot be written to; PyTorch writes to it.
        if (received.flags.writeable or own.flags.writeable) and share_memory(received, own):
            wanted = "what the exchange returned, or a copy of what follows from that alone"
            fail("received", wanted, "the nodes' own parameters")

    def accept(self, step: Step, releases: tuple[Release, ...]) -> bool:
        """Record what happened, with the releases of all nodes.

        Returns
        -------
        Whether the callback ends the run.
        """
        at, info, t = self.at, step.info, self.at.rounds
        before = self.own.algorithm.parameters(at.state)
        at.state, at.received = step.state, info.received
        at.ledger += releases
        at.traffic += self.own.exchange.traffic(t, info)
        at.rounds = t + 1
        for meter in self.meters:
            meter.observe(before, info)
        return self.is_measured and self._measure()

    @property
    def is_measured(self) -> bool:
        """Whether there are measurements in the last finished round."""
        return self.at.rounds % self.every == 0 or self.at.rounds == self.last

    def _measure(self) -> bool:
        after = self.own.algorithm.parameters(self.at.state)
        values: dict[str, Value] = {}
        for meter in self.meters:
            values |= meter.values(after, self.at.received)
        if self.own.exchange.seconds is not None:
            values["seconds"] = self.own.exchange.seconds
        sent = self.total(self.at.traffic)
        if sent is not None:
            values["megabytes"] = sent.megabytes
        self.at.history.add(self.at.rounds, values)
        try:
            if self.callback is not None:
                self.callback(self.at.rounds, values)
        except StopRun:
            return True
        return False

    def remembered(self) -> Progress:
        """Return all that a later process needs to resume from here."""
        metrics = [meter.memory for meter in self.meters]
        return replace(self.at, metrics=metrics, exchange=self.own.exchange.memory)

    def recall(self, progress: Progress) -> None:
        """Go on from there."""
        self.at = progress
        for meter, memory in zip(self.meters, progress.metrics, strict=True):
            meter.recall(memory)
        self.own.exchange.recall(progress.exchange)
