"""Engine that runs an algorithm on MPI ranks (processes), each of which has some of the nodes.

It needs the extra ``mpi``. All ranks make the same call:

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
from dpmesh._validate import fail, in_python, integer, refuse, require_methods
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
"""Mask of the low 32 bits, which ranks compare."""


class RankFailed(RuntimeError):  # noqa: N818
    """Error of a run on ranks, one of which failed; the message states which, and what is saved."""


class RankTraffic(NamedTuple):
    """Traffic of one rank to other ranks.

    Attributes
    ----------
    bytes
        Number of bytes that were sent.
    least
        Number of bytes that the nodes' messages need, if each is sent once to each rank that needs
        it.
    """

    bytes: int
    least: int


class _FailedElsewhere(Exception):  # noqa: N818
    """Error on a rank after another rank has failed."""


class MpiEngine:
    """Engine of an MPI communicator, which assigns nearly equally many nodes to each rank.

    For gossip the nodes are assigned by the network of round 0, so that ranks exchange few rows. A
    run has the same bits as in one process with the same key, for any number of ranks, and a
    checkpoint can be resumed on any number of ranks.

    If a round fails on one rank, it stops on all. All ranks return to the last complete round, rank
    0 saves it if there is a checkpoint, and every rank raises `RankFailed`. Ctrl-C or SIGTERM to
    any rank ends the run after the round, and saves it as well. If a rank is killed, the state of
    its nodes is lost: the launcher ends the other ranks, and the last checkpoint remains.

    All ranks are trusted. Each rank has the whole problem, and rank 0 receives the un-noised
    parameters of all nodes, to evaluate, save and return them. Secure aggregation therefore uses no
    masks here, and the partial sum of a rank has the noise shares of its sites only.

    Parameters
    ----------
    topology
        The whole network, equal on all ranks. For algorithms with a token or with sums over all
        nodes, the number of nodes.
    communicator
        MPI communicator; by default all ranks.

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
        """Indices of the nodes of each rank, ascending."""
        self.bytes_sent = 0
        """Number of bytes sent to other ranks in the last run: `RankTraffic.bytes`."""
        self.bytes_least = 0
        """Number of bytes that the messages of the last run need: `RankTraffic.least`."""
        self._ended = False
        """True if all ranks know that the run failed: no rank waits for signs."""

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
        """Indices of the nodes of this rank, ascending."""
        return self.parts[self.communicator.rank]

    def share(self, whole: Share, topology: Topology | None) -> Share:
        """Return this rank's share of a run: its nodes, their records, and its carrier.

        A *carrier* is the object that sends and receives messages.

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
            refuse("engine", reason)
        problem: Any = whole.problem
        shared_key = self._shared_key(whole.key)
        local_share = replace(
            whole,
            problem=problem.for_nodes(self.nodes),
            key=shared_key,
            pair_key=shared_key,
            nodes=self.nodes,
        )
        if whole.algorithm.communication == "token":
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
        """Raise an error on all ranks if the block fails on one rank.

        Parameters
        ----------
        keep
            Function that is called on all ranks after a failure, and saves the run. It returns a
            description of the saved state, or None.

        Raises
        ------
        OverBudget
            If the budget of this or of another rank has no room for a release.
        RankFailed
            If the block fails on a rank. The message names the rank and the saved state.
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
        """Exchange signs, such as a request to stop, and return the signs of all ranks together.

        All ranks must call it.

        Parameters
        ----------
        signs
            Signs of this rank.
        same
            Number that must be equal on all ranks, such as a checksum of releases.

        Raises
        ------
        OverBudget
            If another rank's budget has no room for a release.
        ValueError
            If `same` differs between ranks.
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

    def everyone(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of the ranks; all ranks must call it."""
        return self.communicator.allgather(value)

    def rows(self, rows: Any) -> Any:
        """Return the rows of all nodes on rank 0, in the order of the nodes; None on other ranks.

        If some nodes have no row, the rows are in the order of the ranks. All ranks must call it.

        Parameters
        ----------
        rows
            Rows of this rank's nodes.
        """
        gathered = self.communicator.gather(rows)
        if gathered is None:
            return None
        all_rows = np.concatenate(gathered)
        order = np.concatenate(self.parts)
        if len(all_rows) != len(order):  # some nodes have no row
            return all_rows
        return all_rows[np.argsort(order)]

    def _shared_key(self, key: Key) -> Key:
        """Return a key that all ranks share, for initial models, turns and samples.

        If the ranks' keys differ, it is derived from rank 0's key. All ranks then know the secret:
        they trust each other.
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
        """Combine the signs and the bits of `same` of all ranks, by a bitwise OR.

        After a failure there is nothing to compare: no bits are returned.
        """
        local_words = np.array([signs, same & _BITS, ~same & _BITS], np.int64)
        words = np.empty(3, np.int64)
        self.communicator.Allreduce(local_words, words, op=MPI.BOR)
        all_signs = Sign(int(words[0]))
        if all_signs & (Sign.FAILED | Sign.OVER_BUDGET):
            return _Agreement(all_signs, set_bits=0, unset_bits=0)
        return _Agreement(all_signs, set_bits=int(words[1]), unset_bits=int(words[2]))

    def _inform(self, sign: Sign) -> None:
        """Send a sign to the ranks that `agree` next, unless all ranks know that the run failed."""
        if not self._ended:
            self._reduce(sign)
            self._ended = True

    def _failure_report(self, error: Exception | None, keep: Callable[[], str | None]) -> str:
        """Return a text with the failures of all ranks and the saved state.

        All ranks must call it.
        """
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
    """Signs of all ranks together, and the bits of a number that should be equal on all ranks.

    Attributes
    ----------
    signs
        Signs that at least one rank has.
    set_bits, unset_bits
        Bits of the number that are 1, or 0, on at least one rank. They overlap if the numbers
        differ.
    """

    signs: Sign
    set_bits: int
    unset_bits: int


def _assign_nodes(topology: Topology | int, communicator: MPI.Comm) -> list[Nodes]:
    """Return the nodes of each rank, by the network of round 0 or in consecutive runs."""
    ranks = communicator.size
    if isinstance(topology, int):
        return np.array_split(np.arange(topology), ranks)
    partition = None
    if communicator.rank == 0:
        partition = blocks(topology.matrix(0).weights, ranks)
    parts: list[Nodes] = communicator.bcast(partition)
    return parts


class MpiGossip(Instant):
    """Carrier of gossip on one rank: it exchanges the rows that cross ranks, and mixes.

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
        """Carry the messages of a round, and return the rows that this rank's nodes receive.

        These are mixed rows, shape (local nodes, dim), or the rows of all nodes for an unmixed
        message, shape (nodes, dim).
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
        """Return the traffic of this rank's nodes over the links of the network in a round.

        It includes links to nodes on the same rank.
        """
        listeners = self._matrix(round).listeners[self._ranks.nodes]
        messages = int(listeners.sum()) * sent.messages
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
        """Send the rows that other ranks need in packed form, and unpack received rows."""
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
    """Carrier of algorithms with a token: the release of the sender goes to all ranks.

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
        """Carry the sender's released rows to all ranks; return them, or None without rows."""
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
    """Carrier of secure aggregation on ranks: it adds up the integers of all nodes, without masks.

    Each rank adds up its nodes' integers, and all ranks add up these partial sums. Deployed parties
    mask their integers. Ranks do not, since they trust each other, and masks change no bit of a
    sum.

    Parameters
    ----------
    ranks
        The ranks and their nodes.
    """

    def __init__(self, ranks: MpiEngine) -> None:
        self._ranks = ranks

    def carry(self, round: int, packet: Packet) -> Integers:
        """Carry the integers of a round, and return their totals modulo ``2**64``.

        The result is one total over all nodes, or a total for each node of this rank.

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
        # Unsigned integers wrap around by definition.
        self._ranks.communicator.Allreduce(
            partial_sums.view(np.uint64), totals.view(np.uint64), op=MPI.SUM
        )
        if len(totals) == 1:
            return totals
        return totals[self._ranks.nodes]

    def traffic(self, round: int, sent: carriers.SentInRound) -> Traffic:
        """Return the traffic of all nodes on rank 0, and 0 on other ranks, since ranks add up."""
        if self._ranks.is_root:
            return super().traffic(round, sent)
        return Traffic(0, 0)


def why_not(algorithm: AnyAlgorithm) -> str | None:
    """Return the reason why an algorithm does not run on ranks; None if it does."""
    releases = algorithm.release_of(0)
    if not isinstance(releases, tuple):
        releases = (releases,)
    are_sums = all(is_summed(release) for release in releases)
    if algorithm.communication == "server" and not are_sums:
        return (
            "ranks have no trusted server, which is one process that sees each client's update: "
            "use engine=None, or combination=SecureAggregation(..)"
        )
    return None
