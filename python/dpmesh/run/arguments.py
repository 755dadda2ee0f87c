"""Checks of `simulate`'s arguments before anything runs."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, NoReturn, get_args

import numpy as np
from scipy import sparse

from dpmesh._validate import fail, instance, one_of, require_methods
from dpmesh.algorithms.base import AN_ALGORITHM, Algorithm, AnyAlgorithm
from dpmesh.algorithms.messages import Travel
from dpmesh.data import Dataset
from dpmesh.kernels import row_norms
from dpmesh.keys import A_KEY, Key
from dpmesh.privacy.budget import Budget
from dpmesh.problems import LinearProblem, Problem
from dpmesh.run.checkpoint import Checkpoint
from dpmesh.run.engine import Engine
from dpmesh.run.metrics import Metrics
from dpmesh.run.network import Network

if TYPE_CHECKING:
    from dpmesh.topology import Topology

GONE = {"network": "engine=dm.Network(..)", "progress": "metrics=dm.Metrics(progress=..)"}
"""Arguments that `simulate` had, and what to write in their place."""

UNSCALED = 50.0
"""Records with longer norms are not scaled."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a run was asked for: the arguments of `simulate`, see there."""

    algorithm: AnyAlgorithm
    problem: Problem
    topology: Topology | None
    rounds: int
    key: Key | None
    delta: float | None
    budget: Budget | None
    metrics: Metrics
    engine: Engine | Network | None
    checkpoint: Checkpoint | None

    @property
    def every(self) -> int:
        """After how many rounds it is measured."""
        return self.metrics.every or max(1, self.rounds // 25)

    @property
    def network(self) -> Network | None:
        """Delays and failures of messages in this process, if there are any."""
        return self.engine if isinstance(self.engine, Network) else None

    @property
    def ranks(self) -> Engine | None:
        """Several processes, if there are any."""
        return None if isinstance(self.engine, Network) else self.engine


def fail_gone(names: Iterable[str]) -> NoReturn:
    """Fail with the new form of an argument that `simulate` had before."""
    name = next(iter(names))
    advice = f"; write simulate(.., {GONE[name]})" if name in GONE else ""
    raise TypeError(f"simulate() got an unexpected keyword argument {name!r}{advice}")


def check_kinds(asked: Asked) -> None:
    """Fail unless the arguments have the right types."""
    algorithm: Any = asked.algorithm
    problem, topology = asked.problem, asked.topology
    instance("algorithm", algorithm, AN_ALGORITHM, Algorithm)
    one_of("algorithm.travels", getattr(algorithm, "travels", None), get_args(Travel))
    if getattr(problem, "test", problem) is not None:
        require_methods("problem", problem, "what is to be learned", "accuracy")
    for name in ("nodes", "test"):
        if not hasattr(problem, name):
            fail("problem", f"what is to be learned, with {name}", reprlib.repr(problem))
    if topology is not None:
        wanted = "a topology of dpmesh.topology: ring(16), from_networkx(graph), "
        require_methods(
            "topology", topology, f"{wanted}Static(MixingMatrix(weights)) or another", "matrix"
        )
        from dpmesh.topology import MixingMatrix, PushMatrix

        wanted = "one whose matrix(round) is a MixingMatrix"
        instance("topology", topology.matrix(0), wanted, MixingMatrix)
        if isinstance(topology.matrix(0), PushMatrix) and not algorithm.takes_directed:
            name = type(algorithm).__name__
            wanted = f"doubly stochastic matrices, on which the proof of {name} rests; PushSum "
            fail("topology", f"{wanted}learns over directed networks", topology)
    instance("key", asked.key, f"{A_KEY}, or None", Key, NoneType)
    instance("budget", asked.budget, "a dpmesh.privacy.Budget or None", Budget, NoneType)
    if asked.ranks is not None:
        wanted = "a dpmesh.Network, an engine such as dpmesh.engines.mpi.MpiEngine(topology), "
        require_methods("engine", asked.ranks, f"{wanted}or None", "share")


def check_pairs(asked: Asked) -> None:
    """Fail if an argument that another needs is missing, or two are given that clash."""
    if asked.checkpoint is not None and asked.key is None:
        fail("key", "one that you keep, since no checkpoint holds it: Key.load, Key.seeded", None)


def check_records(algorithm: AnyAlgorithm, problem: Problem, rounds: int) -> None:
    """Fail if records that are used only once run out before the run is over."""
    most = algorithm.most_rounds(problem)
    if most == 0:
        fail("problem", "enough records at each node for one round", "fewer")
    if most is not None and rounds > most:
        fail("rounds", f"at most {most}, as many as the records last, each used once", rounds)


def wide_enough(algorithm: AnyAlgorithm, problem: Problem, rounds: int) -> Any:
    """Return the problem, in float64 if the algorithm's messages may be too long for float32."""
    outgrows = getattr(algorithm, "outgrows_single", None)
    if outgrows is None or type(problem) is not LinearProblem:
        return problem
    if problem.train.features.dtype == np.float64 or not outgrows(rounds, problem.dim):
        return problem

    def wide(data: Dataset) -> Dataset:
        return replace(data, features=data.features.astype(np.float64))

    test = None if problem.test is None else wide(problem.test)
    return replace(problem, train=wide(problem.train), test=test)


def warn_unscaled(problem: object) -> None:
    """Warn about columns that nobody scaled: clipping then discards what they hold."""
    if not isinstance(problem, LinearProblem) or problem.feature_norm is not None:
        return
    x: Any = problem.train.features
    if sparse.issparse(x):  # the largest entry is no longer than its record, and needs no copy
        longest = float(max(x.data.max(initial=0), -x.data.min(initial=0)))
    else:
        longest = float(row_norms(x).max(initial=0))
    if longest > UNSCALED:
        warnings.warn(
            f"records have norms of {longest:.4g} and more, far above 1: scale the columns by "
            "public ranges (dm.ranges.Columns, dm.data.scaled) or records to norm 1 "
            "(dm.data.unit_norm)",
            UserWarning,
            stacklevel=4,
        )


def check_view(budget: Budget, topology: Topology | None) -> None:
    """Fail unless the view of a budget is of the network that messages travel over."""
    seen = getattr(budget.view, "topology", None)
    if seen is None:
        return
    if seen is not topology and seen != topology:
        fail("budget", f"a view of the run's topology, {topology}", f"one of {seen}")
