"""Parts of the benchmark that its methods share: constants, threat models, and types.

A method of the benchmark is a `MethodRow`: a row of the tables. Its function `trial` gets a
`Setting` (a problem and a budget) and returns a `Trial` (an algorithm with its noise and learning
rate, ready for `dpmesh.simulate`). `dpmesh_papers.benchmark.methods` has the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.privacy import Budget
from dpmesh.problems import LinearProblem, Problem
from dpmesh.topology import Topology

CLIPPING_NORM = 0.5
"""Largest L2 norm of a record's gradient."""
PASSES = 10
"""Batches into which a node's records are divided, where rounds use batches in turn."""
ONLINE_ROUNDS = 20
"""Rounds of online learning, which uses each record once."""
VISITS = 5
"""Number of times that SGD with replacement visits each record."""
COHORT = 0.1
"""Share of the clients that take part in a round of federated learning."""
KEEP = 0.25
"""Share of the numbers that a message of CHOCO-SGD keeps."""
MIXINGS = 8
"""Mixings of a round of Muffliato."""
PARTNER_MIXINGS = 5
"""Mixings of a round with pairwise-cancelling noise, on a network that is not complete."""
DIRECTED_DEGREE = 2
"""Receivers of a node's message in a round of push-sum."""
GLOBAL_SHARE = 0.05
"""Share of the updates without replacement that are global, for the rule of the step size."""

# Threat models, as tables name them.
ALL_MESSAGES_PUBLIC = "no trusted server: all messages public"
TRUSTED_SERVER = "trusted server (central DP)"
ONE_SITE_COLLUDES = "server colluding with at most 1 site"
THIRD_OF_SITES_COLLUDES = "server colluding with at most a third of the sites"
ONE_PARTNER_COLLUDES = "all messages public; at most 1 link partner colludes"
ONE_NEIGHBOUR_COLLUDES = "all sums public; at most 1 neighbour colludes"
SINGLE_NODES = "any single node, no collusion (network DP)"


class CannotRun(Exception):  # noqa: N818
    """The reason for which a method has no result for a task."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A problem and a budget, for which each method of the benchmark makes a trial.

    Parameters
    ----------
    problem
        The problem, with test records.
    unit
        Unit of the guarantee: ``"record"``, or ``"user"`` for all records of a person together.
    epsilon, delta
        The budget of the run.
    featured
        Returns the problem of the same records with more features, by the default rule; None if
        the rule has none for the task.
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
    def fewest_records(self) -> int:
        """Number of records of the smallest node."""
        return self.problem.fewest_records

    @property
    def equal_sites(self) -> LinearProblem:
        """The problem with the first records of each node, as many as the smallest node has."""
        parts = tuple(part[: self.fewest_records] for part in self.problem.partition)
        return replace(self.problem, partition=parts)

    @property
    def pooled(self) -> LinearProblem:
        """The problem with all records at one node."""
        return replace(self.problem, partition=(self.problem.full_batches[1],))


class Trial(NamedTuple):
    """A method with all its parameters for one setting, ready to run.

    Attributes
    ----------
    algorithm, problem, topology, rounds
        As in `dpmesh.simulate`.
    budget
        Budget of the noise against a weaker adversary; None if the adversary sees all messages.
    """

    algorithm: AnyAlgorithm
    problem: Problem
    topology: Topology | None
    rounds: int
    budget: Budget | None = None


@dataclass(frozen=True, kw_only=True)
class MethodRow:
    """A method: a row of the benchmark's tables.

    Parameters
    ----------
    name
        The name as printed.
    trial
        Returns the method's trial for a setting, or raises `CannotRun`.
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
