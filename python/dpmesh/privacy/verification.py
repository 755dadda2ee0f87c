"""Recompute the epsilon of releases from their own plans, and compare it with what is claimed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from dpmesh._epsilons import rounded_up
from dpmesh.privacy.plan import Plan, total_cost
from dpmesh.privacy.report import SEEDED, Report, Spread

__all__ = ["Statement", "Verification", "compared", "refuted", "verify"]

_ROUNDING = 1e-6
"""Relative excess of a recomputed epsilon that rounding explains."""

_LARGER = 1.05
"""A claim that is larger than needed by this factor gets a note."""

SCOPE = "consistent with its own mechanism; this does not prove which noise was drawn"

REFUTED = "a claim is smaller than its own mechanism allows"


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
    by_node
        Smallest, median and largest epsilon of the nodes; None where the field has none.
    releases
        Number of rounds with a release; None where the field has none.
    hides_seed
        Whether the field calls seeded noise secret.
    """

    where: str
    epsilon: float
    delta: float
    relation: str | None = None
    unit: str | None = None
    by_node: Spread | None = None
    releases: int | None = None
    hides_seed: bool = False

    @classmethod
    def of_report(cls, where: str, report: Report) -> Statement:
        """Return the claims of a privacy report."""
        return cls(
            where=where,
            epsilon=report.epsilon,
            delta=report.delta,
            relation=report.neighboring_relation,
            unit=report.unit,
            by_node=report.by_node,
            releases=report.releases,
            hides_seed=SEEDED in report.assumptions and not report.seeded,
        )


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Comparison of claims with recomputed epsilons.

    Parameters
    ----------
    lines
        One for each claim, and notes.
    refuted
        Whether a claim is below what its mechanism gives.
    """

    lines: tuple[str, ...]
    refuted: bool

    def __str__(self) -> str:
        return "\n".join([*self.lines, REFUTED if self.refuted else SCOPE])

    def with_notes(self, *notes: str) -> Verification:
        """Return the comparison with further notes."""
        return Verification(lines=(*self.lines, *notes), refuted=self.refuted)


def verify(
    plans: Plan | Sequence[Plan],
    statements: Sequence[Statement],
    *,
    colluding: int | None = None,
    selection: float = 0.0,
    nodes: int | None = None,
) -> Verification:
    """Compare claims with the epsilon of plans.

    Parameters
    ----------
    plans
        Mechanisms, samplings and sensitivities of all releases of the same records: one plan for
        each run, the one that the claims are about last.
    statements
        The claims.
    colluding
        Where link partners share noise: number of colluding sites against which the claim is made.
        None: all messages are public.
    selection
        Epsilon of a choice that was made by other records of the same owners.
    nodes
        Number of nodes, for epsilons of single nodes; None checks the largest of these alone.

    Examples
    --------
    >>> import dpmesh as dm
    >>> from dpmesh.privacy.verification import Statement, verify
    >>> plan = dm.GradientDescent(records=100, noise_multiplier=40.0).plan(50)
    >>> verify(plan, [Statement(where="epsilon", epsilon=0.5, delta=1e-5)]).refuted
    True
    """
    runs = [plans] if isinstance(plans, Plan) else list(plans)
    lines = []
    any_refuted = False
    for claim in statements:
        recomputed = max(total_cost(runs, claim.delta, colluding=colluding).epsilon, selection)
        problems = [*_contradictions(claim, runs[-1], nodes)]
        if is_below(claim.epsilon, recomputed):
            problems.insert(0, "too small")
        any_refuted = any_refuted or bool(problems)
        lines.append(compared(claim, recomputed, problems))
    return Verification(lines=tuple(lines), refuted=any_refuted)


def is_below(claimed: float, recomputed: float) -> bool:
    """True if a claim is smaller than a recomputed epsilon, beyond rounding."""
    return not recomputed <= claimed * (1 + _ROUNDING)


def compared(claim: Statement, recomputed: float, problems: Sequence[str]) -> str:
    """Return a claim beside its recomputed epsilon, with what is wrong, in one line."""
    facts = (
        f"{claim.where}: claims epsilon = {_shown(claim.epsilon)}, its noise gives epsilon = "
        f"{_shown(recomputed)} at delta = {rounded_up(claim.delta)}"
    )
    if problems:
        return f"WRONG {facts} ({'; '.join(problems)})"
    if isfinite(claim.epsilon) and claim.epsilon > _LARGER * recomputed:
        return f"ok    {facts} (the claim is larger than this plan needs)"
    return f"ok    {facts}"


def refuted(problem: str) -> Verification:
    """Return the verification of a file that contradicts itself."""
    return Verification(lines=(f"WRONG {problem}",), refuted=True)


def _contradictions(claim: Statement, plan: Plan, nodes: int | None) -> Iterator[str]:
    """Yield what a field states beside epsilon that its plan contradicts."""
    if claim.relation is not None and claim.relation != plan.neighboring_relation:
        yield f"neighboring relation {claim.relation}, not {plan.neighboring_relation}"
    if claim.unit is not None and claim.unit != plan.unit:
        yield f"unit {claim.unit}, not {plan.unit}"
    if claim.hides_seed:
        yield "its noise is seeded, and it does not say so"
    rounds = len({release.round for release in plan.touching})
    if claim.releases is not None and claim.releases < rounds:
        yield f"{claim.releases} releases, not {rounds}"
    if claim.by_node is not None:
        yield from _contradicted_spread(claim.by_node, plan, claim.delta, nodes)


def _contradicted_spread(
    stated: Spread, plan: Plan, delta: float, nodes: int | None
) -> Iterator[str]:
    """Yield which of the stated epsilons of single nodes are below those of the plan."""
    if not plan.names_nodes:
        yield "epsilons by node, where no release names its nodes"
        return
    epsilons = plan.costs_by_node(delta, nodes)
    quantiles = np.quantile(epsilons, [0, 0.5, 1], method="higher")
    for name, claimed, recomputed in zip(Spread._fields, stated, quantiles, strict=True):
        is_known = nodes is not None or name == "largest"
        if is_known and is_below(claimed, float(recomputed)):
            yield f"{name} by node {_shown(claimed)}, not {_shown(float(recomputed))}"


def _shown(epsilon: float) -> str:
    if epsilon == inf:
        return "infinity"
    return rounded_up(epsilon)
