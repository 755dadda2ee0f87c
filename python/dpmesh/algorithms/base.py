"""What every algorithm is: three verbs a round, and a plan of what they release.

    emit      each node hands over one privatized message       private  -> released
    exchange  the messages travel                               released -> released
    absorb    each node takes what arrived into its own state   released -> private

An algorithm is a frozen dataclass of its public parameters. State is a frozen record of arrays with
the nodes on the first axis; randomness comes in through `key`, and a state never holds any.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._arrays import floats
from dpmesh._validate import able, fail
from dpmesh.keys import Key
from dpmesh.privacy.events import Release
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.types import Floats, Released
from dpmesh.problems import LinearProblem

StateT = TypeVar("StateT")
ProblemT = TypeVar("ProblemT", contravariant=True)

Travel: TypeAlias = Literal["gossip", "server", "token"]
"""How messages travel: to the neighbours of a network, to everybody from a server, or with a token
that one node after another holds."""

Losses: TypeAlias = Callable[[], npt.NDArray[np.float64]]
"""Computes losses when called, which happens only in rounds that are measured."""


@dataclass(frozen=True)
class Info:
    """What one step tells the outside; it is not fed back.

    Parameters
    ----------
    releases
        What left the nodes in this round.
    bits_per_node
        Length of what a node sent over a link, all its messages of the round together: one number,
        or shape (nodes,).
    received
        Shape (nodes, dim): the messages after the exchange. Made of releases only.
    losses
        Returns the loss of each node that learned in this round, on the records that it used,
        before it learned from them; shape (nodes,). None if nobody learned. It may be called until
        the next round in which somebody learns, and what it reads must not change before then.
    messages
        How many messages were sent by server or token, each of `bits_per_node`. None with gossip,
        where the network decides: one goes over every link.
    records
        Shape (nodes, batch_size): the records used, if each is used only once; regret needs them.
    """

    releases: tuple[Release, ...]
    bits_per_node: int | npt.NDArray[np.int64]
    received: Released
    losses: Losses | None = None
    messages: int | None = None
    records: npt.NDArray[np.int64] | None = None


class Exchange(Protocol):
    """How released messages travel: the only part of a round that an engine replaces."""

    def __call__(self, round: int, messages: Released) -> Released:
        """Return what each node receives in this round, shape (nodes, dim)."""
        ...


class Algorithm(Protocol[StateT, ProblemT]):
    """A private learning algorithm."""

    travels: ClassVar[Travel]

    def init(self, problem: ProblemT, key: Key) -> StateT:
        """Return the state before round 0, which must not depend on the data."""
        ...

    def step(
        self, state: StateT, round: int, problem: ProblemT, exchange: Exchange, key: Key
    ) -> tuple[StateT, Info]:
        """Run one round: emit, exchange, absorb."""
        ...

    def plan(self, rounds: int) -> Plan:
        """Return all releases of a run of `rounds` rounds, from public numbers alone."""
        ...

    def parameters(self, state: StateT) -> Floats:
        """Return each node's current model, shape (nodes, dim), for evaluation."""
        ...


@runtime_checkable
class UsesRecordsOnce(Protocol):
    """An algorithm that uses each record in one round only, so that records run out."""

    def most_rounds(self, problem: Any) -> int | None:
        """Return how many rounds the problem's records last; None if that is left to chance."""
        ...


def learns(algorithm: object, problem: object, *methods: str) -> None:
    """Fail unless a problem has the methods that an algorithm calls."""
    wanted = f"what {type(algorithm).__name__} can learn, such as a LinearProblem"
    able("problem", problem, wanted, *methods)


def started(problem: Any, key: Key, nodes: int) -> Floats:
    """Return copies of the model that `problem.initial` returns, shape (nodes, dim).

    Those of a `LinearProblem` take the type of its records.

    Raises
    ------
    ValueError
        If it returns anything but one model of finite numbers.
    """
    model = floats("initial", problem.initial(key), ndim=2)
    linear = isinstance(problem, LinearProblem)
    models: Floats = problem.zeros(nodes) if linear else np.repeat(model, nodes, axis=0)
    shape = (1, models.shape[1])
    if model.shape != shape or not kernels.all_finite(model):
        got = f"shape {model.shape}: {reprlib.repr(model)}"
        fail("initial", f"one model of finite numbers, shape {shape}", got)
    models[:] = model
    return models


AnyAlgorithm = Algorithm[Any, Any]
