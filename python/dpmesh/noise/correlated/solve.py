"""Choice of the strategy matrix C for a network and a schedule, with a cache of results.

`factorize` calls the optimisers of `optimal`. Privacy depends on C alone, not on how it was found.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from threading import Lock
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, integer, one_of
from dpmesh.noise.correlated.factorization import Factorization, from_matrix
from dpmesh.noise.correlated.objective import Objective
from dpmesh.noise.correlated.optimal import (
    LARGEST,
    optimal_bands,
    optimal_coefficients,
    optimal_matrix,
    square_root_coefficients,
    toeplitz_bands,
)
from dpmesh.noise.correlated.participation import SINGLE_USE, Participation

Array = npt.NDArray[np.float64]
Method = Literal["optimal", "toeplitz", "square_root", "diagonal"]

_CACHE_SIZE = 32
_cache: OrderedDict[tuple[object, ...], Factorization] = OrderedDict()
_cache_lock = Lock()


def factorize(
    objective: Objective | Array,
    *,
    bands: int | None = None,
    participation: Participation = SINGLE_USE,
    method: Method = "optimal",
) -> Factorization:
    """Return a strategy matrix C of sensitivity 1 for an objective; results are cached.

    Parameters
    ----------
    objective
        From `gossip` or `server`, or a matrix ``G`` such as `average_matrix` gives.
    bands
        Diagonals of C. None for all of them; ``bands - 1`` earlier rows of noise are kept in a run.
        ``"diagonal"`` ignores it.
    participation
        Rounds that may use one record.
    method
        ``"optimal"`` optimises every entry, with columns of one length, for up to 2,000 rounds;
        ``"toeplitz"`` optimises constant diagonals, for any number of rounds; ``"square_root"``
        truncates the square root of the prefix-sum matrix to `bands`; ``"diagonal"`` is independent
        noise with an optimised schedule, which is best for records used in every round (Theorem 2
        of docs/privacy/correlated_noise_proofs.md).

    Returns
    -------
    A factorization whose sensitivity is 1 up to rounding, never above.

    Raises
    ------
    ValueError
        If an argument is out of its range; if ``"toeplitz"`` gets a matrix instead of an
        `Objective`. With ``method="optimal"``, if there are more than 2,000 rounds, if two rounds
        that use the same record are less than `bands` apart (their columns of C are not
        orthogonal), or if G is not positive definite and C has all bands.
    """
    one_of("method", method, get_args(Method))
    rounds = _rounds_of(objective)
    width = rounds
    if bands is not None:
        width = integer("bands", bands, 1, rounds + 1)
    if method == "diagonal":
        width = 1
    separation = participation.separation
    columns_overlap = participation.most(rounds) > 1 and width > separation
    if method == "optimal" and columns_overlap:
        fail(
            "bands",
            f"at most {separation}, the separation of the rounds that use a record (or "
            "method='toeplitz', charged for the sum of |C^T C|)",
            width,
        )
    key = (_fingerprint(objective), width, participation, method)
    with _cache_lock:
        if key in _cache:
            _cache.move_to_end(key)
            return _cache[key]
    factorization = _best(objective, width, participation, method).normalized()
    with _cache_lock:
        _cache[key] = factorization
        while len(_cache) > _CACHE_SIZE:
            _cache.popitem(last=False)
    return factorization


def _rounds_of(objective: Objective | Array) -> int:
    """Return the number of rounds of an objective or of its matrix G."""
    if isinstance(objective, Objective):
        return objective.rounds
    return len(objective)


def _gram(objective: Objective | Array) -> Array:
    """Return the matrix G of an objective, shape (rounds, rounds)."""
    if isinstance(objective, Objective):
        return objective.matrix()
    return objective


def _best(
    objective: Objective | Array, width: int, use: Participation, method: Method
) -> Factorization:
    """Return the factorization that a method finds, before it is scaled to sensitivity 1.

    `width` is the number of bands; other parameters are those of `factorize`.
    """
    rounds = _rounds_of(objective)
    if method == "square_root":
        bands = toeplitz_bands(square_root_coefficients(width), rounds)
        return Factorization(bands=bands, kind=method, participation=use)
    if method == "toeplitz":
        if not isinstance(objective, Objective):
            fail("objective", "an Objective, as gossip or server gives, for 'toeplitz'", "a matrix")
        bands = toeplitz_bands(optimal_coefficients(objective, width), rounds)
        return Factorization(bands=bands, kind=method, participation=use)
    gram = _gram(objective)
    if method == "diagonal":
        bands = np.ones((rounds, width))
        if use.most(rounds) > 1:
            bands *= np.diag(gram)[:, None] ** 0.25
        return Factorization(bands=bands, kind=method, participation=use)
    if rounds > LARGEST:
        fail("objective", f"at most {LARGEST} rounds for method='optimal'", rounds)
    if width == rounds:
        return from_matrix(optimal_matrix(gram)[0], kind="dense", participation=use)
    return Factorization(bands=optimal_bands(gram, width), kind="banded", participation=use)


def _fingerprint(objective: Objective | Array) -> bytes:
    """Return 256 bits that differ between objectives."""
    arrays: tuple[Array, ...]
    if isinstance(objective, Objective):
        arrays = (objective.eigenvalues, objective.weights, objective.sensitivities)
    else:
        arrays = (objective,)
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return digest.digest()
