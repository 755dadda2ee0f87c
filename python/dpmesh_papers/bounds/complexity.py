"""Transductive Rademacher complexity: how far learning without replacement can overfit.

From the paper on decentralized SGD without replacement, appendix E. A class is a set of vectors
with one entry for each of n records, such as the losses of all models of a kind on these records.
Of the records s have been seen in training, and u = n - s have not.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._arrays import floats
from dpmesh._core import Stream
from dpmesh._validate import fail, integer, non_negative

_PRODUCTS_AT_ONCE = 1 << 28
"""Multiplications between two checks for Ctrl-C: some tenths of a second."""


class RademacherComplexity(NamedTuple):
    """A Monte Carlo estimate, and its standard error."""

    estimate: float
    standard_error: float


def rademacher_complexity(
    vectors: npt.ArrayLike, sample_size: int, draws: int, stream: Stream
) -> RademacherComplexity:
    """Estimate the transductive Rademacher complexity of a finite class (Definition 4, eq. 43).

    ``(1/s + 1/u) E max_v <r, v>``, where the r_i are independent: +1 and -1 with probability
    ``p = s u / n^2`` each, else 0.

    Parameters
    ----------
    vectors
        Shape (vectors, n), float32 or float64: the class.
    sample_size
        s, from 1 to n - 1.
    draws
        Number of Monte Carlo draws, from 2 to 2**32.
    stream
        Source of the randomness; draw k takes the sequence of node k.

    Raises
    ------
    ValueError
        If there are fewer than 2 records, a value is NaN or infinite, or an argument does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> rademacher_complexity(np.eye(10), 5, 100, stream).estimate > 0
    True
    """
    vectors = floats("vectors", vectors, ndim=2)
    n = vectors.shape[1]
    if n < 2:
        fail("vectors", "at least 2 records", f"shape {vectors.shape}")
    if not np.isfinite(vectors).all():
        fail("vectors", "finite values", "NaN or infinity")
    s = integer("sample_size", sample_size, at_least=1, below=n)
    draws = integer("draws", draws, at_least=2, below=2**32 + 1)
    u = n - s
    suprema = np.empty(draws)
    draws_at_once = max(1, _PRODUCTS_AT_ONCE // vectors.size)
    for first in range(0, draws, draws_at_once):
        part = suprema[first : first + draws_at_once]
        _core.rademacher_suprema(vectors, s * u / n**2, stream, first, part)
    factor = 1 / s + 1 / u
    standard_error = float(suprema.std(ddof=1)) / sqrt(draws)
    return RademacherComplexity(factor * float(suprema.mean()), factor * standard_error)


def rademacher_bound_linear(sample_size: int, records: int, bound: float) -> float:
    """Bound the complexity of linear predictors: ``sqrt(2) (1/sqrt(s) + 1/sqrt(u)) B`` (Lemma 5).

    For the class of all ``(<w, x_1>, .., <w, x_n>)`` with ``|w| |x_i| <= B``: there
    ``max <w, sum r_i x_i> <= |w| |sum r_i x_i|``, and ``E |sum r_i x_i|^2 = 2 p sum |x_i|^2``. The
    lemma is printed for any vectors of entries up to B. That is false: all sign vectors of length n
    have complexity 2 B for every s.

    Parameters
    ----------
    sample_size
        s, from 1 to `records` - 1.
    records
        n, at least 2.
    bound
        B, at least 0.

    Raises
    ------
    ValueError
        If an argument does not fit.

    Examples
    --------
    >>> round(rademacher_bound_linear(500, 1000, 1.0), 3)
    0.126
    """
    s, u = _sizes(sample_size, records)
    return sqrt(2) * (1 / sqrt(s) + 1 / sqrt(u)) * non_negative("bound", bound)


def mean_gap_bound(
    complexity: float, sample_size: int, records: int, bound: float, *, squared: bool = False
) -> float:
    """Bound how far the means of seen and unseen records differ, over a class (Lemma 7, eq. 45).

    In a random order of the records let g be the largest difference, over the class, of the mean
    of the first s entries and the mean of the other u. Then
    ``E g <= R + 12 B (1/sqrt(s) + 1/sqrt(u))`` with R the class's complexity, and ``sqrt(E g^2)``
    is at most sqrt(2) times that.

    Parameters
    ----------
    complexity
        R, as from `rademacher_complexity`: at least 0.
    sample_size
        s, from 1 to `records` - 1.
    records
        n, at least 2.
    bound
        B: no entry of the class is larger in absolute value; at least 0.
    squared
        If true, bound ``sqrt(E g^2)`` instead of ``E g``.

    Raises
    ------
    ValueError
        If an argument does not fit.

    Examples
    --------
    >>> round(mean_gap_bound(0.1, 500, 1000, 1.0), 3)
    1.173
    """
    s, u = _sizes(sample_size, records)
    deviation = 12 * non_negative("bound", bound) * (1 / sqrt(s) + 1 / sqrt(u))
    expected_gap = non_negative("complexity", complexity) + deviation
    if squared:
        return sqrt(2) * expected_gap
    return expected_gap


def _sizes(sample_size: int, records: int) -> tuple[int, int]:
    """Return s and u."""
    n = integer("records", records, at_least=2)
    s = integer("sample_size", sample_size, at_least=1, below=n)
    return s, n - s
