"""Sums of clipped gradients of single records, for guarantees about one record of many sites."""

from __future__ import annotations

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._ragged import Indices, Ragged
from dpmesh.privacy.types import Floats, Sensitive
from dpmesh.problems import GradientProblem, LinearProblem
from dpmesh.problems.dense import DenseProblem

_NUMBERS_AT_ONCE = 1 << 22  # of gradients of single records


def clipped_gradient_sums(
    problem: GradientProblem, point: Floats, batches: Ragged, clipping_norm: float
) -> Sensitive:
    """Return each node's sum of its records' gradients at its point, each clipped to an L2 norm.

    The clipping is the package's own. Networks have `DenseProblem.gradient_sum`; of another problem
    of a user's own, or a linear one in float32, gradients are taken record by record and clipped
    here, in float64. A record whose gradient is NaN, infinite or raises an error counts as 0, so
    that no record moves a sum by more than `clipping_norm`.

    Parameters
    ----------
    problem
        A `LinearProblem`, or one with ``gradient(params, batches)`` whose row r is the mean
        gradient at ``params[r]`` of batch r, weight decay included.
    point
        The model of all nodes, shape (1, dim), or of each, shape (nodes, dim).
    batches
        ``(indptr, indices)``: the records of each node, possibly none.
    clipping_norm
        Positive.

    Returns
    -------
    Shape (nodes, dim), float64, without weight decay.
    """
    indptr, records = batches
    nodes = len(indptr) - 1
    rows = np.repeat(point, nodes, axis=0) if len(point) == 1 else point
    if isinstance(problem, DenseProblem):
        return Sensitive(problem.gradient_sum(rows, batches, clipping_norm=clipping_norm))
    exact = None
    if type(problem) is LinearProblem and problem.train.features.dtype == np.float64:
        exact, points = problem, np.asarray(rows, np.float64)
        sums = exact.gradient_sum(points, batches, clipping_norm=clipping_norm)
    else:
        sums = np.full((nodes, point.shape[1]), np.nan)
    at_once = max(1, _NUMBERS_AT_ONCE // point.shape[1])
    for node in np.flatnonzero(~np.isfinite(sums).all(axis=1)):
        at = rows[node : node + 1]
        own = records[indptr[node] : indptr[node + 1]]
        sums[node] = 0.0
        for first in range(0, len(own), at_once):
            chunk = own[first : first + at_once]
            if exact is not None:  # by the batch's kernel, so that no other record's part changes
                singles = np.arange(len(chunk) + 1), chunk
                points = np.repeat(np.asarray(at, np.float64), len(chunk), axis=0)
                each = exact.gradient_sum(points, singles, clipping_norm=clipping_norm)
                each[~np.isfinite(each).all(axis=1)] = 0.0
            else:
                each = _clipped(problem, at, chunk, clipping_norm)
            sums[node] += each.sum(axis=0)
    return Sensitive(sums)


def _clipped(
    problem: GradientProblem, point: Floats, records: Indices, clipping_norm: float
) -> Floats:
    """Return the clipped gradient of each record, shape (records, dim), 0 where there is none."""
    gradients = _gradients(problem, point, records)
    gradients[~np.isfinite(kernels.row_norms(gradients))] = 0.0
    clipped: Floats = kernels.clip_rows(gradients, clipping_norm)
    return clipped


def _gradients(problem: GradientProblem, point: Floats, records: Indices) -> Floats:
    """Return the gradient of each record's loss in float64; NaN for a record that raises."""
    points = np.repeat(point, len(records), axis=0)
    singles = np.arange(len(records) + 1), records
    try:
        rows = np.asarray(problem.gradient(points, singles), np.float64)
    except MemoryError:
        raise
    except Exception:  # any error that a record causes is that record's alone
        if len(records) == 1:
            return np.full((1, point.shape[1]), np.nan)
        half = len(records) // 2
        parts = records[:half], records[half:]
        return np.concatenate([_gradients(problem, point, part) for part in parts])
    without_decay: Floats = rows - problem.regularization * np.asarray(point, np.float64)
    return without_decay
