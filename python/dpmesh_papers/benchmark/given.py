"""What a method of the benchmark is given, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.privacy import Budget
from dpmesh.problems import LinearProblem, Problem
from dpmesh.topology import Topology

CLIPPING_NORM = 0.5
PASSES, ONLINE_ROUNDS, VISITS = 10, 20, 5
COHORT = 0.1
KEEP = 0.25
MIXINGS, PARTNER_MIXINGS = 8, 5
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
    """Why a method has no result for a task."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a method is given.

    Parameters
    ----------
    problem
        With test records.
    unit
        What the guarantee covers: ``"record"`` or ``"user"``.
    epsilon, delta
        The budget of the run.
    featured
        Makes the same records with more features, where the task has a rule for them.
    """

    problem: LinearProblem
    unit: str
    epsilon: float
    delta: float
    featured: Callable[[], LinearProblem] | None = None

    @property
    def budget(self) -> Budget:
        """Against somebody who sees every message."""
        return Budget(self.epsilon, delta=self.delta)

    @property
    def smallest(self) -> int:
        """Records of the smallest node."""
        return self.problem.fewest_records

    @property
    def pooled(self) -> LinearProblem:
        """All records at one node."""
        return replace(self.problem, partition=(self.problem.everything[1],))


class Trial(NamedTuple):
    """What to run.

    Attributes
    ----------
    algorithm, problem, topology, rounds
        As `dpmesh.simulate` takes them.
    budget
        What the noise was calibrated for, where it is not the cost against everybody.
    """

    algorithm: AnyAlgorithm
    problem: Problem
    topology: Topology | None
    rounds: int
    budget: Budget | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method.

    Parameters
    ----------
    name
        As printed.
    trial
        Returns what to run, or raises `CannotRun`.
    trust
        Whom a node has to trust with its records.
    """

    name: str
    trial: Callable[[Setting], Trial]
    trust: str

    @property
    def user(self) -> bool:
        """Whether it can protect all records of a user together, as clients' updates do."""
        return self.name.startswith("federated")
