"""What happened in a run, seen from the door and from the wire; and the same run heard again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh.algorithms.base import AnyAlgorithm, Exchange
from dpmesh.keys import Key
from dpmesh.privacy.audit.likelihood import log_likelihood_ratio
from dpmesh.privacy.door import Passage, watched_by
from dpmesh.privacy.events import Release
from dpmesh.privacy.mechanisms import Emission
from dpmesh.privacy.types import Released


@dataclass(frozen=True)
class Transcript:
    """One run of an algorithm.

    Parameters
    ----------
    passages
        The releases, in order, from both sides of the door.
    sent, received
        What reached the exchange, and what each round made known as received.
    ledger
        The releases as the algorithm wrote them down.
    """

    passages: list[Passage] = field(default_factory=list)
    sent: list[Released] = field(default_factory=list)
    received: list[Released] = field(default_factory=list)
    ledger: list[Release] = field(default_factory=list)

    @property
    def released(self) -> list[Released]:
        """The values that came out of the door."""
        return [passage.emission.values for passage in self.passages]


def alone(round: int, messages: Released) -> Released:  # noqa: ARG001
    """Return to each node its own message: nothing blurs a canary."""
    return messages


def record(
    algorithm: AnyAlgorithm,
    problem: Any,
    exchange: Exchange,
    *,
    rounds: int,
    key: Key,
    replay: Transcript | None = None,
) -> Transcript:
    """Run an algorithm and return what happened.

    Parameters
    ----------
    algorithm, problem, exchange, rounds, key
        As for a simulation.
    replay
        If given, what comes out of the door is what came out in that run, as far as it goes: the
        run's own releases are made and recorded, and then nobody hears them.
    """
    run = Transcript()

    def watch(passage: Passage) -> Emission:
        number = len(run.passages)
        values = Released(passage.emission.values.copy())
        emission = passage.emission._replace(values=values)
        run.passages.append(passage._replace(inside=passage.inside.copy(), emission=emission))
        if replay is not None and number < len(replay.passages):
            heard = replay.passages[number].emission
            return heard._replace(values=Released(heard.values.copy()))
        return passage.emission

    def listening(round: int, messages: Released) -> Released:
        run.sent.append(messages.copy())
        return exchange(round, messages)

    state = algorithm.init(problem, key)
    with watched_by(watch):
        for t in range(rounds):
            state, info = algorithm.step(state, t, problem, listening, key)
            run.received.append(info.received.copy())
            run.ledger.extend(info.releases)
    return run


@dataclass(frozen=True)
class ReplayedLikelihood:
    """Likelihood ratio of a transcript, from running the algorithm on it in both worlds.

    Each release is compared with what either world would have had at the door, had it released all
    that came before. The replays have coins of their own, not those of the run: who sees a
    transcript does not know them, so sampling that hides a unit is given its due. Without such
    sampling the score is the best there is (Neyman, Pearson).

    Parameters
    ----------
    algorithm, exchange, rounds
        As of the run.
    problem, neighbor
        The two worlds.
    key
        Coins of the replays.
    """

    algorithm: AnyAlgorithm
    problem: Any
    neighbor: Any
    exchange: Exchange
    rounds: int
    key: Key

    def ratios(self, run: Transcript) -> Iterator[npt.NDArray[np.float64]]:
        """Yield the logarithm of the ratio for each noisy release, shape (rows,)."""
        positive, negative = (
            record(
                self.algorithm, world, self.exchange, rounds=self.rounds, key=self.key, replay=run
            ).passages
            for world in (self.problem, self.neighbor)
        )
        for passage, one, other in zip(run.passages, positive, negative, strict=False):
            mechanism, sensitivity = passage.mechanism, passage.emission.release.sensitivity
            scale = mechanism.noise_scale(sensitivity, passage.inside.shape[-1])
            if scale > 0:
                values = passage.emission.values
                yield log_likelihood_ratio(values, one.inside, other.inside, mechanism.norm, scale)

    def __call__(self, run: Transcript) -> float:
        """Return the logarithm of the whole ratio."""
        return float(sum(ratio.sum() for ratio in self.ratios(run)))
