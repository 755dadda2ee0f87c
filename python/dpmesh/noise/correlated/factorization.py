"""The matrix C that correlates the noise of a run's rounds, and the sensitivity of a record.

The noise of a run with T rounds is ``S C^-1 Z`` (matrix mechanism, as in DP-FTRL):

    Z    one row of independent normal noise for each round, shape (T, dim)
    S    diagonal matrix of the sensitivities of the rounds' messages
    C    the *strategy matrix*, lower triangular with a positive diagonal, shape (T, T)

C is public. With few diagonals (*bands*), the noise of a round follows from Z and few earlier
rounds.

Let x be the rounds' values before noise. Their messages ``x + S C^-1 Z`` are as private as ``C S^-1
x + Z``, from which they can be computed. A record that is used in round t moves ``S^-1 x`` in row t
by at most 1, and so the release by column t of C times that. Its sensitivity follows from the
products ``X = C^T C`` of the columns of the rounds that use it (Theorem 1 of
docs/privacy/correlated_noise_proofs.md, also for values that depend on earlier messages).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, instance, integer, one_of
from dpmesh.noise.correlated.participation import (
    SINGLE_USE,
    Participation,
    absolute_sum,
    products,
    squared_sensitivity,
)

Array = npt.NDArray[np.float64]
Kind = Literal["dense", "banded", "toeplitz", "square_root", "diagonal", "given"]

_ROUNDING = 4 * float(np.finfo(np.float64).eps)
"""Relative rounding of a few operations in float64, for each number of a sum."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Factorization:
    """A lower-triangular C: the noise of a run is ``S C^-1 Z`` for independent normals Z.

    It is public and fixed before the run; it may depend on the network, the number of rounds and
    the sensitivities S, never on data.

    Parameters
    ----------
    bands
        Rows of C from the diagonal backwards, shape (rounds, bands): ``bands[t, k] = C[t, t - k]``,
        with a positive diagonal and 0 before the first round. Kept as a read-only copy.
    kind
        Name of the method that C comes from; the guarantee holds for any C.
    participation
        Rounds that may use one record.

    Raises
    ------
    ValueError
        If the bands are not finite, the diagonal is not positive, or an entry lies before the first
        round.

    Examples
    --------
    >>> import numpy as np
    >>> from dpmesh.noise import correlated
    >>> correlated.from_matrix(np.array([[1.0, 0.0], [-0.5, 1.0]])).kind
    'given'
    """

    bands: Array = field(repr=False)
    kind: Kind
    participation: Participation = SINGLE_USE

    def __post_init__(self) -> None:
        bands = np.array(self.bands, dtype=np.float64, order="C")
        if bands.ndim != 2 or bands.size == 0 or bands.shape[1] > bands.shape[0]:
            fail("bands", "shape (rounds, bands) with at most as many bands", f"{bands.shape}")
        if not np.isfinite(bands).all() or (bands[:, 0] <= 0).any():
            fail("bands", "finite numbers with a positive diagonal", "others")
        rounds, width = bands.shape
        if (bands[np.arange(rounds)[:, None] < np.arange(width)] != 0).any():
            fail("bands", "0 before the first round", "other numbers")
        one_of("kind", self.kind, get_args(Kind))
        instance("participation", self.participation, "a Participation", Participation)
        bands.flags.writeable = False
        object.__setattr__(self, "bands", bands)

    @property
    def rounds(self) -> int:
        """Number of rounds, T."""
        return len(self.bands)

    @cached_property
    def columns(self) -> Array:
        """Columns of C, shape (rounds, bands): ``C[j + k, j]`` at ``[j, k]``."""
        return by_columns(self.bands)

    @cached_property
    def sensitivity(self) -> float:
        """L2 sensitivity to one record, in standard deviations of Z: mu at noise ratio 1.

        It is computed from the float64 entries of C and rounded up.
        """
        squared = squared_sensitivity(self.columns, self.participation)
        return float(np.sqrt(squared) * self._rounding_factor)

    @property
    def _rounding_factor(self) -> float:
        """Factor above 1 that covers the rounding of a sensitivity in float64."""
        return 1 + _ROUNDING * sum(self.bands.shape)

    def shifts(self, uses: Iterable[Sequence[int]]) -> list[float]:
        """Return the sensitivity to records that are used in exactly these rounds, rounded up.

        For uses whose columns overlap it is an upper bound, by the absolute entries of ``C^T C``.

        Parameters
        ----------
        uses
            For each record, the rounds that use it, from 0.
        """
        factor = self._rounding_factor
        squared_shifts = [self._squared_shift(record_rounds) for record_rounds in uses]
        return [factor * float(np.sqrt(squared)) for squared in squared_shifts]

    def _squared_shift(self, record_rounds: Sequence[int]) -> float:
        """Return a bound on the squared shift of a record that these rounds use."""
        if len(record_rounds) == 1:
            return float(self._squared_columns[record_rounds[0]])
        pattern = np.sort(np.asarray(record_rounds, dtype=np.int64))
        return absolute_sum(self._absolute_products, pattern)

    @cached_property
    def _squared_columns(self) -> Array:
        """Squared norms of the columns of C, shape (rounds,)."""
        squares: Array = np.einsum("jk,jk->j", self.columns, self.columns)
        return squares

    @cached_property
    def _absolute_products(self) -> Array:
        """Absolute values of the diagonals of ``X = C^T C``, shape (rounds, bands)."""
        return np.abs(products(self.columns))

    def matrix(self) -> Array:
        """Return C, shape (rounds, rounds)."""
        rounds, width = self.bands.shape
        matrix = np.zeros((rounds, rounds))
        for k in range(width):
            np.fill_diagonal(matrix[k:], self.bands[k:, k])
        return matrix

    def prefix(self, rounds: int) -> Factorization:
        """Return the leading block of C: the noise of a run that stops after so many rounds.

        Its columns are no longer than those of the whole C, so stopping early never costs more.

        Raises
        ------
        ValueError
            If `rounds` is not between 1 and the number of rounds of C.
        """
        rounds = integer("rounds", rounds, 1, self.rounds + 1)
        if rounds == self.rounds:
            return self
        width = min(rounds, self.bands.shape[1])
        return Factorization(
            bands=self.bands[:rounds, :width], kind=self.kind, participation=self.participation
        )

    def normalized(self) -> Factorization:
        """Return C scaled to sensitivity 1, never above: then mu is 1 over the deviation of Z."""
        bands = self.bands / (self.sensitivity * (1 + 2 * _ROUNDING))
        return Factorization(bands=bands, kind=self.kind, participation=self.participation)

    def objective(self, gram: Array) -> float:
        """Return ``tr(G X^-1)`` with ``X = C^T C``: the variance of the noise in mixed points.

        Parameters
        ----------
        gram
            G, shape (rounds, rounds), as in `dpmesh.noise.correlated.objective`.
        """
        from scipy.linalg import solve_triangular

        inverse = solve_triangular(self.matrix(), np.eye(self.rounds), lower=True)
        return float(np.einsum("ij,ij->", inverse, gram @ inverse))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that a report stores, from which the sensitivity can be recomputed."""
        return {
            "kind": self.kind,
            "participation": asdict(self.participation),
            "bands": self.bands.tolist(),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Factorization:
        """Return the factorization from the fields that `as_dict` returned."""
        bands = np.array(fields["bands"])
        participation = Participation(**fields["participation"])
        return cls(bands=bands, kind=fields["kind"], participation=participation)


def by_columns(bands: Array) -> Array:
    """Convert a banded lower-triangular matrix from storage by rows to storage by columns.

    Parameters
    ----------
    bands
        Rows from the diagonal backwards, shape (rounds, bands): ``bands[t, k] = C[t, t - k]``.

    Returns
    -------
    Columns from the diagonal downwards, shape (rounds, bands): ``columns[j, k] = C[j + k, j]``.
    """
    columns = np.zeros_like(bands)
    for k in range(bands.shape[1]):
        columns[: len(bands) - k, k] = bands[k:, k]
    return columns


def from_matrix(
    matrix: npt.ArrayLike, *, kind: Kind = "given", participation: Participation = SINGLE_USE
) -> Factorization:
    """Return the factorization of a lower-triangular matrix C, shape (rounds, rounds).

    Raises
    ------
    ValueError
        If C is not square, or its entries are not finite with a positive diagonal. If C is not
        lower triangular: for inputs that depend on earlier messages the privacy of such a C is not
        proved (Denisov et al. 2022, Theorem 2.1).
    """
    entries = np.asarray(matrix, dtype=np.float64)
    if entries.ndim != 2 or entries.shape[0] != entries.shape[1]:
        fail("matrix", "a square matrix", f"shape {entries.shape}")
    if np.triu(entries, 1).any():
        fail("matrix", "a lower-triangular matrix: noise cannot use later rounds", "another one")
    nonzero_rows, nonzero_columns = np.nonzero(entries)
    width = 1
    if nonzero_rows.size:
        width += int((nonzero_rows - nonzero_columns).max())
    bands = np.zeros((len(entries), width))
    for k in range(width):
        bands[k:, k] = np.diagonal(entries, -k)
    return Factorization(bands=bands, kind=kind, participation=participation)
