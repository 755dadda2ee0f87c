"""Recompute the epsilon of a release from its own plan, and compare it with what is claimed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

from dpmesh._epsilons import rounded_up
from dpmesh.privacy.plan import Plan, total_cost

__all__ = ["Statement", "Verification", "verify"]

_ROUNDING = 1e-6
"""Relative excess of a recomputed epsilon that rounding explains."""

_LARGER = 1.05
"""A claim that is larger than needed by this factor gets a note."""

SCOPE = "consistent with its own mechanism; this does not prove which noise was drawn"


@dataclass(frozen=True, kw_only=True)
class Statement:
    """An epsilon that a file states.

    Parameters
    ----------
    where
        The field of the file.
    epsilon, delta
        The claim; infinite for none.
    relation, unit
        Neighboring relation and unit of privacy; None where the field names none.
    """

    where: str
    epsilon: float
    delta: float
    relation: str | None = None
    unit: str | None = None


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Comparison of claims with recomputed epsilons.

    Parameters
    ----------
    lines
        One for each claim.
    refuted
        Whether a claim is below what its mechanism gives.
    """

    lines: tuple[str, ...]
    refuted: bool

    def __str__(self) -> str:
        end = "a claim is smaller than its own mechanism allows" if self.refuted else SCOPE
        return "\n".join([*self.lines, end])


def verify(
    plan: Plan, statements: Sequence[Statement], *, colluding: int | None = None
) -> Verification:
    """Compare claims with the epsilon of a plan.

    Parameters
    ----------
    plan
        Mechanisms, samplings and sensitivities of all releases.
    statements
        The claims.
    colluding
        Where link partners share noise: number of colluding sites against which the claim is made.
        None: all messages are public.

    Examples
    --------
    >>> import dpmesh as dm
    >>> from dpmesh.privacy.verification import Statement, verify
    >>> plan = dm.GradientDescent(records=100, noise_multiplier=20.0).plan(50)
    >>> verify(plan, [Statement(where="epsilon", epsilon=0.5, delta=1e-5)]).refuted
    True
    """
    lines, refuted = [], False
    for claim in statements:
        recomputed = total_cost([plan], claim.delta, colluding=colluding).epsilon
        delta = rounded_up(claim.delta)
        facts = (
            f"{claim.where}: claims epsilon = {_shown(claim.epsilon)}, its noise gives epsilon = "
            f"{_shown(recomputed)} at delta = {delta}"
        )
        problems = []
        if not recomputed <= claim.epsilon * (1 + _ROUNDING):
            problems.append("too small")
        if claim.relation is not None and claim.relation != plan.neighboring_relation:
            problems.append(
                f"neighboring relation {claim.relation}, not {plan.neighboring_relation}"
            )
        if claim.unit is not None and claim.unit != plan.unit:
            problems.append(f"unit {claim.unit}, not {plan.unit}")
        refuted = refuted or bool(problems)
        if problems:
            lines.append(f"WRONG {facts} ({'; '.join(problems)})")
        elif isfinite(claim.epsilon) and claim.epsilon > _LARGER * recomputed:
            lines.append(f"ok    {facts} (the claim is larger than this plan needs)")
        else:
            lines.append(f"ok    {facts}")
    return Verification(lines=tuple(lines), refuted=refuted)


def _shown(epsilon: float) -> str:
    return "infinity" if epsilon == inf else rounded_up(epsilon)
