"""Linear models: losses, gradients and gradient steps of many nodes on batches of shared records.

With the score ``z = <w, x>`` of a record and its label ``y`` the losses are

==============  =======================================  =========================================
``"logistic"``  ``log(1 + exp(-y z))``                   labels -1 and +1
``"hinge"``     ``max(0, 1 - y z)``; the subgradient at  labels -1 and +1
                the kink ``y z = 1`` is 0
``"squared"``   ``(z - y)^2 / 2``                        real targets
``"softmax"``   ``log(sum_k exp(z_k)) - z_y``            `classes` scores, labels 0..classes-1
==============  =======================================  =========================================

Given `classes`, the first three are trained one-vs-all: one model for each class, with target +1
for the records of its class and -1 for the others; the models' losses add up. The parameters of a
node are then the rows of its models, one after the other.

The objective of node ``i`` on its batch is the sum of its records' losses, divided by the length of
the batch or by `divide_by`, plus ``regularization / 2 |w|^2``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._arrays import FloatArray, buffer, floats
from dpmesh._validate import fail
from dpmesh.kernels.linear_model import (
    Batches,
    Features,
    Loss,
    averaging_parts,
    batch_parts,
    clipping_parts,
    feature_parts,
    model_parts,
    step_parts,
)
from dpmesh.kernels.projection import Norm


def linear_gradient(
    params: npt.ArrayLike,
    features: Features,
    labels: npt.ArrayLike,
    batches: Batches,
    loss: Loss,
    *,
    classes: int | None = None,
    regularization: float = 0.0,
    clipping_norm: float | None = None,
    norm: Norm = "l2",
    divide_by: float | None = None,
    out: FloatArray | None = None,
) -> FloatArray:
    """Gradient of each node's objective on its batch, at its own parameters.

    Parameters
    ----------
    params
        Shape (nodes, outputs * dim), float32 or float64, where outputs is `classes` or 1.
    features
        Shape (records, dim), of the type of `params`: an array, or a scipy CSR matrix with sorted,
        unique column indices (32 or 64 bits), which is never made dense.
    labels
        Shape (records,): as the loss requires them, see above.
    batches
        Records of each node: an integer array (nodes, batch_size), or ``(indptr, indices)`` for
        batches of different lengths. A record may occur more than once.
    loss
        ``"logistic"``, ``"hinge"``, ``"squared"`` or ``"softmax"``.
    classes
        Number of classes; None for one model of binary labels or real targets.
    regularization
        Factor of ``|w|^2 / 2``, which is added after the division.
    clipping_norm
        Largest norm of the gradient of one record's loss, over all the models of a node together
        (their joint norm), at least 1e-30: what one record can contribute, before the division.
    norm
        ``"l2"`` or ``"l1"``: the norm that `clipping_norm` bounds.
    divide_by
        Divisor of the sum over the batch, such as a public expected size; None for the length of
        the batch (a node without records then has the gradient of its regularizer).
    out
        Where to put the result: an array like `params`.

    Returns
    -------
    An array of the shape and type of `params`.

    Raises
    ------
    ValueError
        If an argument does not fit: a shape or type, a record that does not exist, a label that
        does not suit the loss. NaN and infinity are passed on, as numpy does.
    """
    params, model = model_parts(params, features, labels, loss, classes)
    out = buffer(out, params)
    _core.linear_gradient(
        params,
        model,
        batch_parts(batches, nodes=len(params)),
        averaging_parts(regularization, divide_by),
        clipping_parts(clipping_norm, norm),
        out,
    )
    return out


def linear_step(
    params: npt.ArrayLike,
    step_size: npt.ArrayLike,
    features: Features,
    labels: npt.ArrayLike,
    batches: Batches,
    loss: Loss,
    *,
    classes: int | None = None,
    regularization: float = 0.0,
    clipping_norm: float | None = None,
    norm: Norm = "l2",
    divide_by: float | None = None,
    radius: float | None = None,
    out: FloatArray | None = None,
) -> FloatArray:
    """One gradient step of each node: ``params - step_size * linear_gradient(params, ...)``.

    In place (``out=params``) and without regularization a step touches only the features that its
    batch holds, so sparse records cost what they store.

    Parameters
    ----------
    step_size
        One for all nodes, or one per node: shape (nodes,), finite and not negative.
    params, features, labels, batches, loss
        As in `linear_gradient`.
    classes, regularization, clipping_norm, norm, divide_by
        As in `linear_gradient`.
    radius
        If given, parameters are projected onto the ball of this radius around 0 after the step, as
        `clip_rows` does.
    out
        Where to put the result: an array like `params`, or `params` itself to work in place.

    Returns
    -------
    An array of the shape and type of `params`; `out` if it was given.

    Raises
    ------
    ValueError
        If an argument does not fit, as in `linear_gradient`, or parameters to be projected are NaN
        or infinite after the step; `out` is then undefined.
    """
    params, model = model_parts(params, features, labels, loss, classes)
    step = step_parts(step_size, radius, nodes=len(params))
    averaging = averaging_parts(regularization, divide_by)
    clipping = clipping_parts(clipping_norm, norm)
    indices = batch_parts(batches, nodes=len(params))
    if out is not None and out is params:
        _core.linear_step_in_place(out, step, model, indices, averaging, clipping)
        return out
    out = buffer(out, params)
    _core.linear_step(params, step, model, indices, averaging, clipping, out)
    return out


def linear_loss(
    params: npt.ArrayLike,
    features: Features,
    labels: npt.ArrayLike,
    batches: Batches,
    loss: Loss,
    *,
    classes: int | None = None,
    regularization: float = 0.0,
    divide_by: float | None = None,
) -> npt.NDArray[np.float64]:
    """Objective of each node on its batch, at its own parameters.

    Parameters
    ----------
    params, features, labels, batches, loss, classes, regularization, divide_by
        As in `linear_gradient`; ``divide_by=1`` gives the sum over the batch.

    Returns
    -------
    Shape (nodes,).

    Raises
    ------
    ValueError
        If an argument does not fit, as in `linear_gradient`.
    """
    params, model = model_parts(params, features, labels, loss, classes)
    losses = np.empty(len(params))
    indices = batch_parts(batches, nodes=len(params))
    _core.linear_losses(params, model, indices, averaging_parts(regularization, divide_by), losses)
    return losses


def linear_class_losses(
    params: npt.ArrayLike,
    features: Features,
    labels: npt.ArrayLike,
    batches: Batches,
    loss: Loss,
    *,
    classes: int,
    regularization: float = 0.0,
    divide_by: float | None = None,
) -> npt.NDArray[np.float64]:
    """Objective of each of a node's one-vs-all models on its batch; `linear_loss` is their sum.

    Parameters
    ----------
    params, features, labels, batches, loss, classes, regularization, divide_by
        As in `linear_gradient`, except the loss ``"softmax"``, which has one model only.

    Returns
    -------
    Shape (nodes, classes).

    Raises
    ------
    ValueError
        If an argument does not fit, as in `linear_gradient`.
    """
    params, model = model_parts(params, features, labels, loss, classes)
    if loss == "softmax" or classes is None:
        fail("loss", "a loss of one model for each class", f"{loss!r} with classes={classes}")
    losses = np.empty((len(params), classes))
    indices = batch_parts(batches, nodes=len(params))
    _core.linear_class_losses(
        params, model, indices, averaging_parts(regularization, divide_by), losses
    )
    return losses


def linear_record_losses(
    params: npt.ArrayLike,
    features: Features,
    labels: npt.ArrayLike,
    batches: Batches,
    loss: Loss,
    *,
    classes: int | None = None,
) -> npt.NDArray[np.float64]:
    """Loss of each record of each node's batch, at the node's own parameters.

    Parameters
    ----------
    params, features, labels, batches, loss, classes
        As in `linear_gradient`.

    Returns
    -------
    Shape (nodes, batch_size), or that of ``indices`` for batches of different lengths.

    Raises
    ------
    ValueError
        If an argument does not fit, as in `linear_gradient`.
    """
    params, model = model_parts(params, features, labels, loss, classes)
    parts = batch_parts(batches, nodes=len(params))
    losses = np.empty(parts[1].shape if isinstance(parts, tuple) else parts.shape)
    _core.linear_record_losses(params, model, parts, losses)
    return losses


def linear_scores(params: npt.ArrayLike, features: Features) -> FloatArray:
    """Score ``<w, x>`` of each record under each row of parameters.

    Parameters
    ----------
    params
        Shape (models, dim), float32 or float64.
    features
        Shape (records, dim), of the type of `params`, dense or CSR.

    Returns
    -------
    Shape (records, models), of the type of `params`.

    Raises
    ------
    ValueError
        If a shape or type does not fit.
    """
    params = floats("params", params, ndim=2)
    parts, records, dim = feature_parts(features, params)
    if params.shape[1] != dim:
        fail("params", f"shape (models, {dim})", f"shape {params.shape}")
    scores = np.empty((records, len(params)), dtype=params.dtype)
    _core.linear_scores(params, parts, scores)
    return scores


def linear_accuracy(
    params: npt.ArrayLike,
    features: Features,
    labels: npt.ArrayLike,
    *,
    classes: int | None = None,
) -> npt.NDArray[np.float64]:
    """Fraction of all records that each row of parameters classifies correctly.

    Parameters
    ----------
    params
        Shape (models, outputs * dim), float32 or float64, where outputs is `classes` or 1.
    features
        Shape (records, dim), of the type of `params`, dense or CSR.
    labels
        Shape (records,): -1 and +1, or classes from 0 to ``classes - 1``.
    classes
        Number of classes: the largest score decides (the first of equals). None: the sign of the
        one score decides (0 counts as -1).

    Returns
    -------
    Shape (models,), numbers from 0 to 1.

    Raises
    ------
    ValueError
        If a shape, a type or a label does not fit.
    """
    loss: Loss = "hinge" if classes is None else "softmax"
    params, model = model_parts(params, features, labels, loss, classes)
    correct = np.empty(len(params), dtype=np.int64)
    _core.linear_count_correct(params, model, correct)
    return correct / len(model[1])
