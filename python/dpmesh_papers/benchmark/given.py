"""The setting of a method of the benchmark, and the trial that it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.privacy import Budget
from dpmesh.problems import LinearProblem, Problem
from dpmesh.topology import Topology

CLIPPING_NORM = 0.5
PASSES = 10
ONLINE_ROUNDS = 20
VISITS = 5
COHORT = 0.1
KEEP = 0.25
MIXINGS = 8
PARTNER_MIXINGS = 5
DIRECTED_DEGREE = 2
GLOBAL_SHARE = 0.05

EVERYBODY = "no trusted server: all messages public"
SERVER = "trusted server (central DP)"
HONEST_BUT_1 = "server colluding with at most 1 site"
HONEST_THIRD = "server colluding with at most a third of the sites"
PARTNERS_BUT_1 = "all messages public; at most 1 link partner colludes"
NO_TWO_NEIGHBOURS = "all sums public; at most 1 neighbour colludes"
NO_TWO_POOL = "any single node, no collusion (network DP)"


class CannotRun(Exception):  # noqa: N818
    """The reason for which a method has no result for a task."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A problem and a budget for a method.

    Parameters
    ----------
    problem
        The problem, with test records.
    unit
        Unit of the guarantee: ``"record"`` or ``"user"``.
    epsilon, delta
        The budget of the run.
    featured
        Returns the problem of the same records with more features, where the task has a rule for
        them.
    """

    problem: LinearProblem
    unit: str
    epsilon: float
    delta: float
    featured: Callable[[], LinearProblem] | None = None

    @property
    def budget(self) -> Budget:
        """The budget against an adversary who sees all messages."""
        return Budget(self.epsilon, delta=self.delta)

    @property
    def smallest(self) -> int:
        """Number of records of the smallest node."""
        return self.problem.fewest_records

    @property
    def pooled(self) -> LinearProblem:
        """All records at one node."""
        return replace(self.problem, partition=(self.problem.everything[1],))


class Trial(NamedTuple):
    """A run of a method.

    Attributes
    ----------
    algorithm, problem, topology, rounds
        As in `dpmesh.simulate`.
    budget
        Budget of the noise, where it is not against an adversary who sees all messages.
    """

    algorithm: AnyAlgorithm
    problem: Problem
    topology: Topology | None
    rounds: int
    budget: Budget | None = None


@dataclass(frozen=True, kw_only=True)
class MethodRow:
    """A method.

    Parameters
    ----------
    name
        The name as printed.
    trial
        Returns the run, or raises `CannotRun`.
    trust
        The threat model: the adversary, and the parties that collude with it.
    """

    name: str
    trial: Callable[[Setting], Trial]
    trust: str

    @property
    def user(self) -> bool:
        """True if it can protect all records of a user together, as clients' updates do."""
        return self.name.startswith("federated")
