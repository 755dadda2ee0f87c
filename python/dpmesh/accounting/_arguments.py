"""Checks of accountants' arguments: probabilities, and rounds that may differ from one another."""

from __future__ import annotations

from typing import TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from dpmesh._arrays import unmasked
from dpmesh._privacy_types import NeighboringRelation
from dpmesh._ragged import Flags
from dpmesh._validate import fail, one_of, probability

Floats: TypeAlias = npt.NDArray[np.float64]


def open_probability(argument: str, value: float) -> float:
    """Return a number strictly between 0 and 1."""
    return probability(argument, value, zero=False, one=False)


def numbers(argument: str, value: npt.ArrayLike, expectation: str = "finite numbers") -> Floats:
    """Return finite float64 numbers of any shape.

    `expectation` describes them in errors.
    """
    array = unmasked(argument, value)
    if array.dtype.kind not in "iuf":
        fail(argument, expectation, f"dtype {array.dtype}")
    with np.errstate(over="ignore"):  # a number of a longer type may exceed float64
        array = np.require(array, np.float64, ["C", "A"])
    require(argument, array, np.isfinite(array), expectation)
    return array


def non_negatives(argument: str, value: npt.ArrayLike) -> Floats:
    """Return finite float64 numbers of at least 0."""
    expectation = "finite numbers of at least 0"
    array = numbers(argument, value, expectation)
    return require(argument, array, array >= 0, expectation)


def positives(argument: str, value: npt.ArrayLike) -> Floats:
    """Return finite float64 numbers greater than 0."""
    expectation = "finite numbers greater than 0"
    array = numbers(argument, value, expectation)
    return require(argument, array, array > 0, expectation)


def noises_to_sensitivity(value: npt.ArrayLike) -> Floats:
    """Return noise ratios, whose squares and their inverses float64 can hold."""
    array = positives("noise_to_sensitivity", value)
    is_usual = (array > 1e-100) & (array < 1e100)
    return require("noise_to_sensitivity", array, is_usual, "numbers between 1e-100 and 1e100")


def counts(argument: str, value: npt.ArrayLike) -> Floats:
    """Return whole numbers of at least 0, in float64."""
    expectation = "whole numbers of at least 0"
    array = numbers(argument, value, expectation)
    is_count = (array >= 0) & (array == np.rint(array))
    return require(argument, array, is_count, expectation)


def require(argument: str, array: Floats, is_valid: Flags, expectation: str) -> Floats:
    """Return the array; fail with the first element that is not valid."""
    if not np.all(is_valid):
        fail(argument, expectation, float(array[~is_valid].flat[0]))
    return array


def rounds(**arguments: Floats) -> tuple[Floats, ...]:
    """Broadcast the arguments, each a scalar or one value for each round, against each other."""
    lengths = {name: array.size for name, array in arguments.items() if array.ndim}
    rounds_count = max(lengths.values(), default=1)
    for name, array in arguments.items():
        if array.ndim > 1 or array.size == 0:
            fail(name, "a number or one for each round", f"shape {array.shape}")
        if array.ndim and array.size != rounds_count:
            fail(name, f"one number for each round, as {_longest(lengths)}", f"{array.size}")
    broadcast = [np.broadcast_to(array, (rounds_count,)) for array in arguments.values()]
    return tuple(np.ascontiguousarray(array) for array in broadcast)


def noisy_rounds(noise_to_sensitivity: npt.ArrayLike, count: npt.ArrayLike) -> tuple[Floats, ...]:
    """Return the noise ratios and the counts of rounds, shape (rounds,) each."""
    return rounds(
        noise_to_sensitivity=noises_to_sensitivity(noise_to_sensitivity),
        count=counts("count", count),
    )


def sampled_rounds(
    sampling_rate: npt.ArrayLike, noise_to_sensitivity: npt.ArrayLike, count: npt.ArrayLike
) -> tuple[Floats, ...]:
    """Return the rates, noise ratios and counts of rounds of samples, shape (rounds,) each."""
    return rounds(
        sampling_rate=rates("sampling_rate", sampling_rate),
        noise_to_sensitivity=noises_to_sensitivity(noise_to_sensitivity),
        count=counts("count", count),
    )


def _longest(lengths: dict[str, int]) -> str:
    """Describe the argument with the most rounds."""
    name = max(lengths, key=lengths.__getitem__)
    return f"{name} has {lengths[name]}"


def rates(argument: str, value: npt.ArrayLike) -> Floats:
    """Return sampling rates in (0, 1], whose inverses float64 can hold."""
    expectation = "numbers in (0, 1]"
    array = numbers(argument, value, expectation)
    require(argument, array, (array > 0) & (array <= 1), expectation)
    return require(argument, array, array >= 1e-300, "numbers of at least 1e-300")


def orders_above_one(argument: str, value: npt.ArrayLike) -> Floats:
    """Return Rényi orders: one axis of finite numbers greater than 1."""
    expectation = "finite numbers greater than 1"
    array = np.atleast_1d(numbers(argument, value, expectation))
    if array.ndim > 1 or array.size == 0:
        fail(argument, "at least 1 order on one axis", f"shape {array.shape}")
    return require(argument, array, array > 1, expectation)


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
