"""Laplacian smoothing of noisy vectors, and its spectrum. Smoothing is post-processing."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._arrays import FloatArray, floats
from dpmesh._core import is_float_array
from dpmesh._ragged import Numbers
from dpmesh._validate import fail, integer, non_negative

Method = Literal["recursion", "fft"]


class EffectiveDimensions(NamedTuple):
    """Number of dimensions in which noise still acts after smoothing."""

    linear: float
    """Sum of the spectrum, the paper's :math:`d_\\sigma`."""
    squared: float
    """Sum of its square, the paper's :math:`\\tilde d_\\sigma`: the variance left of unit noise."""


def smooth(
    x: npt.ArrayLike,
    smoothing: float,
    *,
    power: int = 1,
    blocks: Sequence[int] | None = None,
    method: Method | None = None,
    out: FloatArray | None = None,
) -> FloatArray:
    """Apply Laplacian smoothing to each row x: solve ``A u = x`` for u.

    Here ``A = I + smoothing * L**power``, and L is the Laplacian matrix of a cycle graph.

    For a power of 1 the rows of A are the circular shifts of ``(1 + 2s, -s, 0, .., 0, -s)``, with
    ``s = smoothing``. The result then minimizes ``|u - x|^2 + s |D u|^2``, where D u are the
    differences of neighbouring elements. Noise averages out, and the mean of each block stays. It
    is post-processing of `x`, and adds nothing to epsilon.

    Parameters
    ----------
    x
        Vectors, shape (..., dim), float32 or float64. NaN and infinity spread within their block,
        at least as far as the smoothing reaches.
    smoothing
        Factor s, the papers' sigma: finite, at least 0. With 0 the result is `x`.
    power
        Power of the Laplacian, at least 1. Higher powers preserve low frequencies and damp high
        frequencies more.
    blocks
        Lengths of the consecutive blocks of a row, such as the layers of a neural network. Each
        block is a separate cycle. By default the whole row is one block. For a block of one element
        L is 0; for two elements its first row is (2, -2).
    method
        ``"recursion"``, the default for a power of 1 and available for it only: exact, with a few
        operations for each element. float32 is computed in float32 up to ``smoothing = 100``, and
        in float64 beyond. ``"fft"``: by real Fourier transforms in float64, whose low-order bits
        depend on the kind of processor.
    out
        Array like `x` that receives the result; it may be `x` itself.

    Returns
    -------
    An array of the shape and type of `x`; `out` if it was given.

    Raises
    ------
    ValueError
        If an argument has a wrong type or shape, or is out of its range.

    Notes
    -----
    Liang, Wang, Gu, Osher and Yao, "Differentially Private Federated Learning with Laplacian
    Smoothing", section 3.1; general powers as in Osher et al., "Laplacian Smoothing Gradient
    Descent".

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.kernels.smooth([[4.0, 0.0, 0.0, 0.0]], 1.0).round(3)
    array([[1.867, 0.8  , 0.533, 0.8  ]])
    """
    lengths = None
    if blocks is not None:
        lengths = _lengths(blocks)
    if not is_float_array(x):
        x = floats("x", x)
    return _core.smooth(x, smoothing, power, lengths, method, out)


def smoothing_spectrum(dim: int, smoothing: float, *, power: int = 1) -> Numbers:
    """Return the eigenvalues of `smooth`: the factor by which it damps each frequency.

    Parameters
    ----------
    dim
        Length of the cycle, at least 1.
    smoothing, power
        As in `smooth`.

    Returns
    -------
    Shape (dim,): ``1 / (1 + smoothing * (2 - 2 cos(2 pi i / dim))**power)`` for i = 0 .. dim-1, in
    the order of `numpy.fft.fft`.

    Raises
    ------
    ValueError
        If an argument has a wrong type or shape, or is out of its range.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.kernels.smoothing_spectrum(4, 1.0)
    array([1.        , 0.33333333, 0.2       , 0.33333333])
    """
    spectrum = np.empty(integer("dim", dim, at_least=1))
    power = _power(power)
    smoothing = non_negative("smoothing", smoothing)
    _core.smoothing_spectrum(smoothing, power, spectrum)
    return spectrum


def effective_dimensions(dim: int, smoothing: float, *, power: int = 1) -> EffectiveDimensions:
    """Return the sums of the eigenvalues of `smooth` and of their squares: effective dimensions.

    Smoothing noise of variance v on each of `dim` elements reduces its total variance from
    ``v * dim`` to ``v * squared``.

    Parameters
    ----------
    dim, smoothing, power
        As in `smoothing_spectrum`. Constant time for the first power, O(dim) for others,
        which take `dim` up to 2**36.

    Returns
    -------
    The two sums. Both are `dim` for ``smoothing = 0``, and approach 1 for large `smoothing`.

    Raises
    ------
    ValueError
        If an argument has a wrong type or shape, or is out of its range.

    Notes
    -----
    Theorem 3 of Liang et al. (see `smooth`) defines them for the first power.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.kernels.effective_dimensions(1000, 1.0).linear < 1000
    True
    """
    dim = integer("dim", dim, at_least=1, below=2**63)
    smoothing = non_negative("smoothing", smoothing)
    linear, squared = _core.effective_dimensions(dim, smoothing, _power(power))
    return EffectiveDimensions(linear, squared)


def _power(power: int) -> int:
    return integer("power", power, at_least=1, below=2**32)


def _lengths(blocks: Sequence[int]) -> list[int]:
    if not isinstance(blocks, Iterable):
        fail("blocks", "a sequence of lengths", reprlib.repr(blocks))
    return [integer("blocks", block, at_least=1) for block in blocks]
