"""The ledger of a run: what was released so far, and whether the next release may happen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dpmesh._epsilons import rounded_up
from dpmesh.privacy.budget import Budget, OverBudget
from dpmesh.privacy.foreseen import Foreseen, unplanned
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release


class UnplannedRelease(ValueError):  # noqa: N818
    """Error of a release outside of the plan whose epsilon is proved only within a plan."""


class Ledger:
    """Record of the releases of a run, which enforces the budget before noise is drawn.

    A release belongs to a round, to some nodes and to a batch. Messages of different nodes in a
    round are parts of one release. A second message of the same node counts as another release.

    With a budget, the ledger admits the releases of an approved plan, and any other release as long
    as the budget allows. To stop when the budget is used up is itself private for releases of pure
    DP and for Gaussian releases without sampling (Rogers, Roth, Ullman and Vadhan 2016; Smith and
    Thakurta 2022). The parameters of sampled releases must be fixed before the run.

    Releases by random allocation, of samples, and with correlated noise are refused unless they are
    in the plan, with and without a budget. Their epsilon is proved for the plan as a whole.

    Parameters
    ----------
    plan
        Planned releases. The plan is approved if it stays within the budget.
    budget
        Privacy budget of the run; None for no limit.
    nodes
        Number of nodes.

    Examples
    --------
    >>> import dpmesh as dm
    >>> plan = dm.GradientDescent(records=100, noise_multiplier=40.0).plan(50)
    >>> ledger = dm.privacy.Ledger(plan, dm.privacy.Budget(3.0, delta=1e-5))
    >>> ledger.plan
    Plan(0 releases, replace_one, record)
    """

    def __init__(self, plan: Plan, budget: Budget | None = None, *, nodes: int = 1) -> None:
        self._plan, self._budget, self.nodes = plan, budget, nodes
        self.releases: list[Release] = []
        """The releases of all finished rounds."""
        self.in_round: list[Release] = []
        """The releases of the round that is not over."""
        self._sent: dict[Release, npt.NDArray[np.int64]] = {}
        """How often each node sent under each admitted release of the current round."""
        approvable = plan
        if budget is None:
            approvable = plan.with_releases(())
        self._left = Foreseen(approvable)
        """Planned releases still to come; none without a budget."""
        self._events = Foreseen(plan.with_releases(_of_events(plan.releases)))
        """Those planned releases still to come whose `needs_plan` is true.

        These are samples, random allocation and correlated noise. They are refused outside of the
        plan.
        """
        self._as_planned = budget is None or budget.allows(plan)
        """True while the plan is approved, and finished rounds released only what it foresaw."""

    @property
    def plan(self) -> Plan:
        """The releases so far, as a `Plan`, which computes their epsilon.

        Releases outside of the original plan are assumed to have the sensitivity that they declare.
        If earlier releases determined them, as with noise that adapts to results, then another run
        with the same settings could have a larger epsilon. State the epsilon of the budget then.
        """
        so_far = self._with(())
        count = unplanned(self._plan, so_far.releases)
        if not count:
            return so_far
        assumed = (
            f"{count} of {len(so_far.releases)} releases, which are not in the algorithm's plan, "
            "are no more sensitive than declared, and neither data nor releases decided on them"
        )
        return replace(so_far, assumptions=(*so_far.assumptions, assumed))

    def admit(self, release: Release, nodes: Iterable[int] | None) -> None:
        """Record messages of the current round before they are sent, or refuse them.

        Parameters
        ----------
        release
            Public description of the release that the messages belong to.
        nodes
            Indices of the nodes that send; None for all nodes.

        Raises
        ------
        OverBudget
            A `ValueError`, if the release exceeds the budget. It is then not recorded.
        UnplannedRelease
            A `ValueError`, if the epsilon of the release is proved only within a plan, and the plan
            has no such release.
        """
        counts = self._sent.get(release)
        times = self._times_with(counts, nodes)
        # nodes that had not sent under it add a part to a release that other nodes began
        is_another = counts is None or bool(times.max() > counts.max())
        if is_another:
            self._check(release)
            self.in_round.append(release)
        self._sent[release] = times

    def _check(self, release: Release) -> None:
        """Fail unless the plan or the budget has room for a release."""
        if release.needs_plan and not self._events.holds(_of_events((*self.in_round, release))):
            raise UnplannedRelease(
                f"round {release.round}: the plan has no such release, or has it less often: "
                f"{release}. Random allocation, samples and correlated noise have an epsilon only "
                "as parts of a plan. Does the algorithm's release_of(t) name the same releases as "
                "its round?"
            )
        if self._budget is not None and not self._allows(release, self._budget):
            cost = self._budget.cost(self._with((release,))).epsilon
            raise OverBudget(
                f"the next release would cost epsilon {rounded_up(cost)}, more than the budget of "
                f"{self._budget}"
            )

    def end_round(self) -> None:
        """Close the current round: its releases become releases of a finished round."""
        if self.in_round:
            self.restore(self.in_round)
            self.in_round = []
            self._sent.clear()

    def restore(self, releases: Iterable[Release]) -> None:
        """Add releases of rounds that were finished earlier, such as before a checkpoint."""
        restored = tuple(releases)
        self.releases += restored
        events = _of_events(restored)
        if events:
            self._events.take(events)
        if self._budget is not None and self._as_planned:
            self._as_planned = self._left.holds(restored)
            self._left.take(restored)

    def _times_with(
        self, counts: npt.NDArray[np.int64] | None, nodes: Iterable[int] | None
    ) -> npt.NDArray[np.int64]:
        """Return how often each node has sent under a release once these nodes did, too."""
        times = np.zeros(self.nodes, np.int64)
        if counts is not None:
            times += counts
        if nodes is None:
            times += 1
        else:
            times[list(nodes)] += 1
        return times

    def _allows(self, release: Release, budget: Budget) -> bool:
        if self._as_planned and self._left.holds((*self.in_round, release)):
            return True  # part of a plan that keeps the budget
        return budget.allows(self._with((release,)))

    def _with(self, releases: Iterable[Release]) -> Plan:
        return self._plan.with_releases((*self.releases, *self.in_round, *releases))


def _of_events(releases: Iterable[Release]) -> list[Release]:
    """Return the releases whose cost is known only together."""
    return [release for release in releases if release.needs_plan]
