"""The round loop."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from dpmesh._validate import fail, instance, integer, probability
from dpmesh.algorithms.base import Algorithm
from dpmesh.keys import Key, fingerprint
from dpmesh.privacy.budget import Budget, OverBudget
from dpmesh.privacy.ledger import Ledger
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.privacy.report import not_covered, report
from dpmesh.privacy.views import Everybody, EverybodyButPartners
from dpmesh.run.arguments import (
    check_kinds,
    check_pairs,
    check_records,
    check_view,
    warn_unscaled,
    wide_enough,
)
from dpmesh.run.carriers import carrier_for
from dpmesh.run.channel import Channel
from dpmesh.run.checkpoint import Checkpoint, SavedRun, salt_in
from dpmesh.run.counted import ended_early, with_gaps
from dpmesh.run.engine import Engine, OneProcess, Share, Sign
from dpmesh.run.identity import digest, identity, without_addresses
from dpmesh.run.interrupt import Interrupt
from dpmesh.run.metrics import Chosen, Metrics, Testable, build_metrics
from dpmesh.run.network import Network
from dpmesh.run.progress_bar import shows_bar, with_bar
from dpmesh.run.ranks import OnRoot, gathered, scattered
from dpmesh.run.realized import RealizedNetwork
from dpmesh.run.rounds import Progress, Rounds
from dpmesh.run.run import Run

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
    metrics: Metrics | Chosen = None,
    progress: bool | None = None,
    network: Network | None = None,
    engine: Engine | None = None,
    checkpoint: Checkpoint | str | PathLike[str] | None = None,
) -> Run:
    """Run an algorithm on one machine.

    Parameters
    ----------
    algorithm
        One of `dpmesh.algorithms`, or anything of the same shape.
    problem
        What is learned, with the data of each node. Records in float32 become float64 where
        messages of `GradientDescent` may be too long for float32.
    topology
        Who talks to whom, round by round; only for algorithms whose messages go to neighbours.
    rounds
        At least 1.
    key
        Source of all randomness; by default a new one from the operating system. A run mixes 256
        fresh bits into such a key, so that no two runs have the same noise. A seeded key makes the
        run reproducible, and its report states that it is not a private release.
    delta
        Delta of the privacy report, in [0, 1); by default that of the budget, or of the algorithm
        if it has a `delta`, or 0, at which Gaussian noise has no finite epsilon.
    budget
        What must not be exceeded: a plan that costs more is refused before the first round, and a
        run that departs from its plan ends before the first release that would cost more.
    metrics
        What to measure: names of metrics and functions of your own, or `Metrics`, which also sets
        how often and who receives the measurements; see there for the names and the default. An
        empty list measures nothing but traffic.
    progress
        Whether to show a progress bar (extra ``progress``); by default in a terminal only.
    network
        Delays and failures of the network; ``seconds`` of virtual time are then measured along with
        the metrics. By default messages take no time and all arrive.
    engine
        Several processes that each hold some of the nodes, such as `dpmesh.engines.mpi.MpiEngine`;
        all of them make this call. None runs all nodes in this process. The root measures and
        saves; the others' runs hold their own nodes and no history.
    checkpoint
        A file in which the run keeps its progress, about every 10 seconds; `Checkpoint` sets after
        how many rounds instead. If it exists, the run resumes from it, to the same bits as if it
        had not been interrupted; if not, it is created. Ctrl-C and SIGTERM save before they stop
        the run, unless the round takes longer than a second (with an engine, all stop after the
        round). The file holds the nodes' own parameters and needs the same protection. It holds no
        key: pass the run's own, seeded or from a file that you keep (`Key.save`).

    Raises
    ------
    ValueError
        If an argument is invalid, or the plan is over the budget (the error states how many rounds
        are affordable), or the topology and the problem differ in their nodes, or a topology is
        missing or superfluous, or the checkpoint is that of another run, key or data.
    OSError
        If the checkpoint cannot be written; the last one is then untouched.
    ModuleNotFoundError
        If a progress bar is asked for and its extra is not installed.
    """
    rounds = integer("rounds", rounds, at_least=1)
    measured = metrics if isinstance(metrics, Metrics) else Metrics(metrics)
    every = measured.every or max(1, rounds // 25)
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    check_kinds(algorithm, problem, topology, network, key, budget, engine)
    if delta is None:
        delta = getattr(algorithm, "delta", 0.0) if budget is None else budget.delta
    delta = probability("delta", delta, one=False)
    check_records(algorithm, problem, rounds)
    problem = wide_enough(algorithm, problem, rounds)
    warn_unscaled(problem)
    check_pairs(key, network, engine, checkpoint)
    progress, ranks = shows_bar(progress), OneProcess() if engine is None else engine
    key = Key.generate() if key is None else key
    seeded, keys = any(ranks.everyone(key.is_seeded)), ranks.everyone(fingerprint(key))
    salt = ranks.everyone(_salt(checkpoint) if ranks.is_root else "")[0]
    if not key.is_seeded:
        key = key.derive(bytes.fromhex(salt))
    if budget is None:
        plan = algorithm.plan(rounds)
    else:
        check_view(budget, topology)
        budget = _of_this_run(budget, network, key)
        plan = budget.require(algorithm, rounds, problem)
    instance("algorithm", plan, "one whose plan(rounds) is a Plan", Plan)
    meters = build_metrics(measured.metrics, algorithm, problem)
    this: dict[str, Any] = {}
    if checkpoint is not None or ranks.processes > 1:
        this = {"rounds": rounds, "nodes": problem.nodes, "every": every}
        this |= identity(algorithm, problem, topology, network, rounds)
        this["metrics"] = measured.names
        this["plan"] = crc32(repr(plan.releases).encode())
        _check_same(ranks, this)

    carrier = carrier_for(algorithm, problem, topology, network, key)
    whole = Share(
        algorithm=algorithm,
        problem=problem,
        carrier=carrier,
        key=key,
        noise_key=key,
        pair_key=key,
        total=problem.nodes,
    )
    own = ranks.share(whole, topology)
    ledger = Ledger(plan, budget, nodes=problem.nodes)
    saved: SavedRun | None = None
    if checkpoint is not None:
        if len(set(keys)) > 1:  # on another rank a node would draw new noise for the same value
            this["nodes of each rank"] = digest(ranks.everyone(own.nodes))
        saved = SavedRun(checkpoint, this, keys, salt)
    with ranks.guard(lambda: None):
        start = Progress(state=algorithm.init(own.problem, own.key))
        ranks.agree()
        run = Rounds(
            own=own,
            channel=Channel(
                own.carrier, own.noise_key, ledger, nodes=own.nodes, pair_key=own.pair_key
            ),
            engine=ranks,
            meters=meters if own.nodes is None else [OnRoot(ranks, own, meters)],
            every=every,
            last=rounds,
            callback=measured.callback if ranks.is_root else None,
            at=start,
        )
        if saved is not None:
            run.recall(_resumed(saved, plan, run))
        ranks.agree()

    if ranks.is_root:
        begun = (run.at.rounds, rounds, problem.nodes, algorithm)
        _log.info("a run begins with %d of %d rounds done, on %d nodes: %s", *begun)
    why = _Loop(ranks, run, saved).run_all(progress and ranks.is_root)

    view = None if budget is None else budget.view
    end = gathered(run.remembered(), ranks, own)
    length = f"{end.rounds} of {rounds}"
    counted, released = with_gaps(
        plan, ledger.plan, end.rounds, delta, releases_decide=algorithm.releases_decide
    )
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
        privacy=report(
            counted,
            delta,
            seeded=seeded,
            nodes=problem.nodes,
            units=_units(problem, plan),
            view=view,
            not_covered=not_covered(
                (*end.history.metrics, "run.parameters"),
                parameters_are_released=algorithm.parameters_are_released,
            ),
        ),
        traffic=end.traffic,
        parameters=algorithm.parameters(end.state),
        released=algorithm.published(end.state, end.received),
        problem=problem if engine is None else None,
        outline=getattr(problem, "outline", None),
    )


def _units(problem: Any, plan: Plan) -> int | None:
    """Return how many records or users a problem holds; None if it does not say."""
    if plan.unit == "user":
        return int(problem.nodes)
    records = getattr(problem, "all_records", None)
    return None if records is None else int(records.sum())


@dataclass
class _Loop:
    """The remaining rounds, each run and recorded by all processes or by none."""

    ranks: Engine
    run: Rounds
    saved: SavedRun | None
    recording: bool = False
    """Whether a round that all have run is being recorded: some may have recorded it already."""

    def run_all(self, progress: bool) -> str | None:
        """Run them until the last, or Ctrl-C; return what ended them early, if anything."""
        several = self.ranks.processes > 1
        left = range(self.run.at.rounds, self.run.last)
        with Interrupt(deferred=self.saved is not None or several, patient=several) as interrupt:
            try:
                with self.ranks.guard(self._kept):
                    for t in with_bar(left) if progress else left:
                        signs = self._round(interrupt, several)
                        if signs and signs & Sign.STOP:
                            raise KeyboardInterrupt(self._last_checkpoint() or "")
                        if signs and signs & Sign.ENDED and t + 1 < self.run.last:
                            return CALLBACK
            except OverBudget:
                if self.run.at.rounds == 0:
                    raise
                self.run.channel.end_round()  # with what left before the refused release
                if self.ranks.is_root:
                    _log.warning("the budget ended a run after %d rounds", self.run.at.rounds)
                return BUDGET
        return None

    def _round(self, interrupt: Interrupt, several: bool) -> Sign:
        """Run the next round, record it, and save it if that is due; return the signs that hold."""
        run = self.run
        step = run.attempt()
        signs = Sign.STOP if interrupt.requested else Sign.NONE
        if self.saved is not None and self.saved.is_due(run.at.rounds + 1, run.last):
            signs |= Sign.SAVE
        if several:
            signs = self.ranks.agree(signs, _digest(run.channel.ledger.in_round))
        self.recording = True
        ended = run.accept(step)
        if run.is_measured:
            signs |= self.ranks.agree(Sign.ENDED if ended else Sign.NONE)
        if interrupt.requested and not several:
            signs |= Sign.STOP  # asked for while the round was recorded
        if signs and signs & (Sign.SAVE | Sign.STOP | Sign.ENDED):
            with interrupt.patiently():
                self._save()
        self.recording = False
        return signs

    def _kept(self) -> str | None:
        """Save what all have run after a failure, if that can be; report where it is."""
        if self.recording or not self.run.own.algorithm.rewinds:
            return self._last_checkpoint()
        return self._save()

    def _save(self) -> str | None:
        """Save the rounds that all processes have run, if they are to be kept; report where."""
        if self.saved is None:
            return None
        everybody = gathered(self.run.remembered(), self.ranks, self.run.own)
        if self.ranks.is_root:
            self.saved.save(everybody)
        self.ranks.agree()
        return f"{self.run.at.rounds} rounds are in {self.saved.path}"

    def _last_checkpoint(self) -> str | None:
        """Report where the last checkpoint is, if there is one."""
        return None if self.saved is None else f"the last checkpoint is {self.saved.path}"


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


def _digest(releases: Sequence[Release]) -> int:
    """Return a number that is the same on all processes, and differs for other releases."""
    return crc32(repr(releases).encode())
