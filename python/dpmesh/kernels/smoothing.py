"""Laplacian smoothing: a smooth vector from a noisy one, at no privacy cost."""

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

    The rows of A are the circular shifts of ``(1 + 2s, -s, 0, .., 0, -s)`` for the first power. The
    result minimizes ``|u - x|^2 + s |D u|^2``, D the differences of neighbours: noise averages out,
    the mean of each block stays. It is post-processing of `x`: applied to a private release, it
    costs no privacy.

    Parameters
    ----------
    x
        Shape (..., dim), float32 or float64: one vector for each node. NaN and infinity spread
        within their block, at least as far as the smoothing reaches.
    smoothing
        The factor s, the papers' sigma: finite, at least 0. 0 changes nothing.
    power
        Power of the Laplacian, at least 1: higher ones preserve low frequencies and damp high ones
        more.
    blocks
        Lengths of the blocks that a row consists of (a network's layers), each a cycle of its own.
        The whole row by default. On a cycle of one element L is 0; of two, its first row is
        (2, -2).
    method
        ``"recursion"`` (power 1 only, and its default): exact, a few operations for each element
        whatever the length and the smoothing; float32 is computed in float32 up to
        ``smoothing = 100``, in float64 beyond. ``"fft"``: by real Fourier transforms in float64;
        the last bits depend on the kind of processor.
    out
        Where to put the result: an array like `x`, or `x` itself to work in place.

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
    The two sums, both `dim` for ``smoothing = 0`` and 1 in the limit of large `smoothing`.

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
