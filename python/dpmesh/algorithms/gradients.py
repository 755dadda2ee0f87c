"""Gradients of problems, those of users' own among them."""

from __future__ import annotations

from typing import Any

import dpmesh.kernels as kernels
from dpmesh._ragged import Ragged
from dpmesh._validate import fail
from dpmesh.kernels._arrays import read_only
from dpmesh.privacy.types import Floats
from dpmesh.problems import LinearProblem


def gradient_of(
    problem: Any, point: Floats, batches: Ragged, *, clipping_norm: float | None
) -> Floats:
    """Return the mean gradients at `point`, as `problem.gradient` does.

    A problem of a user's own, or with a gradient of its own, cannot write to the point, and the
    guarantee does not rest on it for the clipping.

    Raises
    ------
    ValueError
        If gradients are longer than means of clipped ones, up to rounding.
    """
    if type(problem) is LinearProblem:
        return problem.gradient(point, batches, clipping_norm=clipping_norm)
    point = read_only(point.copy())
    g: Floats = problem.gradient(point, batches, clipping_norm=clipping_norm)
    if clipping_norm is not None:
        decay = problem.regularization
        of_losses = kernels.weighted_sum((1.0, g), (-decay, point))
        longest = clipping_norm + 1e-4 * (clipping_norm + decay * kernels.row_norms(point))
        if (kernels.row_norms(of_losses) > longest).any():
            fail("problem", f"gradients clipped to {clipping_norm:g} each", "longer ones")
    return g
