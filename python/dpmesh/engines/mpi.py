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
from dpmesh.run.carriers import Broadcast, Instant, Packet, Traffic, all_linked
from dpmesh.run.engine import Share, Sign
from dpmesh.topology import Topology
from dpmesh.topology.matrix import MixingMatrix

with needed_by("the engine 'mpi'"):
    from mpi4py import MPI


T = TypeVar("T")

_BITS = 2**32 - 1


class RankFailed(RuntimeError):  # noqa: N818
    """A run on ranks ended because one of them failed; the text states which, and what is saved."""


class _Elsewhere(Exception):  # noqa: N818
    """Another rank has failed."""


class Sent(NamedTuple):
    """Messages of one rank to others.

    Attributes
    ----------
    bytes
        Their length as sent.
    least
        Length of the nodes' own messages if each went once to every rank that needs it.
    """

    bytes: int
    least: int


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
        if not isinstance(topology, int):
            wanted = "a topology of dpmesh.topology, or the number of nodes"
            require_methods("topology", topology, wanted, "matrix")
        nodes, size = topology if isinstance(topology, int) else topology.nodes, communicator.size
        integer("ranks", size, at_least=1, below=nodes + 1)
        if isinstance(topology, int):
            parts = np.array_split(np.arange(nodes), size)
        else:
            cut = blocks(topology.matrix(0).weights, size) if communicator.rank == 0 else None
            parts = communicator.bcast(cut)
        self.communicator: MPI.Comm = communicator
        self.parts: list[Nodes] = parts
        """The nodes of each rank, ascending."""
        self.bytes_sent = self.bytes_least = 0
        """To other ranks in the rounds of the last run, as in `Sent`."""
        self._ended = False

    @property
    def processes(self) -> int:
        """Number of ranks."""
        return int(self.communicator.size)

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0."""
        return bool(self.communicator.rank == 0)

    @property
    def nodes(self) -> Nodes:
        """The nodes of this rank, ascending."""
        return self.parts[self.communicator.rank]

    def share(self, whole: Share, topology: Topology | None) -> Share:
        """Return this rank's part of a run."""
        self._ended, self.bytes_sent, self.bytes_least = False, 0, 0
        if sum(map(len, self.parts)) != whole.total:
            fail("engine", f"one for {whole.total} nodes", sum(map(len, self.parts)))
        if reason := why_not(whole.algorithm):
            fail("engine", f"None, since {reason}", type(whole.algorithm).__name__)
        problem: Any = whole.problem
        part, coins = problem.for_nodes(self.nodes), self._coins(whole.key)
        here = replace(whole, problem=part, key=coins, pair_key=coins, nodes=self.nodes)
        if whole.algorithm.travels == "token":
            return replace(here, carrier=MpiToken(self))
        carrier = MpiSums(self) if topology is None else MpiGossip(self, topology)
        own = coins.for_nodes(self.nodes.astype(np.uint32))
        return replace(here, carrier=carrier, key=own)

    def sent(self) -> list[Sent]:
        """Return what each rank has sent in its rounds of the last run; all ranks must call it."""
        mine = Sent(self.bytes_sent, self.bytes_least)
        return [Sent(*sent) for sent in self.everyone(tuple(mine))]

    def count(self, sent: int, least: int) -> None:
        """Count bytes sent to other ranks."""
        self.bytes_sent += sent
        self.bytes_least += least

    @contextmanager
    def guard(self, keep: Callable[[], str | None]) -> Iterator[None]:
        """Fail on all ranks if the block fails on one, and report which did and what is saved."""
        try:
            yield
        except OverBudget:
            self._inform(Sign.OVER_BUDGET)
            raise
        except Exception as error:
            self._inform(Sign.FAILED)
            here = None if isinstance(error, _Elsewhere) else error
            raise RankFailed(self._story(here, keep)) from here

    def agree(self, signs: Sign = Sign.NONE, same: int = 0) -> Sign:
        """Return the signs of all ranks; fail if one of them did, or `same` is not the same."""
        found, ones, others = self._all(signs, same)
        self._ended = bool(found & (Sign.FAILED | Sign.OVER_BUDGET))
        if found & Sign.FAILED:
            raise _Elsewhere
        if found & Sign.OVER_BUDGET:
            raise OverBudget("the budget has no room for a release of another rank")
        if ones & others:
            fail("releases", "the same on all ranks, as they are public", "others on some")
        return found

    def everyone(self, mine: T) -> list[T]:
        """Return what each rank passed."""
        return self.communicator.allgather(mine)

    def rows(self, mine: Any) -> Any:
        """Return the rows of all nodes on rank 0, and None elsewhere.

        If not every node has a row, they come rank by rank.
        """
        gathered = self.communicator.gather(mine)
        if gathered is None:
            return None
        rows, order = np.concatenate(gathered), np.concatenate(self.parts)
        return rows[np.argsort(order)] if len(rows) == len(order) else rows

    def _coins(self, key: Key) -> Key:
        """Return a key that all ranks have, for starts, turns and samples, but not for noise.

        If the ranks' keys differ it is made from rank 0's, and as secret: ranks trust each other.
        """
        words = np.empty(8, np.uint32)
        key.stream(Purpose.SHARED).words(0, words)
        secret = self.communicator.bcast(words.astype("<u4").tobytes() if self.is_root else None)
        if len(set(self.everyone(fingerprint(key)))) == 1:
            return key
        return Key.seeded(int.from_bytes(secret, "little"), key.cipher)

    def _all(self, signs: Sign, same: int = 0) -> tuple[Sign, int, int]:
        """Return which bits are set on some rank: of the signs, of `same`, and of its opposite."""
        found = np.empty(3, np.int64)
        mine = np.array([signs, same & _BITS, ~same & _BITS], np.int64)
        self.communicator.Allreduce(mine, found, op=MPI.BOR)
        if found[0] & (Sign.FAILED | Sign.OVER_BUDGET):
            found[1:] = 0  # a rank that failed has nothing to compare
        return Sign(int(found[0])), int(found[1]), int(found[2])

    def _inform(self, sign: Sign) -> None:
        """Pass the sign on when the others `agree` next, unless all know it."""
        if not self._ended:
            self._all(sign)
            self._ended = True

    def _story(self, error: Exception | None, keep: Callable[[], str | None]) -> str:
        """Return which rank failed and what is saved; all ranks must call it."""
        mine = None if error is None else f"{type(error).__name__}: {error}"
        texts = enumerate(self.communicator.allgather(mine))
        size = self.communicator.size
        failed = "; ".join(f"rank {r} of {size} failed: {text}" for r, text in texts if text)
        try:
            kept = keep()
        except Exception as second:
            kept = f"nothing more could be saved: {second or type(second).__name__}"
            self._inform(Sign.FAILED)
        return f"{failed} ({kept})" if kept else failed


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
        self._ranks, self._communicator = ranks, ranks.communicator

        @lru_cache(maxsize=16)
        def boundary_of(matrix: MixingMatrix) -> Boundary:
            return boundary(matrix.weights, ranks.parts, ranks.communicator.rank)

        self._boundary_of = boundary_of
        self._matrix = lru_cache(maxsize=1)(topology.matrix)

    def carry(self, round: int, packet: Packet) -> Released:
        """Return what this rank's nodes receive, shape (own nodes, dim)."""
        self._ranks.agree()
        messages = packet.rows
        if packet.unmixed:
            all_linked(self._matrix(round))
            everybody = np.concatenate(self._ranks.everyone(messages))
            return Released(everybody[np.argsort(np.concatenate(self._ranks.parts))])
        across = self._boundary_of(self._matrix(round))
        rows = np.empty((across.weights.shape[1], messages.shape[1]), dtype=messages.dtype)
        rows[: len(messages)] = messages
        if packet.compressed is not None:
            self._travel_packed(across, packet.compressed, rows[len(messages) :])
        else:
            self._travel(across, messages, rows[len(messages) :])
        return Released(kernels.mix(across.weights, rows))

    def traffic(self, round: int, sent: carriers.Sent) -> Traffic:
        """Return what this rank's nodes sent over links in this round, to whichever rank."""
        listeners = self._matrix(round).listeners[self._ranks.nodes]
        return Traffic(int(listeners.sum()) * sent.times, int(np.sum(listeners * sent.bits)))

    def _travel(self, across: Boundary, messages: Released, foreign: Floats) -> None:
        """Send the rows that other ranks need, and receive into `foreign`."""
        requests, first = [], 0
        for rank, count in enumerate(across.receive):
            if count:
                rows = foreign[first : first + count]
                requests.append(self._communicator.Irecv(rows, source=rank))
            first += count
        for rank, needed in enumerate(across.send):
            if len(needed):
                packet = messages[needed]
                requests.append(self._communicator.Isend(packet, dest=rank))
                self._ranks.count(packet.nbytes, packet.nbytes)
        MPI.Request.Waitall(requests)

    def _travel_packed(self, across: Boundary, packed: Compressed, foreign: Floats) -> None:
        """Send these rows as their nodes pack them, and unpack into `foreign`."""
        requests, first = [], 0
        for rank, needed in enumerate(across.send):
            if len(needed):
                packet = packed.together(needed)
                requests.append(self._communicator.Isend([packet, MPI.BYTE], dest=rank))
                self._ranks.count(len(packet), int(packed.bits[needed].sum()) // 8)
        for rank, count in enumerate(across.receive):
            if count:
                status = MPI.Status()
                message = self._communicator.Mprobe(source=rank, status=status)
                came = bytearray(status.Get_count(MPI.BYTE))
                message.Recv([came, MPI.BYTE])
                rows = packed.compressor.apart(bytes(came), count, foreign.shape[1], foreign.dtype)
                foreign[first : first + count] = rows
            first += count
        MPI.Request.Waitall(requests)


class MpiToken(Broadcast):
    """The carrier of a token: what its holder released goes to all ranks.

    Parameters
    ----------
    ranks
        The ranks and their nodes.
    """

    def __init__(self, ranks: MpiEngine) -> None:
        self._ranks = ranks
        self._owner = np.empty(sum(map(len, ranks.parts)), np.int64)
        for rank, part in enumerate(ranks.parts):
            self._owner[part] = rank

    def carry(self, round: int, packet: Packet) -> Released | None:
        """Return on all ranks what the sender released; None if that is nothing."""
        self._ranks.agree()
        owner, communicator = int(self._owner[packet.sender]), self._ranks.communicator
        if communicator.rank == owner and packet.values is not None:
            length = packet.values.nbytes * (communicator.size - 1)
            self._ranks.count(length, length)
        arrived: Released | None = communicator.bcast(packet.values, root=owner)
        return arrived


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
        """
        if packet.masked is None:
            fail("release", "a sum of all nodes, since they are on several ranks", "another")
        parts = packet.masked.totals()
        self._ranks.agree()
        totals, sent = np.empty_like(parts), (self._ranks.processes > 1) * parts.nbytes
        self._ranks.count(sent, sent)
        words = parts.view(np.uint64), totals.view(np.uint64)  # which wrap around by definition
        self._ranks.communicator.Allreduce(*words, op=MPI.SUM)
        return totals if len(totals) == 1 else totals[self._ranks.nodes]

    def traffic(self, round: int, sent: carriers.Sent) -> Traffic:
        """Return what all nodes sent, on rank 0 alone: every rank knows it, and ranks add up."""
        return super().traffic(round, sent) if self._ranks.is_root else Traffic(0, 0)


def why_not(algorithm: AnyAlgorithm) -> str | None:
    """Return why an algorithm does not run on ranks; None if it does."""
    first = algorithm.release_of(0)
    releases = first if isinstance(first, tuple) else (first,)
    if algorithm.travels == "server" and not all(map(is_summed, releases)):
        return "a trusted server sees all that its clients send: it is one process"
    return None
