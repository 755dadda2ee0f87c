"""Networks in JAX that a user names: a function that makes one, or ``"module:function"``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh._extras import needed_by
from dpmesh._validate import fail

MakeNetwork = Callable[[], Any]
"""Returns a module with init(key, x) and apply(params, x), or functions (start, scores)."""


def named(network: str | MakeNetwork) -> MakeNetwork:
    """Return the function that "module:function" names.

    Raises
    ------
    ValueError
        If there is none.
    """
    if callable(network):
        return network
    module, _, name = str(network).partition(":")
    candidate: Any = getattr(imported(module), name, None) if name else None
    if not callable(candidate):
        expected = 'a function as "module:function", with the module beside the file'
        fail("model", expected, repr(network))
    function: MakeNetwork = candidate
    return function


def imported(module: str) -> Any:
    """Return a module by its name; None if there is none of this name."""
    if not all(part.isidentifier() for part in module.split(".")):
        return None
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # it is there, and misses another
            raise
        return None


def name_of(network: MakeNetwork) -> str:
    """Return "module:function" for a function, as `named` reads it."""
    name = getattr(network, "__qualname__", repr(network))
    return f"{getattr(network, '__module__', '')}:{name}"


def functions(network: MakeNetwork, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return how a network starts, start(key), and what it makes of a record, scores(params, x).

    Raises
    ------
    ValueError
        If it is no network.
    """
    with needed_by("a model in JAX"):
        import jax.numpy as jnp
    model = network()
    if hasattr(model, "init") and hasattr(model, "apply"):
        return lambda key: model.init(key, jnp.zeros(shape)), model.apply
    if not isinstance(model, tuple) or len(model) != 2:
        fail("model", "a module with init and apply, or functions (start, scores)", repr(model))
    return model


def scores_of(
    network: MakeNetwork, params: npt.NDArray[np.float64], features: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Return the scores of records, shape (records, outputs), by released parameters, shape (dim,).

    Raises
    ------
    ValueError
        If the network has another number of parameters.
    """
    with needed_by("a model in JAX"):
        import jax
        from jax.flatten_util import ravel_pytree

    start, scores = functions(network, features.shape[1:])
    flat, unravel = ravel_pytree(start(jax.random.key(0)))
    if flat.shape != params.shape:
        fail("network", f"one of {len(params)} parameters, as was trained", flat.size)
    of_records = jax.jit(jax.vmap(scores, (None, 0)))
    model = unravel(jax.numpy.asarray(params, flat.dtype))
    scores_of_records: Any = of_records(model, np.asarray(features, np.float32))
    return np.asarray(scores_of_records, np.float64)
