"""What a run needs before its first round: checks, a plan, keys, carriers, a ledger."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any
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
    Asked,
    check_pairs,
    check_records,
    check_view,
    warn_unscaled,
    wide_enough,
)
from dpmesh.run.channel import Channel
from dpmesh.run.checkpoint import Checkpoint, SavedRun, salt_in
from dpmesh.run.engine import Engine, OneProcess, Share
from dpmesh.run.failing import carrier_for
from dpmesh.run.identity import digest, identity
from dpmesh.run.metrics import Metric, build_metrics
from dpmesh.run.network import Network
from dpmesh.run.ranks import OnRoot, gathered, scattered
from dpmesh.run.realized import RealizedNetwork
from dpmesh.run.rounds import Progress, Rounds


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
    check_pairs(asked)
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
