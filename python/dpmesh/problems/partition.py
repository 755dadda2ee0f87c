"""Base class of problems whose records are divided among nodes, and batches of these records.

A problem has all nodes, or in an engine with several processes a *part* of them: its arrays then
have a row for each node of the part. A node's *number* is its index in the whole problem.

In a pass of random allocation each record is in the batch of one round, which is secret. This round
depends only on the node's secret key, the node's number and the record's place at the node. It is
therefore the same in one process, in several processes and between parties, and after a resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._arrays import integers, read_only, unmasked
from dpmesh._ragged import Indices, Ragged, rows
from dpmesh._validate import fail, integer
from dpmesh.keys import Key, Purpose, Stream


class _Allocation(NamedTuple):
    """Records of a pass of random allocation, sorted by their rounds and then by their nodes.

    Attributes
    ----------
    source
        Number of rounds, and the first words of the stream that drew the allocation.
    indptr
        Node i has ``records[indptr[k]:indptr[k + 1]]`` in round t, with ``k = t * nodes + i``.
    records
        Indices of the records, shape (records,).
    """

    source: tuple[int, bytes]
    indptr: Indices
    records: Indices


_LAST: WeakKeyDictionary[object, _Allocation] = WeakKeyDictionary()
"""Cache of each problem's last allocation, which is secret: a pickled problem must not hold it."""


def allocated_batch(
    problem: object, records: Ragged, round: int, key: Key, *, rounds: int
) -> Ragged:
    """Return the records of each node that are allocated to a round, as ``(indptr, indices)``.

    Parameters
    ----------
    problem
        The problem, whose last allocation is cached.
    records
        All records of each node, as ``(indptr, indices)``.
    round
        Round of the pass, from 0 to ``rounds - 1``.
    key
        Key of the nodes' secret coins.
    rounds
        Number of rounds of the pass.
    """
    stream = key.stream(Purpose.ALLOCATION)
    allocation = _LAST.get(problem)
    source = rounds, _beginning(stream)
    if allocation is None or allocation.source != source:
        allocation = _allocation(records, stream, source)
        _LAST[problem] = allocation
    nodes = len(records[0]) - 1
    indptr = allocation.indptr[nodes * round : nodes * (round + 1) + 1]
    first = indptr[0]
    return indptr - first, allocation.records[first : indptr[-1]]


def _allocation(records: Ragged, stream: Stream, source: tuple[int, bytes]) -> _Allocation:
    """Draw the round of each record, and sort the records by round."""
    rounds, _ = source
    node_indptr, indices = records
    counts = np.diff(node_indptr)
    nodes = len(counts)
    round_of_record = kernels.integers(counts, rounds, stream)
    node_of_record = np.repeat(np.arange(nodes), counts)
    sizes = np.bincount(round_of_record * nodes + node_of_record, minlength=rounds * nodes)
    if rounds <= 2**16:
        round_of_record = round_of_record.astype(np.uint16)  # sorted in a tenth of the time
    order = np.argsort(round_of_record, kind="stable")  # keeps the order of nodes in a round
    indptr = np.concatenate(([0], np.cumsum(sizes)))
    return _Allocation(source, indptr, indices[order])


def _beginning(stream: Stream) -> bytes:
    """Return the first 256 bits of a stream, which identify it."""
    words = np.empty(8, dtype=np.uint32)
    stream.words(0, words)
    return words.tobytes()


ProblemT = TypeVar("ProblemT", bound="PartitionedProblem")

IndexArrays: TypeAlias = Sequence[npt.NDArray[np.integer[Any]]]
"""A partition as users give it: one array of record indices for each node."""


def flat_partition(partition: IndexArrays, records: int) -> Ragged:
    """Check a partition and return it in the form ``(indptr, indices)``.

    Node i has the records ``indices[indptr[i]:indptr[i + 1]]``. `records` is the number of all
    records.

    Raises
    ------
    ValueError
        If there is no node, or one without records, or an index is out of range or occurs twice.
    """
    if not np.iterable(partition):
        fail("partition", "an array of indices for each node", repr(partition))
    parts = [unmasked("partition", part) for part in partition]
    if not parts:
        fail("partition", "at least 1 node", "none")
    for node, part in enumerate(parts):
        if part.ndim != 1 or part.dtype.kind not in "iu" or not part.size:
            expected = "integer indices of at least 1 record for each node"
            if not part.ndim:
                expected += ", such as data.by_user makes of a column of owners"
            fail("partition", expected, f"{part.dtype} of shape {part.shape} for node {node}")
    indices = np.concatenate(parts).astype(np.int64)
    outside = indices[(indices < 0) | (indices >= records)]
    if outside.size:
        fail("partition", f"indices from 0 to {records - 1}", outside[0])
    uses = np.bincount(indices, minlength=records)
    if uses.max() > 1:
        fail("partition", "each record at one node", f"record {uses.argmax()} more than once")
    starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    indices.flags.writeable = False
    starts.flags.writeable = False
    return starts, indices


def shares_of(partition: IndexArrays, nodes: npt.ArrayLike) -> IndexArrays:
    """Return the record indices of some nodes, in the order of `nodes`.

    Raises
    ------
    ValueError
        If there is no node, or one does not exist.
    """
    chosen = integers("nodes", nodes, ndim=1)
    if not chosen.size or chosen.min() < 0 or chosen.max() >= len(partition):
        fail("nodes", f"at least 1 node, all from 0 to {len(partition) - 1}", chosen)
    return tuple(partition[node] for node in chosen)


class PartitionedProblem:
    """Base class of problems whose records are divided among nodes; each record is at one node.

    A subclass is a dataclass with the field `partition`.
    """

    partition: IndexArrays
    _records: Ragged

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.partition)

    @property
    def members(self) -> Indices:
        """Numbers of the nodes in the whole problem, shape (nodes,); 0, 1, .. if this is all."""
        members, _ = self._part
        return members

    @property
    def all_records(self) -> Indices:
        """Public number of records of each node of the whole problem, shape (all nodes,)."""
        _, all_records = self._part
        return all_records

    @cached_property
    def _part(self) -> tuple[Indices, Indices]:
        """`members` and `all_records`; `for_nodes` and `as_node` overwrite them for a part."""
        return np.arange(self.nodes), self.records

    @cached_property
    def _row_of_node(self) -> dict[int, int]:
        return {node: row for row, node in enumerate(self.members.tolist())}

    def holds(self, node: int) -> bool:
        """Return True if this problem holds the records of a node, given its number."""
        return node in self._row_of_node

    def row_of(self, node: int) -> int:
        """Return the row of a node of the whole problem in arrays of this part."""
        return self._row_of_node[node]

    def for_nodes(self: ProblemT, nodes: npt.ArrayLike) -> ProblemT:
        """Return the part of the problem with some of the nodes, in this order.

        Parameters
        ----------
        nodes
            Rows of the nodes in this problem, shape (nodes,).

        Returns
        -------
        A problem with the records of these nodes and the same test data. Its `members` and
        `all_records` refer to the whole problem.
        """
        problem: Any = self  # a dataclass, as all subclasses are
        part: ProblemT = replace(problem, partition=shares_of(self.partition, nodes))
        part.__dict__["_part"] = self.members[np.asarray(nodes)], self.all_records
        return part

    def as_node(self: ProblemT, node: int, records: npt.ArrayLike) -> ProblemT:
        """Return this one-node problem as a part of a larger problem, whose records are elsewhere.

        Parameters
        ----------
        node
            Number of this problem's node in the larger problem.
        records
            Public number of records of each node of the larger problem, shape (all nodes,).

        Raises
        ------
        ValueError
            If this problem has several nodes, or another number of records than `records` states.
        """
        counts = integers("records", records, ndim=1)
        if self.nodes != 1 or counts[integer("node", node, below=len(counts))] != self.records[0]:
            fail("records", f"those of node {node}: {counts[node]}", self.records)
        problem: Any = self  # a dataclass, as all subclasses are
        part: ProblemT = replace(problem)
        part.__dict__["_part"] = np.array([node]), counts.astype(np.int64)
        return part

    @cached_property
    def records(self) -> Indices:
        """Number of records of each node, shape (nodes,)."""
        return read_only(np.diff(self._records[0]))

    @property
    def full_batches(self) -> Ragged:
        """All records of each node, as batches ``(indptr, indices)``."""
        return self._records

    def records_of(self, nodes: Indices) -> Ragged:
        """Return the records of these nodes, as batches ``(indptr, indices)``."""
        if self._equal_rows is None:
            return rows(self.full_batches, nodes)
        chosen = self._equal_rows.take(nodes, axis=0)
        return np.arange(len(chosen) + 1) * chosen.shape[1], chosen.reshape(-1)

    @cached_property
    def fewest_records(self) -> int:
        """Number of records of the smallest node of this problem."""
        return int(self.records.min())

    @cached_property
    def _equal_rows(self) -> Indices | None:
        """Records of each node, shape (nodes, records), if all have equally many; else None."""
        _, indices = self._records
        if len(indices) != self.nodes * self.fewest_records:
            return None
        return indices.reshape(self.nodes, -1)

    def rounds(self, size: int) -> int:
        """Return the number of rounds in which each node has `size` new records."""
        return self.fewest_records // integer("size", size, at_least=1)

    def batch(self, round: int, size: int) -> Indices:
        """Return the records that arrive in a round: the next `size` records of each node.

        Each record arrives in one round only.

        Parameters
        ----------
        round
            Round t, from 0. Each node uses its records ``t * size`` to ``(t + 1) * size - 1``.
        size
            Number of records of each node in a round.

        Returns
        -------
        Record indices, shape (nodes, size).

        Raises
        ------
        ValueError
            If a node has no more records for that round.
        """
        start = round * size
        if size < 1 or not 0 <= start <= self.fewest_records - size:
            integer("round", round)
            expected = f"below {self.rounds(size)}, where the records of a node run out"
            fail("round", expected, round)
        if self._equal_rows is not None:
            records: Indices = self._equal_rows[:, start : start + size].copy()
            return records
        starts, indices = self._records
        places = starts[:-1, np.newaxis] + np.arange(start, start + size)
        return indices.take(places, mode="clip")  # no bounds check, which takes as long again

    def allocated(self, round: int, key: Key, *, rounds: int) -> Ragged:
        """Return the records that random allocation assigns to a round. These batches are secret.

        Each record of a node draws one of the rounds of the pass, independently and uniformly.
        Sizes of batches are random and secret, and a batch may be empty.

        Parameters
        ----------
        round
            Round of the pass, from 0 to ``rounds - 1``.
        key
            Key of the nodes' secret draws, by its stream of the purpose `Purpose.ALLOCATION`. Row r
            of the stream has the draws of node r, which no other party may know.
        rounds
            Number of rounds of the pass, a public number.

        Returns
        -------
        ``(indptr, indices)``: the records of each node.

        Raises
        ------
        ValueError
            If there is no such round.
        """
        integer("round", round, below=integer("rounds", rounds, at_least=1))
        return allocated_batch(self, self.full_batches, round, key, rounds=rounds)
