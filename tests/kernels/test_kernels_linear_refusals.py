"""What the kernels of linear models refuse, and how they say it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from linear_calls import (
    linear_accuracy,
    linear_class_losses,
    linear_gradient,
    linear_loss,
    linear_record_losses,
    linear_step,
)
from refused import refused
from scipy import sparse

from dpmesh import kernels

W, X, Y, B = np.zeros((1, 2)), np.ones((3, 2)), np.array([1, -1, 1]), np.zeros((1, 1), dtype=int)
W2 = np.zeros((1, 4))
COO = sparse.coo_array(X)
TWICE = sparse.csr_array((np.ones(2), [0, 0], [0, 2, 2, 2]), shape=(3, 2))


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((W[0], X, Y, B, "hinge"), {}, "params: wanted 2 axes, got shape"),
        ((W, X[0], Y, B, "hinge"), {}, "features: wanted 2 axes"),
        ((W, COO, Y, B, "hinge"), {}, "features: wanted an array or a CSR matrix, got a COO"),
        ((W, TWICE, Y, B, "hinge"), {}, "features: wanted rows of rising column indices below 2"),
        ((W, X.astype("f"), Y, B, "hinge"), {}, "features: wanted float64, the type of params"),
        ((W, X, Y[:2], B, "hinge"), {}, r"labels: wanted shape \(3,\), got shape \(2,\)"),
        ((W, X, [0, 1, 1], B, "hinge"), {}, "labels: wanted labels of -1 or \\+1, got 0"),
        ((W, X, [np.nan] * 3, B, "squared"), {}, "labels: wanted finite targets, got NaN"),
        ((W, X, ["a"] * 3, B, "hinge"), {}, "labels: wanted real numbers, got dtype"),
        ((W, X, Y, B, "gamma"), {}, "loss: wanted one of 'logistic', .*, got 'gamma'"),
        ((W, X, Y, B, "softmax"), {}, "classes: wanted the number of classes"),
        ((W, X, Y, B, "hinge"), {"classes": 1}, "classes: wanted an integer of at least 2"),
        ((W, X, Y, B, "hinge"), {"classes": 2}, r"params: wanted shape \(nodes, 4\), 2 x 2 for"),
        (([[0.0] * 4], X, Y, B + 1, "hinge"), {"classes": 2}, "labels: wanted classes from 0 to 1"),
        (([[0.0] * 4], X, Y / 2, B, "hinge"), {"classes": 2}, "labels: wanted integers, got"),
        ((W, X, Y, B / 2, "hinge"), {}, "batches: wanted integers with 2 axes, got dtype float"),
        ((W, X, Y, B[0], "hinge"), {}, "batches: wanted integers with 2 axes, got shape"),
        ((W, X, Y, [[0], [0]], "hinge"), {}, "batches: wanted one batch for each .*, got 2"),
        ((W, X, Y, B + 3, "hinge"), {}, "batches: wanted records from 0 to 2, got 3"),
        ((W, X, Y, B - 1, "hinge"), {}, "batches: wanted records from 0 to 2, got -1"),
        ((W, X, Y, (B[0],), "hinge"), {}, r"batches: wanted \(indptr, indices\), got 1 arrays"),
        ((W, X, Y, ([0, 2], [0]), "hinge"), {}, "batches: wanted an indptr that rises"),
        ((W, X, Y, ([0, 0, 1], [0]), "hinge"), {}, "batches: wanted one batch for each .*, got 2"),
        (
            (W, X, Y, B, "hinge"),
            {"regularization": -1},
            "regularization: wanted a finite .*least 0",
        ),
        ((W, X, Y, B, "hinge"), {"divide_by": 0}, "divide_by: wanted a finite .* greater than 0"),
        ((W, X, Y, B, "hinge"), {"clipping_norm": np.inf}, "clipping_norm: wanted a finite number"),
        # the squares of gradients of 1e-170 vanish, so that they would not be clipped
        ((W, X, Y, B, "hinge"), {"clipping_norm": 1e-200}, "clipping_norm: .* at least 1e-30, got"),
        ((W, X, Y, B, "hinge"), {"norm": "l0"}, "norm: wanted one of 'l1', 'l2', got 'l0'"),
        ((W, X, Y, B, "hinge"), {"out": np.zeros(2)}, r"out: wanted an array of .*\(1, 2\), .*got"),
    ],
)
def test_bad_input_is_named(arguments: Any, settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        linear_gradient(*arguments, **settings)
    with pytest.raises(ValueError, match=message):
        linear_step(arguments[0], 0.1, *arguments[1:], **settings)
    if not {"clipping_norm", "norm", "out"} & settings.keys():
        with pytest.raises(ValueError, match=message):
            linear_loss(*arguments, **settings)


test_bad_input_of_the_others_is_named = refused(
    (
        lambda: linear_step(W, [0.1, 0.1], X, Y, B, "hinge"),
        "step_size: wanted a number or one for each of 1 rows, got shape",
    ),
    (
        lambda: linear_step(W, -1, X, Y, B, "hinge"),
        "step_size: wanted a finite number of at least 0, got -1",
    ),
    (lambda: linear_step(W, np.nan, X, Y, B, "hinge"), "step_size: wanted a finite number"),
    (
        lambda: linear_step(W, 0.1, X, Y, B, "hinge", radius=0),
        "radius: wanted a finite number greater than 0, got 0",
    ),
    (
        lambda: linear_step(W + np.nan, 0.1, X, Y, B, "hinge", radius=1),
        "params: wanted finite values after the step, to project, got NaN or infinity",
    ),
    (
        lambda: linear_record_losses(W, X, Y, B + 3, "hinge"),
        "batches: wanted records from 0 to 2, got 3",
    ),
    (
        lambda: linear_class_losses(np.zeros((1, 4)), X, [0, 1, 1], B, "softmax", classes=2),
        "loss: wanted a loss of one model for each class, got 'softmax'",
    ),
    (
        lambda: linear_class_losses(W, X, Y, B, "hinge", classes=None),
        "loss: wanted a loss of one model for each class, got 'hinge' with classes=None",
    ),
    (
        lambda: linear_class_losses(np.zeros((1, 4)), X, [0, 1, 1], B + 3, "hinge", classes=2),
        "batches: wanted records from 0 to 2, got 3",
    ),
    (lambda: kernels.linear_scores(W[:, :1], X), r"params: wanted shape \(models, 2\), got"),
    (lambda: kernels.linear_scores(W, X.astype("f")), "features: wanted float64"),
    (lambda: linear_accuracy(W, X, [1, 1, 0]), "labels: wanted labels of -1 or"),
    (lambda: linear_accuracy(W, X, Y, classes=2), r"params: wanted shape \(nodes, 4\)"),
)
