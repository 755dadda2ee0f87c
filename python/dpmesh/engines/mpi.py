"""Gossip over MPI: each rank holds some nodes, and only rows on the boundary travel.

Needs the extra ``mpi``. Every rank knows the public network, so that both ends of a message know it
is due, and no rank asks another. All ranks make the same call:

    engine = MpiEngine(topology)
    run = dm.simulate(algorithm, problem, topology, rounds=100, key=key, engine=engine)
    if engine.is_root:
        run.save("results")

Run it by ``mpiexec -n 4 python -m mpi4py program.py``: should one rank fail, all end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from mpi4py import MPI

from dpmesh import kernels
from dpmesh._validate import fail, integer
from dpmesh.algorithms.base import AnyAlgorithm, Info
from dpmesh.engines.blocks import Boundary, Nodes, blocks, boundary
from dpmesh.keys import Key
from dpmesh.privacy.types import Floats, Released
from dpmesh.simulator.codec import Arrays, classes_in, decode, encode
from dpmesh.simulator.history import Value
from dpmesh.simulator.metrics import Metric
from dpmesh.simulator.rounds import Progress
from dpmesh.simulator.run import Traffic
from dpmesh.topology import Topology
from dpmesh.topology.matrix import MixingMatrix


class MpiEngine:
    """The ranks of an MPI communicator, each with an equal share of the nodes.

    The nodes are dealt out by the network of round 0, so that few of its links cross between ranks.
    The bits of a run are those of one process with the same key, whatever the number of ranks, and
    a checkpoint can be resumed on any number of them.

    Parameters
    ----------
    topology
        The whole network, the same on every rank.
    communicator
        By default all ranks.

    Raises
    ------
    ValueError
        If there are more ranks than nodes.
    """

    def __init__(self, topology: Topology, communicator: MPI.Comm = MPI.COMM_WORLD) -> None:
        self.communicator = communicator
        integer("ranks", communicator.size, at_least=1, below=topology.nodes + 1)
        cut = blocks(topology.matrix(0).weights, communicator.size) if self.is_root else None
        self.parts: list[Nodes] = communicator.bcast(cut)

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0."""
        return self.communicator.rank == 0

    @property
    def nodes(self) -> Nodes:
        """The nodes of this rank, ascending."""
        return self.parts[self.communicator.rank]

    def part(self, problem: Any) -> Any:
        """Return the problem of this rank's nodes."""
        return problem.for_nodes(self.nodes)

    def key(self, key: Key) -> Key:
        """Return the key that draws the rows of this rank's nodes."""
        return key.for_nodes(self.nodes.astype(np.uint32))

    def carrier(self, algorithm: AnyAlgorithm, topology: Topology | None) -> MpiGossip:
        """Return the exchange of this rank."""
        if topology is None:
            fail("engine", "an algorithm whose messages travel by gossip", algorithm.travels)
        return MpiGossip(topology, self.parts, self.communicator)

    def meters(self, meters: list[Metric]) -> list[Metric]:
        """Return one metric that gathers what all of these look at."""
        return [_OnRoot(self, meters)]

    def any(self, flag: bool) -> bool:
        """Return whether the flag is up on some rank."""
        return bool(self.communicator.allreduce(flag, MPI.LOR))

    def gather(self, progress: Progress) -> Progress:
        """Return the progress of all nodes on rank 0, and the given one elsewhere."""
        arrays: Arrays = {}
        rows = progress.state, progress.received
        tree = encode(rows, arrays)
        traffic = self.communicator.gather(progress.traffic)
        together = {
            name: self.rows(array) if array.ndim else array for name, array in arrays.items()
        }
        if traffic is None:
            return progress
        state, received = decode(tree, together, classes_in(rows))
        (metrics,) = progress.metrics
        total = sum(traffic, Traffic(0, 0))
        return replace(progress, state=state, received=received, traffic=total, metrics=metrics)

    def scatter(self, progress: Progress) -> Progress:
        """Return this rank's part of rank 0's progress."""
        arrays: Arrays = {}
        rows = progress.state, progress.received
        if self.is_root:
            tree = encode(rows, arrays)
            records = progress.rounds, progress.ledger, tree, arrays
        else:
            records = None
        rounds, ledger, tree, arrays = self.communicator.bcast(records)
        mine = {name: array[self.nodes] if array.ndim else array for name, array in arrays.items()}
        state, received = decode(tree, mine, classes_in(rows))
        if self.is_root:
            return replace(progress, state=state, received=received, metrics=[progress.metrics])
        return Progress(state, received, rounds, ledger=ledger, metrics=[None])

    def rows(self, mine: Any) -> Any:
        """Return the rows of all nodes on rank 0, and None elsewhere."""
        gathered = self.communicator.gather(mine)
        return None if gathered is None else np.concatenate(gathered)[self._back]

    @cached_property
    def _back(self) -> Nodes:
        """Where each node is in the ranks' rows, one rank after the other."""
        return np.argsort(np.concatenate(self.parts))


class MpiGossip:
    """The exchange of one rank: its nodes' messages go to neighbours wherever these are.

    Parameters
    ----------
    topology
        The whole network, the same on every rank.
    parts
        The nodes of each rank, the same on every rank; see `blocks`.
    communicator
        Of these ranks.
    """

    seconds = None
    memory = None

    def __init__(self, topology: Topology, parts: list[Nodes], communicator: MPI.Comm) -> None:
        self._communicator, self._nodes = communicator, parts[communicator.rank]

        @lru_cache(maxsize=16)
        def boundary_of(matrix: MixingMatrix) -> Boundary:
            return boundary(matrix.weights, parts, communicator.rank)

        self._boundary_of = boundary_of
        self._matrix = lru_cache(maxsize=1)(topology.matrix)
        self.bytes_sent = 0
        """To other ranks so far."""

    def recall(self, memory: None) -> None:
        """Need nothing of the past."""

    def __call__(self, round: int, messages: Released) -> Released:
        """Return what this rank's nodes receive, given what they send; shape (own nodes, dim)."""
        across = self._boundary_of(self._matrix(round))
        own, dim = messages.shape
        rows = np.empty((across.weights.shape[1], dim), dtype=messages.dtype)
        rows[:own] = messages
        requests, first = [], own
        for rank, count in enumerate(across.receive):
            if count:
                requests.append(self._communicator.Irecv(rows[first : first + count], source=rank))
            first += count
        for rank, needed in enumerate(across.send):
            if len(needed):
                packet = messages[needed]
                requests.append(self._communicator.Isend(packet, dest=rank))
                self.bytes_sent += packet.nbytes
        MPI.Request.Waitall(requests)
        return Released(kernels.mix(across.weights, rows))

    def traffic(self, round: int, info: Info) -> Traffic:
        """Return what this rank's nodes sent over links in this round, to whichever rank."""
        listeners = self._matrix(round).listeners[self._nodes]
        return Traffic(int(listeners.sum()), int(np.sum(listeners * info.bits_per_node)))


@dataclass
class _OnRoot:
    """Metrics of all nodes, measured on rank 0."""

    engine: MpiEngine
    meters: list[Metric]

    @property
    def watches(self) -> tuple[str, ...]:
        """Whatever one of them watches."""
        return tuple(sorted({name for meter in self.meters for name in meter.watches}))

    @property
    def memory(self) -> Any:
        """What they remember."""
        return [meter.memory for meter in self.meters]

    def recall(self, memory: Any) -> None:
        """Let them remember it, on rank 0."""
        for meter, own in zip(self.meters, memory or (), strict=False):
            meter.recall(own)

    def observe(self, parameters: Floats, info: Info) -> None:
        """Gather what they watch, and let them see it."""
        seen: dict[str, Any] = {}
        for name in self.watches:
            seen[name] = self._of_all(parameters if name == "parameters" else getattr(info, name))
        if self.engine.is_root:
            everybody = seen.pop("parameters", parameters)
            for meter in self.meters:
                meter.observe(everybody, replace(info, **seen))

    def _of_all(self, mine: Any) -> Any:
        """Return the rows of all nodes, or what computes them, on rank 0."""
        if callable(mine):  # losses
            rows = self.engine.rows(mine())
            return lambda: rows
        shared = not isinstance(mine, np.ndarray)  # None, or one length for all messages
        return mine if shared else self.engine.rows(mine)

    def values(self, parameters: Floats, received: Released) -> dict[str, Value]:
        """Return what they say of all nodes; nothing on other ranks."""
        everybody, heard = self.engine.rows(parameters), self.engine.rows(received)
        values: dict[str, Value] = {}
        if self.engine.is_root:
            for meter in self.meters:
                values |= meter.values(everybody, heard)
        return values
