"""Engines: division of the nodes among processes, and agreement between processes."""

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

_NO_GUARD = nullcontext()
"""The guard of a run in one process, which has no others to inform."""


class Sign(IntFlag):
    """Signals that a process sends to the others in a round; all processes act on each of them."""

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
        The algorithm, the same on all processes.
    problem
        The problem of this process's nodes.
    carrier
        Carrier of the messages.
    key
        Key of the algorithm's initial states, order of nodes, and samples.
    noise_key
        Key of the noise; each node has its own stream. One key for all processes, or one for each.
    pair_key
        Key of the noise that pairs of partners share, the same for all processes.
    total
        Number of nodes of all processes.
    nodes
        Indices of this process's nodes, shape (local nodes,); None for all.
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
    """Interface of engines: processes that run the same loop, each for some of the nodes.

    One process, the root, measures, saves and reports for all.
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
        """Fail on all processes if the block fails on one, after `keep` has saved the progress.

        Parameters
        ----------
        keep
            Called on all processes after a failure. It returns a description of what was saved,
            which becomes part of the error, or None.
        """

    def agree(self, signs: Sign = Sign.NONE, same: int = 0) -> Sign:
        """Exchange signs; return the union of the signs of all processes.

        Parameters
        ----------
        signs
            This process's signs.
        same
            A number that all processes must have, such as a checksum of their releases.

        Raises
        ------
        OverBudget
            If a release exceeds the budget of another process.
        ValueError
            If the processes have different values of `same`.
        """

    def everyone(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of the processes, the root's first."""

    def rows(self, rows: Any) -> Any:
        """Gather rows: return an array with the rows of all nodes on the root, None elsewhere."""


class OneProcess:
    """Engine with all nodes in this process.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.run.OneProcess().is_root
    True
    """

    processes = 1
    is_root = True

    def share(self, whole: Share, topology: Topology | None) -> Share:
        """Return all nodes: one process runs them all."""
        return whole

    def guard(self, keep: Callable[[], str | None]) -> AbstractContextManager[None]:
        """Let an error through, without calling `keep`: there is no other process to inform."""
        return _NO_GUARD

    def agree(self, signs: Sign = Sign.NONE, same: int = 0) -> Sign:
        """Return the signs of this process: there is no other one."""
        return signs

    def everyone(self, value: T) -> list[T]:
        """Return the value of the one process."""
        return [value]

    def rows(self, rows: Any) -> Any:
        """Return the rows, which are those of all nodes."""
        return rows
