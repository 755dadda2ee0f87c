"""A budget: how much may be spent, which noise keeps within it, how many rounds it affords.

All of it relies on the plans that algorithms make from public numbers, so it serves every
algorithm, also one of your own.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from threading import RLock
from typing import Protocol

from dpmesh._validate import able, fail, instance, integer, keep_numbers, positive, probability
from dpmesh.keys import Purpose
from dpmesh.privacy import accounting
from dpmesh.privacy.cost import Cost
from dpmesh.privacy.events import Release
from dpmesh.privacy.foreseen import Foreseen, strangers
from dpmesh.privacy.plan import Plan, total_cost
from dpmesh.privacy.shown import ROUNDING, as_given, rounded_up


class OverBudget(ValueError):  # noqa: N818
    """What was asked for would exceed the budget."""


class Planned(Protocol):
    """Anything that can plan the releases of its rounds, as every algorithm can."""

    def plan(self, rounds: int) -> Plan:
        """Return all releases of a run of `rounds` rounds, from public numbers alone."""
        ...


@dataclass(frozen=True)
class Budget:
    """The most that may be spent on any node's data.

    Parameters
    ----------
    epsilon
        The most that a whole run may cost: finite and positive.
    delta
        The delta at which epsilon is computed, in [0, 1); Gaussian noise needs a positive one.
    spent
        The ledgers or plans of earlier runs on the same data, as for `total_cost`: what they cost
        counts, too.

    Raises
    ------
    ValueError
        If a number is out of its range, or `spent` holds anything but plans.

    Examples
    --------
    >>> import dpmesh as dm
    >>> budget = dm.privacy.Budget(epsilon=2.0, delta=1e-5)
    >>> def learning(noise: float) -> dm.FederatedLearning:
    ...     return dm.FederatedLearning(
    ...         1000, 0.05, clipping_norm=0.3, noise_multiplier=noise, local_steps=5
    ...     )
    >>> noise = budget.calibrate(learning, rounds=200)
    >>> round(noise, 4)
    1.672
    >>> budget.affordable_rounds(learning(noise))
    200
    """

    epsilon: float
    delta: float = 0.0
    spent: tuple[Plan, ...] = ()

    def __post_init__(self) -> None:
        keep_numbers(self)
        positive("epsilon", self.epsilon)
        probability("delta", self.delta, one=False)
        instance("spent", self.spent, "a tuple of plans", tuple, list)
        object.__setattr__(self, "spent", tuple(self.spent))
        for plan in self.spent:
            instance("spent", plan, "plans, such as run.ledger or algorithm.plan(rounds)", Plan)

    def __str__(self) -> str:
        most = f"epsilon = {as_given(self.epsilon)} at delta = {as_given(self.delta)}"
        runs = len(self.spent)
        return f"{most} after {runs} earlier run{'s' * (runs > 1)}" if runs else most

    def cost(self, plan: Plan) -> Cost:
        """Return what a plan costs together with what was spent, at the budget's delta.

        Raises
        ------
        ValueError
            If `plan` is not a plan, or has another neighbouring relation or unit than those spent.
        """
        instance("plan", plan, "a Plan, such as algorithm.plan(rounds)", Plan)
        return total_cost((*self.spent, plan), self.delta) if self.spent else plan.cost(self.delta)

    def allows(self, plan: Plan) -> bool:
        """Whether a plan costs no more, up to rounding in the last digits of epsilon.

        Raises
        ------
        ValueError
            As `cost`.
        """
        return self.cost(plan).epsilon <= self.epsilon * (1 + ROUNDING)

    def require(self, algorithm: Planned, rounds: int) -> Plan:
        """Return the plan of `rounds` rounds of an algorithm.

        Raises
        ------
        OverBudget
            A `ValueError`, if that costs more; it says how many rounds are affordable.
        """
        able("algorithm", algorithm, "an algorithm", "plan")
        plan = algorithm.plan(rounds)
        if self.allows(plan):
            return plan
        most = self.affordable_rounds(algorithm, at_most=rounds - 1) if rounds > 1 else 0
        affordable = (
            f"at most {most}, which {self} affords" if most else f"none: {self} is too little"
        )
        cost = self.cost(plan)
        raise OverBudget(f"rounds: wanted {affordable}, got {rounds}, which cost {cost}")

    def affordable_rounds(self, algorithm: Planned, *, at_most: int = 100_000) -> int:
        """Return how many rounds of an algorithm keep the budget: 0 if not even one does.

        Parameters
        ----------
        algorithm
            Its cost must not fall as rounds are added.
        at_most
            The most rounds to try, at least 1: no more than schedules with a horizon are made for.
            This is the answer where further rounds cost nothing, for example if each record is used
            in one round only.

        Raises
        ------
        ValueError
            If `algorithm` has no plan, or `at_most` is not an integer of at least 1.
        """
        able("algorithm", algorithm, "an algorithm", "plan")
        return accounting.affordable_rounds(
            lambda rounds: self.cost(algorithm.plan(rounds)).epsilon,
            target_epsilon=self.epsilon * (1 + ROUNDING),
            at_most=at_most,
        )

    def calibrate(
        self, algorithm: Callable[[float], Planned], rounds: int, *, guess: float = 1.0
    ) -> float:
        """Return the least noise at which `rounds` rounds of an algorithm keep the budget.

        Parameters
        ----------
        algorithm
            Makes the algorithm for a noise; the larger the noise, the less it must cost. Examples
            are ``lambda noise: replace(learning, noise_multiplier=noise)`` and ``lambda noise:
            replace(gossip, noise_std=noise)``.
        rounds
            At least 1.
        guess
            Where the search starts.

        Returns
        -------
        A noise whose epsilon does not exceed the budget's and is within 1e-6 of it (of itself, if
        it is below 1).

        Raises
        ------
        ValueError
            If `algorithm` is not a function, `rounds` or `guess` are out of range, nothing is left
            of the budget, or the noises within a factor 1e12 of `guess` all exceed it or all keep
            it: Gaussian noise needs a delta, and there is nothing to calibrate in an algorithm that
            takes an `epsilon` of its own.
        """
        if not callable(algorithm):
            fail("algorithm", "a function that makes one for a noise", reprlib.repr(algorithm))
        integer("rounds", rounds, at_least=1)

        def epsilon(noise: float) -> float:
            made = algorithm(noise)
            able("algorithm", made, "a function that makes an algorithm", "plan")
            return self.cost(made.plan(rounds)).epsilon

        if self.spent and (gone := total_cost(self.spent, self.delta).epsilon) >= self.epsilon:
            fail("spent", f"plans of an epsilon below {as_given(self.epsilon)}", rounded_up(gone))
        return accounting.calibrate_noise(epsilon, target_epsilon=self.epsilon, guess=guess)


class Ledger:
    """The releases of a run so far, and whether the next one may leave.

    At the door (`dpmesh.privacy.door.kept_by`) it admits what an approved plan foresaw, and
    anything else as long as the budget allows. Stopping when the budget is spent is itself private
    for pure and for Gaussian releases of all data (Rogers, Roth, Ullman and Vadhan 2016; Smith and
    Thakurta 2022); the parameters of sampled ones must be chosen beforehand. Threads may ask at
    once.

    Parameters
    ----------
    plan
        What is planned. It is approved if it keeps the budget.
    budget
        None allows everything.
    """

    def __init__(self, plan: Plan, budget: Budget | None = None) -> None:
        self._plan, self._budget = plan, budget
        self._one_at_a_time = RLock()
        self._releases: list[Release] = []
        self._leaving: list[Release] = []
        self._begun: set[tuple[Release, int]] = set()
        self.admitted = 0
        """How often each release was admitted in the current round."""
        self._left = Foreseen(plan if budget is not None else plan.with_releases(()))
        self._as_planned = budget is None or budget.allows(plan)

    @cached_property
    def _planned(self) -> Counter[Release]:
        return Counter(self._plan.releases)

    @property
    def plan(self) -> Plan:
        """The releases so far, as a plan that can say what they cost.

        Unplanned ones are assumed to be no more sensitive than they declare. If earlier releases
        decided on them, as where noise adapts to results, a run could have cost more than this one
        did: its epsilon is that of the budget.
        """
        so_far = self._with(())
        unplanned = strangers(self._plan, so_far.releases)
        if not unplanned:
            return so_far
        some = (
            f"{unplanned} of {len(so_far.releases)} releases, which are not in the algorithm's plan"
        )
        undecided = "neither data nor releases decided on them"
        assumed = f"{some}, are no more sensitive than they say, and {undecided}"
        return replace(so_far, assumptions=(*so_far.assumptions, assumed))

    @property
    def leaving(self) -> tuple[Release, ...]:
        """What left in the round that is not over."""
        with self._one_at_a_time:
            return tuple(self._leaving)

    def planned(self, round: int) -> list[Release]:
        """Return what is planned for a round."""
        return self._planned_by_round.get(round, [])

    @cached_property
    def _planned_by_round(self) -> dict[int, list[Release]]:
        by_round: dict[int, list[Release]] = {}
        for release in self._plan.releases:
            by_round.setdefault(release.round, []).append(release)
        return by_round

    def allows(self, *releases: Release) -> bool:
        """Whether the budget has room for these, after all releases so far."""
        if self._budget is None:
            return True
        if self._as_planned and self._left.holds((*self._leaving, *releases)):
            return True  # part of a plan that keeps the budget
        return self._budget.allows(self._with(releases))

    def admit(self, release: Release, purpose: int = Purpose.NOISE) -> None:
        """Admit a release of the current round, with noise of a stream of this purpose.

        A round may send in several pieces what its plan counts as one release of a batch, each
        piece with the same record: one node after the other, each from its own records. Their noise
        has one purpose, in which no node draws twice: a piece of another purpose is another
        release.

        Raises
        ------
        OverBudget
            A `ValueError`, if the budget has no room for it.
        """
        with self._one_at_a_time:
            begun = release.batch is not None and (release, purpose) in self._begun
            if begun and 0 < self._planned[release] <= self._leaving.count(release):
                self.admitted += 1
                return
            if self._budget is not None and not self.allows(release):
                cost = self._budget.cost(self._with((release,))).epsilon
                raise OverBudget(
                    f"release: wanted at most {self._budget}, got {rounded_up(cost)} with it"
                )
            self.admitted += 1
            self._leaving.append(release)
            if release.batch is not None:
                self._begun.add((release, purpose))

    def add(self, *releases: Release) -> None:
        """Record what a finished round released, in place of what was seen to leave.

        Raises
        ------
        ValueError
            If something left that is not among it: the ledger would cost less than the run.
        """
        with self._one_at_a_time:
            left = [] if self._leaving == [*releases] else self._leaving
            for release in left:
                told = sum(_includes(whole, release) for whole in releases)
                if told < self._leaving.count(release):
                    fail("releases", f"all that left in the round, such as {release}", releases)
            self._leaving.clear()
            self._begun.clear()
            self.admitted = 0
            self._releases += releases
            if self._budget is not None and self._as_planned:
                self._as_planned = self._left.holds(releases)
                self._left.take(releases)

    def _with(self, releases: Iterable[Release]) -> Plan:
        with self._one_at_a_time:
            so_far = (*self._releases, *self._leaving)
        return self._plan.with_releases((*so_far, *releases))


def _includes(whole: Release, piece: Release) -> bool:
    """Whether `piece` is `whole`, or the release of some of its nodes."""
    if whole == piece:
        return True
    if piece.nodes is None or replace(whole, nodes=piece.nodes) != piece:
        return False
    return whole.nodes is None or set(piece.nodes) <= set(whole.nodes)
