"""Uniform and Bernoulli draws, samples and orders from keyed streams, node by node.

Element ``j`` of a row is a function of (key, purpose, round, node, ``j``) alone. A draw takes 64
bits of the stream, and its probabilities are exact to 2**-63.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._arrays import (
    FloatArray,
    code_array,
    filled,
    float_type,
    node_ids,
    ragged,
    row_shape,
    shaped,
)
from dpmesh._arrays import integers as index_array
from dpmesh._core import Stream
from dpmesh._ragged import Flags, Indices, Ragged, Walks
from dpmesh._validate import fail, integer, probability


def uniform(
    shape: int | tuple[int, ...],
    stream: Stream,
    *,
    dtype: npt.DTypeLike = np.float64,
    nodes: npt.ArrayLike | None = None,
    out: FloatArray | None = None,
) -> FloatArray:
    """Draw numbers from [0, 1): multiples of 2**-24 (float32) or 2**-53 (float64).

    Parameters
    ----------
    shape
        dim, (dim,) or (rows, dim).
    stream
        Source of the randomness; see `dpmesh.keys`.
    dtype
        float32 or float64, if there is no `out`.
    nodes
        The node of each row, distinct integers from 0 to 2**32 - 1; 0, 1, .. by default.
    out
        Where to put the result: an array of such a type and of this shape.

    Returns
    -------
    An array of this shape; `out` if it was given.

    Raises
    ------
    ValueError
        If an argument has a wrong type or shape, or is out of its range.

    Examples
    --------
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> bool((dm.kernels.uniform((2, 3), stream) < 1).all())
    True
    """
    sizes = row_shape(shape)
    out = filled(out, sizes, float_type(dtype, out))
    _core.uniform(stream, node_ids(nodes), out)
    return out


def bernoulli(
    shape: int | tuple[int, ...],
    p: float,
    stream: Stream,
    *,
    nodes: npt.ArrayLike | None = None,
    out: Flags | None = None,
) -> Flags:
    """Draw booleans that are true with probability `p`, a number in [0, 1].

    Everything else is as in `uniform`.

    Examples
    --------
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> bool(dm.kernels.bernoulli((2, 4), 1.0, stream).all())
    True
    """
    sizes = row_shape(shape)
    out = filled(out, sizes, np.dtype(np.bool_))
    ids = node_ids(nodes)
    _core.bernoulli(probability("p", p), stream, ids, out)
    return out


def sample(
    counts: npt.ArrayLike, size: int, stream: Stream, *, nodes: npt.ArrayLike | None = None
) -> Indices:
    """Sample `size` integers below each row's count, uniformly without replacement.

    They are the places of the `size` smallest of the `count` numbers that `uniform` draws for the
    row.

    Parameters
    ----------
    counts
        Shape (rows,), integers of at least `size`: each row draws from 0, .., count - 1.
    size
        At least 1.
    stream, nodes
        As in `uniform`.

    Returns
    -------
    Shape (rows, size), ascending in each row.

    Raises
    ------
    ValueError
        If an argument has a wrong type or shape, or is out of its range.

    Examples
    --------
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> dm.kernels.sample([5], 5, stream).tolist()  # a whole row, in order
    [[0, 1, 2, 3, 4]]
    """
    populations = counts
    if not (_core.is_index_array(populations) and populations.ndim == 1 and populations.size):
        populations = code_array("counts", counts).astype(np.int64, copy=False)
        shaped("counts", populations, ndim=1)
    size = integer("size", size, at_least=1)
    samples = np.empty((len(populations), size), np.int64)
    _core.sample(populations, stream, node_ids(nodes), samples)
    return samples


def integers(
    counts: npt.ArrayLike, below: int, stream: Stream, *, nodes: npt.ArrayLike | None = None
) -> Indices:
    """Draw integers from 0 to `below` - 1, exactly uniformly, by rejection sampling.

    Element j of a row is the remainder of a 53-bit random integer, divided by `below`: the integer
    of element j of `uniform`. Integers at the end of the 53-bit range that would favour small
    remainders are rejected. They are drawn again at the positions ``j + count``, ``j + 2 count``,
    and so on, where ``count`` is the number of draws of the row.

    Parameters
    ----------
    counts
        Shape (rows,), integers: number of draws of each row.
    below
        From 1 to 2**53.
    stream, nodes
        As in `uniform`.

    Returns
    -------
    Shape (sum of counts,): the rows' numbers, end to end.

    Raises
    ------
    ValueError
        If an argument has a wrong type or shape, or is out of its range.

    Examples
    --------
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> bool((dm.kernels.integers([3, 2], 10, stream) < 10).all())
    True
    """
    lengths = index_array("counts", counts, ndim=1)
    if (lengths < 0).any():
        fail("counts", "integers of at least 0", lengths.min())
    below = integer("below", below, at_least=1, below=2**53 + 1)
    ids = node_ids(np.arange(len(lengths)) if nodes is None else nodes)
    assert ids is not None
    if len(ids) != len(lengths):
        fail("nodes", f"{len(lengths)} nodes, one for each row", len(ids))
    bits = _bits_of_rows(lengths, stream, ids)
    _redraw(bits, lengths, stream, ids, limit=2**53 - 2**53 % below)
    return bits % below


def _bits_of_rows(lengths: Indices, stream: Stream, nodes: npt.NDArray[np.uint32]) -> Indices:
    """Return the first `lengths` places of 53 bits of each row, end to end.

    Rows whose lengths round up to the same power of 2 are drawn at a time.
    """
    starts = np.cumsum(lengths) - lengths
    bits_of_rows = np.empty(int(lengths.sum()), np.int64)
    exponents = np.ceil(np.log2(np.maximum(lengths, 1)))
    for exponent in np.unique(exponents[lengths > 0]):
        rows = np.flatnonzero((exponents == exponent) & (lengths > 0))
        longest = int(lengths[rows].max())
        bits = _bits(longest, stream, nodes[rows])
        columns = np.arange(longest)
        is_in_row = columns < lengths[rows, np.newaxis]
        places = starts[rows, np.newaxis] + columns
        bits_of_rows[places[is_in_row]] = bits[is_in_row]
    return bits_of_rows


def _redraw(
    bits: Indices, lengths: Indices, stream: Stream, nodes: npt.NDArray[np.uint32], *, limit: int
) -> None:
    """Replace bits of at least `limit`, in place; one in about ``2**53 / below`` is redrawn."""
    too_large = np.flatnonzero(bits >= limit)
    if too_large.size == 0:
        return
    ends = np.cumsum(lengths)
    starts = ends - lengths
    rows = np.searchsorted(ends, too_large, side="right")
    for place, row in zip(too_large.tolist(), rows.tolist(), strict=True):
        column = place - int(starts[row])
        while bits[place] >= limit:
            column += int(lengths[row])
            bits[place] = _bits(column + 1, stream, nodes[row : row + 1])[0, column]


def _bits(dim: int, stream: Stream, nodes: npt.NDArray[np.uint32]) -> Indices:
    """Return 53 bits of each of `dim` places of some rows, those of `uniform`."""
    uniforms = uniform((len(nodes), dim), stream, nodes=nodes)
    return (uniforms * 2.0**53).astype(np.int64)


def shuffle(
    rows: Ragged, lengths: npt.ArrayLike, stream: Stream, *, nodes: npt.ArrayLike | None = None
) -> Indices:
    """Shuffle the values of each row repeatedly: passes in independent, uniformly random orders.

    This is the order of records in epochs of random reshuffling. In each pass, the values of a row
    are sorted by random numbers that `uniform` draws for the row.

    Parameters
    ----------
    rows
        ``(indptr, values)``, integers: row ``i`` is ``values[indptr[i]:indptr[i + 1]]``.
    lengths
        Shape (rows,): number of values of each row, 0 if it is empty; the last pass may be
        partial.
    stream, nodes
        As in `uniform`.

    Returns
    -------
    Shape (sum of lengths,): the values of the rows, end to end.

    Raises
    ------
    ValueError
        If an argument has a wrong type or shape, or is out of its range.
    """
    indptr, values = ragged("rows", rows)
    row_lengths = index_array("lengths", lengths, ndim=1)
    total = max(0, int(row_lengths.sum()))
    order = np.empty(total, np.int64)
    _core.shuffle((indptr, values), row_lengths, stream, node_ids(nodes), order)
    return order


def batch_ends(sizes: npt.ArrayLike, batches: npt.ArrayLike, batch_size: int) -> Indices:
    """Return the boundaries that divide the result of `shuffle` into batches.

    Parameters
    ----------
    sizes
        Shape (rows,), integers: number of values of a pass over each row.
    batches
        Shape (rows,): number of batches of each row, 0 if it is empty.
    batch_size
        At least 1. The last batch of a pass is shorter if this does not divide its length.

    Returns
    -------
    Shape (sum of batches + 1,).

    Raises
    ------
    ValueError
        If an argument has a wrong type or shape, or is out of its range.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.kernels.batch_ends([5, 3], [3, 2], 2)
    array([0, 2, 4, 5, 7, 8])
    """
    pass_sizes = index_array("sizes", sizes, ndim=1)
    batch_counts = index_array("batches", batches, ndim=1)
    batch_size = integer("batch_size", batch_size, at_least=1, below=2**63)
    total = max(0, int(batch_counts.sum()))
    ends = np.empty(total + 1, np.int64)
    _core.batch_ends(pass_sizes, batch_counts, batch_size, ends)
    return ends


def local_walks(
    records: Ragged,
    clients: Indices,
    stream: Stream,
    *,
    batch_size: int,
    local_epochs: int | None,
    local_steps: int | None,
) -> Walks:
    """Return the batches of every client in the order of its local steps.

    Every pass over a client's records is in a new random order, cut into batches of `batch_size`;
    the last batch of a pass is shorter if `batch_size` does not divide their number.

    Parameters
    ----------
    records
        The records of each client.
    clients
        Their indices: a client's order depends on its own index, not on the other participants.
    stream
        Randomness of the order, for this round.
    batch_size
        At least 1.
    local_epochs, local_steps
        Exactly one of them: passes of each client, or batches of each client that has records, over
        as many passes as that takes.
    """
    indptr = records[0]
    sizes = indptr[1:] - indptr[:-1]
    batches_per_pass = -(-sizes // batch_size)
    if local_epochs is not None:
        steps = local_epochs * batches_per_pass
        lengths = local_epochs * sizes
    else:
        has_records = batches_per_pass > 0
        steps = np.where(has_records, local_steps or 0, 0)
        full_passes, last_batches = np.divmod(steps, np.maximum(batches_per_pass, 1))
        lengths = full_passes * sizes + last_batches * batch_size
    order = shuffle(records, lengths, stream, nodes=clients)
    ends = batch_ends(sizes, steps, batch_size)
    step_ends = np.concatenate(([0], np.cumsum(steps)))
    return Walks(steps=step_ends, batches=(ends, order))


def without_replacement(records: Ragged, size: int, stream: Stream) -> Ragged:
    """Draw `size` different records of each node uniformly; each must have that many."""
    indptr, indices = records
    starts = indptr[:-1]
    places = sample(indptr[1:] - starts, size, stream)
    subset = indices[starts[:, np.newaxis] + places]
    return np.arange(len(indptr)) * size, subset.reshape(-1)
