"""A budget: how much may be spent, which noise keeps within it, how many rounds it allows.

All of it relies on the plans that algorithms make from public numbers, so it serves every
algorithm, also one of your own.
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
    """A request that would exceed the budget."""


class Planned(Protocol):
    """Anything that can plan the releases of its rounds, as every algorithm can."""

    def plan(self, rounds: int) -> Plan:
        """Return all releases of a run of `rounds` rounds, from public numbers alone.

        With a second argument, the problem, a plan also reports what they cost against a view.
        """


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
    view
        The adversary, such as ``OneNode(topology=topology)`` of `dpmesh.privacy.views`; None for
        one who sees every message. Where no lower cost is proved against this adversary, the cost
        against one who sees every message counts.

    Raises
    ------
    ValueError
        If a number is out of its range, `spent` holds anything but plans, or there is a view beside
        earlier runs, whose costs against it are not known together.

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
        """Return what a plan costs together with what was spent, at the budget's delta.

        Raises
        ------
        ValueError
            If `plan` is not a plan, or has another neighbouring relation or unit than those spent.
        """
        instance("plan", plan, "a Plan, such as algorithm.plan(rounds)", Plan)
        if self.view is not None:
            return plan.cost(self.delta, view=self.view)
        if self.spent:
            return total_cost((*self.spent, plan), self.delta)
        return plan.cost(self.delta)

    def allows(self, plan: Plan) -> bool:
        """Return True if the budget covers a plan, up to rounding in the last digits of epsilon.

        Raises
        ------
        ValueError
            As `cost`.
        """
        return self.cost(plan).epsilon <= self.epsilon * (1 + ROUNDING)

    def require(self, algorithm: Planned, rounds: int, problem: object = None) -> Plan:
        """Return the plan of `rounds` rounds of an algorithm; a view needs the problem, too.

        Raises
        ------
        OverBudget
            A `ValueError`, if that costs more; it states how many rounds are affordable.
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
        """Return how many rounds of an algorithm keep the budget: 0 if not even one does.

        Parameters
        ----------
        algorithm
            Its cost must not fall as rounds are added.
        problem
            What it learns, which a view needs.
        at_most
            The most rounds to try, at least 1: no more than schedules with a horizon are made for.
            This is the answer where further rounds cost nothing, for example if each record is used
            in one round only.

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
        """Return the least noise at which `rounds` rounds of an algorithm keep the budget.

        Parameters
        ----------
        algorithm
            Makes the algorithm for a noise; the larger the noise, the less it must cost. Examples
            are ``lambda noise: replace(learning, noise_multiplier=noise)`` and ``lambda noise:
            replace(gossip, noise_std=noise)``.
        rounds
            At least 1.
        problem
            What it learns, which a view needs.
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
