"""Discrete Laplace and Gaussian noise on the integers, from cryptographic streams.

Adding it to integers (counts, codes of a quantizer) is exact, so it has none of the leaks of
floating-point noise. Element ``j`` of a row is a function of (key, purpose, round, node, ``j``),
the distribution and the scale alone.

Guarantee
---------
The distribution of a sample is within 2**-73 of the exact one in total variation: floating point
decides it only where it is certain; elsewhere random bits are compared with constants that are
right to 101 bits. For ``n`` samples of a mechanism that is (epsilon, delta)-private with exact
noise, add ``(1 + exp(epsilon)) * n * 2**-73`` to delta.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._arrays import filled
from dpmesh._core import Stream
from dpmesh._validate import non_negative
from dpmesh.kernels._rows import node_ids, row_shape


def discrete_laplace(
    shape: int | tuple[int, ...],
    scale: float,
    stream: Stream,
    *,
    nodes: npt.ArrayLike | None = None,
    out: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.int64]:
    """Draw integers with P(k) proportional to ``exp(-abs(k) / scale)``.

    Added to an integer query of L1 sensitivity ``s`` (add or remove one), it gives epsilon =
    ``s / scale`` (the two-sided geometric mechanism; Ghosh, Roughgarden and Sundararajan, 2009).

    Parameters
    ----------
    shape
        dim, (dim,) or (rows, dim).
    scale
        From 0 (no noise) to 2**25.
    stream
        Source of the randomness; see `dpmesh.keys`.
    nodes
        The node of each row, distinct integers from 0 to 2**32 - 1; 0, 1, .. by default.
    out
        Where to put the result: an array of this shape and int64.

    Returns
    -------
    An array of this shape and int64; `out` if it was given.

    Raises
    ------
    ValueError
        If an argument does not fit.

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
    out: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.int64]:
    """Draw integers with P(k) proportional to ``exp(-k**2 / (2 scale**2))``.

    Added to an integer query of L2 sensitivity ``s``, it gives ``s**2 / (2 scale**2)``
    concentrated differential privacy (Canonne, Kamath and Steinke, NeurIPS 2020). Its standard
    deviation is at most `scale`. Everything else is as in `discrete_laplace`.

    Examples
    --------
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> dm.kernels.discrete_gaussian((2, 3), 20.0, stream).dtype
    dtype('int64')
    """
    return _draw("gaussian", shape, scale, stream, nodes, out)


def _draw(
    law: str,
    shape: int | tuple[int, ...],
    scale: float,
    stream: Stream,
    nodes: npt.ArrayLike | None,
    out: npt.NDArray[np.int64] | None,
) -> npt.NDArray[np.int64]:
    sizes = row_shape(shape)
    out = filled(out, sizes, np.dtype(np.int64))
    ids = node_ids(nodes)
    _core.discrete_noise(law, non_negative("scale", scale), stream, ids, out)
    return out
