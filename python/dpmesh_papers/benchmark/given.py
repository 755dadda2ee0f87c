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

EVERYBODY = "nobody: all messages may be public"
SERVER = "a server that sees all records or their gradients"
HONEST_BUT_1 = "that the server and no 2 sites collude"
HONEST_THIRD = "that the server and no more than a third of the sites collude"
PARTNERS_BUT_1 = "that its link partners, but 1, keep shared noise secret"
NO_TWO_NEIGHBOURS = "that no 2 neighbours of a node collude"
NO_TWO_POOL = "that no 2 nodes pool what they see"


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
        The parties that a node has to trust with its records.
    """

    name: str
    trial: Callable[[Setting], Trial]
    trust: str

    @property
    def user(self) -> bool:
        """True if it can protect all records of a user together, as clients' updates do."""
        return self.name.startswith("federated")
