"""Models of one's own for an experiment, named as ``module:function``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from dpmesh._extras import needed_by
from dpmesh._validate import fail


def jax_model(
    train: Any,
    partition: Any,
    *,
    model: str,
    test: Any = None,
    record_shape: tuple[int, ...] | None = None,
    regularization: float = 0.0,
) -> Any:
    """Return the `JaxProblem` of a classifier in JAX, learned by cross-entropy.

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

    Raises
    ------
    ValueError
        If there is no such function, or it returns something else.
    """
    with needed_by("a model in JAX"):
        import jax
        import jax.numpy as jnp
    from dpmesh.problems import JaxProblem

    made = _function(model)()
    shape = (train.dim,) if record_shape is None else record_shape
    if hasattr(made, "init") and hasattr(made, "apply"):
        start = lambda key: made.init(key, jnp.zeros(shape))  # noqa: E731
        scores = made.apply
    elif isinstance(made, tuple) and len(made) == 2:
        start, scores = made
    else:
        fail("model", "a module with init and apply, or functions (start, scores)", repr(made))

    def loss(params: Any, features: Any, label: Any) -> Any:
        return -jax.nn.log_softmax(scores(params, features))[label]

    return JaxProblem(
        train,
        partition,
        start,
        loss,
        scores,
        test=test,
        record_shape=record_shape,
        regularization=regularization,
    )


def torch_model(
    train: Any,
    partition: Any,
    *,
    model: str,
    test: Any = None,
    record_shape: tuple[int, ...] | None = None,
    regularization: float = 0.0,
) -> Any:
    """Return the `TorchProblem` of a classifier in PyTorch, learned by cross-entropy.

    Parameters
    ----------
    train, partition, test
        As for `TorchProblem`.
    model
        Function without arguments as "module:function", or a class. It returns a new module.
    record_shape
        Shape of a record for the module, such as [1, 28, 28]; by default a vector.
    regularization
        Weight decay.

    Raises
    ------
    ValueError
        If there is no such function.
    """
    from dpmesh.problems import TorchProblem

    return TorchProblem(
        train,
        partition,
        _function(model),
        test=test,
        record_shape=record_shape,
        regularization=regularization,
    )


def _function(model: str) -> Callable[[], Any]:
    """Return what "module:function" names."""
    module, _, name = model.partition(":")
    wanted = 'a function as "module:function", with the module beside the file'
    if not name or not all(part.isidentifier() for part in module.split(".")):
        fail("model", wanted, repr(model))
    try:
        found: Any = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # it is there, and misses another
            raise
        found = None
    if not callable(found):
        fail("model", wanted, repr(model))
    function: Callable[[], Any] = found
    return function
