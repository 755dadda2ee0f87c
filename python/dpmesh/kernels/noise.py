"""Gaussian and Laplace noise from cryptographic streams, one row for each node.

Element ``j`` of a row is a function of (key, purpose, round, node, ``j``), the distribution and the
type, so that results do not depend on threads, on the other rows or on the order of the calls. The
same stream gives the same noise each time, so draw from a stream only once.

Guarantee
---------
A sample is a deterministic function of random bits that nobody without the key can distinguish from
truly random ones; 64 of them (63 for Laplace) determine its magnitude. It has the stated
distribution up to floating-point rounding, with tails up to 9.4 standard deviations (Gaussian) and
43 scales (Laplace), beyond which the mass is about 2**-64. A rounded floating-point sum is *not*
exactly differentially private: which numbers can occur depends on the value beneath the noise
(Mironov, CCS 2012). Where that matters, use noise on the integers (`discrete_gaussian`,
`discrete_laplace`, or the `grid` of a mechanism).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._arrays import FloatArray, filled, float_type, floats
from dpmesh._core import Stream, is_float_array
from dpmesh.kernels._rows import node_ids, per_row, row_shape


def add_noise(
    law: Literal["gaussian", "laplace"],
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
    law
        ``"gaussian"``, or ``"laplace"``: density exp(-abs(z) / scale) / (2 scale), of standard
        deviation ``sqrt(2) * scale``.
    x
        Shape (dim,) or (rows, dim), float32 or float64.
    scale
        The standard deviation of Gaussian noise, or the scale of Laplace noise; finite and at least
        0 (0 means no noise): a number, or one for each row.
    stream
        Where the randomness comes from; see `dpmesh.keys`.
    nodes
        The node of each row, distinct integers from 0 to 2**32 - 1; 0, 1, .. by default.
    out
        Where to put the result: an array like `x`, or `x` itself to work in place.
    longest
        The largest L2 norm (Laplace: L1) of a noisy row; None for no limit. A refusal reveals no
        more than the row.

    Returns
    -------
    An array of the shape and type of `x`; `out` if it was given.

    Raises
    ------
    ValueError
        If an argument does not fit, a `scale` is negative, not finite, or rounds to 0 or infinity
        in the type of `x`, a noisy element is NaN or infinite, or a noisy row is longer than
        `longest`; `out` is then undefined.

    Examples
    --------
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> dm.kernels.add_noise("laplace", [[1.0, 2.0]], 0.5, stream).shape
    (1, 2)
    """
    return _core.add_noise(
        law,
        x if is_float_array(x) else floats("x", x),
        scale if type(scale) is float else per_row("scale", scale),
        stream,
        None if nodes is None else node_ids(nodes),
        out,
        longest,
    )


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
        dim, (dim,) or (rows, dim).
    scale, stream, nodes
        As in `add_noise`.
    dtype
        float32 or float64, if there is no `out`.
    out
        Where to put the result: an array of such a type and of this shape.

    Returns
    -------
    An array of this shape; `out` if it was given.

    Raises
    ------
    ValueError
        If an argument does not fit.

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
    """Draw the Laplace noise that `add_noise` would add; everything else is as in `gaussian`.

    Examples
    --------
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> dm.kernels.laplace((2, 3), 1.0, stream).shape
    (2, 3)
    """
    return _fill("laplace", shape, scale, stream, dtype, nodes, out)


def _fill(
    law: str,
    shape: int | tuple[int, ...],
    scale: npt.ArrayLike,
    stream: Stream,
    dtype: npt.DTypeLike,
    nodes: npt.ArrayLike | None,
    out: FloatArray | None,
) -> FloatArray:
    out = filled(out, row_shape(shape), float_type(dtype, out))
    _core.noise(law, per_row("scale", scale), stream, node_ids(nodes), out)
    return out
