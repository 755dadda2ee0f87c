"""Gradients and steps of problems, those of users' own among them."""

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

_NUMBERS_AT_ONCE = 1 << 22  # of gradients of single records


def clipped_gradient_sums(
    problem: GradientProblem, point: Floats, batches: Ragged, clipping_norm: float
) -> Sensitive:
    """Return each node's sum of its records' gradients at its point, each clipped to an L2 norm.

    The clipping is the package's own. A problem that clips the gradients of its records by itself
    has a method ``clipped_sums``: linear models and networks do. Of another problem, and of a
    subclass with a gradient of its own, gradients are taken record by record and clipped here, in
    float64. A record whose gradient is NaN, infinite or raises an error counts as 0, so that no
    record moves a sum by more than `clipping_norm`.

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
    """A problem that clips the gradients of its records by itself."""

    def clipped_sums(self, params: Floats, batches: Ragged, clipping_norm: float) -> Sensitive:
        """Return the sum of each node's record gradients, each of L2 norm at most `clipping_norm`.

        Shape (nodes, dim), float64, without weight decay. A record whose gradient is not finite
        adds 0. A record's part must not depend on other records.
        """


def clips_records(problem: object) -> TypeGuard[ClipsRecords]:
    """Return True if a problem has ``clipped_sums`` and no subclass changes the gradient."""
    for kind in type(problem).__mro__:
        if "clipped_sums" in vars(kind):
            return True
        if "gradient" in vars(kind):
            return False
    return False


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


MOST_RECORDS = 2**16
"""Of a mean in float32: its rounding and that of its step move it by 0.8% of what a record does."""

PAIRS = 4
"""So many pairs of records of each node are tested."""


def gradient_of(
    problem: GradientProblem, point: Floats, batches: Batches, *, clipping_norm: float | None
) -> Floats:
    """Return the mean gradients at `point`, as `problem.gradient` does.

    A problem of a user's own, or with a gradient of its own, gets a copy of the point, to which it
    cannot write, and the length of its mean gradient is checked; see also `check_records`.

    Raises
    ------
    ValueError
        If gradients are longer than means of clipped ones, up to rounding, or a batch has more than
        `MOST_RECORDS` of them in float32.
    """
    if point.itemsize == 4:
        _check_sizes(batches)
    if type(problem) is LinearProblem:
        return problem.gradient(point, batches, clipping_norm=clipping_norm)
    custom: Any = problem
    g: Floats = custom.gradient(read_only(point.copy()), batches, clipping_norm=clipping_norm)
    if clipping_norm is not None:
        decay = problem.regularization
        of_losses = kernels.weighted_sum((1.0, g), (-decay, point))
        longest = clipping_norm + 1e-4 * (clipping_norm + decay * kernels.row_norms(point))
        if (kernels.row_norms(of_losses) > longest).any():
            fail("problem", f"gradients clipped to {clipping_norm:g} each", "longer ones")
    return g


def descended(
    problem: GradientProblem,
    point: Floats,
    step_size: float,
    batches: Batches,
    *,
    clipping_norm: float | None,
) -> Floats:
    """Return ``point - step_size * gradient``, see `gradient_of`.

    In float32 a problem of this package makes it by its `step`, which rounds it once: a gradient
    with its weight decay would be rounded on its own, however small the sum is.
    """
    stepping: Any = problem
    rounds_once = type(problem) is LinearProblem or isinstance(problem, DenseProblem)
    if rounds_once and point.itemsize == 4:
        _check_sizes(batches)
        moved: Floats = stepping.step(point, step_size, batches, clipping_norm=clipping_norm)
        return moved
    g = gradient_of(problem, point, batches, clipping_norm=clipping_norm)
    return kernels.weighted_sum((1.0, point), (-step_size, g))


def _check_sizes(batches: Batches) -> None:
    """Fail if a mean over float32 records would be rounded by more than the noise covers."""
    ends = batches[0] if isinstance(batches, tuple) else [0, batches.shape[1]]
    most = np.diff(ends).max(initial=0)
    if most > MOST_RECORDS:
        fail("problem", f"at most {MOST_RECORDS} records in a batch, or features in float64", most)


def check_records(
    problem: GradientProblem,
    point: Floats,
    clipping_norm: float,
    *,
    norm: Norm = "l2",
    by: Literal["gradient", "step"] = "gradient",
) -> None:
    """Fail unless a problem of a user's own clips the gradient of each record by itself.

    The gradient of a pair of records must be the mean of the clipped gradients of the two. A few
    pairs of each node are tried, at the clipping norm and at a much smaller one, which nearly all
    gradients exceed: there, clipping the mean instead would differ. It is a spot check; the proof
    is for the problem's author.

    Parameters
    ----------
    problem
        Any. Methods of this package are not tested: they clip in one kernel.
    point
        The models, shape (nodes, dim).
    clipping_norm, norm
        What each record's gradient is clipped to.
    by
        The method that the algorithm calls.

    Raises
    ------
    ValueError
        If records are clipped together, or not at all.
    """
    written_in = getattr(getattr(type(problem), by), "__module__", None) or ""
    if written_in.startswith("dpmesh."):
        return
    indptr, records = problem.records_of(np.arange(len(point)))
    counts = np.diff(indptr)
    if counts.min(initial=1) == 0:
        return
    draw = np.random.default_rng(0)
    slack = 1e-6 * problem.regularization * kernels.row_norms(point, norm=norm)
    for longest in (clipping_norm, clipping_norm / 1024):
        for _ in range(PAIRS):
            first = (draw.random(len(point)) * (counts - 1)).astype(np.int64)
            pair = records[indptr[:-1, np.newaxis] + np.stack([first, counts - 1], axis=1)]
            batches = pair[:, :1], pair[:, 1:], pair
            first_mean, last_mean, pair_mean = (
                _mean(problem, point, batch, longest, norm, by) for batch in batches
            )
            difference = kernels.row_norms(pair_mean - (first_mean + last_mean) / 2, norm=norm)
            excesses = [
                kernels.row_norms(mean, norm=norm) - longest for mean in (first_mean, last_mean)
            ]
            if (np.max([difference, *excesses], axis=0) > 1e-3 * longest + slack).any():
                expected = "the mean of its records' gradients, each clipped by itself"
                fail("problem", expected, "records that are clipped together, or not at all")


def _mean(
    problem: Any, point: Floats, batches: Indices, longest: float, norm: Norm, by: str
) -> Floats:
    """Return the mean of clipped gradients of each row of records, without weight decay."""
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


def step_of(
    problem: LinearProblem,
    point: Floats,
    step_size: float,
    batches: Batches,
    *,
    clipping_norm: float,
    norm: Norm,
    radius: float | None,
) -> Floats:
    """Return the points after one step each, as `problem.step` does; held as by `gradient_of`.

    Raises
    ------
    ValueError
        If losses move a point further than means of clipped gradients do, up to rounding.
    """
    is_own_class = type(problem) is LinearProblem
    start = point if is_own_class else read_only(point.copy())
    w: Floats = problem.step(
        start, step_size, batches, clipping_norm=clipping_norm, norm=norm, radius=radius
    )
    if is_own_class:
        return w
    without = kernels.weighted_sum((1 - step_size * problem.regularization, point))
    if radius is not None:
        without = kernels.clip_rows(without, radius)
    moved = kernels.row_norms(w - without, norm=norm)
    longest = 1.0001 * step_size * clipping_norm + 1e-6 * kernels.row_norms(without, norm=norm)
    if (moved > longest).any():
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
    """Return the sum of the gradients of each node's batch, without weight decay, each clipped.

    Those of this package's problems are their own, `clipped_gradient_sums` makes those of others.

    Raises
    ------
    ValueError
        If a problem of a user's own is to be clipped in L1 norm, or not at all.
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
    """Return the points after one step each along `gradient_sums` over public divisors.

    A batch of random size is divided by its expected size: its own would be a private number.
    """
    first = float(divisors[0])
    if type(problem) is LinearProblem and (divisors == first).all():
        return problem.step(
            point,
            step_size,
            batches,
            divide_by=first,
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


def check_batches(problem: object) -> None:
    """Fail if a problem chooses by itself which records arrive in a round.

    Raises
    ------
    ValueError
        If it does: a record could arrive in several rounds.
    """
    for name in ("batch", "allocated"):
        override = getattr(type(problem), name, None)
        if override is not None and override is not getattr(PartitionedProblem, name):
            got = f"{type(problem).__name__}.{name}"
            fail("problem", "batches in the order of its partition, each record once", got)
