"""Gaussian and Laplace noise from cryptographic streams, with one row for each node.

Element ``j`` of a row depends only on (key, purpose, round, node, ``j``), the distribution and the
type. Results therefore do not depend on threads, on other rows or on the order of the calls. A
stream gives the same noise each time: draw from a stream only once.

Guarantee
---------
A sample is a deterministic function of pseudorandom bits, which nobody can distinguish from random
bits without the key, under standard cryptographic assumptions. 64 of these bits (63 for Laplace)
determine its magnitude. It has the stated distribution up to floating-point rounding, with tails up
to 9.4 standard deviations (Gaussian) or 43 scales (Laplace); the probability beyond is about
2**-64. A rounded floating-point sum is *not* exactly differentially private, since the set of
possible results depends on the value before noise (Mironov, CCS 2012). If this matters, use noise
on the integers: `discrete_gaussian`, `discrete_laplace`, or the `grid` of a mechanism.

Adding discrete noise to integers (counts, codes of a quantizer) is exact, and has no such leak. Its
distribution is within 2**-73 of the exact one in total variation. A sample is decided in floating
point only if rounding cannot change it; otherwise random bits are compared with constants that are
exact to 101 bits. For ``n`` samples of a mechanism that is (epsilon, delta)-DP with exact noise,
add ``(1 + exp(epsilon)) * n * 2**-73`` to delta.

Correlated noise, over rounds or between partners, is summed in a fixed order, so that a row has the
same bits for any number of threads and any other rows in the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._arrays import FloatArray, filled, float_type, floats, node_ids, per_row, row_shape
from dpmesh._core import Stream, is_float_array
from dpmesh._ragged import Indices
from dpmesh._validate import fail, non_negative, number


def add_noise(
    distribution: Literal["gaussian", "laplace"],
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    stream: Stream,
    *,
    nodes: npt.ArrayLike | None = None,
    out: FloatArray | None = None,
    longest: float | None = None,
) -> FloatArray:
    """Add Gaussian or Laplace noise to each element.

    Parameters
    ----------
    distribution
        ``"gaussian"``, or ``"laplace"``: density exp(-abs(z) / scale) / (2 scale), of standard
        deviation ``sqrt(2) * scale``.
    x
        Values, shape (dim,) or (rows, dim), float32 or float64.
    scale
        Standard deviation of Gaussian noise, or scale of Laplace noise: a number, or one for each
        row, finite and at least 0. 0 adds no noise.
    stream
        Source of the random numbers; see `dpmesh.keys`.
    nodes
        Node of each row, which selects its part of `stream`: distinct integers from 0 to 2**32 - 1;
        0, 1, .. by default.
    out
        Array like `x` that receives the result; it may be `x` itself.
    longest
        Largest L2 norm (Laplace: L1 norm) of a noisy row; None for no limit. The error for a longer
        row depends on the noisy row only: it is post-processing.

    Returns
    -------
    An array of the shape and type of `x`; `out` if it was given.

    Raises
    ------
    ValueError
        If an argument has a wrong type or shape; if a `scale` is negative, not finite, or rounds to
        0 or infinity in the type of `x`; or if a noisy element is NaN or infinite, or a noisy row
        is longer than `longest`. The content of `out` is then undefined.

    Examples
    --------
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> dm.kernels.add_noise("laplace", [[1.0, 2.0]], 0.5, stream).shape
    (1, 2)
    """
    if not is_float_array(x):
        x = floats("x", x)
    if type(scale) is not float:
        scale = per_row("scale", scale)
    ids = None
    if nodes is not None:
        ids = node_ids(nodes)
    return _core.add_noise(distribution, x, scale, stream, ids, out, longest)


def gaussian(
    shape: int | tuple[int, ...],
    scale: npt.ArrayLike,
    stream: Stream,
    *,
    dtype: npt.DTypeLike = np.float64,
    nodes: npt.ArrayLike | None = None,
    out: FloatArray | None = None,
) -> FloatArray:
    """Draw the Gaussian noise that `add_noise` would add to an array of this shape and type.

    Parameters
    ----------
    shape
        Shape of the result: dim, (dim,) or (rows, dim).
    scale, stream, nodes
        As in `add_noise`.
    dtype
        Type of the result if there is no `out`: float32 or float64.
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
    >>> dm.kernels.gaussian((2, 3), 1.0, stream).shape
    (2, 3)
    """
    return _fill("gaussian", shape, scale, stream, dtype, nodes, out)


def laplace(
    shape: int | tuple[int, ...],
    scale: npt.ArrayLike,
    stream: Stream,
    *,
    dtype: npt.DTypeLike = np.float64,
    nodes: npt.ArrayLike | None = None,
    out: FloatArray | None = None,
) -> FloatArray:
    """Draw the Laplace noise that `add_noise` would add to an array of this shape and type.

    The parameters are as in `gaussian`.

    Examples
    --------
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> dm.kernels.laplace((2, 3), 1.0, stream).shape
    (2, 3)
    """
    return _fill("laplace", shape, scale, stream, dtype, nodes, out)


def _fill(
    distribution: str,
    shape: int | tuple[int, ...],
    scale: npt.ArrayLike,
    stream: Stream,
    dtype: npt.DTypeLike,
    nodes: npt.ArrayLike | None,
    out: FloatArray | None,
) -> FloatArray:
    noise = filled(out, row_shape(shape), float_type(dtype, out))
    scales = per_row("scale", scale)
    _core.noise(distribution, scales, stream, node_ids(nodes), noise)
    return noise


def discrete_laplace(
    shape: int | tuple[int, ...],
    scale: float,
    stream: Stream,
    *,
    nodes: npt.ArrayLike | None = None,
    out: Indices | None = None,
) -> Indices:
    """Draw discrete Laplace noise: P(k) is proportional to ``exp(-abs(k) / scale)``.

    A query with integer results of L1 sensitivity ``s``, plus this noise, is epsilon-DP with
    epsilon = ``s / scale``, under the neighbouring relation of the sensitivity (two-sided geometric
    mechanism; Ghosh, Roughgarden and Sundararajan, 2009).

    Parameters
    ----------
    shape
        Shape of the result: dim, (dim,) or (rows, dim).
    scale
        Scale of the noise, from 0 (no noise) to 2**25.
    stream
        Source of the random numbers; see `dpmesh.keys`.
    nodes
        Node of each row, which selects its part of `stream`: distinct integers from 0 to 2**32 - 1;
        0, 1, .. by default.
    out
        Array of int64 with this shape that receives the result.

    Returns
    -------
    An array of this shape and int64; `out` if it was given.

    Raises
    ------
    ValueError
        If an argument has a wrong type or shape, or is out of its range.

    Examples
    --------
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> dm.kernels.discrete_laplace((2, 3), 20.0, stream).dtype
    dtype('int64')
    """
    return _draw("laplace", shape, scale, stream, nodes, out)


def discrete_gaussian(
    shape: int | tuple[int, ...],
    scale: float,
    stream: Stream,
    *,
    nodes: npt.ArrayLike | None = None,
    out: Indices | None = None,
) -> Indices:
    """Draw discrete Gaussian noise: P(k) is proportional to ``exp(-k**2 / (2 scale**2))``.

    A query with integer results of L2 sensitivity ``s``, plus this noise, is rho-zCDP
    (zero-concentrated DP) with rho = ``s**2 / (2 scale**2)``, under the neighbouring relation of
    the sensitivity (Canonne, Kamath and Steinke, NeurIPS 2020). The standard deviation of the noise
    is at most `scale`. The parameters are as in `discrete_laplace`.

    Examples
    --------
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> dm.kernels.discrete_gaussian((2, 3), 20.0, stream).dtype
    dtype('int64')
    """
    return _draw("gaussian", shape, scale, stream, nodes, out)


def _draw(
    distribution: str,
    shape: int | tuple[int, ...],
    scale: float,
    stream: Stream,
    nodes: npt.ArrayLike | None,
    out: Indices | None,
) -> Indices:
    noise = filled(out, row_shape(shape), np.dtype(np.int64))
    ids = node_ids(nodes)
    scale = non_negative("scale", scale)
    _core.discrete_noise(distribution, scale, stream, ids, noise)
    return noise


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
    """Draw temporally correlated noise ``scale * z + sum_k weights[k] * earlier[k]``.

    Here z is fresh standard normal noise, and ``earlier`` holds the noise of earlier rounds.

    Parameters
    ----------
    shape
        Shape of the result: dim, (dim,) or (rows, dim).
    scale
        Standard deviation of the fresh noise, at least 0: a number, or one for each row.
    earlier
        Arrays with the shape and type of the result, such as the noise of earlier rounds.
    weights
        Finite factor of each of these arrays.
    stream, dtype, nodes, out
        As in `gaussian`.

    Returns
    -------
    An array of this shape; `out` if it was given. Each of the earlier arrays is read once.

    Raises
    ------
    ValueError
        If an argument has a wrong type or shape, or is out of its range, or if a sum is not finite.

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
            expectation = f"arrays of {result.dtype} and shape {result.shape}"
            fail("earlier", expectation, f"{array.dtype} {array.shape}")
    scales = per_row("scale", scale)
    ids = node_ids(nodes)
    _core.correlated_noise(scales, factors, arrays, stream, ids, result)
    return result


def add_pair_gaussian(
    x: FloatArray, pairs: npt.ArrayLike, ends: npt.ArrayLike, scale: float, stream: Stream
) -> FloatArray:
    """Add pairwise-cancelling Gaussian noise to rows, in place.

    For each pair of rows the same noise is added to one row and subtracted from the other, so that
    it cancels in their sum.

    Parameters
    ----------
    x
        Shape (rows, dim), float32 or float64, writeable; it is changed.
    pairs
        Index of each pair, which selects its part of `stream`: distinct integers below 2**32.
    ends
        Shape (pairs, 2): the row that adds the noise and the row that subtracts it; -1 for an end
        that is not in `x`.
    scale
        Standard deviation of the noise of a pair, at least 0.
    stream
        Source of the noise of all pairs; see `dpmesh.keys`. Nothing else may draw from this stream.

    Returns
    -------
    The array `x`.

    Raises
    ------
    ValueError
        If an argument has a wrong type or shape, or is out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> noisy = dm.kernels.add_pair_gaussian(np.zeros((2, 3)), [0], [[0, 1]], 1.0, stream)
    >>> bool((noisy.sum(axis=0) == 0).all())  # the noise of the pair cancels
    True
    """
    if not isinstance(x, np.ndarray) or x.ndim != 2 or not x.flags.carray:
        fail("x", "a writeable C-contiguous array of shape (rows, dim)", type(x).__name__)
    float_type(x.dtype)
    rows = np.ascontiguousarray(ends, dtype=np.int64).reshape(-1, 2)
    stream_nodes = node_ids(np.asarray(pairs, dtype=np.uint32))
    if stream_nodes is None or len(stream_nodes) != len(rows):
        fail("pairs", f"one for each of {len(rows)} pairs of ends", np.shape(pairs))
    if rows.size and (rows.min() < -1 or rows.max() >= len(x)):
        fail("ends", f"rows from 0 to {len(x) - 1}, or -1", "others")
    scale = non_negative("scale", scale)
    _core.add_pair_noise(x, stream_nodes, rows, scale, stream)
    return x
