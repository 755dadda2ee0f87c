"""Linear models: losses, gradients and gradient steps of many nodes on batches of shared records.

With the score ``z = <w, x>`` of a record and its label ``y`` the losses are

================  =======================================  =========================================
``"logistic"``    ``log(1 + exp(-y z))``                   labels -1 and +1
``"hinge"``       ``max(0, 1 - y z)``; the subgradient at  labels -1 and +1
                  the kink ``y z = 1`` is 0
``"squared"``     ``(z - y)^2 / 2``                        real targets
``"huber"``       ``(z - y)^2 / 2`` up to ``|z - y| = 1``  real targets; for a limit h instead of
                  and ``|z - y| - 1/2`` beyond             1, divide all targets by h
``"poisson"``     ``exp(z) - y z`` up to ``z = 0``, and    counts as shares of their public bound:
                  its tangent ``1 + (1 - y) z`` beyond     ``exp(z)`` is the expected share
``"absolute"``    ``|z - y|``; the subgradient at the      real targets
                  kink ``z = y`` is 0
``"softmax"``     ``log(sum_k exp(z_k)) - z_y``            `classes` scores, labels 0..classes-1
``"multilabel"``  ``sum_k log(1 + exp(-y_k z_k))``         sets of labels: ``y_k`` is +1 where bit
                                                           k of the label is 1, else -1
================  =======================================  =========================================

With `classes`, losses other than softmax, multilabel and poisson are trained one-vs-all: one model
for each class, with target +1 for the records of its class and -1 for the others. The models'
losses add up. The parameters of a node are the concatenated parameters of its models.

The objective of a node on its batch is the sum of its records' losses, divided by the length of the
batch or by `divide_by`, plus ``regularization / 2 |w|^2`` for the node's parameters w.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._arrays import FloatArray, floats, integers, per_row, ragged
from dpmesh._core import is_float_array, is_index_array
from dpmesh._ragged import Numbers, Walks
from dpmesh._rounded import RoundedFeatures
from dpmesh._validate import fail, non_negative, positive
from dpmesh.kernels.linear_model import (
    REGRESSION,
    Batches,
    Features,
    Loss,
    batch_arrays,
    check_loss,
    feature_parts,
    label_array,
    members,
)
from dpmesh.kernels.projection import Norm


class LinearModel:
    """Losses, gradients and gradient steps of linear models at many nodes, on shared records.

    All methods share two parameters:

    - `params`: the model of each node, shape (nodes, outputs * dim), in the type of the features.
      The number of outputs is `classes`, or 1 without classes.
    - `batches`: the record indices of each node's batch. Either an integer array of shape
      (nodes, batch_size), or a pair ``(indptr, indices)`` for batches of different lengths, where
      node i has the records ``indices[indptr[i]:indptr[i + 1]]``. Records may occur repeatedly.

    The objective of a node is the sum of the losses of its batch, divided by the length of the
    batch or by `divide_by`, plus ``regularization / 2 |w|^2`` for the parameters w of the node.

    Parameters
    ----------
    features
        Shape (records, dim), float32 or float64: an array, or a scipy CSR matrix with sorted,
        unique column indices (32 or 64 bits), which is never made dense. It must not change.
    labels
        Labels, shape (records,), as the loss requires.
    loss
        With score ``z = <w, x>`` and label y: ``"logistic"`` and ``"hinge"`` (y is -1 or +1),
        ``"squared"``, ``"huber"`` and ``"absolute"`` (real y), ``"poisson"`` (counts as shares of a
        public bound), ``"softmax"`` (y from 0 to ``classes - 1``), or ``"multilabel"`` (bit k of y
        is label k). `dpmesh.kernels.linear` lists the formulas.
    classes
        Number of classes; None for one model of binary labels or real targets. Losses other than
        softmax, poisson and multilabel are then trained one-vs-all, a model for each class.
    weights
        Weight of each record's loss, shape (records,), in [0, 1]; None for weights of 1. Gradients
        are clipped after the weighting. Weights of at most 1 keep all bounds on gradients.

    Raises
    ------
    ValueError
        If an argument is invalid. Methods raise it for a wrong shape or type, for the index of a
        record that does not exist, and for a label that does not suit the loss. NaN and infinity
        are passed on, as in numpy.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> model = dm.kernels.LinearModel([[1.0, 0.0], [0.0, 1.0]], [1, -1], "logistic")
    >>> model.gradient(np.zeros((1, 2)), [[0, 1]])
    array([[-0.25,  0.25]])
    """

    def __init__(
        self,
        features: Features,
        labels: npt.ArrayLike,
        loss: Loss,
        *,
        classes: int | None = None,
        weights: npt.ArrayLike | None = None,
    ) -> None:
        arrays, records = feature_parts(features)
        check_loss(loss, classes)
        if classes is not None:
            classes = int(classes)
        self.features = features
        self.loss = loss
        self.classes = classes
        self.labels = label_array(labels, records, classes)
        self.weights = None if weights is None else _checked_weights(weights, records)
        optional = () if self.weights is None else (self.weights,)
        self._native = _core.LinearModel(arrays, self.labels, loss, classes, *optional)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.features, self.labels, self.loss, self.classes, self.weights)

    def gradient(
        self,
        params: npt.ArrayLike,
        batches: Batches,
        *,
        regularization: float = 0.0,
        clipping_norm: float | None = None,
        norm: Norm = "l2",
        divide_by: float | None = None,
        out: FloatArray | None = None,
    ) -> FloatArray:
        """Compute the gradient of each node's objective on its batch, at the node's parameters.

        Parameters
        ----------
        params, batches
            See the class.
        regularization
            Factor of ``|w|^2 / 2``, which is added after the division.
        clipping_norm
            Largest norm of the gradient of one record's loss, at least 1e-30; longer gradients are
            clipped before the division. The norm is over all models of a node together. None for no
            clipping.
        norm
            ``"l2"`` or ``"l1"``: the norm that `clipping_norm` bounds.
        divide_by
            Divisor of the sum over the batch, such as a public expected size; None for the length
            of the batch (a node without records then has the gradient of its regularizer).
        out
            Array like `params` that receives the result.

        Returns
        -------
        An array of the shape and type of `params`.
        """
        return self._native.gradient(
            params if is_float_array(params) else floats("params", params),
            batches if is_index_array(batches) else batch_arrays(batches),
            regularization,
            divide_by,
            clipping_norm,
            norm,
            out,
        )

    def clipped_sums(
        self, params: npt.ArrayLike, batches: Batches, *, clipping_norm: float, norm: Norm = "l2"
    ) -> Numbers:
        """Sum the clipped gradients of the records of each node, in float64, as in DP-SGD.

        The vector that a record adds has a norm of at most `clipping_norm`, exactly and not only up
        to rounding. A record whose gradient is NaN or infinite adds 0, and does not change the
        contribution of other records. The bits of the result depend neither on the number of
        threads nor on the floating-point type of the features.

        Parameters
        ----------
        params
            Parameters of each node, shape (nodes, outputs * dim), float32 or float64.
        batches
            See the class.
        clipping_norm, norm
            As in `gradient`.

        Returns
        -------
        Shape (nodes, outputs * dim), float64; 0 for a node without records.
        """
        return self._native.clipped_sums(
            np.ascontiguousarray(floats("params", params), np.float64),
            batches if is_index_array(batches) else batch_arrays(batches),
            clipping_norm,
            norm,
        )

    def step(
        self,
        params: npt.ArrayLike,
        step_size: npt.ArrayLike,
        batches: Batches,
        *,
        regularization: float = 0.0,
        clipping_norm: float | None = None,
        norm: Norm = "l2",
        divide_by: float | None = None,
        radius: float | None = None,
        out: FloatArray | None = None,
    ) -> FloatArray:
        """Take one gradient step at each node: ``params - step_size * gradient(params, ...)``.

        In place (``out=params``) and without regularization, the time of a step on sparse records
        is proportional to their number of stored values: other parameters are not read.

        Parameters
        ----------
        params, batches
            See the class.
        step_size
            Learning rate, finite and at least 0: a number, or one for each node, shape (nodes,).
        regularization, clipping_norm, norm, divide_by
            As in `gradient`.
        radius
            If given, parameters are projected onto the ball of this radius around 0 after the step,
            as `clip_rows` does.
        out
            Array like `params` that receives the result; it may be `params` itself.

        Returns
        -------
        An array of the shape and type of `params`; `out` if it was given.

        Raises
        ------
        ValueError
            As by all methods. Also if parameters to be projected are NaN or infinite after the
            step; the content of `out` is then undefined.
        """
        return self._native.step(
            params if is_float_array(params) else floats("params", params),
            step_size if type(step_size) is float else per_row("step_size", step_size),
            batches if is_index_array(batches) else batch_arrays(batches),
            regularization,
            divide_by,
            clipping_norm,
            norm,
            radius,
            out,
        )

    def train(
        self,
        start: npt.ArrayLike,
        walks: Walks,
        *,
        step_size: float,
        radius: float,
        regularization: float = 0.0,
        form: Literal["direct", "span"] | None = None,
    ) -> tuple[FloatArray, Numbers]:
        """Train each node from a common model by local gradient steps, and return the updates.

        Each node takes one projected gradient step on each batch of its sequence in `walks`. The
        model ``w`` stays within an L2 ball around the common model ``w0``::

            w <- w0 + clip(w - step_size * gradient(w) - w0, radius)

        Here the gradient is the one of the node's objective on the batch, as in `gradient`.

        Parameters
        ----------
        start
            The common model ``w0``, shape (1, outputs * dim).
        walks
            Batches of each node, in the order of its steps. A node may have no steps, and a batch
            may be empty.
        step_size
            Learning rate of all steps, at least 0.
        radius
            Largest L2 distance of a model from `start`, at least 1e-30.
        regularization
            As in `gradient`.
        form
            Form of the computation. ``"direct"`` updates the parameters; ``"span"`` updates their
            coefficients in the span of the node's records, by the records' Gram matrix. Both agree
            up to rounding. None chooses for each node the form with fewer operations.

        Returns
        -------
        The updates ``w - w0``, shape (nodes, outputs * dim), and each node's objective on its first
        batch at ``w0``, shape (nodes,), NaN for a node without steps.
        """
        start = floats("start", start, ndim=2)
        if len(start) != 1:
            fail("start", "1 model", f"{len(start)}")
        if not isinstance(walks, Walks):
            fail("walks", "Walks(steps, batches)", type(walks).__name__)
        return self._native.train(
            start,
            (integers("walks", walks.steps, ndim=1), ragged("walks", walks.batches)),
            non_negative("step_size", step_size),
            positive("radius", radius),
            non_negative("regularization", regularization),
            form,
        )

    def losses(
        self,
        params: npt.ArrayLike,
        batches: Batches,
        *,
        regularization: float = 0.0,
        divide_by: float | None = None,
    ) -> Numbers:
        """Compute the objective of each node on its batch, at the node's parameters.

        Parameters
        ----------
        params, batches
            See the class.
        regularization, divide_by
            As in `gradient`. With ``divide_by=1`` the result is the sum over the batch.

        Returns
        -------
        Shape (nodes,).
        """
        return self._losses(params, batches, regularization, divide_by, of_classes=False)

    def class_losses(
        self,
        params: npt.ArrayLike,
        batches: Batches,
        *,
        regularization: float = 0.0,
        divide_by: float | None = None,
    ) -> Numbers:
        """Compute the objective of each one-vs-all model of each node on the node's batch.

        `losses` returns the sum over the models of a node.

        Parameters
        ----------
        params, batches
            See the class. The loss must not be ``"softmax"``, which has a single model.
        regularization, divide_by
            As in `losses`.

        Returns
        -------
        Shape (nodes, classes).
        """
        if self.loss == "softmax" or self.classes is None:
            got = f"{self.loss!r} with classes={self.classes}"
            fail("loss", "a loss of one model for each class", got)
        return self._losses(params, batches, regularization, divide_by, of_classes=True)

    def _losses(
        self,
        params: npt.ArrayLike,
        batches: Batches,
        regularization: float,
        divide_by: float | None,
        *,
        of_classes: bool,
    ) -> Numbers:
        return self._native.losses(
            params if is_float_array(params) else floats("params", params),
            batches if is_index_array(batches) else batch_arrays(batches),
            regularization,
            divide_by,
            of_classes,
        )

    def record_losses(self, params: npt.ArrayLike, batches: Batches) -> Numbers:
        """Compute the loss of each record of each node's batch, at the node's parameters.

        Parameters
        ----------
        params, batches
            See the class.

        Returns
        -------
        Shape (nodes, batch_size), or the shape of ``indices`` for batches of different lengths.
        """
        return self._native.record_losses(floats("params", params), batch_arrays(batches))

    def accuracy(self, params: npt.ArrayLike) -> Numbers:
        """Compute the accuracy of each model on all records.

        With `classes` the predicted class has the largest score, the first one of equal scores.
        Otherwise the prediction is the sign of the score, where 0 counts as -1. With the loss
        ``"multilabel"`` each label is predicted by the sign of its score, and the accuracy is a
        mean over all labels.

        Parameters
        ----------
        params
            Shape (models, outputs * dim).

        Returns
        -------
        Shape (models,), numbers from 0 to 1.
        """
        if self.classes is None and self.loss in REGRESSION:
            is_no_class = np.abs(self.labels) != 1
            if is_no_class.any():
                fail("labels", "labels of -1 or +1", self.labels[is_no_class][0])
        params = floats("params", params)
        if self.loss == "multilabel" and self.classes is not None:
            return self._label_accuracy(params, self.classes)
        return self._native.count_correct(params) / len(self.labels)

    def _label_accuracy(self, params: FloatArray, classes: int) -> Numbers:
        """Return the fraction of all labels of records that each row of `params` gets right."""
        models = len(params)
        scores = linear_scores(params.reshape(models * classes, -1), self.features)
        predicted = scores.reshape(len(scores), models, classes) > 0
        is_right = predicted == members(self.labels, classes)[:, np.newaxis]
        return np.asarray(is_right.mean(axis=(0, 2)))


def _unpickled(
    features: Features, labels: Any, loss: Loss, classes: int | None, weights: Any
) -> LinearModel:
    """Return a model from its pickled parts; the object of the extension module is made anew."""
    return LinearModel(features, labels, loss, classes=classes, weights=weights)


def _checked_weights(values: npt.ArrayLike, records: int) -> Numbers:
    """Return the weights of all records as float64, after a check that they are in [0, 1]."""
    weights = np.ascontiguousarray(floats("weights", values, ndim=1), np.float64)
    if weights.shape != (records,) or not ((weights >= 0) & (weights <= 1)).all():
        fail("weights", f"{records} numbers from 0 to 1, one for each record", weights)
    return weights


def linear_scores(params: npt.ArrayLike, features: Features) -> FloatArray:
    """Compute the score ``<w, x>`` of each record x under each row w of the parameters.

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
        If an argument has a wrong type or shape.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> dm.kernels.linear_scores([[1.0, 2.0]], np.array([[1.0, 1.0], [0.0, 1.0]]))
    array([[3.],
           [2.]])
    """
    params = floats("params", params, ndim=2)
    arrays, records = feature_parts(features)
    dtype: np.dtype[np.floating[Any]]
    if isinstance(features, RoundedFeatures):
        dtype = features.dtype
    elif isinstance(arrays, tuple):
        dtype = features.data.dtype  # type: ignore[union-attr]  # of a CSR matrix
    else:
        dtype = arrays.dtype
    if dtype != params.dtype:
        fail("features", f"{params.dtype}, the type of params", dtype)
    if params.shape[1] != np.shape(features)[1]:
        fail("params", f"shape (models, {np.shape(features)[1]})", f"shape {params.shape}")
    scores = np.empty((records, len(params)), dtype=params.dtype)
    _core.linear_scores(params, arrays, scores)
    return scores
