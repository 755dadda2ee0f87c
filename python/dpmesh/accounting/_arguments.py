"""Checks of accountants' arguments: probabilities, and rounds that may differ from one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from dpmesh._arrays import unmasked
from dpmesh._privacy_types import NeighboringRelation
from dpmesh._validate import fail, one_of, probability

Floats: TypeAlias = npt.NDArray[np.float64]


def open_probability(argument: str, value: float) -> float:
    """A number strictly between 0 and 1."""
    return probability(argument, value, zero=False, one=False)


def numbers(argument: str, value: npt.ArrayLike, wanted: str = "finite numbers") -> Floats:
    """`value` as finite float64, of any shape."""
    array = unmasked(argument, value)
    if array.dtype.kind not in "iuf":
        fail(argument, wanted, f"dtype {array.dtype}")
    with np.errstate(over="ignore"):  # a number of a longer type may exceed float64
        array = np.require(array, np.float64, ["C", "A"])
    require(argument, array, np.isfinite(array), wanted)
    return array


def _where(
    argument: str, value: npt.ArrayLike, wanted: str, holds: Callable[[Floats], npt.NDArray[Any]]
) -> Floats:
    array = numbers(argument, value, wanted)
    return require(argument, array, holds(array), wanted)


def non_negatives(argument: str, value: npt.ArrayLike) -> Floats:
    """`value` as finite float64 numbers of at least 0."""
    return _where(argument, value, "finite numbers of at least 0", lambda array: array >= 0)


def positives(argument: str, value: npt.ArrayLike) -> Floats:
    """`value` as finite float64 numbers greater than 0."""
    return _where(argument, value, "finite numbers greater than 0", lambda array: array > 0)


def noises_to_sensitivity(value: npt.ArrayLike) -> Floats:
    """`value` as noise ratios, whose squares and their inverses are numbers."""
    array = positives("noise_to_sensitivity", value)
    usual = (array > 1e-100) & (array < 1e100)
    return require("noise_to_sensitivity", array, usual, "numbers between 1e-100 and 1e100")


def counts(argument: str, value: npt.ArrayLike) -> Floats:
    """`value` as whole numbers of at least 0, in float64."""
    wanted = "whole numbers of at least 0"
    return _where(argument, value, wanted, lambda array: (array >= 0) & (array == np.rint(array)))


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
    shape = (max(lengths.values(), default=1),)
    return tuple(
        np.ascontiguousarray(np.broadcast_to(array, shape)) for array in arguments.values()
    )


def noisy_rounds(noise_to_sensitivity: npt.ArrayLike, count: npt.ArrayLike) -> tuple[Floats, ...]:
    """Noise ratios and counts of rounds."""
    return rounds(
        noise_to_sensitivity=noises_to_sensitivity(noise_to_sensitivity),
        count=counts("count", count),
    )


def sampled_rounds(
    sampling_rate: npt.ArrayLike, noise_to_sensitivity: npt.ArrayLike, count: npt.ArrayLike
) -> tuple[Floats, ...]:
    """Rates, noise ratios and counts of rounds that release samples."""
    return rounds(
        sampling_rate=rates("sampling_rate", sampling_rate),
        noise_to_sensitivity=noises_to_sensitivity(noise_to_sensitivity),
        count=counts("count", count),
    )


def _longest(lengths: dict[str, int]) -> str:
    name = max(lengths, key=lengths.__getitem__)
    return f"{name} has {lengths[name]}"


def rates(argument: str, value: npt.ArrayLike) -> Floats:
    """`value` as sampling rates, in (0, 1], whose inverses are numbers."""
    array = _where(argument, value, "numbers in (0, 1]", lambda rate: (rate > 0) & (rate <= 1))
    return require(argument, array, array >= 1e-300, "numbers of at least 1e-300")


def orders_above_one(argument: str, value: npt.ArrayLike) -> Floats:
    """`value` as Rényi orders: one axis of finite numbers greater than 1."""
    wanted = "finite numbers greater than 1"
    array = np.atleast_1d(numbers(argument, value, wanted))
    if array.ndim > 1 or array.size == 0:
        fail(argument, "at least 1 order on one axis", f"shape {array.shape}")
    return require(argument, array, array > 1, wanted)


def only_add_remove(relation: NeighboringRelation) -> None:
    """Fail unless the relation is the one that Poisson samples are proved for."""
    _only(relation, "add_remove", "a Poisson sample has no fixed size")


def only_replace_one(relation: NeighboringRelation) -> None:
    """Fail unless the relation is the one that samples of fixed size are proved for."""
    _only(relation, "replace_one", "a sample of fixed size cannot lose a unit")


def _only(relation: NeighboringRelation, proved: NeighboringRelation, reason: str) -> None:
    one_of("neighboring_relation", relation, get_args(NeighboringRelation))
    if relation != proved:
        fail("neighboring_relation", f"{proved!r}: {reason}", repr(relation))
