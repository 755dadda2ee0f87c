"""Gaussian noise that works together: over rounds, and between partners.

Both kernels sum each element in one fixed order, so that a row has the same bits for any number of
threads and whichever other rows a process holds. Floating-point sums are as in `add_noise`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._arrays import FloatArray, filled, float_type, floats
from dpmesh._core import Stream
from dpmesh._validate import fail, non_negative, number
from dpmesh.kernels._rows import node_ids, per_row, row_shape


def correlated_gaussian(
    shape: int | tuple[int, ...],
    scale: npt.ArrayLike,
    earlier: Sequence[FloatArray],
    weights: Sequence[float],
    stream: Stream,
    *,
    dtype: npt.DTypeLike = np.float64,
    nodes: npt.ArrayLike | None = None,
    out: FloatArray | None = None,
) -> FloatArray:
    """Draw ``scale * z + sum_k weights[k] * earlier[k]`` with standard normal z, in one pass.

    Parameters
    ----------
    shape
        dim, (dim,) or (rows, dim).
    scale
        Standard deviation of the fresh noise: a number at least 0, or one for each row.
    earlier
        Arrays of this shape and of the result's type, such as the noise of earlier rounds.
    weights
        A finite factor for each of them.
    stream, dtype, nodes, out
        As in `gaussian`.

    Returns
    -------
    An array of this shape; `out` if it was given. Each of the earlier arrays is read once.

    Raises
    ------
    ValueError
        If an argument does not fit, or a sum is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> before = np.ones((1, 3))
    >>> dm.kernels.correlated_gaussian((1, 3), 0.0, [before], [-0.5], stream)
    array([[-0.5, -0.5, -0.5]])
    """
    result = filled(out, row_shape(shape), float_type(dtype, out))
    if len(earlier) != len(weights):
        fail("weights", f"one for each of {len(earlier)} earlier arrays", len(weights))
    factors = [number("weights", weight) for weight in weights]
    arrays = [floats("earlier", array) for array in earlier]
    for array in arrays:
        if array.shape != result.shape or array.dtype != result.dtype:
            wanted = f"arrays of {result.dtype} and shape {result.shape}"
            fail("earlier", wanted, f"{array.dtype} {array.shape}")
    scales, ids = per_row("scale", scale), node_ids(nodes)
    _core.correlated_noise(scales, factors, arrays, stream, ids, result)
    return result


def add_pair_gaussian(
    x: FloatArray, pairs: npt.ArrayLike, ends: npt.ArrayLike, scale: float, stream: Stream
) -> FloatArray:
    """Add noise that the two ends of each pair share: what one adds, the other subtracts; in place.

    Parameters
    ----------
    x
        Shape (rows, dim), float32 or float64, writeable; it is changed.
    pairs
        The node of the stream that each pair draws from, distinct integers below 2**32.
    ends
        Shape (pairs, 2): the row that adds the noise and the row that subtracts it; -1 for an end
        that is not in `x`.
    scale
        Standard deviation of the noise of a pair, at least 0.
    stream
        Of a key for all nodes, for a purpose and round that nothing else draws from.

    Returns
    -------
    `x`. Each pair is drawn once.

    Raises
    ------
    ValueError
        If an argument does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> noisy = dm.kernels.add_pair_gaussian(np.zeros((2, 3)), [0], [[0, 1]], 1.0, stream)
    >>> bool((noisy.sum(axis=0) == 0).all())  # what one adds, the other subtracts
    True
    """
    if not isinstance(x, np.ndarray) or x.ndim != 2 or not x.flags.carray:
        fail("x", "a writeable C-contiguous array of shape (rows, dim)", type(x).__name__)
    float_type(x.dtype)
    rows = np.ascontiguousarray(ends, dtype=np.int64).reshape(-1, 2)
    numbers = node_ids(np.asarray(pairs, dtype=np.uint32))
    if numbers is None or len(numbers) != len(rows):
        fail("pairs", f"one for each of {len(rows)} pairs of ends", np.shape(pairs))
    if rows.size and (rows.min() < -1 or rows.max() >= len(x)):
        fail("ends", f"rows from 0 to {len(x) - 1}, or -1", "others")
    _core.add_pair_noise(x, numbers, rows, non_negative("scale", scale), stream)
    return x
