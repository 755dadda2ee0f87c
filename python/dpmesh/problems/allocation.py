"""Batches of random size: each record of a node in one secret round of a pass.

Which round is a function of the node's secret key, the node and the record's place, and of nothing
else: the same in one process, on ranks and between parties, and after a resume.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._ragged import Indices, Ragged
from dpmesh.keys import Key, Purpose, Stream


class _Groups(NamedTuple):
    """The records of a pass by their rounds, and in a round by their nodes."""

    drawn_from: tuple[int, bytes]
    ends: Indices
    records: Indices


_LAST: WeakKeyDictionary[object, _Groups] = WeakKeyDictionary()
"""Of each problem, the groups of the pass that it was last asked for: in no pickle of it."""


def allocated_batch(problem: object, held: Ragged, round: int, key: Key, *, rounds: int) -> Ragged:
    """Return the records whose round this is, of each node, out of those that a problem holds."""
    stream = key.stream(Purpose.ALLOCATION)
    groups = _LAST.get(problem)
    drawn_from = rounds, _beginning(stream)
    if groups is None or groups.drawn_from != drawn_from:
        _LAST[problem] = groups = _drawn(held, stream, drawn_from)
    nodes = len(held[0]) - 1
    ends = groups.ends[nodes * round : nodes * (round + 1) + 1]
    return ends - ends[0], groups.records[ends[0] : ends[-1]]


def _drawn(held: Ragged, stream: Stream, drawn_from: tuple[int, bytes]) -> _Groups:
    """Draw the round of every record, and sort the records by it."""
    rounds, counts = drawn_from[0], np.diff(held[0])
    times = kernels.integers(counts, rounds, stream)
    place = times * len(counts) + np.repeat(np.arange(len(counts)), counts)
    sizes = np.bincount(place, minlength=rounds * len(counts))
    if rounds <= 2**16:
        times = times.astype(np.uint16)  # sorted in a tenth of the time
    order = np.argsort(times, kind="stable")
    return _Groups(drawn_from, np.concatenate(([0], np.cumsum(sizes))), held[1][order])


def _beginning(stream: Stream) -> bytes:
    """Return 256 bits of a stream, which distinguish it from all others."""
    words = np.empty(8, dtype=np.uint32)
    stream.words(0, words)
    return words.tobytes()
