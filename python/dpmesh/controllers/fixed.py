"""Controllers that learn nothing: their decisions are known before the run, or random."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._validate import as_python_numbers, integer, probability
from dpmesh.controllers.base import Actions, NoisyLoss, Observation
from dpmesh.keys import Key, Purpose


class FixedController(ABC):
    """A rule for all runs. It has no state and looks at no data."""

    public = True
    assumptions: tuple[str, ...] = ()
    noisy_loss: NoisyLoss | None = None

    def may_be_global(self, round: int) -> bool:
        """Return whether an update of this round can be global at all: known before the run."""
        return True

    @abstractmethod
    def choose(self, shape: tuple[int, int], round: int, key: Key) -> Actions:
        """Return the decisions of all nodes, shape (nodes, classifiers)."""

    def init(self, shape: tuple[int, int, int], key: Key) -> None:  # noqa: B027
        """Return no state."""

    def learn(  # noqa: B027
        self, state: None, observation: Observation, round: int, key: Key
    ) -> None:
        """Learn nothing."""

    def decide(
        self, state: None, observation: Observation, round: int, key: Key
    ) -> tuple[Actions, None]:
        """Return the decisions of the acting nodes."""
        nodes, classifiers, _ = observation.local_models.shape
        actions = self.choose((nodes, classifiers), round, key)
        return actions & observation.acting[:, np.newaxis], None


@dataclass(frozen=True)
class AlwaysGlobal(FixedController):
    """Every update is global: the paper's "fully collaborative".

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.WithoutReplacement(controller=dm.controllers.AlwaysGlobal()).controller
    AlwaysGlobal()
    """

    def choose(self, shape: tuple[int, int], round: int, key: Key) -> Actions:
        """Return global updates."""
        return np.ones(shape, dtype=np.bool_)


@dataclass(frozen=True)
class AlwaysLocal(FixedController):
    """Every update is local: the nodes never communicate.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.WithoutReplacement(controller=dm.controllers.AlwaysLocal()).controller
    AlwaysLocal()
    """

    def may_be_global(self, round: int) -> bool:
        """Return False."""
        return False

    def choose(self, shape: tuple[int, int], round: int, key: Key) -> Actions:
        """Return local updates."""
        return np.zeros(shape, dtype=np.bool_)


@dataclass(frozen=True)
class RandomGlobal(FixedController):
    """Every update is global with probability `rate`, independently.

    Parameters
    ----------
    rate
        Probability of a global update, in [0, 1].

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.WithoutReplacement(controller=dm.controllers.RandomGlobal(0.05)).controller
    RandomGlobal(rate=0.05)
    """

    rate: float

    def __post_init__(self) -> None:
        as_python_numbers(self)
        probability("rate", self.rate)

    def may_be_global(self, round: int) -> bool:
        """Return whether the rate is more than 0."""
        return self.rate > 0

    def choose(self, shape: tuple[int, int], round: int, key: Key) -> Actions:
        """Return random updates."""
        return kernels.bernoulli(shape, self.rate, key.stream(Purpose.CONTROLLER, round))


@dataclass(frozen=True)
class Periodic(FixedController):
    """Every `period`-th round is global, the first one after `period` - 1 local ones.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.WithoutReplacement(controller=dm.controllers.Periodic(20)).controller
    Periodic(period=20)
    """

    period: int

    def __post_init__(self) -> None:
        as_python_numbers(self)
        integer("period", self.period, at_least=1)

    def may_be_global(self, round: int) -> bool:
        """Return whether a period ends."""
        return (integer("round", round) + 1) % self.period == 0

    def choose(self, shape: tuple[int, int], round: int, key: Key) -> Actions:
        """Return global updates at the end of each period."""
        return np.full(shape, self.may_be_global(round))
