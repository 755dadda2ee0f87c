"""Checks of accountants' arguments: probabilities, and rounds that may differ from one another."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, one_of, probability

Floats: TypeAlias = npt.NDArray[np.float64]
NeighboringRelation = Literal["add_remove", "replace_one"]


def open_probability(argument: str, value: float) -> float:
    """A number strictly between 0 and 1."""
    return probability(argument, value, zero=False, one=False)


def numbers(argument: str, value: npt.ArrayLike, wanted: str = "finite numbers") -> Floats:
    """`value` as finite float64, of any shape."""
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        fail(argument, wanted, f"dtype {array.dtype}")
    array = np.ascontiguousarray(array, dtype=np.float64).reshape(array.shape)
    require(argument, array, np.isfinite(array), wanted)
    return array


def non_negatives(argument: str, value: npt.ArrayLike) -> Floats:
    """`value` as finite float64 numbers of at least 0."""
    wanted = "finite numbers of at least 0"
    array = numbers(argument, value, wanted)
    return require(argument, array, array >= 0, wanted)


def positives(argument: str, value: npt.ArrayLike) -> Floats:
    """`value` as finite float64 numbers greater than 0."""
    wanted = "finite numbers greater than 0"
    array = numbers(argument, value, wanted)
    return require(argument, array, array > 0, wanted)


def counts(argument: str, value: npt.ArrayLike) -> Floats:
    """`value` as whole numbers of at least 0, in float64."""
    wanted = "whole numbers of at least 0"
    array = numbers(argument, value, wanted)
    return require(argument, array, (array >= 0) & (array == np.rint(array)), wanted)


def require(argument: str, array: Floats, holds: npt.NDArray[Any], wanted: str) -> Floats:
    """Fail with the first element of `array` for which `holds` is false."""
    if not np.all(holds):
        fail(argument, wanted, float(array[~holds].flat[0]))
    return array


def rounds(**arguments: Floats) -> tuple[Floats, ...]:
    """Broadcast the arguments, each a scalar or one value for each round, against each other."""
    lengths = {name: array.size for name, array in arguments.items() if array.ndim}
    for name, array in arguments.items():
        if array.ndim > 1 or array.size == 0:
            fail(name, "a number or one for each round", f"shape {array.shape}")
        if array.ndim and array.size != max(lengths.values()):
            fail(name, f"one number for each round, as {_longest(lengths)}", f"{array.size}")
    return tuple(np.broadcast_arrays(*(np.atleast_1d(array) for array in arguments.values())))


def _longest(lengths: dict[str, int]) -> str:
    name = max(lengths, key=lengths.__getitem__)
    return f"{name} has {lengths[name]}"


def relation(value: NeighboringRelation) -> NeighboringRelation:
    """A neighbouring relation by its name."""
    return one_of("neighboring_relation", value, ("add_remove", "replace_one"))
