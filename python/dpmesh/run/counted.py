"""What a report counts of a run that made fewer releases than it had planned."""

from __future__ import annotations

from dataclasses import replace

from dpmesh.privacy.foreseen import unplanned
from dpmesh.privacy.plan import Plan


def ended_early(plan: Plan, released: Plan, rounds: int, length: str) -> tuple[Plan, Plan]:
    """Return what a report counts of a run that its callback ended, and its ledger.

    The report counts the remaining rounds, too, since releases may have decided when to end: the
    whole plan where the run kept to it, as chance may have given the rest to any batch.
    """
    ended = f"the callback ended the run after {length} rounds without a look at"
    all_rounds = plan.releases
    if unplanned(plan, released.releases):
        rest = (release for release in plan.releases if release.round >= rounds)
        all_rounds = (*released.releases, *rest)
    counted = released.with_releases(all_rounds)
    return (
        _assuming(f"{ended} private data", counted),
        _assuming(f"{ended} data or releases", released),
    )


def telling_gaps(plan: Plan, released: Plan, rounds: int, delta: float) -> Plan:
    """Return the ledger, with a note if planned releases are missing and make it cheaper."""
    planned = plan.with_releases(each for each in plan.touching if each.round < rounds)
    missing = len(planned.releases) - len(released.touching)
    if missing <= 0 or released.cost(delta).epsilon >= planned.cost(delta).epsilon:
        return released
    silent = f"{missing} of {len(planned.releases)} planned releases did not happen"
    return _assuming(f"{silent}, which neither data nor releases decided", released)


def _assuming(what: str, plan: Plan) -> Plan:
    return replace(plan, assumptions=(*plan.assumptions, what))
