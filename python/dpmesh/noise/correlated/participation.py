"""Participation of records, and their sensitivity in the correlated messages.

A record changes the unit vectors ``v_k`` of the rounds ``k`` that use it. The noise of the whole
run hides a shift of squared length ``sum over rounds t of |sum_k C[t, k] v_k|^2``, whose largest
value is the squared sensitivity of ``C``: a sum over pairs of uses of ``X = C^T C``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._validate import every, fail, integer

Array = npt.NDArray[np.float64]
_State: TypeAlias = tuple[tuple[int, ...], int]
"""Recent rounds that use the record, and the number of all its uses so far."""

_Sums: TypeAlias = dict[_State, float]
"""Largest sum of ``|X|`` that reaches each state."""

_STATES = 20_000
"""Patterns of recent uses that are tried before the worst one is called too hard to find."""

_STEPS = 50_000_000
"""Steps of the dynamic programme before the bound ``uses * longest column`` takes its place."""


@dataclass(frozen=True, kw_only=True)
class Participation:
    """Rounds that may use one record: public, and independent of data.

    Parameters
    ----------
    uses
        The largest number of rounds that use a record.
    separation
        Two rounds that use it are at least this many apart; 1 allows successive rounds.
    epochs
        True if they are exactly `separation` apart, as in passes through fixed batches.

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
        Columns of the lower-triangular C, shape (rounds, bands): ``columns[j, k] = C[j + k, j]``, 0
        beyond the last round.
    participation
        Rounds that may use one record.

    Returns
    -------
    The exact value for one use, for a C of at most `separation` bands (the columns of one record's
    uses are then orthogonal), and where no entry of ``X = C^T C`` is negative. Otherwise the sum of
    absolute entries of X over pairs of uses, an upper bound by the triangle inequality.

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
    """Return the largest sum of squared shifts over the rounds that one record may use.

    It is the squared sensitivity where the shifts of a record's uses are orthogonal.

    Parameters
    ----------
    squares
        Squared shift of one use in each round, shape (rounds,).
    participation
        Rounds that may use one record.
    """
    uses = participation.most(len(squares))
    if uses == 1:
        return float(squares.max())
    if participation.epochs:
        patterns = _epochs(len(squares), uses, participation.separation)
        return max(float(squares[pattern].sum()) for pattern in patterns)
    return _worst_orthogonal(squares, uses, participation.separation)


def products(columns: Array) -> Array:
    """Return ``X = C^T C`` by its diagonals, shape (rounds, bands): ``X[j, j + d]`` at ``[j, d]``.

    `columns` are those of `squared_sensitivity`.
    """
    rounds, bands = columns.shape
    diagonals = np.zeros((rounds, bands))
    for d in range(bands):
        upper = columns[: rounds - d, d:]
        lower = columns[d:, : bands - d]
        diagonals[: rounds - d, d] = np.einsum("jk,jk->j", upper, lower)
    return diagonals


def _worst_orthogonal(squares: Array, uses: int, separation: int) -> float:
    """Return the largest sum of `uses` squares at least `separation` rounds apart."""
    largest = squares.max()
    is_constant = largest - squares.min() <= 1e-13 * largest
    if len(squares) * uses > _STEPS or is_constant:
        return uses * float(largest)
    # best[t, u]: the largest sum of u uses among the first rounds, up to row t
    best = np.zeros((len(squares) + separation, uses + 1))
    for t, square in enumerate(squares, start=separation):
        best[t] = best[t - 1]
        np.maximum(best[t, 1:], best[t - separation, :-1] + square, out=best[t, 1:])
    return float(best[-1, -1])


def _worst_of_epochs(columns: Array, uses: int, separation: int) -> float:
    """Return the largest sum of ``|X|`` over the patterns of fixed epochs."""
    absolute = np.abs(products(columns))
    patterns = _epochs(len(columns), uses, separation)
    return max(absolute_sum(absolute, pattern) for pattern in patterns)


def _epochs(rounds: int, uses: int, separation: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the patterns of fixed epochs that are not part of a longer one."""
    for first in range(rounds):
        pattern = np.arange(first, rounds, separation)[:uses]
        if first < separation or len(pattern) == uses:
            yield pattern


def absolute_sum(absolute: Array, pattern: npt.NDArray[np.int64]) -> float:
    """Return the sum of ``|X[i, j]|`` over all pairs of rounds of a pattern.

    Parameters
    ----------
    absolute
        Absolute values of `products`, shape (rounds, bands).
    pattern
        Rounds that use a record, ascending.
    """
    bands = absolute.shape[1]
    total = 0.0
    for i, use in enumerate(pattern):
        distances = pattern[i:] - use
        overlapping = distances[distances < bands]
        total += 2 * float(absolute[use, overlapping].sum()) - float(absolute[use, 0])
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
    """Return the squared norm of the sum of the columns of a pattern.

    The worst pattern of a C that `_decreases` begins at round 0 (Kalinin and Lampert 2024,
    Theorem 2).
    """
    rounds, bands = columns.shape
    total = np.zeros(rounds + bands)
    for j in pattern:
        total[j : j + bands] += columns[j]
    return float(total @ total)


def _worst_pattern(diagonals: Array, uses: int, separation: int) -> float:
    """Return the largest sum of |X| over patterns, by a dynamic programme over the recent uses."""
    absolute = np.abs(diagonals)
    rounds, bands = diagonals.shape
    if separation == 1 and uses == rounds:
        return absolute_sum(absolute, np.arange(rounds))
    best: _Sums = {((), 0): 0.0}
    memory = max(bands, separation) - 1
    for t in range(rounds):
        next_best: _Sums = {}
        for (earlier, count), total in best.items():
            recent = tuple(use for use in earlier if t - use <= memory)
            _raise_to(next_best, (recent, count), total)
            if count < uses and (not recent or t - recent[-1] >= separation):
                overlapping = [use for use in recent if t - use < bands]
                added = absolute[t, 0] + 2 * sum(absolute[use, t - use] for use in overlapping)
                _raise_to(next_best, ((*recent, t), count + 1), total + float(added))
        if len(next_best) > _STATES:
            fail(
                "participation",
                f"at most {separation} bands, as many as the separation, or fewer uses: the worst "
                "pattern of uses is too hard to find",
                f"{bands} bands and {uses} uses",
            )
        best = next_best
    return max(best.values())


def _raise_to(best: _Sums, state: _State, total: float) -> None:
    """Raise the sum of a state to `total` if it is smaller or absent."""
    if total > best.get(state, -1.0):
        best[state] = total
