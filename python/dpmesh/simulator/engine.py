"""What the round loop asks of an engine: who holds which nodes, and how their results meet."""

from __future__ import annotations

from typing import Any, Protocol

from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.keys import Key
from dpmesh.simulator.exchange import Carrier
from dpmesh.simulator.metrics import Metric
from dpmesh.simulator.rounds import Progress
from dpmesh.topology import Topology


class Engine(Protocol):
    """Several processes that run the same round loop, each for some of the nodes.

    One of them, the root, measures, saves and reports for all.
    """

    @property
    def is_root(self) -> bool:
        """Whether this process is the one that measures and saves."""
        ...

    def part(self, problem: Any) -> Any:
        """Return the problem of this process's nodes."""
        ...

    def key(self, key: Key) -> Key:
        """Return the key that draws the rows of this process's nodes as they are among all."""
        ...

    def carrier(self, algorithm: AnyAlgorithm, topology: Topology | None) -> Carrier:
        """Return the exchange between all nodes, for this process's messages."""
        ...

    def meters(self, meters: list[Metric]) -> list[Metric]:
        """Return metrics for this process by which `meters` measure all nodes on the root."""
        ...

    def gather(self, progress: Progress) -> Progress:
        """Return the progress of all nodes on the root, and the given one elsewhere."""
        ...

    def scatter(self, progress: Progress) -> Progress:
        """Return this process's part of the root's progress of all nodes."""
        ...

    def any(self, flag: bool) -> bool:
        """Return whether the flag is up in some process."""
        ...
