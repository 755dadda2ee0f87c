"""What a run needs before its first round: checks, a plan, keys, carriers, a ledger."""

from __future__ import annotations

import reprlib
import secrets
import warnings
from dataclasses import dataclass, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args
from zlib import crc32

import numpy as np
from scipy import sparse

from dpmesh._validate import fail, instance, one_of, probability, require_methods
from dpmesh.algorithms.base import AN_ALGORITHM, Algorithm, AnyAlgorithm
from dpmesh.algorithms.messages import Travel
from dpmesh.data import Dataset
from dpmesh.kernels import row_norms
from dpmesh.keys import A_KEY, Key, fingerprint
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.ledger import Ledger
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.views import Everybody, EverybodyButPartners
from dpmesh.problems import LinearProblem, Problem
from dpmesh.run.channel import Channel
from dpmesh.run.checkpoint import Checkpoint, SavedRun, salt_in
from dpmesh.run.engine import Engine, OneProcess, Share
from dpmesh.run.failing import RealizedNetwork, carrier_for
from dpmesh.run.identity import digest, identity
from dpmesh.run.metrics import Metric, Metrics, build_metrics
from dpmesh.run.network import Network
from dpmesh.run.ranks import OnRoot, gathered, scattered
from dpmesh.run.rounds import Progress, Rounds

if TYPE_CHECKING:
    from dpmesh.topology import Topology

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
            "public ranges (dm.tables.Columns, dm.data.scaled) or records to norm 1 "
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


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A run before its first round, or before the next one of a checkpoint.

    Parameters
    ----------
    asked
        What was asked for, with the problem and the budget as the run has them.
    delta
        That of the report.
    plan
        What it may release.
    ranks
        The processes that run it.
    seeded
        Whether any process has a seeded key.
    run
        Its rounds.
    saved
        Its checkpoint, if it keeps one.
    """

    asked: Asked
    delta: float
    plan: Plan
    ranks: Engine
    seeded: bool
    run: Rounds
    saved: SavedRun | None


def prepare(asked: Asked) -> Prepared:
    """Return a run that can begin; see `simulate` for what it raises."""
    algorithm, topology, network = asked.algorithm, asked.topology, asked.network
    delta = _delta(asked)
    check_records(algorithm, asked.problem, asked.rounds)
    asked = replace(asked, problem=wide_enough(algorithm, asked.problem, asked.rounds))
    warn_unscaled(asked.problem)
    if asked.checkpoint is not None and asked.key is None:
        fail("key", "one that you keep, since no checkpoint holds it: Key.load, Key.seeded", None)
    keys = _Keys(asked)
    if asked.budget is not None:
        check_view(asked.budget, topology)
        asked = replace(asked, budget=_of_this_run(asked.budget, network, keys.own))
    plan = _plan(asked)
    instance("algorithm", plan, "one whose plan(rounds) is a Plan", Plan)
    meters = build_metrics(asked.metrics.metrics, algorithm, asked.problem)
    this: dict[str, Any] = {}
    if asked.checkpoint is not None or keys.ranks.processes > 1:
        this = _identity(asked, plan)
        _check_same(keys.ranks, this)
    carrier = carrier_for(algorithm, asked.problem, topology, network, keys.own)
    own = keys.ranks.share(keys.whole(algorithm, asked.problem, carrier), topology)
    saved = keys.saved(asked.checkpoint, this, own)
    return Prepared(
        asked=asked,
        delta=delta,
        plan=plan,
        ranks=keys.ranks,
        seeded=keys.seeded,
        run=_rounds(asked, keys.ranks, own, plan, meters, saved),
        saved=saved,
    )


def _delta(asked: Asked) -> float:
    """Return the delta of a report: the one asked for, the budget's, or the algorithm's."""
    delta, budget = asked.delta, asked.budget
    if delta is None:
        delta = getattr(asked.algorithm, "delta", 0.0) if budget is None else budget.delta
    return probability("delta", delta, one=False)


def _plan(asked: Asked) -> Plan:
    """Return what will be released, within a budget if there is one."""
    if asked.budget is not None:
        return asked.budget.require(asked.algorithm, asked.rounds, asked.problem)
    return asked.algorithm.plan(asked.rounds)


def _identity(asked: Asked, plan: Plan) -> dict[str, Any]:
    """Return what all processes, and a run that is resumed, must have in common."""
    of = asked.algorithm, asked.problem, asked.topology, asked.network, asked.rounds
    return {
        "rounds": asked.rounds,
        "nodes": asked.problem.nodes,
        "every": asked.every,
        **identity(*of),
        "metrics": asked.metrics.names,
        "plan": crc32(repr(plan.releases).encode()),
    }


class _Keys:
    """The key of a run on each process: what is asked of all of them, in one order."""

    def __init__(self, asked: Asked) -> None:
        ranks = self.ranks = asked.ranks or OneProcess()
        key = Key.generate() if asked.key is None else asked.key
        self.seeded = any(ranks.everyone(key.is_seeded))
        self._prints = ranks.everyone(fingerprint(key))
        self._salt = ranks.everyone(_salt(asked.checkpoint) if ranks.is_root else "")[0]
        self.own = key if key.is_seeded else key.derive(bytes.fromhex(self._salt))

    def whole(self, algorithm: AnyAlgorithm, problem: Problem, carrier: Any) -> Share:
        """Return all nodes as one process would run them."""
        return Share(
            algorithm=algorithm,
            problem=problem,
            carrier=carrier,
            key=self.own,
            noise_key=self.own,
            pair_key=self.own,
            total=problem.nodes,
        )

    def saved(
        self, checkpoint: Checkpoint | None, this: dict[str, Any], own: Share
    ) -> SavedRun | None:
        """Return what keeps the progress of a run like this one."""
        if checkpoint is None:
            return None
        if len(set(self._prints)) > 1:  # on another rank a node would draw new noise for a value
            this["nodes of each rank"] = digest(self.ranks.everyone(own.nodes))
        return SavedRun(checkpoint, this, self._prints, self._salt)


def _rounds(
    asked: Asked,
    ranks: Engine,
    own: Share,
    plan: Plan,
    meters: list[Metric],
    saved: SavedRun | None,
) -> Rounds:
    """Return the rounds of this process, at the first one or where a checkpoint has them."""
    ledger = Ledger(plan, asked.budget, nodes=asked.problem.nodes)
    with ranks.guard(lambda: None):
        start = Progress(state=own.algorithm.init(own.problem, own.key))
        ranks.agree()
        run = Rounds(
            own=own,
            channel=Channel(
                own.carrier, own.noise_key, ledger, nodes=own.nodes, pair_key=own.pair_key
            ),
            engine=ranks,
            meters=meters if own.nodes is None else [OnRoot(ranks, own, meters)],
            every=asked.every,
            last=asked.rounds,
            callback=asked.metrics.callback if ranks.is_root else None,
            at=start,
        )
        if saved is not None:
            run.recall(_resumed(saved, plan, run))
        ranks.agree()
    return run


def _salt(checkpoint: Checkpoint | None) -> str:
    """Return what a run mixes into its key: new bits, or those of the run that it resumes."""
    kept = None if checkpoint is None else salt_in(checkpoint.path)
    return secrets.token_hex(32) if kept is None else kept


def _of_this_run(budget: Budget, network: Network | None, key: Key) -> Budget:
    """Return a budget whose view, if there is one, has the failures of this run's network."""
    view = budget.view
    if network is None or view is None or isinstance(view, Everybody | EverybodyButPartners):
        return budget
    return replace(
        budget, view=replace(view, topology=RealizedNetwork(view.topology, network, key))
    )


def _check_same(ranks: Engine, mine: dict[str, Any]) -> None:
    """Fail unless all processes run the same."""
    of_all = ranks.everyone(mine)
    for name, first in of_all[0].items():
        if any(each[name] != first for each in of_all):
            fail(name, "the same on all ranks", ", ".join(str(each[name]) for each in of_all))


def _resumed(saved: SavedRun, plan: Plan, run: Rounds) -> Progress:
    """Return this process's part of the progress in the file, which is created if missing."""
    ranks = run.engine
    start = gathered(run.remembered(), ranks, run.own)
    whole = saved.resume(start, plan) if ranks.is_root else None
    ranks.agree()
    return scattered(whole, ranks, run.own)
