"""Controllers of `WithoutReplacement`: they decide between a local and a global update.

A *local* update changes a node's private model only. A *global* update also changes the public
global model. A node with K one-vs-all classifiers takes K decisions. A controller is a frozen
dataclass of its public parameters. A controller that learns keeps its experience in a state, a
frozen record of arrays with one row for each classifier of each node, ordered by node and then by
classifier. Random numbers come from the `key` of each call. The controllers of this module are
fixed rules; `dpmesh_papers.deep_q.DeepQ` is a controller that learns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._arrays import read_only
from dpmesh._privacy_types import Released, Sensitive
from dpmesh._ragged import Flags
from dpmesh._validate import every, fail, integer, positive, probability
from dpmesh.keys import Key, Purpose

__all__ = [
    "AlwaysGlobal",
    "AlwaysLocal",
    "AnyController",
    "Controller",
    "FixedController",
    "NoisyLoss",
    "Observation",
    "Periodic",
    "RandomGlobal",
]

StateT = TypeVar("StateT")

Actions: TypeAlias = Flags
"""Decisions, shape (nodes, classifiers): True for a global update, False for a local one.

The decisions of nodes that do not act in the round are False."""

PRIVATE_DECISIONS = (
    "the controller looks at private models and losses: when each node updates the global model is "
    "visible to all and depends on the data, which no proof covers and which is known to leak"
)
"""Assumption that a privacy report states if a controller is not public."""


@dataclass(frozen=True, kw_only=True)
class NoisyLoss:
    """Query of a node's noisy loss, on which a controller may base each decision.

    The answer is the mean loss of the released model on the node's next mini-batch, with each
    record's loss clipped to at most `bound`, plus Gaussian noise. The algorithm plans and records
    it as a release.

    Parameters
    ----------
    bound
        Largest loss of a record, per model; larger losses are clipped.
    budget_share
        Fraction in (0, 1) of the run's squared mu (Gaussian differential privacy) for all answers
        together; updates of the global model have the rest.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.algorithms.controllers.NoisyLoss(bound=2.0, budget_share=0.05)
    NoisyLoss(bound=2.0, budget_share=0.05)
    """

    bound: float = 1.0
    budget_share: float = 0.1

    def __post_init__(self) -> None:
        every(self, positive, "bound")
        probability("budget_share", self.budget_share, zero=False, one=False)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Information for a controller's decision at the beginning of round t, in read-only arrays.

    Controllers that decide by public information get NaN in place of private values.

    Parameters
    ----------
    acting
        True for nodes that update in this round, shape (nodes,).
    local_models
        Local models w_t^L, private, shape (nodes, classifiers, dim).
    losses
        Losses of the local models on each node's next mini-batch, private, shape (nodes,
        classifiers). For a controller with a `NoisyLoss`, the noisy answers, which are public.
    last_losses
        Losses of the local models on the mini-batch that each node used last, private, shape
        (nodes, classifiers); undefined before a node has acted.
    released_models
        Last global models, public, shape (classifiers, dim).
    public_losses
        Losses of the global models on public data, shape (classifiers,); None without public data.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> seen = dm.algorithms.controllers.Observation(
    ...     acting=np.array([True, False]),
    ...     local_models=np.zeros((2, 1, 3)),
    ...     losses=np.ones((2, 1)),
    ...     last_losses=np.ones((2, 1)),
    ...     released_models=np.zeros((1, 3)),
    ... )
    >>> seen.losses.shape
    (2, 1)
    """

    acting: Flags
    local_models: Sensitive
    losses: Sensitive
    last_losses: Sensitive
    released_models: Released
    public_losses: npt.NDArray[np.floating[Any]] | None = None

    def __post_init__(self) -> None:
        _require_shape("local_models", self.local_models, ("nodes", "classifiers", "dim"))
        nodes, classifiers, dim = self.local_models.shape
        _require_shape("acting", self.acting, (nodes,))
        if self.acting.dtype != np.bool_:
            fail("acting", "an array of bool", f"dtype {self.acting.dtype}")
        _require_shape("losses", self.losses, (nodes, classifiers))
        _require_shape("last_losses", self.last_losses, (nodes, classifiers))
        _require_shape("released_models", self.released_models, (classifiers, dim))
        if self.public_losses is not None:
            _require_shape("public_losses", self.public_losses, (classifiers,))
        for name, array in vars(self).items():
            if array is not None:  # a controller that works in place would move the models
                object.__setattr__(self, name, read_only(array))


class Controller(Protocol[StateT]):
    """Protocol of a controller, which decides on local or global updates and may learn."""

    @property
    def public(self) -> bool:
        """True if decisions depend on public information and random coins only.

        If it is False, decisions depend on private data, and all nodes see which node updates the
        global models and when. The guarantee of the algorithm does not cover this, and the privacy
        report states it.
        """

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions about the decisions that a privacy report must state."""

    @property
    def noisy_loss(self) -> NoisyLoss | None:
        """Query of a noisy loss before each decision; None without a query."""

    def may_be_global(self, round: int) -> bool:
        """Return False if all updates of this round are local, as known before a run."""

    def init(self, shape: tuple[int, int, int], key: Key) -> StateT:
        """Return the controller's state before round 0.

        Parameters
        ----------
        shape
            Shape (nodes, classifiers, dim) of the local models.
        key
            Key of the controller's random numbers.
        """

    def learn(self, state: StateT, observation: Observation, round: int, key: Key) -> StateT:
        """Learn from the outcome of the acting nodes' last decisions, before they decide again.

        It may change the arrays of `state`: only the returned state may be used afterwards.
        """

    def decide(
        self, state: StateT, observation: Observation, round: int, key: Key
    ) -> tuple[Actions, StateT]:
        """Return the decisions of this round, and a state that remembers them.

        The decisions are an array of bool, shape (nodes, classifiers), True for a global update.
        """


AnyController = Controller[Any]
"""A controller, whatever its state is."""


def _require_shape(argument: str, array: npt.NDArray[Any], shape: tuple[int | str, ...]) -> None:
    """Raise a ValueError unless an array has the shape.

    An integer in `shape` is the length of an axis. A name, such as ``"dim"``, stands for any length
    of at least 1.
    """
    fits = array.ndim == len(shape) and all(
        length > 0 if isinstance(expected, str) else length == expected
        for length, expected in zip(array.shape, shape, strict=True)
    )
    if not fits:
        fail(argument, f"shape ({', '.join(map(str, shape))})", array.shape)


class FixedController(ABC):
    """Base class of controllers without state, which decide by fixed rules and read no data.

    `Controller` describes `public`, `assumptions` and `noisy_loss`.
    """

    public = True
    assumptions: tuple[str, ...] = ()
    noisy_loss: NoisyLoss | None = None

    def may_be_global(self, round: int) -> bool:
        """Return False if all updates of this round are local; True by default."""
        return True

    @abstractmethod
    def choose(self, shape: tuple[int, int], round: int, key: Key) -> Actions:
        """Return the decisions for all nodes, acting or not, shape (nodes, classifiers)."""

    def init(self, shape: tuple[int, int, int], key: Key) -> None:  # noqa: B027
        """Return no state."""

    def learn(  # noqa: B027
        self, state: None, observation: Observation, round: int, key: Key
    ) -> None:
        """Learn nothing."""

    def decide(
        self, state: None, observation: Observation, round: int, key: Key
    ) -> tuple[Actions, None]:
        """Return the decisions of the acting nodes, shape (nodes, classifiers), and no state."""
        nodes, classifiers, _ = observation.local_models.shape
        actions = self.choose((nodes, classifiers), round, key)
        return actions & observation.acting[:, np.newaxis], None


@dataclass(frozen=True)
class AlwaysGlobal(FixedController):
    """Controller whose updates are all global, "fully collaborative" in the paper.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.WithoutReplacement(controller=dm.algorithms.controllers.AlwaysGlobal()).controller
    AlwaysGlobal()
    """

    def choose(self, shape: tuple[int, int], round: int, key: Key) -> Actions:
        """Return True for each node and classifier."""
        return np.ones(shape, dtype=np.bool_)


@dataclass(frozen=True)
class AlwaysLocal(FixedController):
    """Controller whose updates are all local: the nodes never communicate.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.WithoutReplacement(controller=dm.algorithms.controllers.AlwaysLocal()).controller
    AlwaysLocal()
    """

    def may_be_global(self, round: int) -> bool:
        """Return False: no update is global."""
        return False

    def choose(self, shape: tuple[int, int], round: int, key: Key) -> Actions:
        """Return False for each node and classifier."""
        return np.zeros(shape, dtype=np.bool_)


@dataclass(frozen=True)
class RandomGlobal(FixedController):
    """Controller whose updates are global with probability `rate`, by independent public coins.

    Parameters
    ----------
    rate
        Probability of a global update, in [0, 1].

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.WithoutReplacement(controller=dm.algorithms.controllers.RandomGlobal(0.05)).controller
    RandomGlobal(rate=0.05)
    """

    rate: float

    def __post_init__(self) -> None:
        every(self, probability, "rate")

    def may_be_global(self, round: int) -> bool:
        """Return True if the rate is positive."""
        return self.rate > 0

    def choose(self, shape: tuple[int, int], round: int, key: Key) -> Actions:
        """Draw the decisions, shape (nodes, classifiers): each is True with probability `rate`.

        They are independent of each other.
        """
        return kernels.bernoulli(shape, self.rate, key.stream(Purpose.CONTROLLER, round))


@dataclass(frozen=True)
class Periodic(FixedController):
    """Controller whose updates are global in each `period`-th round, after local ones.

    Parameters
    ----------
    period
        Number of rounds from one global update to the next; the first is in round period - 1,
        counted from 0.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.WithoutReplacement(controller=dm.algorithms.controllers.Periodic(20)).controller
    Periodic(period=20)
    """

    period: int

    def __post_init__(self) -> None:
        every(self, integer, "period", at_least=1)

    def may_be_global(self, round: int) -> bool:
        """Return True if this round ends a period."""
        return (integer("round", round) + 1) % self.period == 0

    def choose(self, shape: tuple[int, int], round: int, key: Key) -> Actions:
        """Return True for each node and classifier in the last round of a period, else False."""
        return np.full(shape, self.may_be_global(round))
