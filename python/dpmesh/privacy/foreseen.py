"""Comparison of a run's releases with its plan.

The ledger asks whether the plan has a release that the run wants to make. Random draws may decide
which batch a release uses. The epsilon of the run still does not exceed that of the plan if each
batch of the run has at most the releases of some batch of the plan.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release

Kinds = Counter[tuple[object, ...]]
"""Counts of releases by all that identifies them, apart from their batch."""


class Foreseen:
    """The planned releases that a run has not yet made.

    Parameters
    ----------
    plan
        The plan of the run.
    """

    def __init__(self, plan: Plan) -> None:
        self._left = _by_round(plan.releases)
        self._batches = _by_batch(plan.releases)
        distinct = {frozenset(batch.items()): batch for batch in self._batches.values()}
        self._distinct = tuple(distinct.values())
        self._made: dict[int, Kinds] = {}

    def holds(self, releases: Sequence[Release]) -> bool:
        """Return True if the plan still has all of these releases."""
        if any(count > self._left[kind] for kind, count in _by_round(releases).items()):
            return False
        for batch, kinds in _by_batch(releases).items():
            if not self._allows(batch, self._made_with(batch) + kinds):
                return False
        return True

    def take(self, releases: Sequence[Release]) -> None:
        """Record that the run made these releases."""
        self._left.subtract(_by_round(releases))
        for batch, kinds in _by_batch(releases).items():
            self._made[batch] = self._made_with(batch) + kinds

    def _made_with(self, batch: int) -> Kinds:
        """Return the counts of releases that the run made with a batch."""
        return self._made.get(batch, Counter())

    def _allows(self, batch: int, kinds: Kinds) -> bool:
        """Return True if some batch of the plan has at least these releases."""
        same_batch = self._batches.get(batch)  # tried first, as it usually does
        if same_batch is not None and kinds <= same_batch:
            return True
        return any(kinds <= planned for planned in self._distinct)


def unplanned(plan: Plan, releases: Sequence[Release]) -> int:
    """Return the number of releases of a run that are not in its plan."""
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
    """Return all that identifies a release apart from its round and the index of its batch."""
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
