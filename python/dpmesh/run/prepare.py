"""What a run needs before its first round: checks, a plan, keys, carriers, a ledger."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any
from zlib import crc32

from dpmesh._validate import fail, instance, probability
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.keys import Key, fingerprint
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.ledger import Ledger
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.views import Everybody, EverybodyButPartners
from dpmesh.problems import Problem
from dpmesh.run.arguments import (
    check_pairs,
    check_records,
    check_view,
    warn_unscaled,
    wide_enough,
)
from dpmesh.run.carriers import carrier_for
from dpmesh.run.channel import Channel
from dpmesh.run.checkpoint import Checkpoint, SavedRun, salt_in
from dpmesh.run.engine import Engine, OneProcess, Share
from dpmesh.run.identity import digest, identity
from dpmesh.run.metrics import Metric, Metrics, build_metrics
from dpmesh.run.network import Network
from dpmesh.run.ranks import OnRoot, gathered, scattered
from dpmesh.run.realized import RealizedNetwork
from dpmesh.run.rounds import Progress, Rounds

if TYPE_CHECKING:
    from dpmesh.topology import Topology


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A run before its first round, or before the next one of a checkpoint.

    Parameters
    ----------
    algorithm, problem, topology, network, delta, budget
        As for `simulate`.
    plan
        What it may release.
    ranks
        The processes that run it.
    alone
        Whether this process holds all nodes.
    seeded
        Whether any process has a seeded key.
    run
        Its rounds.
    saved
        Its checkpoint, if it keeps one.
    """

    algorithm: AnyAlgorithm
    problem: Problem
    topology: Topology | None
    network: Network | None
    delta: float
    budget: Budget | None
    plan: Plan
    ranks: Engine
    alone: bool
    seeded: bool
    run: Rounds
    saved: SavedRun | None


def prepare(
    algorithm: AnyAlgorithm,
    problem: Problem,
    topology: Topology | None,
    *,
    rounds: int,
    key: Key | None,
    delta: float | None,
    budget: Budget | None,
    metrics: Metrics,
    network: Network | None,
    engine: Engine | None,
    checkpoint: Checkpoint | str | PathLike[str] | None,
) -> Prepared:
    """Return a run that can begin; see `simulate` for its parameters and what it raises."""
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    delta = _delta(delta, algorithm, budget)
    check_records(algorithm, problem, rounds)
    problem = wide_enough(algorithm, problem, rounds)
    warn_unscaled(problem)
    check_pairs(key, network, engine, checkpoint)
    keys = _Keys(OneProcess() if engine is None else engine, key, checkpoint)
    if budget is not None:
        check_view(budget, topology)
        budget = _of_this_run(budget, network, keys.own)
    plan = _plan(algorithm, problem, rounds, budget)
    instance("algorithm", plan, "one whose plan(rounds) is a Plan", Plan)
    every = metrics.every or max(1, rounds // 25)
    meters = build_metrics(metrics.metrics, algorithm, problem)
    this: dict[str, Any] = {}
    if checkpoint is not None or keys.ranks.processes > 1:
        this = {"rounds": rounds, "nodes": problem.nodes, "every": every}
        this |= identity(algorithm, problem, topology, network, rounds)
        this |= {"metrics": metrics.names, "plan": crc32(repr(plan.releases).encode())}
        _check_same(keys.ranks, this)
    carrier = carrier_for(algorithm, problem, topology, network, keys.own)
    own = keys.ranks.share(keys.whole(algorithm, problem, carrier), topology)
    saved = keys.saved(checkpoint, this, own)
    ledger = Ledger(plan, budget, nodes=problem.nodes)
    run = _rounds(keys.ranks, own, ledger, meters, metrics, every, rounds, saved, plan)
    return Prepared(
        algorithm=algorithm,
        problem=problem,
        topology=topology,
        network=network,
        delta=delta,
        budget=budget,
        plan=plan,
        ranks=keys.ranks,
        alone=engine is None,
        seeded=keys.seeded,
        run=run,
        saved=saved,
    )


def _delta(delta: float | None, algorithm: AnyAlgorithm, budget: Budget | None) -> float:
    """Return the delta of a report: the one asked for, the budget's, or the algorithm's."""
    if delta is None:
        delta = getattr(algorithm, "delta", 0.0) if budget is None else budget.delta
    return probability("delta", delta, one=False)


def _plan(algorithm: AnyAlgorithm, problem: Problem, rounds: int, budget: Budget | None) -> Plan:
    """Return what will be released, within a budget if there is one."""
    if budget is not None:
        return budget.require(algorithm, rounds, problem)
    return algorithm.plan(rounds)


class _Keys:
    """The key of a run on each process: what is asked of all of them, in one order."""

    def __init__(self, ranks: Engine, key: Key | None, checkpoint: Checkpoint | None) -> None:
        self.ranks = ranks
        key = Key.generate() if key is None else key
        self.seeded = any(ranks.everyone(key.is_seeded))
        self._prints = ranks.everyone(fingerprint(key))
        self._salt = ranks.everyone(_salt(checkpoint) if ranks.is_root else "")[0]
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
    ranks: Engine,
    own: Share,
    ledger: Ledger,
    meters: list[Metric],
    metrics: Metrics,
    every: int,
    last: int,
    saved: SavedRun | None,
    plan: Plan,
) -> Rounds:
    """Return the rounds of this process, at the first one or where a checkpoint has them."""
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
            every=every,
            last=last,
            callback=metrics.callback if ranks.is_root else None,
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
