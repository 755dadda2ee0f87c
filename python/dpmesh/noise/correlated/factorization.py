"""The matrix that correlates the noise of a run's rounds, and how far a record moves it."""

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

_ROUNDING = 4 * np.finfo(np.float64).eps


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
        How it was found; any C gives privacy.
    participation
        Which rounds may use a record.

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
        """The largest shift of one record, in standard deviations of Z: mu at noise ratio 1.

        Computed from this C as float64 holds it, and rounded up.
        """
        squared = squared_sensitivity(self.columns, self.participation)
        return float(np.sqrt(squared) * (1 + _ROUNDING * sum(self.bands.shape)))

    def shifts(self, uses: Iterable[Sequence[int]]) -> list[float]:
        """Return the sensitivity to records that are used in exactly these rounds, rounded up.

        Parameters
        ----------
        uses
            For each record, the rounds that use it.
        """
        squares = np.einsum("jk,jk->j", self.columns, self.columns)
        up = 1 + _ROUNDING * sum(self.bands.shape)
        return [
            up * float(np.sqrt(squares[use[0]] if len(use) == 1 else self._squared(use)))
            for use in uses
        ]

    def _squared(self, use: Sequence[int]) -> float:
        return absolute_sum(self._absolute, np.sort(np.asarray(use, dtype=np.int64)))

    @cached_property
    def _absolute(self) -> Array:
        return np.abs(products(self.columns))

    def matrix(self) -> Array:
        """Return C, shape (rounds, rounds)."""
        rounds, width = self.bands.shape
        matrix = np.zeros((rounds, rounds))
        for k in range(width):
            np.fill_diagonal(matrix[k:], self.bands[k:, k])
        return matrix

    def prefix(self, rounds: int) -> Factorization:
        """Return the leading block: what a run that stopped after this many rounds released.

        Its columns are no longer than those of the whole, so that stopping is never charged for.
        """
        rounds = integer("rounds", rounds, 1, self.rounds + 1)
        if rounds == self.rounds:
            return self
        width = min(rounds, self.bands.shape[1])
        return Factorization(
            bands=self.bands[:rounds, :width], kind=self.kind, participation=self.participation
        )

    def normalized(self) -> Factorization:
        """Return C over its sensitivity, so that the noise ratio of Z is that of the run."""
        bands = self.bands / (self.sensitivity * (1 + 2 * _ROUNDING))
        return Factorization(bands=bands, kind=self.kind, participation=self.participation)

    def objective(self, gram: Array) -> float:
        """Return ``tr(G X^-1)`` for ``G`` of shape (rounds, rounds)."""
        from scipy.linalg import solve_triangular

        root = solve_triangular(self.matrix(), np.eye(self.rounds), lower=True)
        return float(np.einsum("ij,ij->", root, gram @ root))

    def as_dict(self) -> dict[str, Any]:
        """Return what a report stores: whoever has C can compute the sensitivity again."""
        return {
            "kind": self.kind,
            "participation": asdict(self.participation),
            "bands": self.bands.tolist(),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Factorization:
        """Return the factorization that `as_dict` gave."""
        use = Participation(**fields["participation"])
        return cls(bands=np.array(fields["bands"]), kind=fields["kind"], participation=use)


def by_columns(bands: Array) -> Array:
    """Return the columns of a matrix downwards whose rows are given from the diagonal backwards."""
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
        If C is not lower triangular: for inputs that depend on earlier messages the privacy of
        such a C is not proved (Denisov et al. 2022, Theorem 2.1).
    """
    entries = np.asarray(matrix, dtype=np.float64)
    if entries.ndim != 2 or entries.shape[0] != entries.shape[1]:
        fail("matrix", "a square matrix", f"shape {entries.shape}")
    if np.triu(entries, 1).any():
        fail("matrix", "a lower-triangular matrix: noise cannot use later rounds", "another one")
    below = np.nonzero(entries)
    width = int((below[0] - below[1]).max()) + 1 if below[0].size else 1
    bands = np.zeros((len(entries), width))
    for k in range(width):
        bands[k:, k] = np.diagonal(entries, -k)
    return Factorization(bands=bands, kind=kind, participation=participation)
