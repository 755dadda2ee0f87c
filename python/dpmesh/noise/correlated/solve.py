"""Factorizations for a network and a schedule, found once and kept."""

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

_KEPT = 32
_found: OrderedDict[tuple[object, ...], Factorization] = OrderedDict()
_lock = Lock()


def factorize(
    objective: Objective | Array,
    *,
    bands: int | None = None,
    participation: Participation = SINGLE_USE,
    method: Method = "optimal",
) -> Factorization:
    """Return a C of sensitivity 1 with little noise in the mixed points; results are cached.

    Parameters
    ----------
    objective
        From `gossip` or `server`, or a matrix ``G`` such as `average_matrix` gives.
    bands
        Diagonals of C. None for all of them; ``bands - 1`` earlier rows of noise are kept in a run.
    participation
        Which rounds may use a record.
    method
        ``"optimal"`` optimises every entry, for up to 2,000 rounds; ``"toeplitz"`` optimises
        constant diagonals, for any number of rounds; ``"square_root"`` cuts the square root of
        prefix sums to `bands`; ``"diagonal"`` correlates nothing and optimises the schedule of the
        noise, which is best for records used in every round (Theorem 2).

    Returns
    -------
    A factorization whose sensitivity is 1 up to rounding, never above.

    Raises
    ------
    ValueError
        If an argument does not fit, or a record is used repeatedly at a separation below the number
        of bands with ``method="optimal"``, which is optimal for orthogonal columns only.
    """
    one_of("method", method, get_args(Method))
    rounds = objective.rounds if isinstance(objective, Objective) else len(objective)
    width = rounds if bands is None else integer("bands", bands, 1, rounds + 1)
    if method == "diagonal":
        width = 1
    if method == "optimal" and participation.most(rounds) > 1 and width > participation.separation:
        separation = participation.separation
        fail(
            "bands",
            f"at most {separation}, the separation of the rounds that use a record (or "
            "method='toeplitz', charged for the sum of |C^T C|)",
            width,
        )
    key = (_fingerprint(objective), width, participation, method)
    with _lock:
        if key in _found:
            _found.move_to_end(key)
            return _found[key]
    factorization = _best(objective, width, participation, method).normalized()
    with _lock:
        _found[key] = factorization
        while len(_found) > _KEPT:
            _found.popitem(last=False)
    return factorization


def _best(
    objective: Objective | Array, width: int, use: Participation, method: Method
) -> Factorization:
    """Return the factorization of a method, before it has a sensitivity of 1."""
    rounds = objective.rounds if isinstance(objective, Objective) else len(objective)
    if method == "square_root":
        bands = toeplitz_bands(square_root_coefficients(width), rounds)
        return Factorization(bands=bands, kind=method, participation=use)
    if method == "toeplitz":
        if not isinstance(objective, Objective):
            fail("objective", "an Objective, as gossip or server gives, for 'toeplitz'", "a matrix")
        bands = toeplitz_bands(optimal_coefficients(objective, width), rounds)
        return Factorization(bands=bands, kind=method, participation=use)
    gram = objective.matrix() if isinstance(objective, Objective) else objective
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
    arrays = (
        (objective.eigenvalues, objective.weights, objective.sensitivities)
        if isinstance(objective, Objective)
        else (objective,)
    )
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return digest.digest()
