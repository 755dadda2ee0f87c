"""Gradients and steps of problems, those of users' own among them."""

from __future__ import annotations

from typing import Any

import dpmesh.kernels as kernels
from dpmesh._arrays import read_only
from dpmesh._validate import fail
from dpmesh.kernels.linear_model import Batches
from dpmesh.kernels.projection import Norm
from dpmesh.privacy.types import Floats
from dpmesh.problems import LinearProblem
from dpmesh.problems.partition import PartitionedProblem


def gradient_of(
    problem: Any, point: Floats, batches: Batches, *, clipping_norm: float | None
) -> Floats:
    """Return the mean gradients at `point`, as `problem.gradient` does.

    A problem of a user's own, or with a gradient of its own, gets a copy of the point, to which it
    cannot write. Only the length of its mean gradient is checked: that it clips each record's
    gradient before it averages them is for its author to prove.

    Raises
    ------
    ValueError
        If gradients are longer than means of clipped ones, up to rounding.
    """
    if type(problem) is LinearProblem:
        return problem.gradient(point, batches, clipping_norm=clipping_norm)
    g: Floats = problem.gradient(read_only(point.copy()), batches, clipping_norm=clipping_norm)
    if clipping_norm is not None:
        decay = problem.regularization
        of_losses = kernels.weighted_sum((1.0, g), (-decay, point))
        longest = clipping_norm + 1e-4 * (clipping_norm + decay * kernels.row_norms(point))
        if (kernels.row_norms(of_losses) > longest).any():
            fail("problem", f"gradients clipped to {clipping_norm:g} each", "longer ones")
    return g


def step_of(
    problem: Any,
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
    settings: Any = {"clipping_norm": clipping_norm, "norm": norm, "radius": radius}
    if type(problem) is LinearProblem:
        return problem.step(point, step_size, batches, **settings)
    w: Floats = problem.step(read_only(point.copy()), step_size, batches, **settings)
    without = kernels.weighted_sum((1 - step_size * problem.regularization, point))
    if radius is not None:
        without = kernels.clip_rows(without, radius)
    moved = kernels.row_norms(w - without, norm=norm)
    longest = 1.0001 * step_size * clipping_norm + 1e-6 * kernels.row_norms(without, norm=norm)
    if (moved > longest).any():
        fail("problem", f"steps along gradients clipped to {clipping_norm:g} each", "longer ones")
    return w


def check_batches(problem: Any) -> None:
    """Fail if a problem chooses by itself which records arrive in a round.

    Raises
    ------
    ValueError
        If it does: a record could arrive in several rounds.
    """
    if type(problem).batch is not PartitionedProblem.batch:
        got = f"{type(problem).__name__}.batch"
        fail("problem", "batches in the order of its partition, each record once", got)
