"""Neural networks in JAX, given as a function that returns one or as ``"module:function"``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh._extras import needed_by
from dpmesh._validate import fail

MakeNetwork = Callable[[], Any]
"""Function without arguments that returns a neural network.

The network is a module with init(key, x) and apply(params, x), as in Flax or Haiku, or a pair of
functions start(key) and scores(params, x)."""


def named(network: str | MakeNetwork) -> MakeNetwork:
    """Return the function that ``"module:function"`` names, or a given function unchanged.

    Raises
    ------
    ValueError
        If there is no such module or function.
    """
    if callable(network):
        return network
    module, _, name = str(network).partition(":")
    candidate: Any = None
    if name:
        candidate = getattr(imported(module), name, None)
    if not callable(candidate):
        expected = 'a function as "module:function", with the module beside the file'
        fail("model", expected, repr(network))
    function: MakeNetwork = candidate
    return function


def imported(module: str) -> Any:
    """Import a module by its name; return None if there is no such module."""
    if not all(part.isidentifier() for part in module.split(".")):
        return None
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # an import within the module failed
            raise
        return None


def name_of(network: MakeNetwork) -> str:
    """Return the name ``"module:function"`` of a function, by which `named` imports it."""
    module = getattr(network, "__module__", "")
    name = getattr(network, "__qualname__", repr(network))
    return f"{module}:{name}"


def functions(network: MakeNetwork, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the functions start(key) and scores(params, x) of a network.

    Parameters
    ----------
    network
        Function that returns the network.
    shape
        Shape of the features of one record.

    Returns
    -------
    Functions ``start(key)``, which returns initial parameters as a tree of arrays, and
    ``scores(params, x)``, which returns the scores of a record, shape (outputs,).

    Raises
    ------
    ValueError
        If `network` returns neither a module nor a pair of functions.
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
    """Return the scores of records, shape (records, outputs).

    Parameters
    ----------
    network
        Function that returns the network.
    params
        Flat released parameters, shape (dim,).
    features
        Features of the records, shape (records, ..).

    Raises
    ------
    ValueError
        If the network's number of parameters is not `dim`.
    """
    with needed_by("a model in JAX"):
        import jax
        from jax.flatten_util import ravel_pytree

    start, scores = functions(network, features.shape[1:])
    example = start(jax.random.key(0))  # only its structure is used
    flat, unravel = ravel_pytree(example)
    if flat.shape != params.shape:
        fail("network", f"one of {len(params)} parameters, as was trained", flat.size)
    batched_scores = jax.jit(jax.vmap(scores, (None, 0)))
    model_params = unravel(jax.numpy.asarray(params, flat.dtype))
    result: Any = batched_scores(model_params, np.asarray(features, np.float32))
    return np.asarray(result, np.float64)
