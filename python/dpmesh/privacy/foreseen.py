"""Comparison of a run's releases with its plan.

Chance may decide to which batch a release belongs. A run then still costs no more than its plan, as
long as no batch releases more than one of the plan's batches does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release

Kinds = Counter[tuple[object, ...]]


class Foreseen:
    """The planned releases that a run has not yet made.

    Parameters
    ----------
    plan
        What is planned.
    """

    def __init__(self, plan: Plan) -> None:
        self._left = _by_round(plan.releases)
        self._batches = _by_batch(plan.releases)
        distinct = {frozenset(batch.items()): batch for batch in self._batches.values()}
        self._distinct = tuple(distinct.values())
        self._taken: dict[int, Kinds] = {}

    def holds(self, releases: Sequence[Release]) -> bool:
        """Return True if the plan still has all of these releases."""
        if any(count > self._left[kind] for kind, count in _by_round(releases).items()):
            return False
        more = _by_batch(releases).items()
        return all(self._allots(batch, self._taken_by(batch) + kinds) for batch, kinds in more)

    def take(self, releases: Sequence[Release]) -> None:
        """Record that the run made these."""
        self._left.subtract(_by_round(releases))
        for batch, kinds in _by_batch(releases).items():
            self._taken[batch] = self._taken_by(batch) + kinds

    def _taken_by(self, batch: int) -> Kinds:
        return self._taken.get(batch, Counter())

    def _allots(self, batch: int, kinds: Kinds) -> bool:
        """Return True if a batch of the plan, of any number, releases at least as much."""
        same = self._batches.get(batch)
        return (same is not None and kinds <= same) or any(
            kinds <= planned for planned in self._distinct
        )


def unplanned(plan: Plan, releases: Sequence[Release]) -> int:
    """Return how many releases of a run its plan did not foresee."""
    if tuple(releases) == plan.releases[: len(releases)]:
        return 0
    foreseen = Foreseen(plan)
    count = 0
    for release in releases:
        if foreseen.holds((release,)):
            foreseen.take((release,))
        else:
            count += 1
    return count


def _kind(release: Release) -> tuple[object, ...]:
    """Return what identifies a release apart from its round and batch."""
    noise = release.mechanism, release.sensitivity
    return *noise, release.sampling, release.nodes, release.batch is None


def _by_round(releases: Iterable[Release]) -> Kinds:
    return Counter((release.round, *_kind(release)) for release in releases)


def _by_batch(releases: Iterable[Release]) -> dict[int, Kinds]:
    batches: defaultdict[int, Kinds] = defaultdict(Counter)
    for release in releases:
        if release.batch is not None:
            batches[release.batch][_kind(release)] += 1
    return dict(batches)
