"""Methods of `LinearModel` as functions of records and parameters at once."""

from __future__ import annotations

from typing import Any

from dpmesh.kernels import LinearModel


def model(features: Any, labels: Any, loss: Any, settings: dict[str, Any]) -> LinearModel:
    return LinearModel(features, labels, loss, classes=settings.pop("classes", None))


def linear_gradient(
    params: Any, features: Any, labels: Any, batches: Any, loss: Any, **settings: Any
) -> Any:
    return model(features, labels, loss, settings).gradient(params, batches, **settings)


def linear_step(
    params: Any,
    step_size: Any,
    features: Any,
    labels: Any,
    batches: Any,
    loss: Any,
    **settings: Any,
) -> Any:
    return model(features, labels, loss, settings).step(params, step_size, batches, **settings)


def linear_loss(
    params: Any, features: Any, labels: Any, batches: Any, loss: Any, **settings: Any
) -> Any:
    return model(features, labels, loss, settings).losses(params, batches, **settings)


def linear_class_losses(
    params: Any, features: Any, labels: Any, batches: Any, loss: Any, **settings: Any
) -> Any:
    return model(features, labels, loss, settings).class_losses(params, batches, **settings)


def linear_record_losses(
    params: Any, features: Any, labels: Any, batches: Any, loss: Any, **settings: Any
) -> Any:
    return model(features, labels, loss, settings).record_losses(params, batches)


def linear_training(
    start: Any, features: Any, labels: Any, walks: Any, loss: Any, **settings: Any
) -> Any:
    return model(features, labels, loss, settings).train(start, walks, **settings)


def linear_accuracy(params: Any, features: Any, labels: Any, *, classes: Any = None) -> Any:
    loss = "hinge" if classes is None else "softmax"
    return model(features, labels, loss, {"classes": classes}).accuracy(params)
