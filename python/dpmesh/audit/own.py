"""The algorithm of one's own claim: like another one, with other noise, rounds and records."""

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
    """Return an algorithm like this one, with noise of one's own.

    Parameters
    ----------
    algorithm
        Any other parameters are those of this one.
    rounds
        Of the run that is claimed about.
    delta
        Of the claim.
    epsilon, noise
        The claim, for which noise is found, or the noise, as the algorithm's parameter has it: a
        noise multiplier, the noise over the sensitivity or a standard deviation. Those of the
        algorithm if both are None.
    records
        The number of records, as the algorithm counts them; None leaves it as it is.

    Raises
    ------
    ValueError
        If `epsilon` and `noise` are both given, a number is out of range, or the algorithm has no
        such parameter.
    """
    known = {each.name for each in fields(cast("Any", algorithm))}
    made: Any = _placed(algorithm, "rounds", rounds) or algorithm
    if records is not None:
        made = _placed(made, "records", records)
        if made is None:
            fail("records", f"none for {type(algorithm).__name__}", records)
    if epsilon is None and noise is None:
        return _of(made)
    if epsilon is not None and noise is not None:
        fail("options", "either an epsilon or noise", "both")
    if "epsilon" in known:
        if noise is not None:
            epsilon = gdp_epsilon(delta=delta, mu=1 / noise) if delta > 0 else 1 / noise
        return _of(made, epsilon=epsilon, delta=delta)

    def noisy(z: float) -> AnyAlgorithm:
        return _of(next(filter(None, (_placed(made, name, z) for name in NOISES))))

    if epsilon is not None:
        noise = Budget(epsilon, delta=delta).calibrate(noisy, rounds)
    return noisy(cast("float", noise))


def _placed(made: Any, name: str, value: float) -> Any:
    """Return a part with another value of one of its fields, or theirs; None if it has none."""
    if name in {each.name for each in fields(made)}:
        return replace(made, **{name: value})
    for part in ("contribution", "combination", "mechanism"):
        inner = getattr(made, part, None)
        if inner is not None and (placed := _placed(inner, name, value)) is not None:
            return replace(made, **{part: placed})
    return None


def _of(made: Any, **changed: Any) -> AnyAlgorithm:
    algorithm: AnyAlgorithm = replace(made, **changed)
    return algorithm
