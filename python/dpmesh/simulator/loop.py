"""The round loop."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dpmesh._validate import instance, integer, probability
from dpmesh.algorithms.base import Algorithm
from dpmesh.keys import Key, fingerprint
from dpmesh.privacy.budget import Budget, Ledger, OverBudget
from dpmesh.privacy.door import drawn_once
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.report import report
from dpmesh.simulator.arguments import check_kinds, check_pairs, check_records
from dpmesh.simulator.checkpoint import Checkpoint
from dpmesh.simulator.counted import ended_early, telling_gaps
from dpmesh.simulator.engine import Engine, OneProcess, Sign
from dpmesh.simulator.exchange import carrier_for
from dpmesh.simulator.identity import check_unserved, claim, identity, without_addresses
from dpmesh.simulator.interrupt import Interrupt
from dpmesh.simulator.metrics import Testable, UserMetric, build_metrics, metric_name
from dpmesh.simulator.network import Network
from dpmesh.simulator.progress_bar import shows_bar, with_bar
from dpmesh.simulator.rounds import Callback, Progress, Rounds, Share, Step
from dpmesh.simulator.run import Run

if TYPE_CHECKING:
    from dpmesh.topology import Topology

_log = logging.getLogger("dpmesh")

BUDGET, CALLBACK = "the budget ended", "the callback ended it"
"""What ends a run before its last round."""

ProblemT = TypeVar("ProblemT", bound=Testable)


def simulate(
    algorithm: Algorithm[Any, ProblemT],
    problem: ProblemT,
    topology: Topology | None = None,
    *,
    rounds: int,
    key: Key | None = None,
    delta: float | None = None,
    budget: Budget | None = None,
    metrics: Sequence[str | UserMetric] | None = None,
    every: int | None = None,
    progress: bool | None = None,
    callback: Callback | None = None,
    network: Network | None = None,
    engine: Engine | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
) -> Run:
    """Run an algorithm on one machine.

    Parameters
    ----------
    algorithm
        One of `dpmesh.algorithms`, or anything of the same shape.
    problem
        What is learned, with the data of each node.
    topology
        Who talks to whom, round by round; only for algorithms whose messages go to neighbours.
    rounds
        At least 1.
    key
        Source of all randomness, for this run alone: two runs under one key have the same noise,
        which cancels in their difference; in one process the second is refused, unless the key is
        seeded. By default a new one from the operating system. A seeded key makes the run
        reproducible, and its report says that it is not a private release.
    delta
        Delta of the privacy report, in [0, 1); by default that of the budget, or of the algorithm
        if it has a `delta`, or 0, at which Gaussian noise has no finite epsilon.
    budget
        What must not be exceeded: a plan that costs more is refused before the first round, and a
        run that departs from its plan ends before the first release that would cost more.
    metrics
        Names out of ``"loss"``, ``"accuracy"`` (with ``"released_accuracy"``), ``"regret"`` (with
        ``"worst_regret"``), ``"consensus_distance"``, ``"compression"`` (with
        ``"bits_per_node"``), ``"node_accuracy"``, and functions ``metric(problem, parameters,
        received)`` of your own that return a number, or one for each node. By default all named
        ones that the problem and the algorithm allow, without per-node metrics, and regret only up
        to 256 nodes. ``megabytes``, the traffic so far, is always measured, too.
    every
        Measure every `every` rounds, and in the last; by default about 25 times in a run.
    progress
        Whether to show a progress bar (extra ``progress``); by default in a terminal only.
    callback
        Called with the round and its measurements whenever there are any, for example to stream
        results. If it raises `StopRun`, the run ends there, saved if there is a checkpoint, from
        which it can resume. The report then counts all `rounds`, since releases may have decided
        when to end; the ledger holds the rounds so far. If private data decide, no report covers
        that.
    network
        Delays and failures of the network; ``seconds`` of virtual time are then measured along with
        the metrics. By default messages take no time and all arrive.
    engine
        Several processes that each hold some of the nodes, such as `dpmesh.engines.mpi.MpiEngine`;
        all of them make this call. None runs all nodes in this process. The root measures and
        saves; the others' runs hold their own nodes and no history.
    checkpoint
        A file in which the run keeps its progress. If it exists, the run resumes from it, to the
        same bits as if it had not been interrupted; if not, it is created. Ctrl-C and SIGTERM save
        before they stop the run, unless the round takes longer than a second (with an engine, all
        stop after the round). The file holds the nodes' own parameters and needs the same
        protection. It holds no key: pass the run's own, seeded or from a file that you keep
        (`Key.save`).
    checkpoint_every
        Save every `checkpoint_every` rounds; by default about every 10 seconds.

    Raises
    ------
    ValueError
        If an argument is invalid, or the plan is over the budget (the error says how many rounds
        are affordable), or the topology and the problem differ in their nodes, or a topology is
        missing or superfluous, or the checkpoint is that of another run, key or data, or a key from
        the operating system has served another run, is from before a fork, or is for some nodes
        only.
    OSError
        If the checkpoint cannot be written; the last one is then untouched.
    ModuleNotFoundError
        If a progress bar is asked for and its extra is not installed.
    """
    rounds = integer("rounds", rounds, at_least=1)
    every = max(1, rounds // 25) if every is None else integer("every", every, at_least=1)
    check_kinds(algorithm, problem, topology, network, key, budget, engine, callback)
    if delta is None:
        delta = getattr(algorithm, "delta", 0.0) if budget is None else budget.delta
    delta = probability("delta", delta, one=False)
    check_records(algorithm, problem, rounds)
    check_pairs(key, network, engine, checkpoint, checkpoint_every)
    progress = shows_bar(progress)
    plan = algorithm.plan(rounds) if budget is None else budget.require(algorithm, rounds)
    instance("algorithm", plan, "one whose plan(rounds) is a Plan", Plan)
    meters = build_metrics(metrics, algorithm, problem)
    serves_once = key is not None and not key.is_seeded
    known = serves_once or checkpoint is not None
    this = identity(algorithm, problem, topology, network, rounds) if known else {}
    key = Key.generate() if key is None else key

    ranks: Engine = OneProcess() if engine is None else engine
    exchange = carrier_for(algorithm, problem, topology, network, key)
    whole = Share(algorithm, problem, exchange, key)
    own = ranks.share(whole, topology)
    seeded = any(ranks.told(key.is_seeded))
    saved = None
    if checkpoint is not None:
        names = None if metrics is None else [metric_name(metric) for metric in metrics]
        shape = {"rounds": rounds, "nodes": problem.nodes, "every": every, "metrics": names}
        saved = _checkpoint(checkpoint, checkpoint_every, this | shape, key, ranks)

    with ranks.together(lambda: None):
        if serves_once:
            check_unserved(key, this)
        start = Progress(own.algorithm.init(own.problem, own.start or own.key))
        ranks.agree()
        told = callback if ranks.is_root else None
        run = Rounds(own, ranks.meters(meters), every, rounds, told, ranks.total, start)
        if saved is not None:
            run.recall(_resumed(saved, plan, run, ranks))
        if serves_once:
            claim(key, this)
        ranks.agree()

    if ranks.is_root:
        begun = (run.at.rounds, rounds, problem.nodes, algorithm)
        _log.info("a run begins with %d of %d rounds done, on %d nodes: %s", *begun)
    ledger = Ledger(plan, budget)
    ledger.add(*run.at.ledger)
    ends_early = saved is not None or budget is not None
    why = _Loop(ranks, run, ledger, saved, ends_early, seeded).run_all(progress and ranks.is_root)

    end = ranks.gather(run.remembered())
    length = f"{end.rounds} of {rounds}"
    counted = released = telling_gaps(plan, ledger.plan, end.rounds, delta)
    if why == CALLBACK:
        counted, released = ended_early(plan, released, end.rounds, length)
    if ranks.is_root:
        _log.info("a run ends with %d of %d rounds done", end.rounds, rounds)
    return Run(
        settings={
            "algorithm": without_addresses(algorithm),
            "topology": without_addresses(topology),
            "network": str(network),
            "rounds": rounds if why is None else f"{length}: there {why}",
        },
        history=end.history,
        ledger=released,
        privacy=report(counted, delta, seeded=seeded, nodes=problem.nodes),
        traffic=end.traffic,
        parameters=(whole if ranks.is_root else own).algorithm.parameters(end.state),
        released=end.received,
    )


@dataclass(frozen=True)
class _Loop:
    """The remaining rounds, each run and recorded by all processes or by none."""

    ranks: Engine
    run: Rounds
    ledger: Ledger
    saved: Checkpoint | None
    ends_early: bool
    """Whether the rounds before one that fails count."""
    seeded: bool
    """Whether a key of the run is seeded, which its report says."""

    def run_all(self, progress: bool) -> str | None:
        """Run them until the last, or Ctrl-C; return what ended them early, if anything."""
        patient = self.ranks.stops_together
        left = range(self.run.at.rounds, self.run.last)
        ledger = self.run.at.ledger
        with (
            Interrupt(deferred=self.saved is not None or patient, patient=patient) as interrupt,
            self.ranks.at_door(self.ledger.admit),
            drawn_once(ledger[-1].round + 1 if ledger else 0, seeded=self.seeded),
        ):
            for t in with_bar(left) if progress else left:
                try:
                    signs = self._round(interrupt)
                except OverBudget:
                    if t == 0:
                        raise
                    self._count_what_left()
                    if self.ranks.is_root:
                        _log.warning("the budget ended a run after %d rounds", t)
                    return BUDGET
                if signs and signs & Sign.STOP:
                    raise KeyboardInterrupt(self._last_checkpoint() or "")
                if signs and signs & Sign.ENDED and t + 1 < self.run.last:
                    return CALLBACK
        return None

    def _count_what_left(self) -> None:
        """Record what left all nodes in a round that was not completed.

        One release that names no nodes leaves all processes.
        """
        left = map(Counter, self.ranks.told(self.ledger.leaving))
        self.ledger.add(*reduce(or_, left).elements())

    def _round(self, interrupt: Interrupt) -> Sign:
        """Run the next round and record it; its temporary values are freed on return."""
        step, signs = self._attempt(interrupt)
        return self._accept(step, signs, interrupt)

    def _attempt(self, interrupt: Interrupt) -> tuple[Step, Sign]:
        """Run the next round, and collect the signs of all processes after it."""
        if not self.ends_early:
            self.run.at.received = None  # its memory, as large as the state, serves the round
        with self.ranks.together(self._save if self.run.own.rewinds else self._last_checkpoint):
            step = self.run.attempt(lambda: self.ledger.admitted)
            return step, self.ranks.agree(self._signs(step, interrupt))

    def _accept(self, step: Step, signs: Sign, interrupt: Interrupt) -> Sign:
        """Record the round, and save it if that is due; return the signs that hold now."""
        with self.ranks.together(self._last_checkpoint):
            releases = step.info.releases
            if signs and signs & Sign.APART:  # testing a flag takes a microsecond
                releases = self.ranks.releases(releases, self.ledger.planned(self.run.at.rounds))
            if signs and signs & Sign.RESTED:
                step = self._beside_others(step)
            ended = self.run.accept(step, releases)
            self.ledger.add(*releases)
            if self.run.is_measured:
                signs |= self.ranks.agree(Sign.ENDED if ended else Sign.NONE)
            if interrupt.requested and not self.ranks.stops_together:
                signs |= Sign.STOP  # asked for while the round was recorded
            if signs and signs & (Sign.SAVE | Sign.STOP | Sign.ENDED):
                with interrupt.patiently():
                    self._save()
        return signs

    def _signs(self, step: Step, interrupt: Interrupt) -> Sign:
        """Return what this process has to tell the others after a round."""
        signs = Sign.STOP if interrupt.requested else Sign.NONE
        if self.saved is not None and self.saved.is_due(self.run.at.rounds + 1, self.run.last):
            signs |= Sign.SAVE
        releases = step.info.releases
        for release in releases:
            if release.nodes is not None:
                signs |= Sign.APART
        several = self.ranks.stops_together
        if several and [*releases] != self.ledger.planned(self.run.at.rounds):
            signs |= Sign.APART
        if step.info.losses is None:
            signs |= Sign.RESTED
        return signs

    def _beside_others(self, step: Step) -> Step:
        """Give a step without losses those of no node, if other processes have some."""
        rested = step.info.losses is None
        said = self.ranks.agree(Sign.NONE if rested else Sign.LEARNED)
        if not rested or not said & Sign.LEARNED:
            return step
        return Step(step.state, replace(step.info, losses=lambda: np.empty(0)))

    def _save(self) -> str | None:
        """Save the rounds that all processes have run, if they are to be kept; say where."""
        if self.saved is None:
            return None
        saved, everybody = self.saved, self.ranks.gather(self.run.remembered())
        self.ranks.on_root(lambda: saved.save(everybody))
        return f"{self.run.at.rounds} rounds are in {saved.path}"

    def _last_checkpoint(self) -> str | None:
        """Say where the last checkpoint is, if there is one."""
        return None if self.saved is None else f"the last checkpoint is {self.saved.path}"


def _checkpoint(
    path: str | Path, every: int | None, run: Mapping[str, Any], key: Key, ranks: Engine
) -> Checkpoint:
    """Return the file in which this run, on these ranks, keeps its progress."""
    keys = ranks.told(fingerprint(key))
    if len(set(keys)) > 1:  # on another rank a node would draw new noise for the same value
        run = {**run, "dealt": ranks.dealt}
    return Checkpoint(path, run, keys, every)


def _resumed(saved: Checkpoint, plan: Plan, run: Rounds, ranks: Engine) -> Progress:
    """Return this process's part of the progress in the file, which is created if missing."""
    start = ranks.gather(run.remembered())
    return ranks.scatter(ranks.on_root(lambda: saved.resume(start, plan)))
