"""The algorithm that a claim is about: a given algorithm with the claim's noise and sizes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, cast

from dpmesh._validate import fail
from dpmesh.accounting import gdp_epsilon
from dpmesh.algorithms.base import NOISES, AnyAlgorithm
from dpmesh.privacy.budget import Budget


def claiming(
    algorithm: AnyAlgorithm,
    *,
    rounds: int,
    delta: float,
    epsilon: float | None = None,
    noise: float | None = None,
    records: int | None = None,
) -> AnyAlgorithm:
    """Return a copy of an algorithm with the noise, rounds and records that a claim states.

    Parameters
    ----------
    algorithm
        The algorithm of the claim; parameters that are not listed below stay unchanged.
    rounds
        Number of rounds of the run.
    delta
        Delta of the claim.
    epsilon, noise
        The claimed epsilon, from which the noise is solved; or the noise in the unit of the
        algorithm's parameter (noise multiplier, noise over sensitivity, or standard deviation).
        If both are None, the algorithm keeps its noise.
    records
        Number of records, as the algorithm counts them; None keeps the algorithm's.

    Raises
    ------
    ValueError
        If `epsilon` and `noise` are both given, a number is out of range, or the algorithm has no
        such parameter.
    """
    base: AnyAlgorithm = _with_field(algorithm, "rounds", rounds) or algorithm
    if records is not None:
        base = _with_field(base, "records", records)
        if base is None:
            fail("records", f"none for {type(algorithm).__name__}", records)
    if epsilon is None and noise is None:
        return base
    if epsilon is not None and noise is not None:
        fail("options", "either an epsilon or noise", "both")
    if "epsilon" in _field_names(algorithm):
        if noise is not None:
            epsilon = gdp_epsilon(delta=delta, mu=1 / noise) if delta > 0 else 1 / noise
        private: AnyAlgorithm = replace(cast("Any", base), epsilon=epsilon, delta=delta)
        return private

    def with_noise(scale: float) -> AnyAlgorithm:
        candidates = (_with_field(base, name, scale) for name in NOISES)
        return cast("AnyAlgorithm", next(filter(None, candidates)))

    if epsilon is not None:
        noise = Budget(epsilon, delta=delta).calibrate(with_noise, rounds)
    assert noise is not None
    return with_noise(noise)


def _field_names(part: Any) -> set[str]:
    """Return the names of a dataclass's fields."""
    return {field.name for field in fields(part)}


def _with_field(part: Any, name: str, value: float) -> Any:
    """Return a copy of an algorithm or of a part of it, with another value of one field.

    If the dataclass has no field of this name, its parts are searched. None if none has the field.
    """
    if name in _field_names(part):
        return replace(part, **{name: value})
    for attribute in ("contribution", "combination", "mechanism"):
        inner = getattr(part, attribute, None)
        if inner is None:
            continue
        changed_inner = _with_field(inner, name, value)
        if changed_inner is not None:
            return replace(part, **{attribute: changed_inner})
    return None
