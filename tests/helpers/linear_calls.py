"""Methods of `LinearModel` as functions of records and parameters at once."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from dpmesh._arrays import FloatArray
from dpmesh._ragged import Numbers, Walks
from dpmesh.kernels import LinearModel
from dpmesh.kernels.linear_model import Batches, Features, Loss


def model(
    features: Features, labels: npt.ArrayLike, loss: Loss, settings: dict[str, Any]
) -> LinearModel:
    return LinearModel(features, labels, loss, classes=settings.pop("classes", None))


def linear_gradient(
    params: npt.ArrayLike,
    features: Features,
    labels: npt.ArrayLike,
    batches: Batches,
    loss: Loss,
    **settings: Any,
) -> FloatArray:
    return model(features, labels, loss, settings).gradient(params, batches, **settings)


def linear_step(
    params: npt.ArrayLike,
    step_size: npt.ArrayLike,
    features: Features,
    labels: npt.ArrayLike,
    batches: Batches,
    loss: Loss,
    **settings: Any,
) -> FloatArray:
    return model(features, labels, loss, settings).step(params, step_size, batches, **settings)


def linear_loss(
    params: npt.ArrayLike,
    features: Features,
    labels: npt.ArrayLike,
    batches: Batches,
    loss: Loss,
    **settings: Any,
) -> Numbers:
    return model(features, labels, loss, settings).losses(params, batches, **settings)


def linear_class_losses(
    params: npt.ArrayLike,
    features: Features,
    labels: npt.ArrayLike,
    batches: Batches,
    loss: Loss,
    **settings: Any,
) -> Numbers:
    return model(features, labels, loss, settings).class_losses(params, batches, **settings)


def linear_record_losses(
    params: npt.ArrayLike,
    features: Features,
    labels: npt.ArrayLike,
    batches: Batches,
    loss: Loss,
    **settings: Any,
) -> Numbers:
    return model(features, labels, loss, settings).record_losses(params, batches)


def linear_training(
    start: npt.ArrayLike,
    features: Features,
    labels: npt.ArrayLike,
    walks: Walks,
    loss: Loss,
    **settings: Any,
) -> tuple[FloatArray, Numbers]:
    return model(features, labels, loss, settings).train(start, walks, **settings)


def linear_accuracy(
    params: npt.ArrayLike, features: Features, labels: npt.ArrayLike, *, classes: int | None = None
) -> Numbers:
    loss = "hinge" if classes is None else "softmax"
    return model(features, labels, loss, {"classes": classes}).accuracy(params)
