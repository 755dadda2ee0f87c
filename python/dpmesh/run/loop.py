"""`simulate`: preparation of a run, its rounds one by one, and its report.

With several processes, all run the same loop. They exchange signs in each round, so that all record
a round or none does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from zlib import crc32

from dpmesh._validate import integer
from dpmesh.algorithms.base import Algorithm
from dpmesh.keys import Key
from dpmesh.privacy.budget import Budget, OverBudget
from dpmesh.privacy.foreseen import unplanned
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.privacy.report import Report, not_covered, report
from dpmesh.problems import Problem
from dpmesh.run.checkpoint import Checkpoint, SavedRun
from dpmesh.run.engine import Engine, Sign
from dpmesh.run.identity import chosen, without_addresses
from dpmesh.run.interrupt import Interrupt
from dpmesh.run.metrics import Chosen, Metrics
from dpmesh.run.network import Network
from dpmesh.run.prepare import Prepared, RunRequest, check_kinds, prepare
from dpmesh.run.progress_bar import shows_bar, with_bar
from dpmesh.run.ranks import gathered
from dpmesh.run.rounds import Progress, Rounds
from dpmesh.run.run import Run

if TYPE_CHECKING:
    from dpmesh.topology import Topology

_log = logging.getLogger("dpmesh")

BUDGET = "the budget ended"
"""Reason of an early end, for the settings of the run: a release would have exceeded the budget."""

CALLBACK = "the callback ended it"
"""Reason of an early end, for the settings of the run."""

ProblemT = TypeVar("ProblemT", bound=Problem)


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
    engine: Engine | Network | None = None,
    checkpoint: Checkpoint | str | PathLike[str] | None = None,
) -> Run:
    """Run a private learning algorithm on a problem; return models, measurements and privacy.

    All nodes run in this process, or in the processes of an `engine`. The algorithm's mechanism
    adds the noise; every release is recorded, and the privacy report counts them all.

    Parameters
    ----------
    algorithm
        One of `dpmesh.algorithms`, or a custom subclass of `dpmesh.algorithms.Algorithm`. It
        determines the noise.
    problem
        The model, its loss and the records of each node, such as a `LinearProblem`. Records in
        float32 become float64 where messages of `GradientDescent` may be too long for float32.
    topology
        The communication graph with its mixing weights, such as ``dm.topology.ring(16)``. It is
        required by gossip (decentralized) algorithms, and refused by all others.
    rounds
        Number of rounds, at least 1.
    key
        Source of all randomness: noise, samples, and simulated failures. By default a new key
        from the operating system. A run mixes 256 fresh bits into such a key, so that no two runs
        have the same noise. A seeded key makes the run reproducible, and its report states that it
        is NOT private.
    delta
        Delta at which the privacy report states epsilon, in [0, 1). By default the delta of
        `budget`, else of the algorithm, else 0, at which Gaussian noise has no finite epsilon.
    budget
        Largest epsilon and delta of the run. A run whose plan exceeds them is refused before the
        first round. A run that departs from its plan ends before the first release that would
        exceed them.
    metrics
        Names of metrics and custom functions, as a list, or a `Metrics`, which lists the names and
        the default. A `Metrics` also sets the interval, a callback and the progress bar. An empty
        list measures traffic alone.
    engine
        Processes and network of the run. By default all nodes are in this process, and every
        message arrives at once. A `Network` simulates delays and failures, and adds the metric
        ``seconds`` (virtual time). With several processes, such as `dpmesh.engines.mpi.MpiEngine`,
        each process makes this call for its nodes. The root process measures and saves; the runs
        of the others have no history.
    checkpoint
        File in which the run keeps its progress, written about every 10 seconds; `Checkpoint` sets
        an interval in rounds instead. If the file exists, the run resumes from it, with the same
        bits as an uninterrupted run. Ctrl-C and SIGTERM save before they stop the run, unless the
        round takes longer than a second (with several processes, all stop after the round). The
        file holds the nodes' un-noised parameters: protect it like the data. It holds no key: to
        resume, pass the same `key`, seeded or kept in a file by `Key.save`.

    Returns
    -------
    The finished `Run`. Its `privacy` states epsilon, delta, unit and threat model of its `released`
    models, which are those to publish.

    Raises
    ------
    ValueError
        If an argument is invalid, or the topology is missing, superfluous or has another number of
        nodes than the problem. If the plan exceeds the budget: the error states how many rounds
        are affordable. If the checkpoint belongs to another run, key or data.
    TypeError
        If an argument is one of an earlier version; the error shows the new call.
    OSError
        If the checkpoint cannot be written; the previous one is then unchanged.
    ModuleNotFoundError
        If a progress bar is asked for and the extra ``progress`` is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> data = dm.data.unit_norm(dm.data.breast_cancer())
    >>> parts = dm.data.iid(data, 8, np.random.default_rng(1))
    >>> problem = dm.LinearProblem(data, parts, "logistic")
    >>> algorithm, ring = dm.OnlineLearning(epsilon=1.0), dm.topology.ring(8)
    >>> run = dm.simulate(algorithm, problem, ring, rounds=20)
    >>> run.privacy.epsilon
    1.0
    """
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    if not isinstance(metrics, Metrics):
        metrics = Metrics(metrics)
    request = RunRequest(
        algorithm=algorithm,
        problem=problem,
        topology=topology,
        rounds=integer("rounds", rounds, at_least=1),
        key=key,
        delta=delta,
        budget=budget,
        metrics=metrics,
        engine=engine,
        checkpoint=checkpoint,
    )
    check_kinds(request)
    progress = shows_bar(request.metrics.progress)
    prepared = prepare(request)
    end_reason = drive(prepared, progress=progress)
    return finished(prepared, end_reason)


def drive(prepared: Prepared, *, progress: bool) -> str | None:
    """Run all remaining rounds.

    Returns
    -------
    `BUDGET` or `CALLBACK` if it ended the run early; None if all planned rounds ran.
    """
    ranks = prepared.ranks
    run = prepared.run
    if ranks.is_root:
        _log.info(
            "a run begins with %d of %d rounds done, on %d nodes: %s",
            run.progress.rounds,
            run.last,
            prepared.request.problem.nodes,
            run.share.algorithm,
        )
    loop = _Loop(ranks, run, prepared.saved)
    return loop.run_all(progress=progress and ranks.is_root)


def finished(prepared: Prepared, end_reason: str | None) -> Run:
    """Return the result of a run, with its released models and its privacy report.

    Parameters
    ----------
    prepared
        The run after its last round.
    end_reason
        `BUDGET` or `CALLBACK` if the run ended early; None if all planned rounds ran.
    """
    request = prepared.request
    algorithm = request.algorithm
    problem = request.problem
    end = gathered(prepared.run.resumable_progress(), prepared.ranks, prepared.run.share)
    length = f"{end.rounds} of {prepared.run.last}"
    accounts = _accounts_of(
        prepared.plan,
        prepared.run.channel.ledger.plan,
        end.rounds,
        prepared.delta,
        releases_decide=algorithm.releases_decide,
    )
    if end_reason == CALLBACK:
        accounts = _ended_early(prepared.plan, accounts.ledger, end.rounds, length)
    if prepared.ranks.is_root:
        _log.info("a run ends with %d of %d rounds done", end.rounds, prepared.run.last)
    rounds: int | str = prepared.run.last
    if end_reason is not None:
        rounds = f"{length}: there {end_reason}"
    problem_of_all_nodes = None
    if request.ranks is None:
        problem_of_all_nodes = problem
    return Run(
        settings={
            "algorithm": chosen(algorithm),
            "topology": without_addresses(request.topology),
            "network": str(request.network),
            "rounds": rounds,
        },
        history=end.history,
        ledger=accounts.ledger,
        privacy=_report(prepared, accounts.counted, end),
        traffic=end.traffic,
        parameters=algorithm.parameters(end.state),
        released=algorithm.published(end.state, end.received),
        problem=problem_of_all_nodes,
        outline=getattr(problem, "outline", None),
    )


def _report(prepared: Prepared, counted: Plan, end: Progress) -> Report:
    """Return the privacy report of the counted releases, with the names of metrics not covered."""
    request = prepared.request
    view = None
    if request.budget is not None:
        view = request.budget.view
    return report(
        counted,
        prepared.delta,
        seeded=prepared.seeded,
        nodes=request.problem.nodes,
        units=_units(request.problem, prepared.plan),
        view=view,
        not_covered=not_covered(
            (*end.history.metrics, "run.parameters"),
            parameters_are_released=request.algorithm.parameters_are_released,
        ),
    )


def _units(problem: Problem, plan: Plan) -> int | None:
    """Return the number of records, or of users, of a problem; None if it is unknown."""
    if plan.unit == "user":
        return int(problem.nodes)
    records = getattr(problem, "all_records", None)
    if records is None:
        return None
    return int(records.sum())


@dataclass
class _Loop:
    """Remaining rounds of a run, each of which is recorded by all processes or by none."""

    ranks: Engine
    run: Rounds
    saved: SavedRun | None
    recording: bool = False
    """True while processes record a round: some may have recorded it already."""

    def run_all(self, *, progress: bool) -> str | None:
        """Run the remaining rounds; return `BUDGET` or `CALLBACK` if one ended the run early."""
        several = self.ranks.processes > 1
        deferred = self.saved is not None or several
        with Interrupt(deferred=deferred, patient=several) as interrupt:
            try:
                with self.ranks.guard(self._save_after_failure):
                    return self._run_rounds(interrupt, progress=progress)
            except OverBudget:
                if self.run.progress.rounds == 0:
                    raise
                self.run.channel.end_round()  # records releases before the refused one
                if self.ranks.is_root:
                    rounds = self.run.progress.rounds
                    _log.warning("the budget ended a run after %d rounds", rounds)
                return BUDGET

    def _run_rounds(self, interrupt: Interrupt, *, progress: bool) -> str | None:
        """Run rounds one by one; return `CALLBACK` if the callback ended the run early.

        Raises
        ------
        KeyboardInterrupt
            After a round in which a process was interrupted.
        """
        rounds = range(self.run.progress.rounds, self.run.last)
        shown_rounds = with_bar(rounds) if progress else rounds
        for t in shown_rounds:
            signs = self._run_round(interrupt)
            if not signs:
                continue
            if signs & Sign.STOP:
                raise KeyboardInterrupt(self._last_checkpoint() or "")
            if signs & Sign.ENDED and t + 1 < self.run.last:
                return CALLBACK
        return None

    def _run_round(self, interrupt: Interrupt) -> Sign:
        """Run, record and, if that is due, save the next round; return the signs of all processes.

        Processes agree twice: before they record a round, so that all record it or none, and after
        the root has measured it, so that all know whether its callback ends the run.
        """
        run = self.run
        several = self.ranks.processes > 1
        step = run.attempt()
        signs = Sign.NONE
        if interrupt.requested:
            signs |= Sign.STOP
        if self.saved is not None and self.saved.is_due(run.progress.rounds + 1, run.last):
            signs |= Sign.SAVE
        if several:
            signs = self.ranks.agree(signs, _digest(run.channel.ledger.in_round))
        self.recording = True
        callback_ends = run.accept(step)
        if run.is_measured:
            signs_of_end = self.ranks.agree(Sign.ENDED if callback_ends else Sign.NONE)
            if signs_of_end:
                signs |= signs_of_end
        if interrupt.requested and not several:
            signs |= Sign.STOP  # interrupted while the round was recorded
        if signs:  # every sign is a reason to save
            with interrupt.patiently():
                self._save()
        self.recording = False
        return signs

    def _save_after_failure(self) -> str | None:
        """Save the rounds that all processes have run after a failure; describe the file.

        If this is impossible, it describes the last checkpoint.
        """
        if self.recording or not self.run.share.algorithm.rewinds:
            return self._last_checkpoint()
        return self._save()

    def _save(self) -> str | None:
        """Save the rounds that all processes have run; describe the file, if there is one."""
        if self.saved is None:
            return None
        progress_of_all = gathered(self.run.resumable_progress(), self.ranks, self.run.share)
        if self.ranks.is_root:
            self.saved.save(progress_of_all)
        self.ranks.agree()
        return f"{self.run.progress.rounds} rounds are in {self.saved.path}"

    def _last_checkpoint(self) -> str | None:
        """Describe the file of the last checkpoint; None without a checkpoint."""
        if self.saved is None:
            return None
        return f"the last checkpoint is {self.saved.path}"


def _digest(releases: Sequence[Release]) -> int:
    """Return a checksum of releases, which processes compare."""
    return crc32(repr(releases).encode())


class _Accounts(NamedTuple):
    """Releases of a run, as its report counts them and as they happened."""

    counted: Plan
    """Releases whose epsilon is reported; some of them may not have happened."""
    ledger: Plan
    """Releases that happened."""


def _ended_early(plan: Plan, ledger: Plan, rounds: int, length: str) -> _Accounts:
    """Return the accounts of a run that its callback ended after `rounds` rounds.

    The releases seen so far may have decided when to end, so the remaining rounds count, too. A
    run that kept to its plan counts as the whole plan: where batches are drawn at random, its
    remaining rounds may have used any of them.
    """
    all_releases = plan.releases
    if unplanned(plan, ledger.releases):
        remaining = (release for release in plan.releases if release.round >= rounds)
        all_releases = (*ledger.releases, *remaining)
    counted = ledger.with_releases(all_releases)
    ended = f"the callback ended the run after {length} rounds without a look at"
    return _Accounts(
        counted=_assuming(f"{ended} private data", counted),
        ledger=_assuming(f"{ended} data or releases", ledger),
    )


def _accounts_of(
    plan: Plan, ledger: Plan, rounds: int, delta: float, *, releases_decide: bool
) -> _Accounts:
    """Return the accounts of a run of `rounds` rounds.

    If planned releases did not happen, and epsilon is smaller without them, the accounts state it
    as an assumption. If earlier releases decided which happen (`releases_decide`), the report
    counts the missing ones, too.
    """
    planned = plan.with_releases(release for release in plan.touching if release.round < rounds)
    missing = len(planned.releases) - len(ledger.touching)
    if missing <= 0 or ledger.cost(delta).epsilon >= planned.cost(delta).epsilon:
        return _Accounts(counted=ledger, ledger=ledger)
    gaps = f"{missing} of {len(planned.releases)} planned releases did not happen"
    noted = _assuming(f"{gaps}, which neither data nor releases decided", ledger)
    if not releases_decide:
        return _Accounts(counted=noted, ledger=noted)
    all_releases = planned.releases
    if unplanned(plan, ledger.releases):
        all_releases = (*ledger.releases, *planned.releases)
    assumption = f"{gaps}; they are counted, as earlier releases decided which happen"
    counted = _assuming(assumption, ledger.with_releases(all_releases))
    return _Accounts(counted=counted, ledger=noted)


def _assuming(assumption: str, plan: Plan) -> Plan:
    """Return a plan with one more assumption."""
    return replace(plan, assumptions=(*plan.assumptions, assumption))
