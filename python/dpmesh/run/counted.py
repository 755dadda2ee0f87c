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


def with_gaps(
    plan: Plan, released: Plan, rounds: int, delta: float, *, releases_decide: bool
) -> tuple[Plan, Plan]:
    """Return what a report counts of a run, and its ledger, with a note on missing releases.

    A note is needed where planned releases did not happen and that makes the run cheaper. If
    earlier releases decided it, the report counts the missing ones, too.
    """
    planned = plan.with_releases(each for each in plan.touching if each.round < rounds)
    missing = len(planned.releases) - len(released.touching)
    if missing <= 0 or released.cost(delta).epsilon >= planned.cost(delta).epsilon:
        return released, released
    silent = f"{missing} of {len(planned.releases)} planned releases did not happen"
    noted = _assuming(f"{silent}, which neither data nor releases decided", released)
    if not releases_decide:
        return noted, noted
    counted = planned.releases
    if unplanned(plan, released.releases):
        counted = (*released.releases, *planned.releases)
    why = f"{silent}; they are counted, as earlier releases decided which happen"
    return _assuming(why, released.with_releases(counted)), noted


def _assuming(what: str, plan: Plan) -> Plan:
    return replace(plan, assumptions=(*plan.assumptions, what))
