"""MPI ranks, each with some of the nodes.

Needs the extra ``mpi``. All ranks make the same call:

    engine = MpiEngine(topology)
    run = dm.simulate(algorithm, problem, topology, rounds=100, key=key, engine=engine)
    if engine.is_root:
        run.save("results")

Run it by ``mpiexec -n 4 python -m mpi4py program.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._extras import needed_by
from dpmesh._privacy_types import Floats, Released
from dpmesh._validate import fail, in_python, integer, require_methods
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.engines.blocks import Boundary, Nodes, blocks, boundary
from dpmesh.keys import Key, Purpose, fingerprint
from dpmesh.noise.compression import Compressed
from dpmesh.noise.secure.mechanism import Integers, is_summed
from dpmesh.privacy.budget import OverBudget
from dpmesh.run import carriers
from dpmesh.run.carriers import Broadcast, Instant, Packet, Traffic, require_complete
from dpmesh.run.engine import Share, Sign
from dpmesh.topology import Topology
from dpmesh.topology.matrix import MixingMatrix

with needed_by("the engine 'mpi'"):
    from mpi4py import MPI


T = TypeVar("T")

_BITS = 2**32 - 1


class RankFailed(RuntimeError):  # noqa: N818
    """A run on ranks ended because one of them failed; the text states which, and what is saved."""


class RankTraffic(NamedTuple):
    """Length of one rank's messages to other ranks.

    Attributes
    ----------
    bytes
        Bytes as sent.
    least
        Bytes of the nodes' messages if each went once to every rank that needs it.
    """

    bytes: int
    least: int


class _FailedElsewhere(Exception):  # noqa: N818
    """Another rank has failed."""


class MpiEngine:
    """The ranks of an MPI communicator, each with a nearly equal share of the nodes.

    For gossip the nodes are assigned by the network of round 0, so that few rows travel between
    ranks. A run has the same bits as one process with the same key, whatever the number of ranks,
    and a checkpoint can be resumed on any number of them.

    A rank whose round fails stops the others. All go back to the last complete round, rank 0 saves
    it if there is a checkpoint, and every rank raises `RankFailed`. Ctrl-C and SIGTERM, to any
    rank, end the run after the round and save as well. A rank that is killed takes its nodes' state
    with it: the launcher ends the others, and the last checkpoint remains.

    All ranks are trusted: each is given the whole problem, and rank 0 gets all nodes' own
    parameters, without noise, to measure, save and return them. So sites whose sums are added up
    need no masks here, and a rank's part of a sum has only its own sites' shares of noise.

    Parameters
    ----------
    topology
        The whole network, the same on every rank; if messages travel with a token or are added up,
        the number of nodes.
    communicator
        By default all ranks.

    Raises
    ------
    ValueError
        If there are more ranks than nodes, or `topology` is neither a network nor a number.
    """

    def __init__(self, topology: Topology | int, communicator: MPI.Comm = MPI.COMM_WORLD) -> None:
        topology = in_python(topology)
        if isinstance(topology, int):
            nodes = topology
        else:
            expectation = "a topology of dpmesh.topology, or the number of nodes"
            require_methods("topology", topology, expectation, "matrix")
            nodes = topology.nodes
        ranks = communicator.size
        integer("ranks", ranks, at_least=1, below=nodes + 1)
        self.communicator: MPI.Comm = communicator
        self.parts: list[Nodes] = _assign_nodes(topology, communicator)
        """The nodes of each rank, ascending."""
        self.bytes_sent = 0
        """Bytes to other ranks in the rounds of the last run, as in `RankTraffic`."""
        self.bytes_least = 0
        """Bytes that had to be sent in the rounds of the last run, as in `RankTraffic`."""
        self._ended = False

    @property
    def processes(self) -> int:
        """Number of ranks."""
        return int(self.communicator.size)

    @property
    def is_root(self) -> bool:
        """True on rank 0."""
        return bool(self.communicator.rank == 0)

    @property
    def nodes(self) -> Nodes:
        """The nodes of this rank, ascending."""
        return self.parts[self.communicator.rank]

    def share(self, whole: Share, topology: Topology | None) -> Share:
        """Return this rank's part of a run.

        Raises
        ------
        ValueError
            If the run has another number of nodes, or its algorithm does not run on ranks.
        """
        self._ended = False
        self.bytes_sent = 0
        self.bytes_least = 0
        assigned = sum(len(part) for part in self.parts)
        if assigned != whole.total:
            fail("engine", f"one for {whole.total} nodes", assigned)
        reason = why_not(whole.algorithm)
        if reason:
            fail("engine", f"None, since {reason}", type(whole.algorithm).__name__)
        problem: Any = whole.problem
        shared_key = self._shared_key(whole.key)
        local_share = replace(
            whole,
            problem=problem.for_nodes(self.nodes),
            key=shared_key,
            pair_key=shared_key,
            nodes=self.nodes,
        )
        if whole.algorithm.travels == "token":
            return replace(local_share, carrier=MpiToken(self))
        local_key = shared_key.for_nodes(self.nodes.astype(np.uint32))
        if topology is None:
            return replace(local_share, carrier=MpiSums(self), key=local_key)
        return replace(local_share, carrier=MpiGossip(self, topology), key=local_key)

    def sent(self) -> list[RankTraffic]:
        """Return the traffic of each rank in the last run; all ranks must call it."""
        traffic = (self.bytes_sent, self.bytes_least)
        return [RankTraffic(*counts) for counts in self.everyone(traffic)]

    def count(self, total: int, least: int) -> None:
        """Count bytes sent to other ranks, as in `RankTraffic`."""
        self.bytes_sent += total
        self.bytes_least += least

    @contextmanager
    def guard(self, keep: Callable[[], str | None]) -> Iterator[None]:
        """Fail on all ranks if the block fails on one; the error names the rank and what is saved.

        Parameters
        ----------
        keep
            Called on all ranks after a failure. It returns a description of what was saved, or
            None.

        Raises
        ------
        OverBudget
            If this rank's budget or another's has no room for a release.
        RankFailed
            If the block fails on a rank.
        """
        try:
            yield
        except OverBudget:
            self._inform(Sign.OVER_BUDGET)
            raise
        except _FailedElsewhere:
            self._inform(Sign.FAILED)
            raise RankFailed(self._failure_report(None, keep)) from None
        except Exception as error:
            self._inform(Sign.FAILED)
            raise RankFailed(self._failure_report(error, keep)) from error

    def agree(self, signs: Sign = Sign.NONE, same: int = 0) -> Sign:
        """Return the signs of all ranks.

        Parameters
        ----------
        signs
            This rank's signs.
        same
            A number that all ranks must have, such as a checksum of their releases.

        Raises
        ------
        OverBudget
            If another rank's budget has no room for a release.
        ValueError
            If the ranks differ in `same`.
        """
        agreement = self._reduce(signs, same)
        self._ended = bool(agreement.signs & (Sign.FAILED | Sign.OVER_BUDGET))
        if agreement.signs & Sign.FAILED:
            raise _FailedElsewhere
        if agreement.signs & Sign.OVER_BUDGET:
            raise OverBudget("the budget has no room for a release of another rank")
        if agreement.set_bits & agreement.unset_bits:
            fail("releases", "the same on all ranks, as they are public", "others on some")
        return agreement.signs

    def everyone(self, mine: T) -> list[T]:
        """Return the value of each rank, the root's first."""
        return self.communicator.allgather(mine)

    def rows(self, mine: Any) -> Any:
        """Return the rows of all nodes on rank 0, and None elsewhere.

        If not every node has a row, they come rank by rank.
        """
        gathered = self.communicator.gather(mine)
        if gathered is None:
            return None
        rows = np.concatenate(gathered)
        order = np.concatenate(self.parts)
        if len(rows) != len(order):
            return rows
        return rows[np.argsort(order)]

    def _shared_key(self, key: Key) -> Key:
        """Return a key that all ranks have, for starts, turns and samples, but not for noise.

        If the ranks' keys differ it is made from rank 0's, and as secret: ranks trust each other.
        """
        words = np.empty(8, np.uint32)
        key.stream(Purpose.SHARED).words(0, words)
        root_secret = None
        if self.is_root:
            root_secret = words.astype("<u4").tobytes()
        shared_secret = self.communicator.bcast(root_secret)
        fingerprints = self.everyone(fingerprint(key))
        if len(set(fingerprints)) == 1:
            return key
        return Key.seeded(int.from_bytes(shared_secret, "little"), key.cipher)

    def _reduce(self, signs: Sign, same: int = 0) -> _Agreement:
        """Combine the signs and the bits of `same` of all ranks.

        A rank that failed has nothing to compare: then no bits are returned.
        """
        local_words = np.array([signs, same & _BITS, ~same & _BITS], np.int64)
        words = np.empty(3, np.int64)
        self.communicator.Allreduce(local_words, words, op=MPI.BOR)
        all_signs = Sign(int(words[0]))
        if all_signs & (Sign.FAILED | Sign.OVER_BUDGET):
            return _Agreement(all_signs, set_bits=0, unset_bits=0)
        return _Agreement(all_signs, set_bits=int(words[1]), unset_bits=int(words[2]))

    def _inform(self, sign: Sign) -> None:
        """Pass the sign on when the others `agree` next, unless all know it."""
        if not self._ended:
            self._reduce(sign)
            self._ended = True

    def _failure_report(self, error: Exception | None, keep: Callable[[], str | None]) -> str:
        """Return the failures of all ranks and what is saved; all ranks must call it."""
        local_failure = None
        if error is not None:
            local_failure = f"{type(error).__name__}: {error}"
        ranks = self.communicator.size
        failures = []
        for rank, failure in enumerate(self.communicator.allgather(local_failure)):
            if failure:
                failures.append(f"rank {rank} of {ranks} failed: {failure}")
        try:
            saved = keep()
        except Exception as save_error:
            reason = str(save_error) or type(save_error).__name__
            saved = f"nothing more could be saved: {reason}"
            self._inform(Sign.FAILED)
        report = "; ".join(failures)
        if saved:
            report += f" ({saved})"
        return report


class _Agreement(NamedTuple):
    """The signs of all ranks, and the bits of a number that all ranks should have.

    Attributes
    ----------
    signs
        Signs that some rank has.
    set_bits, unset_bits
        Bits that are set, or not set, on some rank; they overlap if the numbers differ.
    """

    signs: Sign
    set_bits: int
    unset_bits: int


def _assign_nodes(topology: Topology | int, communicator: MPI.Comm) -> list[Nodes]:
    """Return the nodes of each rank: by the network of round 0, or in equal runs of a number."""
    ranks = communicator.size
    if isinstance(topology, int):
        return np.array_split(np.arange(topology), ranks)
    partition = None
    if communicator.rank == 0:
        partition = blocks(topology.matrix(0).weights, ranks)
    parts: list[Nodes] = communicator.bcast(partition)
    return parts


class MpiGossip(Instant):
    """The carrier of one rank: its nodes' messages go to neighbours on whichever rank.

    Parameters
    ----------
    ranks
        The ranks and their nodes.
    topology
        The whole network, the same on every rank.
    """

    def __init__(self, ranks: MpiEngine, topology: Topology) -> None:
        self._ranks = ranks
        self._communicator = ranks.communicator

        @lru_cache(maxsize=16)
        def boundary_of(matrix: MixingMatrix) -> Boundary:
            return boundary(matrix.weights, ranks.parts, ranks.communicator.rank)

        self._boundary_of = boundary_of
        self._matrix = lru_cache(maxsize=1)(topology.matrix)

    def carry(self, round: int, packet: Packet) -> Released:
        """Return the mixed messages of this rank's nodes, shape (local nodes, dim).

        Unmixed messages are returned as those of all nodes, shape (nodes, dim).
        """
        self._ranks.agree()
        messages = packet.rows
        if packet.unmixed:
            require_complete(self._matrix(round))
            all_messages = np.concatenate(self._ranks.everyone(messages))
            order = np.argsort(np.concatenate(self._ranks.parts))
            return Released(all_messages[order])
        across = self._boundary_of(self._matrix(round))
        local_nodes = len(messages)
        rows = np.empty((across.weights.shape[1], messages.shape[1]), dtype=messages.dtype)
        rows[:local_nodes] = messages
        foreign = rows[local_nodes:]
        if packet.compressed is not None:
            self._exchange_packed(across, packet.compressed, foreign)
        else:
            self._exchange(across, messages, foreign)
        return Released(kernels.mix(across.weights, rows))

    def traffic(self, round: int, sent: carriers.SentInRound) -> Traffic:
        """Return the traffic of this rank's nodes over links in this round, to whichever rank."""
        listeners = self._matrix(round).listeners[self._ranks.nodes]
        messages = int(listeners.sum()) * sent.times
        bits = int(np.sum(listeners * sent.bits))
        return Traffic(messages, bits)

    def _exchange(self, across: Boundary, messages: Released, foreign: Floats) -> None:
        """Send the rows that other ranks need, and receive into `foreign`."""
        requests = []
        start = 0
        for rank, count in enumerate(across.receive):
            if count:
                rows = foreign[start : start + count]
                requests.append(self._communicator.Irecv(rows, source=rank))
            start += count
        for rank, local_rows in enumerate(across.send):
            if len(local_rows):
                block = messages[local_rows]
                requests.append(self._communicator.Isend(block, dest=rank))
                self._ranks.count(block.nbytes, block.nbytes)
        MPI.Request.Waitall(requests)

    def _exchange_packed(self, across: Boundary, packed: Compressed, foreign: Floats) -> None:
        """Send these rows as their nodes pack them, and unpack into `foreign`."""
        requests = []
        for rank, local_rows in enumerate(across.send):
            if len(local_rows):
                block = packed.packet(local_rows)
                requests.append(self._communicator.Isend([block, MPI.BYTE], dest=rank))
                least_bytes = int(packed.bits[local_rows].sum()) // 8
                self._ranks.count(len(block), least_bytes)
        dim = foreign.shape[1]
        start = 0
        for rank, count in enumerate(across.receive):
            if count:
                block = self._receive_bytes(rank)
                rows = packed.compressor.decode_packet(block, count, dim, foreign.dtype)
                foreign[start : start + count] = rows
            start += count
        MPI.Request.Waitall(requests)

    def _receive_bytes(self, rank: int) -> bytes:
        """Receive one message of unknown length from another rank."""
        status = MPI.Status()
        message = self._communicator.Mprobe(source=rank, status=status)
        buffer = bytearray(status.Get_count(MPI.BYTE))
        message.Recv([buffer, MPI.BYTE])
        return bytes(buffer)


class MpiToken(Broadcast):
    """The carrier of a token: the release of its holder goes to all ranks.

    Parameters
    ----------
    ranks
        The ranks and their nodes.
    """

    def __init__(self, ranks: MpiEngine) -> None:
        self._ranks = ranks
        nodes = sum(len(part) for part in ranks.parts)
        self._owner = np.empty(nodes, np.int64)
        for rank, part in enumerate(ranks.parts):
            self._owner[part] = rank

    def carry(self, round: int, packet: Packet) -> Released | None:
        """Return the sender's release on all ranks; None if there is none."""
        self._ranks.agree()
        communicator = self._ranks.communicator
        owner = int(self._owner[packet.sender])
        if communicator.rank == owner and packet.values is not None:
            receivers = communicator.size - 1
            length = packet.values.nbytes * receivers
            self._ranks.count(length, length)
        values: Released | None = communicator.bcast(packet.values, root=owner)
        return values


class MpiSums(Broadcast):
    """The carrier of sums: each rank adds up its own nodes' integers, and all ranks add up these.

    Every rank gets the sums that its nodes learn. The masks of deployed parties are left out, as in
    one process: ranks trust each other, and masks change no bit of a sum.

    Parameters
    ----------
    ranks
        The ranks and their nodes.
    """

    def __init__(self, ranks: MpiEngine) -> None:
        self._ranks = ranks

    def carry(self, round: int, packet: Packet) -> Integers:
        """Return the totals of the one sum of all nodes, or those of this rank's own nodes.

        They are integers modulo ``2**64``.

        Raises
        ------
        ValueError
            If the release is not a sum of all nodes.
        """
        if packet.masked is None:
            fail("release", "a sum of all nodes, since they are on several ranks", "another")
        partial_sums = packet.masked.totals()
        self._ranks.agree()
        totals = np.empty_like(partial_sums)
        if self._ranks.processes > 1:
            self._ranks.count(partial_sums.nbytes, partial_sums.nbytes)
        # unsigned words wrap around by definition
        self._ranks.communicator.Allreduce(
            partial_sums.view(np.uint64), totals.view(np.uint64), op=MPI.SUM
        )
        if len(totals) == 1:
            return totals
        return totals[self._ranks.nodes]

    def traffic(self, round: int, sent: carriers.SentInRound) -> Traffic:
        """Return the traffic of all nodes on rank 0 and none elsewhere: ranks add up."""
        if self._ranks.is_root:
            return super().traffic(round, sent)
        return Traffic(0, 0)


def why_not(algorithm: AnyAlgorithm) -> str | None:
    """Return the reason for which an algorithm does not run on ranks; None if it does."""
    releases = algorithm.release_of(0)
    if not isinstance(releases, tuple):
        releases = (releases,)
    are_sums = all(is_summed(release) for release in releases)
    if algorithm.travels == "server" and not are_sums:
        return "a trusted server sees all that its clients send: it is one process"
    return None
