"""What the round loop asks of an engine: who holds which nodes, how results are gathered."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import IntFlag
from typing import TYPE_CHECKING, Protocol, TypeVar

from dpmesh.privacy.door import Keeper, kept_by
from dpmesh.privacy.events import Release
from dpmesh.simulator.metrics import Metric
from dpmesh.simulator.rounds import Progress, Share
from dpmesh.simulator.run import Traffic

if TYPE_CHECKING:
    from dpmesh.topology import Topology

T = TypeVar("T")

_ALONE = nullcontext()


class Sign(IntFlag):
    """What a process tells the others in a round; each sign holds for all processes."""

    NONE = 0
    FAILED = 1
    OVER_BUDGET = 2
    STOP = 4
    SAVE = 8
    APART = 16
    """Releases name their nodes or are not those planned, so that processes may have others."""
    RESTED = 32
    """None of the process's nodes learned."""
    LEARNED = 64
    """Some of them learned; told only in rounds in which those of another process did not."""
    ENDED = 128
    """The callback ends the run; told only in rounds that are measured."""


class Engine(Protocol):
    """Several processes that run the same round loop, each for some of the nodes.

    One of them, the root, measures, saves and reports for all.
    """

    @property
    def is_root(self) -> bool:
        """Whether this process is the one that measures and saves."""
        ...

    @property
    def stops_together(self) -> bool:
        """Whether Ctrl-C waits for the end of a round, at which all processes stop."""
        ...

    @property
    def dealt(self) -> str:
        """A text that identifies the assignment of nodes to processes."""
        ...

    def share(self, whole: Share, topology: Topology | None) -> Share:
        """Return this process's part of a run."""
        ...

    def meters(self, meters: list[Metric]) -> list[Metric]:
        """Return this process's metrics, through which `meters` measure all nodes on the root."""
        ...

    def at_door(self, keeper: Keeper) -> AbstractContextManager[None]:
        """Ask `keeper` before every release within the block."""
        ...

    def together(self, keep: Callable[[], str | None]) -> AbstractContextManager[None]:
        """Fail on all processes if the block fails on one, after `keep` has saved what it can.

        All call `keep`, whose text becomes part of the error.
        """
        ...

    def agree(self, signs: Sign = Sign.NONE) -> Sign:
        """Return the signs of all processes; fail if one of them did."""
        ...

    def told(self, mine: T) -> list[T]:
        """Return what each process passed."""
        ...

    def on_root(self, work: Callable[[], T]) -> T | None:
        """Run `work` on the root; return None elsewhere."""
        ...

    def releases(self, mine: tuple[Release, ...], planned: list[Release]) -> tuple[Release, ...]:
        """Return the releases of all nodes in a round, given what was planned for it."""
        ...

    def total(self, mine: Traffic) -> Traffic | None:
        """Return the traffic of all processes on the root, and None elsewhere."""
        ...

    def gather(self, progress: Progress) -> Progress:
        """Return the progress of all nodes on the root, and the given one elsewhere."""
        ...

    def scatter(self, progress: Progress | None) -> Progress:
        """Return this process's part of the root's progress of all nodes."""
        ...


class OneProcess:
    """All nodes in this process."""

    is_root = True
    stops_together = False
    dealt = "all to one"

    def share(self, whole: Share, topology: Topology | None) -> Share:
        """Return the whole."""
        return whole

    def meters(self, meters: list[Metric]) -> list[Metric]:
        """Return the metrics as they are."""
        return meters

    def at_door(self, keeper: Keeper) -> AbstractContextManager[None]:
        """Ask the keeper."""
        return kept_by(keeper)

    def together(self, keep: Callable[[], str | None]) -> AbstractContextManager[None]:
        """Let an error through: there is nobody to tell."""
        return _ALONE

    def agree(self, signs: Sign = Sign.NONE) -> Sign:
        """Return the signs."""
        return signs

    def told(self, mine: T) -> list[T]:
        """Return it."""
        return [mine]

    def on_root(self, work: Callable[[], T]) -> T | None:
        """Do it."""
        return work()

    def releases(self, mine: tuple[Release, ...], planned: list[Release]) -> tuple[Release, ...]:
        """Return the releases as they are."""
        return mine

    def total(self, mine: Traffic) -> Traffic:
        """Return the traffic as it is."""
        return mine

    def gather(self, progress: Progress) -> Progress:
        """Return the progress as it is."""
        return progress

    def scatter(self, progress: Progress | None) -> Progress:
        """Return the progress as it is."""
        assert progress is not None
        return progress
