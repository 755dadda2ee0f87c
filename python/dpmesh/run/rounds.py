"""What happens in a round, and what a run knows after it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from dpmesh.privacy.releases import Release
from dpmesh.run.carriers import Traffic
from dpmesh.run.channel import Channel, Step
from dpmesh.run.engine import Engine, Share
from dpmesh.run.history import History, Value
from dpmesh.run.metrics import UNWATCHED, After, Before, Callback, Metric
from dpmesh.run.noise import DrawnRows


@dataclass(kw_only=True)
class Progress:
    """Where a run is: everything that its rounds change.

    Parameters
    ----------
    state
        The algorithm's.
    received
        What arrived last; None before the first message.
    rounds
        How many are done.
    history, ledger, traffic
        As in `Run`.
    metrics, carrier
        What each metric and the carrier remember; see `Rounds.remembered`.
    noise
        Earlier rows of correlated noise, which are as secret as the state.
    """

    state: Any
    received: Any = None
    rounds: int = 0
    history: History = field(default_factory=History)
    ledger: list[Release] = field(default_factory=list)
    traffic: Traffic = field(default_factory=lambda: Traffic(0, 0))
    metrics: list[Any] = field(default_factory=list)
    carrier: Any = None
    noise: dict[str, DrawnRows] = field(default_factory=dict)


class StopRun(Exception):  # noqa: N818
    """What a callback raises to end its run, after the round that it was called with."""


@dataclass(kw_only=True)
class Rounds:
    """One round after another, measured every `every` rounds and in the last."""

    own: Share
    channel: Channel
    engine: Engine
    meters: list[Metric]
    every: int
    last: int
    callback: Callback | None
    at: Progress

    def __post_init__(self) -> None:
        self._watched = frozenset(name for meter in self.meters for name in meter.watches)
        self._always = self._watched - {"losses"}
        self._before = UNWATCHED
        self.is_measured = False
        """Whether there are measurements in the round that was attempted last."""

    def attempt(self) -> Step:
        """Run the next round without recording it yet."""
        own, at = self.own, self.at
        done = at.rounds + 1
        self.is_measured = done % self.every == 0 or done == self.last
        watched = self._watched if self.is_measured else self._always
        self._before = Before.of(own, at.state, at.rounds, watched) if watched else UNWATCHED
        return self.channel.run(own.algorithm, at.state, at.rounds, own.problem, own.key)

    def accept(self, step: Step) -> bool:
        """Record a round that all processes ran; return whether the callback ends the run."""
        at = self.at
        at.state = step.state
        self.channel.end_round()
        at.traffic += self.own.carrier.traffic(at.rounds, step.sent)
        at.rounds += 1
        for meter in self.meters:
            meter.observe(self._before)
        return self.is_measured and self._measure(step)

    def _measure(self, step: Step) -> bool:
        at, own = self.at, self.own
        published = own.algorithm.published(at.state, self.channel.received)
        after = After(own.algorithm.parameters(at.state), published, step.sent.bits)
        values: dict[str, Value] = {}
        for meter in self.meters:
            values |= meter.values(after)
        if own.carrier.seconds is not None:
            values["seconds"] = own.carrier.seconds
        sent = self.engine.everyone(at.traffic)
        if not self.engine.is_root:
            return False
        values["megabytes"] = sum(sent[1:], sent[0]).megabytes
        at.history.add(at.rounds, values)
        try:
            if self.callback is not None:
                self.callback(at.rounds, values)
        except StopRun:
            return True
        return False

    def remembered(self) -> Progress:
        """Return all that a later process needs to resume from here."""
        metrics = [meter.memory for meter in self.meters]
        ledger, carrier = self.channel.ledger.releases, self.own.carrier.memory
        return replace(
            self.at,
            received=self.channel.received,
            ledger=ledger,
            metrics=metrics,
            carrier=carrier,
            noise=self.channel.noise.memory,
        )

    def recall(self, progress: Progress) -> None:
        """Resume after the rounds of this progress."""
        self.at, self.channel.received = progress, progress.received
        self.channel.ledger.restore(progress.ledger)
        for meter, memory in zip(self.meters, progress.metrics, strict=True):
            meter.recall(memory)
        self.own.carrier.recall(progress.carrier)
        self.channel.noise.recall(progress.noise)
