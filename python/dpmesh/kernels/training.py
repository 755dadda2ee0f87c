"""Local training of many nodes on linear models, each within a ball around one common model."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._arrays import FloatArray, integers, ragged
from dpmesh._memory import empty
from dpmesh._ragged import Walks
from dpmesh._validate import fail, non_negative, positive
from dpmesh.kernels.linear_model import Features, Loss, model_parts


def linear_training(
    start: npt.ArrayLike,
    features: Features,
    labels: npt.ArrayLike,
    walks: Walks,
    loss: Loss,
    *,
    step_size: float,
    radius: float,
    classes: int | None = None,
    regularization: float = 0.0,
    form: Literal["direct", "span"] | None = None,
) -> tuple[FloatArray, npt.NDArray[np.float64]]:
    """Moves of nodes that start from one model, each trained on its own sequence of batches.

    Each batch of a node's walk moves its model ``w``, which stays within a ball around ``w0``::

        w <- w0 + clip(w - step_size * gradient(w) - w0, radius)

    with the gradient of its objective as in `linear_gradient`, and the clip in L2.

    Parameters
    ----------
    start
        The common model ``w0``, shape (1, outputs * dim), float32 or float64, where outputs is
        `classes` or 1.
    features, labels, loss, classes, regularization
        As in `linear_gradient`.
    walks
        The batches of each node in the order of its steps; nodes may take none, batches be empty.
    step_size
        Of all steps, at least 0.
    radius
        L2 distance from `start` that no model exceeds, at least 1e-30.
    form
        How it is computed: ``"direct"`` updates the parameters, ``"span"`` their coefficients in
        the span of the node's records, by the records' Gram matrix. Both agree up to rounding; None
        takes for each node the one with fewer operations.

    Returns
    -------
    The updates ``w - w0``, shape (nodes, outputs * dim), and each node's objective on its first
    batch at ``w0``, shape (nodes,), NaN for a node without steps.

    Raises
    ------
    ValueError
        If a shape or type does not fit, a record index is out of range, a label does not suit the
        loss, or a setting is out of range. NaN and infinity are passed on.
    """
    start, model = model_parts(start, features, labels, loss, classes, argument="start")
    if len(start) != 1:
        fail("start", "1 model", f"{len(start)}")
    if not isinstance(walks, Walks):
        fail("walks", "Walks(steps, batches)", type(walks).__name__)
    steps = integers("walks", walks.steps, ndim=1)
    indptr, indices = ragged("walks", walks.batches)
    nodes = max(0, len(steps) - 1)
    moves = empty((nodes, start.shape[1]), start.dtype)
    losses = np.empty(nodes)
    _core.linear_training(
        start,
        model,
        (steps, (indptr, indices)),
        non_negative("step_size", step_size),
        positive("radius", radius),
        non_negative("regularization", regularization),
        form,
        moves,
        losses,
    )
    return moves, losses
