"""Engines: which process holds which nodes, and how processes agree."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dpmesh._ragged import Indices
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.keys import Key
from dpmesh.problems import Problem
from dpmesh.run.carriers import Carrier

if TYPE_CHECKING:
    from dpmesh.topology import Topology

T = TypeVar("T")

_ALONE = nullcontext()


class Sign(IntFlag):
    """Signs that a process sends to the others in a round; each holds for all processes."""

    NONE = 0
    FAILED = 1
    OVER_BUDGET = 2
    STOP = 4
    SAVE = 8
    ENDED = 16
    """The callback ends the run."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """The nodes that a process runs, with their part of the problem.

    Parameters
    ----------
    algorithm
        The same everywhere.
    problem
        The part of the problem that is here.
    carrier
        How messages travel.
    key
        The algorithm's own coins.
    noise_key
        Where the noise comes from, by the numbers of the nodes: that of all processes, unless they
        have keys of their own.
    pair_key
        Where the secrets of partners come from, the same for all processes.
    total
        Number of nodes of all processes.
    nodes
        The numbers of the nodes that are here; None for all.
    """

    algorithm: AnyAlgorithm
    problem: Problem
    carrier: Carrier
    key: Key
    noise_key: Key
    pair_key: Key
    total: int
    nodes: Indices | None = None


class Engine(Protocol):
    """Several processes that run the same loop, each for some of the nodes.

    One of them, the root, measures, saves and reports for all.
    """

    @property
    def processes(self) -> int:
        """Number of processes."""

    @property
    def is_root(self) -> bool:
        """True for the process that measures and saves."""

    def share(self, whole: Share, topology: Topology | None) -> Share:
        """Return this process's part of a run."""

    def guard(self, keep: Callable[[], str | None]) -> AbstractContextManager[None]:
        """Fail on all processes if the block fails on one, after `keep` has saved what it can.

        All call `keep`, whose text becomes part of the error.
        """

    def agree(self, signs: Sign = Sign.NONE, same: int = 0) -> Sign:
        """Return the signs of all processes; fail if one of them did, or `same` differs."""

    def everyone(self, value: T) -> list[T]:
        """Return the values of all processes, the root's first."""

    def rows(self, rows: Any) -> Any:
        """Return an array with the rows of all nodes on the root, and None elsewhere."""


class OneProcess:
    """All nodes in this process.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.run.OneProcess().is_root
    True
    """

    processes = 1
    is_root = True

    def share(self, whole: Share, topology: Topology | None) -> Share:
        """Return the whole."""
        return whole

    def guard(self, keep: Callable[[], str | None]) -> AbstractContextManager[None]:
        """Let an error through: there is nobody to inform."""
        return _ALONE

    def agree(self, signs: Sign = Sign.NONE, same: int = 0) -> Sign:
        """Return the signs."""
        return signs

    def everyone(self, value: T) -> list[T]:
        """Return the value of the one process."""
        return [value]

    def rows(self, rows: Any) -> Any:
        """Return them."""
        return rows
