"""Participation of records, and the sensitivity of C to one record.

The noise of a run is ``C^-1 Z`` in units of the sensitivities, with independent normal rows Z (see
`factorization`). A record that the rounds of a *pattern* use changes the value of each such round k
by a vector ``v_k`` of length at most 1. Relative to Z this is a shift of squared length

    sum over rounds t of |sum over k in the pattern of C[t, k] v_k|^2
        = sum over pairs (j, k) of the pattern of X[j, k] <v_j, v_k>,    X = C^T C

The *squared sensitivity* of C is its largest value over all allowed patterns and all such vectors
(Theorem 1 of docs/privacy/correlated_noise_proofs.md). Where the columns of C for two uses overlap
with either sign, its exact value is hard to find; then ``abs(X[j, k])`` in place of ``X[j, k]
<v_j, v_k>`` gives an upper bound.
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
"""Largest sum of ``abs(X)`` over pairs of uses that leads to each state."""

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
        True if successive uses are exactly `separation` apart, as in passes through fixed batches.

    Raises
    ------
    ValueError
        If `uses` or `separation` is not an integer of at least 1.

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
    uses are then orthogonal), and where no entry of ``X = C^T C`` is negative. Otherwise the
    largest sum of absolute entries of X over pairs of uses, an upper bound by the triangle
    inequality. For orthogonal columns of so many rounds and uses that the search is too long, the
    bound is `uses` times the largest squared column.

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

    It is the squared sensitivity where the shifts of a record's uses are orthogonal. For many
    rounds and uses it is an upper bound: see `_worst_orthogonal`.

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
    """Return the largest sum of `uses` squares at least `separation` rounds apart.

    Where the search would take more than `_STEPS` steps, return the bound of `uses` times the
    largest square.
    """
    largest = squares.max()
    is_constant = largest - squares.min() <= 1e-13 * largest
    if len(squares) * uses > _STEPS or is_constant:
        return uses * float(largest)
    # best[separation + t, u]: the largest sum of at most u uses in rounds 0 to t
    best = np.zeros((len(squares) + separation, uses + 1))
    for t, square in enumerate(squares, start=separation):
        best[t] = best[t - 1]
        np.maximum(best[t, 1:], best[t - separation, :-1] + square, out=best[t, 1:])
    return float(best[-1, -1])


def _worst_of_epochs(columns: Array, uses: int, separation: int) -> float:
    """Return the largest sum of ``abs(X)`` over the patterns of fixed epochs."""
    absolute = np.abs(products(columns))
    patterns = _epochs(len(columns), uses, separation)
    return max(absolute_sum(absolute, pattern) for pattern in patterns)


def _epochs(rounds: int, uses: int, separation: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the patterns of fixed epochs that are not part of a longer one: rounds, ascending."""
    for first in range(rounds):
        pattern = np.arange(first, rounds, separation)[:uses]
        if first < separation or len(pattern) == uses:
            yield pattern


def absolute_sum(absolute: Array, pattern: npt.NDArray[np.int64]) -> float:
    """Return the sum of ``abs(X[i, j])`` over all ordered pairs of rounds of a pattern.

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

    The worst pattern of a C for which `_decreases` returns True begins at round 0, with uses as
    close as allowed (Kalinin and Lampert 2024, Theorem 2).
    """
    rounds, bands = columns.shape
    total = np.zeros(rounds + bands)
    for j in pattern:
        total[j : j + bands] += columns[j]
    return float(total @ total)


def _worst_pattern(diagonals: Array, uses: int, separation: int) -> float:
    """Return the largest sum of ``abs(X)`` over patterns, by a dynamic programme.

    The state after a round has the uses that a later use may overlap or come too close to, and the
    number of all uses.

    Parameters
    ----------
    diagonals
        As `products` returns them, shape (rounds, bands).
    uses, separation
        As in `Participation`.

    Raises
    ------
    ValueError
        If there are more than `_STATES` states.
    """
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
