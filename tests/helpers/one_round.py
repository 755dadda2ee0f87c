"""Single rounds of an algorithm, run as the loop runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dpmesh.algorithms import Algorithm
from dpmesh.algorithms.messages import Releases
from dpmesh.audit import alone
from dpmesh.keys import Key
from dpmesh.noise import Gaussian, Sensitivity
from dpmesh.privacy import Budget, Ledger, Plan, Release
from dpmesh.run import Channel
from dpmesh.run.carriers import Carrier, SentInRound
from dpmesh.run.channel import Step
from dpmesh.run.watch import Passage, Watcher

ONE = Sensitivity(1.0, "l2", "a test")


class OneRound(NamedTuple):
    """The result of a round."""

    state: Any
    received: Any
    sent: SentInRound
    releases: list[Release]


def one_round(
    algorithm: Algorithm[Any, Any],
    state: Any,
    t: int,
    problem: Any,
    key: Key,
    carrier: Carrier = alone,
    watcher: Watcher | None = None,
) -> OneRound:
    """Run round t of an algorithm whose earlier rounds are over."""
    ledger = Ledger(algorithm.plan(t + 1), nodes=problem.nodes)
    channel = Channel(carrier, key, ledger, watcher=watcher)
    step = channel.run(algorithm, state, t, problem, key)
    return OneRound(step.state, channel.received, step.sent, channel.ledger.in_round)


def watcher_of(passages: list[Passage]) -> Watcher:
    """Return a watcher that appends all that is released to a list."""
    return lambda passage: passages.append(passage) or passage


@dataclass(frozen=True)
class Scripted(Algorithm[Any, Any]):
    """Yields what `script` yields, with the values of its problem, shape (nodes, dim)."""

    script: Callable[[Any, int], Any]
    release: Callable[[int], Releases] = lambda t: Release(t, Gaussian(5.0), ONE)

    communication = "gossip"

    def release_of(self, t: int) -> Releases:
        return self.release(t)

    def init(self, problem: Any, key: Key) -> Any:
        return np.array(problem)

    def round(self, state: Any, t: int, problem: Any, key: Key) -> Any:
        return self.script(state, t)

    def parameters(self, state: Any) -> Any:
        return np.zeros((1, 1))


class Stage:
    """Runs one script after the other, each a round; remembers what was released."""

    def __init__(
        self,
        nodes: int,
        *,
        carrier: Carrier = alone,
        budget: Budget | None = None,
        planned: tuple[Release, ...] = (),
    ) -> None:
        self.passages: list[Passage] = []
        self.ledger = Ledger(
            Plan(releases=planned, neighboring_relation="replace_one", unit="record"),
            budget,
            nodes=nodes,
        )
        self.channel = Channel(carrier, Key.seeded(1), self.ledger, watcher=self._watch)
        self._rounds = 0

    def run(self, script: Callable[[Any, int], Any], values: Any = None) -> Step:
        t = self._rounds
        self._rounds += 1
        step = self.channel.run(Scripted(script), values, t, None, Key.seeded(1))
        self.ledger.end_round()
        return step

    @property
    def noise(self) -> Any:
        """All noise that was drawn, shape (rows, dim)."""
        return np.concatenate([passage.noisy - passage.inside for passage in self.passages])

    def _watch(self, passage: Passage) -> Passage:
        self.passages.append(passage)
        return passage
