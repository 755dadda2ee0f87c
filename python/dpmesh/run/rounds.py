"""The rounds of a run in one process, and its progress: everything that a round changes.

A round is attempted first and accepted later, when all processes have run it (`dpmesh.run.loop`).
"""

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
    """The progress of a run: everything that its rounds change.

    Parameters
    ----------
    state
        State of the algorithm.
    received
        The last received messages; None before the first.
    rounds
        Number of finished rounds.
    history, ledger, traffic
        As in `Run`.
    metrics, carrier
        Memory of each metric and of the carrier; see `Rounds.resumable_progress`.
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
    """Exception that the callback of `Metrics` raises to end the run after the measured round."""


@dataclass(kw_only=True)
class Rounds:
    """Rounds of a run in this process, with measurements.

    Parameters
    ----------
    share
        Algorithm, problem and keys of this process's nodes.
    channel
        Channel that releases their messages.
    engine
        Processes of the run.
    meters
        Metrics.
    every, last
        Interval of measurements, and number of planned rounds; the last round is measured, too.
    callback
        Function that is called after each measured round, on the root; None for none.
    progress
        Progress so far.
    """

    share: Share
    channel: Channel
    engine: Engine
    meters: list[Metric]
    every: int
    last: int
    callback: Callback | None
    progress: Progress

    def __post_init__(self) -> None:
        self._watched = frozenset(name for meter in self.meters for name in meter.watches)
        self._always = self._watched - {"losses"}
        self._before = UNWATCHED
        self.is_measured = False
        """True if the round that was attempted last is measured."""

    def attempt(self) -> Step:
        """Run the next round without recording it."""
        share = self.share
        state = self.progress.state
        t = self.progress.rounds
        self.is_measured = (t + 1) % self.every == 0 or t + 1 == self.last
        watched = self._watched if self.is_measured else self._always
        self._before = UNWATCHED
        if watched:
            self._before = Before.of(share, state, t, watched)
        return self.channel.run(share.algorithm, state, t, share.problem, share.key)

    def accept(self, step: Step) -> bool:
        """Record a round that all processes ran; return True if the callback ends the run."""
        progress = self.progress
        progress.state = step.state
        self.channel.end_round()
        progress.traffic += self.share.carrier.traffic(progress.rounds, step.sent)
        progress.rounds += 1
        for meter in self.meters:
            meter.observe(self._before)
        return self.is_measured and self._measure(step)

    def _measure(self, step: Step) -> bool:
        """Measure the finished round; return True if the callback ends the run."""
        progress = self.progress
        algorithm = self.share.algorithm
        carrier = self.share.carrier
        after = After(
            parameters=algorithm.parameters(progress.state),
            received=algorithm.published(progress.state, self.channel.received),
            bits=step.sent.bits,
        )
        values: dict[str, Value] = {}
        for meter in self.meters:
            values |= meter.values(after)
        if carrier.seconds is not None:
            values["seconds"] = carrier.seconds
        traffic_by_process = self.engine.everyone(progress.traffic)
        if not self.engine.is_root:
            return False
        total = sum(traffic_by_process, Traffic(0, 0))
        values["megabytes"] = total.megabytes
        progress.history.add(progress.rounds, values)
        if self.callback is None:
            return False
        try:
            self.callback(progress.rounds, values)
        except StopRun:
            return True
        return False

    def resumable_progress(self) -> Progress:
        """Return the progress with all that a later process needs to resume the run."""
        return replace(
            self.progress,
            received=self.channel.received,
            ledger=self.channel.ledger.releases,
            metrics=[meter.memory for meter in self.meters],
            carrier=self.share.carrier.memory,
            noise=self.channel.noise.memory,
        )

    def recall(self, progress: Progress) -> None:
        """Restore a stored progress, to resume after its rounds."""
        self.progress = progress
        self.channel.received = progress.received
        self.channel.ledger.restore(progress.ledger)
        for meter, memory in zip(self.meters, progress.metrics, strict=True):
            meter.recall(memory)
        self.share.carrier.recall(progress.carrier)
        self.channel.noise.recall(progress.noise)
