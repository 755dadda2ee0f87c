"""Participation of records, and their sensitivity in the correlated messages.

A record changes the unit vectors ``v_k`` of the rounds ``k`` that use it. The noise of the whole
run hides a shift of squared length ``sum over rounds t of |sum_k C[t, k] v_k|^2``, whose largest
value is the squared sensitivity of ``C``: a sum over pairs of uses of ``X = C^T C``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmesh._validate import every, fail, integer

Array = npt.NDArray[np.float64]

_STATES = 20_000
"""Patterns of recent uses that are tried before the worst one is called too hard to find."""

_STEPS = 50_000_000
"""Steps of the dynamic programme before the bound ``uses * longest column`` takes its place."""


@dataclass(frozen=True, kw_only=True)
class Participation:
    """In which rounds one record may be used. It must be public and must not depend on data.

    Parameters
    ----------
    uses
        The largest number of rounds that use a record.
    separation
        Two rounds that use it are at least this many apart; 1 allows successive rounds.
    epochs
        Whether they are exactly `separation` apart, as in passes through fixed batches.

    Examples
    --------
    >>> from dpmesh.noise import correlated
    >>> correlated.Participation(uses=3, separation=10)
    Participation(uses=3, separation=10, epochs=False)
    """

    uses: int = 1
    separation: int = 1
    epochs: bool = False

    def __post_init__(self) -> None:
        every(self, integer, "uses", "separation", at_least=1)

    def most(self, rounds: int) -> int:
        """Return the largest number of uses within this many rounds."""
        return min(self.uses, -(-rounds // self.separation))

    def __str__(self) -> str:
        if self.uses == 1:
            return "each record is used in one round at most"
        bound = "exactly" if self.epochs else "at least"
        return f"each record is used in at most {self.uses} rounds, {bound} {self.separation} apart"


SINGLE_USE = Participation()
"""Each record is used in one round at most."""


def squared_sensitivity(columns: Array, participation: Participation) -> float:
    """Return the largest squared shift of one record, for noise ``C^-1 Z`` of unit normals ``Z``.

    Parameters
    ----------
    columns
        Those of the lower-triangular C, shape (rounds, bands): ``columns[j, k] = C[j + k, j]``, 0
        beyond the last round.
    participation
        Which rounds may use a record.

    Returns
    -------
    Exact for one use, for separated uses of a C with at most `separation` bands (its columns are
    then orthogonal) and where no entry of X is negative. Otherwise the sum of absolute values, an
    upper bound for vectors of any length (triangle inequality).

    Raises
    ------
    ValueError
        If the worst pattern of uses is too hard to find.
    """
    rounds, bands = columns.shape
    uses = participation.most(rounds)
    if uses == 1 or bands <= participation.separation:
        return squared_worst_sum(np.einsum("jk,jk->j", columns, columns), participation)
    if participation.epochs:
        return _worst_of_epochs(columns, uses, participation.separation)
    if _decreases(columns):
        return _squared_sum(columns, np.arange(uses) * participation.separation)
    return _worst_pattern(products(columns), uses, participation.separation)


def squared_worst_sum(squares: Array, participation: Participation) -> float:
    """Return the largest sum of the rounds' own squared shifts over the patterns of uses.

    It is the squared sensitivity where the shifts of a record's uses are orthogonal.
    """
    uses = participation.most(len(squares))
    if uses == 1:
        return float(squares.max())
    if participation.epochs:
        patterns = _epochs(len(squares), uses, participation.separation)
        return max(float(squares[pattern].sum()) for pattern in patterns)
    return _worst_orthogonal(squares, uses, participation.separation)


def products(columns: Array) -> Array:
    """Return X by its diagonals, shape (rounds, bands): ``X[j, j + d]`` at ``[j, d]``."""
    rounds, bands = columns.shape
    result = np.zeros((rounds, bands))
    for d in range(bands):
        upper = columns[: rounds - d, d:]
        lower = columns[d:, : bands - d]
        result[: rounds - d, d] = np.einsum("jk,jk->j", upper, lower)
    return result


def _worst_orthogonal(squares: Array, uses: int, separation: int) -> float:
    if len(squares) * uses > _STEPS or squares.max() - squares.min() <= 1e-13 * squares.max():
        return uses * float(squares.max())
    best = np.zeros((len(squares) + separation, uses + 1))  # of the rounds before each, by uses
    for t, square in enumerate(squares, start=separation):
        best[t] = best[t - 1]
        np.maximum(best[t, 1:], best[t - separation, :-1] + square, out=best[t, 1:])
    return float(best[-1, -1])


def _worst_of_epochs(columns: Array, uses: int, separation: int) -> float:
    absolute = np.abs(products(columns))
    return max(absolute_sum(absolute, p) for p in _epochs(len(columns), uses, separation))


def _epochs(rounds: int, uses: int, separation: int) -> Iterator[npt.NDArray[np.int64]]:
    """The patterns of fixed epochs that are not part of a longer one."""
    for first in range(rounds):
        pattern = np.arange(first, rounds, separation)[:uses]
        if first < separation or len(pattern) == uses:
            yield pattern


def absolute_sum(absolute: Array, pattern: npt.NDArray[np.int64]) -> float:
    """Return the sum of ``|X[i, j]|`` over the ascending rounds of a pattern, from `products`."""
    bands = absolute.shape[1]
    total = 0.0
    for i, j in enumerate(pattern):
        distance = pattern[i:] - j
        near = distance[distance < bands]
        total += 2 * float(absolute[j, near].sum()) - float(absolute[j, 0])
    return total


def _decreases(columns: Array) -> bool:
    """Return True if C is Toeplitz with entries that are non-negative and do not increase."""
    rounds, bands = columns.shape
    first = columns[0]
    if (first < 0).any() or (np.diff(first) > 0).any():
        return False
    inside = np.arange(rounds)[:, None] + np.arange(bands) < rounds
    return bool((columns == np.where(inside, first, 0.0)).all())


def _squared_sum(columns: Array, pattern: npt.NDArray[np.int64]) -> float:
    """The worst pattern of such a C begins at round 0 (Kalinin and Lampert 2024, Theorem 2)."""
    rounds, bands = columns.shape
    total = np.zeros(rounds + bands)
    for j in pattern:
        total[j : j + bands] += columns[j]
    return float(total @ total)


def _worst_pattern(diagonals: Array, uses: int, separation: int) -> float:
    """The largest sum of |X| over patterns: a dynamic programme over the recent uses."""
    absolute, (rounds, bands) = np.abs(diagonals), diagonals.shape
    if separation == 1 and uses == rounds:
        return absolute_sum(absolute, np.arange(rounds))
    best: dict[tuple[tuple[int, ...], int], float] = {((), 0): 0.0}
    keep = max(bands, separation) - 1
    for t in range(rounds):
        reached: dict[tuple[tuple[int, ...], int], float] = {}
        for (recent, count), value in best.items():
            near = tuple(r for r in recent if t - r <= keep)
            _raise_to(reached, (near, count), value)
            if count < uses and (not near or t - near[-1] >= separation):
                added = absolute[t, 0] + 2 * sum(absolute[r, t - r] for r in near if t - r < bands)
                _raise_to(reached, ((*near, t), count + 1), value + float(added))
        if len(reached) > _STATES:
            fail(
                "participation",
                f"at most {separation} bands, as many as the separation, or fewer uses: the worst "
                "pattern of uses is too hard to find",
                f"{bands} bands and {uses} uses",
            )
        best = reached
    return max(best.values())


def _raise_to(
    best: dict[tuple[tuple[int, ...], int], float], state: tuple[tuple[int, ...], int], value: float
) -> None:
    if value > best.get(state, -1.0):
        best[state] = value
