"""Problems with a user's model, named as ``module:function``, for files and estimators."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dpmesh._extras import needed_by
from dpmesh._networks import MakeNetwork, functions, named
from dpmesh._validate import fail
from dpmesh.data import Dataset
from dpmesh.data.partition import Partition
from dpmesh.tables.models import Outline

if TYPE_CHECKING:
    from jax import Array

    from dpmesh.problems.jax_model import Params


def jax_model(
    train: Dataset,
    partition: Partition,
    *,
    model: str | MakeNetwork,
    test: Dataset | None = None,
    record_shape: tuple[int, ...] | None = None,
    regularization: float = 0.0,
    outline: Outline | None = None,
) -> Any:  # files read these annotations, also without JAX
    """Return the `JaxProblem` of a classifier in JAX, trained by cross-entropy.

    Parameters
    ----------
    train, partition, test
        As for `JaxProblem`.
    model
        Function without arguments as "module:function". It returns a module with init(key, x) and
        apply(params, x), as of Flax or Haiku, or a pair of functions start(key) and scores(params,
        x).
    record_shape
        Shape of a record for the model, such as [28, 28, 1]; by default a vector.
    regularization
        Weight decay.
    outline
        Meaning of features and labels if the records are rows of tables. Its frequencies of classes
        weight the losses.

    Raises
    ------
    ValueError
        If there is no such function, it returns another object, or the number of scores is not the
        number of classes.
    """
    with needed_by("a model in JAX"):
        import jax
    from dpmesh.problems import JaxProblem

    network = named(model)
    shape = (train.dim,) if record_shape is None else record_shape
    start, scores = functions(network, shape)
    weights = None if outline is None else outline.class_weights
    if outline is not None:
        x = jax.numpy.zeros(shape)
        shape_of_scores = jax.eval_shape(scores, jax.eval_shape(start, jax.random.key(0)), x).shape
        if shape_of_scores != (outline.outputs,):
            expected = f"one whose scores have shape ({outline.outputs},), a number for each class"
            fail("model", expected, f"shape {shape_of_scores}")
        if record_shape is None:
            outline = replace(outline, network=network)
        else:
            outline = None

    def loss(params: Params, features: Array, label: Array) -> Array:
        cross_entropy: Array = -jax.nn.log_softmax(scores(params, features))[label]
        if weights is None:
            return cross_entropy
        return jax.numpy.asarray(weights, cross_entropy.dtype)[label] * cross_entropy

    return JaxProblem(
        train,
        partition,
        start,
        loss,
        scores,
        test=test,
        record_shape=record_shape,
        regularization=regularization,
        outline=outline,
    )


def torch_model(
    train: Dataset,
    partition: Partition,
    *,
    model: str,
    test: Dataset | None = None,
    record_shape: tuple[int, ...] | None = None,
    regularization: float = 0.0,
    outline: Outline | None = None,
) -> Any:
    """Return the `TorchProblem` of a classifier in PyTorch, trained by cross-entropy.

    Parameters
    ----------
    train, partition, test
        As for `TorchProblem`.
    model
        Function without arguments, or class, as "module:function". It returns a new module.
    record_shape
        Shape of a record for the module, such as [1, 28, 28]; by default a vector.
    regularization
        Weight decay.
    outline
        Meaning of features and labels, whose frequencies of classes weight the losses.

    Raises
    ------
    ValueError
        If there is no such function.
    """
    from torch import as_tensor, float32
    from torch.nn.functional import cross_entropy

    from dpmesh.problems import TorchProblem

    weights = None if outline is None else outline.class_weights
    class_weights = None if weights is None else as_tensor(weights, dtype=float32)
    return TorchProblem(
        train,
        partition,
        named(model),
        test=test,
        loss=partial(cross_entropy, weight=class_weights),
        record_shape=record_shape,
        regularization=regularization,
    )
