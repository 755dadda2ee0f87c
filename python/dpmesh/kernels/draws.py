"""Uniform and Bernoulli draws, samples without replacement and shuffles from keyed streams.

A draw has one row for each node. Element ``j`` of a row depends only on (key, purpose, round, node,
``j``). It uses 64 bits of the stream, and its probabilities are exact up to 2**-63.
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
    """Draw uniform numbers from [0, 1): multiples of 2**-24 (float32) or 2**-53 (float64).

    Parameters
    ----------
    shape
        Shape of the result: dim, (dim,) or (rows, dim).
    stream
        Source of the random numbers; see `dpmesh.keys`.
    dtype
        Type of the result if there is no `out`: float32 or float64.
    nodes
        Node of each row, which selects its part of `stream`: distinct integers from 0 to 2**32 - 1;
        0, 1, .. by default.
    out
        Array of float32 or float64 with this shape that receives the result.

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
    """Draw booleans that are True with probability `p`, a number in [0, 1].

    The other parameters are as in `uniform`; `out` is an array of bool.

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

    For each row `uniform` draws as many numbers as its count; the sample is the set of indices of
    the `size` smallest numbers.

    Parameters
    ----------
    counts
        Count of each row, shape (rows,), at least `size`: the row draws from 0, .., count - 1.
    size
        Number of integers in each sample, at least 1.
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
        Number of draws of each row, shape (rows,).
    below
        Number of possible integers, from 1 to 2**53.
    stream, nodes
        As in `uniform`.

    Returns
    -------
    Concatenated integers of all rows, shape (sum of counts,).

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
    """Return the first `lengths` 53-bit random integers of each row, concatenated.

    Rows whose lengths round up to the same power of 2 are drawn together.
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
    """Replace integers of at least `limit` in place, by rejection sampling: see `integers`.

    About one in ``2**53 / below`` integers is redrawn.
    """
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
    """Return 53-bit random integers, shape (nodes, dim): 2**53 times the numbers of `uniform`."""
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
        Number of values to return for each row, shape (rows,), 0 for an empty row. The last pass
        may be partial.
    stream, nodes
        As in `uniform`.

    Returns
    -------
    Concatenated values of all rows, shape (sum of lengths,).

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
        Number of values in a pass over each row, shape (rows,).
    batches
        Number of batches of each row, shape (rows,), 0 for an empty row.
    batch_size
        Number of values in a batch, at least 1. The last batch of a pass is shorter if this does
        not divide the length of the pass.

    Returns
    -------
    Boundaries e, shape (sum of batches + 1,): batch k has the values ``e[k]`` to ``e[k + 1] - 1``.

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
    """Return the mini-batches of every client, in the order of its local steps.

    Each pass over a client's records has a new random order, and is divided into batches of
    `batch_size`. The last batch of a pass is shorter if `batch_size` does not divide the number of
    records.

    Parameters
    ----------
    records
        Records of each client, as ``(indptr, indices)``.
    clients
        Indices of the clients, shape (clients,). The order of a client's records depends on its
        index, and not on the other clients.
    stream
        Source of the random orders of this round.
    batch_size
        Number of records in a batch, at least 1.
    local_epochs, local_steps
        Exactly one of them: number of passes of each client, or number of batches of each client
        with records, over as many passes as needed.
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
    """Sample `size` records of each node uniformly without replacement, as ``(indptr, indices)``.

    Each node must have at least `size` records.
    """
    indptr, indices = records
    starts = indptr[:-1]
    places = sample(indptr[1:] - starts, size, stream)
    subset = indices[starts[:, np.newaxis] + places]
    return np.arange(len(indptr)) * size, subset.reshape(-1)
