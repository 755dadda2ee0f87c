"""Clipped gradients and steps, also of problems that users define.

A sensitivity rests on each record's gradient being clipped by itself. The problems of this package
do so in one kernel. For a problem of a user, these functions clip each record's gradient, or check
the result of the user's methods: its length at each call, and a few pairs of records at the start.

A *batch* is a set of records of one node. `batches` holds the batches of all nodes, either as an
array of record indices, shape (nodes, batch size), or as ``(indptr, indices)``: node i then has the
records ``indices[indptr[i]:indptr[i + 1]]``. `point` is the model at which gradients are taken.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeGuard

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._arrays import read_only
from dpmesh._privacy_types import Floats, Sensitive
from dpmesh._ragged import Indices, Numbers, Ragged
from dpmesh._validate import fail
from dpmesh.kernels.linear_model import Batches
from dpmesh.kernels.projection import Norm
from dpmesh.problems import GradientProblem, LinearProblem
from dpmesh.problems.dense import DenseProblem
from dpmesh.problems.partition import PartitionedProblem

_NUMBERS_AT_ONCE = 1 << 22  # a chunk of record gradients in float64 then fits into 32 MiB


def clipped_gradient_sums(
    problem: GradientProblem, point: Floats, batches: Ragged, clipping_norm: float
) -> Sensitive:
    """Return each node's sum of clipped record gradients, shape (nodes, dim), without weight decay.

    A problem with a method ``clipped_sums``, such as a linear model or a neural network of this
    package, clips in one kernel. For any other problem, and for a subclass that overrides
    ``gradient``, gradients are taken record by record and clipped here, in float64. A record whose
    gradient is NaN or infinite, or raises an error, counts as 0. So no record moves a sum by more
    than `clipping_norm` in L2 norm if it is added or removed.

    Parameters
    ----------
    problem
        A `LinearProblem`, or a problem with ``gradient(params, batches)``. Row r of its result is
        the mean gradient of batch r at ``params[r]``, weight decay included.
    point
        One model for all nodes, shape (1, dim), or the model of each node, shape (nodes, dim).
    batches
        Records of each node as ``(indptr, indices)``; a node may have none.
    clipping_norm
        Largest L2 norm of a record's gradient, positive; longer ones are clipped.

    Returns
    -------
    Shape (nodes, dim), float64, without weight decay.
    """
    indptr, records = batches
    nodes = len(indptr) - 1
    rows = np.repeat(point, nodes, axis=0) if len(point) == 1 else point
    if clips_records(problem):
        return problem.clipped_sums(rows, batches, clipping_norm)
    sums = np.zeros((nodes, point.shape[1]))
    at_once = max(1, _NUMBERS_AT_ONCE // point.shape[1])
    for node in range(nodes):
        node_records = records[indptr[node] : indptr[node + 1]]
        for first in range(0, len(node_records), at_once):
            chunk = node_records[first : first + at_once]
            sums[node] += _clipped(problem, rows[node : node + 1], chunk, clipping_norm).sum(axis=0)
    return Sensitive(sums)


class ClipsRecords(Protocol):
    """Protocol of a problem that clips the gradient of each of its records."""

    def clipped_sums(self, params: Floats, batches: Ragged, clipping_norm: float) -> Sensitive:
        """Return each node's sum of clipped record gradients, shape (nodes, dim), float64.

        Each record adds its gradient, clipped to the L2 norm `clipping_norm`, without weight decay.
        A record whose gradient is not finite adds 0. A record's summand must not depend on other
        records.
        """


def clips_records(problem: object) -> TypeGuard[ClipsRecords]:
    """Return True if a problem has ``clipped_sums``, and no subclass of it changes ``gradient``.

    A subclass that overrides ``gradient`` alone would inherit sums of other gradients.
    """
    for kind in type(problem).__mro__:
        if "clipped_sums" in vars(kind):
            return True
        if "gradient" in vars(kind):
            return False
    return False


def _clipped(
    problem: GradientProblem, point: Floats, records: Indices, clipping_norm: float
) -> Floats:
    """Return the clipped gradient of each record, shape (records, dim); 0 if it is not finite."""
    gradients = _gradients(problem, point, records)
    gradients[~np.isfinite(kernels.row_norms(gradients))] = 0.0
    clipped: Floats = kernels.clip_rows(gradients, clipping_norm)
    return clipped


def _gradients(problem: GradientProblem, point: Floats, records: Indices) -> Floats:
    """Return the gradient of each record's loss in float64; NaN for a record that raises.

    If a batch raises an error, its halves are tried, down to the record that causes the error: the
    other records must not be affected.
    """
    points = np.repeat(point, len(records), axis=0)
    one_record_each = np.arange(len(records) + 1), records
    try:
        rows = np.asarray(problem.gradient(points, one_record_each), np.float64)
    except MemoryError:
        raise
    except Exception:
        if len(records) == 1:
            return np.full((1, point.shape[1]), np.nan)
        half = len(records) // 2
        parts = records[:half], records[half:]
        return np.concatenate([_gradients(problem, point, part) for part in parts])
    without_decay: Floats = rows - problem.regularization * np.asarray(point, np.float64)
    return without_decay


MOST_RECORDS = 2**16
"""Largest number of records in a float32 mean.

With so many, rounding the mean and its step moves them by 0.8% of the effect of a record."""

PAIRS = 4
"""Number of pairs of records of each node that `require_clipped_records` tests."""


def mean_gradients(
    problem: GradientProblem, point: Floats, batches: Batches, *, clipping_norm: float | None
) -> Floats:
    """Return each node's mean clipped gradient at its point, weight decay included.

    A problem of a user gets a read-only copy of the point, and the length of its mean gradient is
    checked. See also `require_clipped_records`.

    Parameters
    ----------
    problem
        Problem with a method ``gradient``.
    point
        Model of each node, shape (nodes, dim).
    batches
        Records of each node: see the module.
    clipping_norm
        Largest L2 norm of a record's gradient; None for no clipping.

    Returns
    -------
    Shape (nodes, dim).

    Raises
    ------
    ValueError
        If a mean gradient without weight decay is longer than `clipping_norm`, up to rounding, or a
        float32 batch has more than `MOST_RECORDS` records.
    """
    if point.itemsize == 4:
        _check_sizes(batches)
    if type(problem) is LinearProblem:
        return problem.gradient(point, batches, clipping_norm=clipping_norm)
    custom: Any = problem
    g: Floats = custom.gradient(read_only(point.copy()), batches, clipping_norm=clipping_norm)
    if clipping_norm is not None:
        decay = problem.regularization
        without_decay = kernels.weighted_sum((1.0, g), (-decay, point))
        rounding = 1e-4 * (clipping_norm + decay * kernels.row_norms(point))
        if (kernels.row_norms(without_decay) > clipping_norm + rounding).any():
            fail("problem", f"gradients clipped to {clipping_norm:g} each", "longer ones")
    return g


def gradient_step(
    problem: GradientProblem,
    point: Floats,
    step_size: float,
    batches: Batches,
    *,
    clipping_norm: float | None,
) -> Floats:
    """Return ``point - step_size * gradient``, shape (nodes, dim), by `mean_gradients`.

    In float32, a problem of this package computes the step in its method `step`, which rounds only
    the result. A gradient rounded before the step could have a larger error than the result.
    """
    stepping_problem: Any = problem
    rounds_once = type(problem) is LinearProblem or isinstance(problem, DenseProblem)
    if rounds_once and point.itemsize == 4:
        _check_sizes(batches)
        moved: Floats = stepping_problem.step(
            point, step_size, batches, clipping_norm=clipping_norm
        )
        return moved
    g = mean_gradients(problem, point, batches, clipping_norm=clipping_norm)
    return kernels.weighted_sum((1.0, point), (-step_size, g))


def _check_sizes(batches: Batches) -> None:
    """Raise a ValueError if a batch has so many records that float32 rounds their mean too much."""
    if isinstance(batches, tuple):
        indptr, _ = batches
        largest = np.diff(indptr).max(initial=0)
    else:
        largest = batches.shape[1]
    if largest > MOST_RECORDS:
        expected = f"at most {MOST_RECORDS} records in a batch, or features in float64"
        fail("problem", expected, largest)


def require_clipped_records(
    problem: GradientProblem,
    point: Floats,
    clipping_norm: float,
    *,
    norm: Norm = "l2",
    by: Literal["gradient", "step"] = "gradient",
) -> None:
    """Test on a few records that a user's problem clips the gradient of each record by itself.

    The mean gradient of two records must be the mean of their two clipped gradients. A few pairs of
    records of each node are tried, at the clipping norm and at a much smaller norm, which nearly
    all gradients exceed. If a problem clipped the mean instead, the two results would differ. It is
    a spot check, and no proof: the author of the problem is responsible for the clipping.

    Parameters
    ----------
    problem
        The problem. Methods that this package implements are not tested.
    point
        Models of the nodes, shape (nodes, dim).
    clipping_norm
        Largest norm of a record's gradient.
    norm
        Norm that is clipped: ``"l2"`` or ``"l1"``.
    by
        Method that the algorithm calls.

    Raises
    ------
    ValueError
        If records are clipped together, or not at all.
    """
    defining_module = getattr(getattr(type(problem), by), "__module__", None) or ""
    if defining_module.startswith("dpmesh."):
        return
    indptr, records = problem.records_of(np.arange(len(point)))
    counts = np.diff(indptr)
    if counts.min(initial=1) == 0:
        return
    generator = np.random.default_rng(0)
    rounding = 1e-6 * problem.regularization * kernels.row_norms(point, norm=norm)
    for longest in (clipping_norm, clipping_norm / 1024):
        for _ in range(PAIRS):
            # Each node's pair: a random record but for the last, and the last one.
            first = (generator.random(len(point)) * (counts - 1)).astype(np.int64)
            pair = records[indptr[:-1, np.newaxis] + np.stack([first, counts - 1], axis=1)]
            first_gradient = _clipped_mean(problem, point, pair[:, :1], longest, norm, by)
            last_gradient = _clipped_mean(problem, point, pair[:, 1:], longest, norm, by)
            pair_mean = _clipped_mean(problem, point, pair, longest, norm, by)
            expected_mean = (first_gradient + last_gradient) / 2
            errors = [
                kernels.row_norms(pair_mean - expected_mean, norm=norm),
                kernels.row_norms(first_gradient, norm=norm) - longest,
                kernels.row_norms(last_gradient, norm=norm) - longest,
            ]
            if (np.max(errors, axis=0) > 1e-3 * longest + rounding).any():
                expected = "the mean of its records' gradients, each clipped by itself"
                fail("problem", expected, "records that are clipped together, or not at all")


def _clipped_mean(
    problem: Any, point: Floats, batches: Indices, longest: float, norm: Norm, by: str
) -> Floats:
    """Return each node's mean clipped gradient on its row of records, without weight decay.

    By the method ``step`` it is the effect of a step of size 1.
    """
    copy = read_only(point.copy())
    decay = problem.regularization
    if by == "step":
        moved = problem.step(copy, 1.0, batches, clipping_norm=longest, norm=norm, radius=None)
        g = point - moved
    else:
        ends = np.arange(len(point) + 1) * batches.shape[1]
        g = problem.gradient(copy, (ends, batches.ravel()), clipping_norm=longest)
    without_decay: Floats = np.asarray(g, np.float64) - decay * point
    return without_decay


def projected_step(
    problem: LinearProblem,
    point: Floats,
    step_size: float,
    batches: Batches,
    *,
    clipping_norm: float,
    norm: Norm,
    radius: float | None,
) -> Floats:
    """Step against the mean clipped gradients by `problem.step`, and project onto a ball.

    A user's subclass of `LinearProblem` gets a read-only copy of the point, and the length of its
    steps is checked.

    Parameters
    ----------
    problem
        The problem.
    point
        Model of each node, shape (nodes, dim).
    step_size
        Learning rate.
    batches
        Records of each node: see the module.
    clipping_norm
        Largest norm of a record's gradient.
    norm
        Norm that is clipped: ``"l2"`` or ``"l1"``.
    radius
        L2 radius of the ball around 0; None for no projection.

    Returns
    -------
    Shape (nodes, dim).

    Raises
    ------
    ValueError
        If a step is longer than a mean of clipped gradients allows, up to rounding.
    """
    is_exact_class = type(problem) is LinearProblem
    start = point if is_exact_class else read_only(point.copy())
    w: Floats = problem.step(
        start, step_size, batches, clipping_norm=clipping_norm, norm=norm, radius=radius
    )
    if is_exact_class:
        return w
    decayed = kernels.weighted_sum((1 - step_size * problem.regularization, point))
    if radius is not None:
        decayed = kernels.clip_rows(decayed, radius)
    distance = kernels.row_norms(w - decayed, norm=norm)
    longest = 1.0001 * step_size * clipping_norm + 1e-6 * kernels.row_norms(decayed, norm=norm)
    if (distance > longest).any():
        fail("problem", f"steps along gradients clipped to {clipping_norm:g} each", "longer ones")
    return w


def gradient_sums(
    problem: GradientProblem,
    point: Floats,
    batches: Ragged,
    *,
    clipping_norm: float | None,
    norm: Norm = "l2",
) -> Floats:
    """Return each node's sum of record gradients, shape (nodes, dim), without weight decay.

    Each gradient is clipped to `clipping_norm`, or not at all if that is None. Problems of this
    package compute the sums themselves; sums of users' problems come from `clipped_gradient_sums`.

    Raises
    ------
    ValueError
        If a user's problem is to be clipped in L1 norm, or not at all.
    """
    if type(problem) is LinearProblem or isinstance(problem, DenseProblem):
        return problem.gradient_sum(point, batches, clipping_norm=clipping_norm, norm=norm)
    if clipping_norm is None or norm != "l2":
        expected = "one of this package: gradients of others are clipped here, in L2 norm"
        fail("problem", expected, type(problem).__name__)
    return clipped_gradient_sums(problem, point, batches, clipping_norm)


def step_by_sums(
    problem: LinearProblem,
    point: Floats,
    step_size: float,
    batches: Ragged,
    divisors: Numbers,
    *,
    clipping_norm: float,
    norm: Norm,
    radius: float | None,
) -> Floats:
    """Step against `gradient_sums` over public divisors, and project onto a ball.

    A sum over a batch of random size is divided by the expected size, since the size of the batch
    is private.

    Parameters
    ----------
    problem, point, step_size, batches, clipping_norm, norm, radius
        As in `projected_step`.
    divisors
        Expected size of each node's batch, shape (nodes,).
    """
    first_divisor = float(divisors[0])
    if type(problem) is LinearProblem and (divisors == first_divisor).all():
        return problem.step(
            point,
            step_size,
            batches,
            divide_by=first_divisor,
            clipping_norm=clipping_norm,
            norm=norm,
            radius=radius,
        )
    g = gradient_sums(problem, point, batches, clipping_norm=clipping_norm, norm=norm)
    moved = (1 - step_size * problem.regularization) * point.astype(np.float64)
    moved -= step_size / divisors[:, np.newaxis] * g
    w: Floats = moved.astype(point.dtype)
    if radius is None:
        return w
    return kernels.clip_rows(w, radius, out=w)


def require_each_record_once(problem: object) -> None:
    """Check that a problem does not override the choice of each round's records.

    Raises
    ------
    ValueError
        If it does: a record could then be used in several rounds.
    """
    for name in ("batch", "allocated"):
        method = getattr(type(problem), name, None)
        if method is not None and method is not getattr(PartitionedProblem, name):
            got = f"{type(problem).__name__}.{name}"
            fail("problem", "batches in the order of its partition, each record once", got)
