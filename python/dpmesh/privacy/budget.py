"""Privacy budgets: noise calibration, affordable rounds, and checks of plans.

A budget needs only the plan of releases that an algorithm makes from public numbers. So it applies
to every algorithm, custom ones included.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

import dpmesh.accounting as accounting
from dpmesh._epsilons import ROUNDING, as_given, rounded_up
from dpmesh._validate import every, fail, instance, integer, positive, probability, require_methods
from dpmesh.privacy.cost import Cost
from dpmesh.privacy.plan import Plan, total_cost
from dpmesh.privacy.views import View
from dpmesh.privacy.views.cost import ViewCost
from dpmesh.privacy.views.observers import in_words


class OverBudget(ValueError):  # noqa: N818
    """Error of a plan or a release whose epsilon would exceed the privacy budget."""


class Planned(Protocol):
    """Anything that can plan the releases of its rounds, as every algorithm can."""

    def plan(self, rounds: int) -> Plan:
        """Return all releases of a run of `rounds` rounds, from public numbers alone.

        With a second argument, the problem, a plan also reports what they cost against a view.
        """


@dataclass(frozen=True)
class Budget:
    """A privacy budget: an upper bound on epsilon, at a given delta, for the data of every node.

    Parameters
    ----------
    epsilon
        Largest epsilon of a whole run, together with the runs in `spent`: finite and positive.
    delta
        The delta at which epsilon is computed, in [0, 1). Gaussian noise needs a positive delta.
    spent
        Ledgers or plans of earlier runs on the same data. They count towards the budget, see
        `total_cost`.
    view
        The adversary's view, such as ``OneNode(topology=topology)`` of `dpmesh.privacy.views`.
        None: the adversary sees every message. If no smaller epsilon is proved for the view, the
        epsilon against an adversary who sees every message counts.

    Raises
    ------
    ValueError
        If a number is out of range, `spent` holds anything but plans, or both `view` and `spent`
        are given: runs are not composed against a view.

    Examples
    --------
    >>> import dpmesh as dm
    >>> budget = dm.privacy.Budget(epsilon=2.0, delta=1e-5)
    >>> def learning(noise: float) -> dm.FederatedLearning:
    ...     return dm.FederatedLearning(
    ...         dm.ClientUpdates(clients=1000, sampling_rate=0.05, clipping_norm=0.3, steps=5),
    ...         noise_multiplier=noise,
    ...     )
    >>> noise = budget.calibrate(learning, rounds=200)
    >>> round(noise, 4)
    1.672
    >>> budget.affordable_rounds(learning(noise))
    200
    """

    epsilon: float
    _: KW_ONLY
    delta: float = 0.0
    spent: tuple[Plan, ...] = ()
    view: View | None = None

    def __post_init__(self) -> None:
        every(self, positive, "epsilon")
        every(self, probability, "delta", one=False)
        instance("spent", self.spent, "a tuple of plans", tuple, list)
        object.__setattr__(self, "spent", tuple(self.spent))
        for plan in self.spent:
            instance("spent", plan, "plans, such as run.ledger or algorithm.plan(rounds)", Plan)
        if self.view is not None and self.spent:
            fail("view", "None with a budget of which something is spent", self.view)

    def __str__(self) -> str:
        most = f"epsilon = {as_given(self.epsilon)} at delta = {as_given(self.delta)}"
        runs = len(self.spent)
        if self.view is not None:
            return f"{most} against {in_words(self.view)}"
        if runs:
            return f"{most} after {runs} earlier run{'s' * (runs > 1)}"
        return most

    def cost(self, plan: Plan) -> Cost | ViewCost:
        """Return the epsilon of a plan together with the runs in `spent`, at the budget's delta.

        Parameters
        ----------
        plan
            Planned releases, such as ``algorithm.plan(rounds)``, or the ledger of a run.

        Raises
        ------
        ValueError
            If `plan` is not a plan, or its neighbouring relation or unit differs from a plan in
            `spent`.
        """
        instance("plan", plan, "a Plan, such as algorithm.plan(rounds)", Plan)
        if self.view is not None:
            return plan.cost(self.delta, view=self.view)
        if self.spent:
            return total_cost((*self.spent, plan), self.delta)
        return plan.cost(self.delta)

    def allows(self, plan: Plan) -> bool:
        """Return True if a plan, with the runs in `spent`, stays within the budget.

        The comparison allows for rounding in the last digits of epsilon.

        Raises
        ------
        ValueError
            As `cost`.
        """
        return self.cost(plan).epsilon <= self.epsilon * (1 + ROUNDING)

    def require(self, algorithm: Planned, rounds: int, problem: object = None) -> Plan:
        """Return the plan of `rounds` rounds of an algorithm, if the budget allows the plan.

        Parameters
        ----------
        algorithm
            The algorithm.
        rounds
            Number of rounds, at least 1.
        problem
            Learning problem of the algorithm, such as a `dpmesh.LinearProblem`. Only a budget with
            a `view` needs the problem.

        Raises
        ------
        OverBudget
            A `ValueError`, if the plan exceeds the budget. The message states how many rounds are
            affordable.
        """
        require_methods("algorithm", algorithm, "an algorithm", "plan")
        plan = self._plan(algorithm, rounds, problem)
        if self.allows(plan):
            return plan
        most = 0
        if rounds > 1:
            most = self.affordable_rounds(algorithm, problem, at_most=rounds - 1)
        allowed = f"at most {most}, which {self} allows" if most else f"none: {self} is too little"
        cost = self.cost(plan)
        text = f"epsilon = {rounded_up(cost.epsilon)} ({cost.accountant})"
        raise OverBudget(f"rounds: wanted {allowed}, got {rounds}, which cost {text}")

    def affordable_rounds(
        self, algorithm: Planned, problem: object = None, *, at_most: int = 100_000
    ) -> int:
        """Return the largest number of rounds of an algorithm that stays within the budget.

        The result is 0 if a single round exceeds the budget.

        Parameters
        ----------
        algorithm
            An algorithm whose epsilon does not decrease with the number of rounds.
        problem
            Learning problem of the algorithm. Only a budget with a `view` needs the problem.
        at_most
            Largest number of rounds to try, at least 1. The result is `at_most` if further rounds
            need no epsilon, for example because each record is used in one round only. If the
            algorithm has a schedule with a horizon, do not exceed the horizon.

        Raises
        ------
        ValueError
            If `algorithm` has no plan, or `at_most` is not an integer of at least 1.
        """
        require_methods("algorithm", algorithm, "an algorithm", "plan")
        return accounting.affordable_rounds(
            lambda rounds: self.cost(self._plan(algorithm, rounds, problem)).epsilon,
            target_epsilon=self.epsilon * (1 + ROUNDING),
            at_most=at_most,
        )

    def calibrate(
        self,
        algorithm: Callable[[float], Planned],
        rounds: int,
        problem: object = None,
        *,
        guess: float = 1.0,
    ) -> float:
        """Return the least noise for which `rounds` rounds of an algorithm stay within the budget.

        Parameters
        ----------
        algorithm
            Function from a noise level to an algorithm. The unit of the noise level is that of the
            algorithm's parameter, such as a noise multiplier. More noise must not increase epsilon.
            Examples: ``lambda noise: replace(learning, noise_multiplier=noise)`` and
            ``lambda noise: replace(gossip, noise_std=noise)``, with `dataclasses.replace`.
        rounds
            Number of rounds, at least 1.
        problem
            Learning problem of the algorithm. Only a budget with a `view` needs the problem.
        guess
            Positive noise level at which the search starts.

        Returns
        -------
        The noise level. The epsilon of the run is at most the budget's epsilon, and within 1e-6 of
        it (for budgets below 1: within a relative 1e-6).

        Raises
        ------
        ValueError
            If `algorithm` is not a function, `rounds` or `guess` is out of range, or `spent` has
            used up the budget. Also if no noise level within a factor 1e12 of `guess` stays within
            the budget, or all do: Gaussian noise needs a positive delta, and an algorithm with a
            parameter `epsilon` ignores the noise level.
        """
        if not callable(algorithm):
            fail("algorithm", "a function that makes one for a noise", reprlib.repr(algorithm))
        integer("rounds", rounds, at_least=1)

        def epsilon(noise: float) -> float:
            instance = algorithm(noise)
            require_methods("algorithm", instance, "a function that makes an algorithm", "plan")
            return self.cost(self._plan(instance, rounds, problem)).epsilon

        if self.spent:
            spent = total_cost(self.spent, self.delta).epsilon
            if spent >= self.epsilon:
                expected = f"plans of an epsilon below {as_given(self.epsilon)}"
                fail("spent", expected, rounded_up(spent))
        return accounting.calibrate_noise(epsilon, target_epsilon=self.epsilon, guess=guess)

    def _plan(self, algorithm: Planned, rounds: int, problem: object) -> Plan:
        """Return a plan, with what a view needs if there is one."""
        planned: Callable[..., Plan] = algorithm.plan
        plan = planned(rounds) if self.view is None else planned(rounds, problem)
        composes_as_gaussian = (release.mechanism.composition == 2 for release in plan.touching)
        if self.delta == 0 and any(composes_as_gaussian):
            raise ValueError(
                "delta must be positive: Gaussian noise has no finite epsilon at delta = 0. "
                f"Try Budget({as_given(self.epsilon)}, delta=1e-5)"
            )
        return plan
