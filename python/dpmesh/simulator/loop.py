"""The round loop."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import TypeVar

from dpmesh._validate import fail, integer, probability
from dpmesh.algorithms.base import Algorithm, AnyAlgorithm, UsesRecordsOnce
from dpmesh.keys import Key
from dpmesh.privacy.budget import Budget, Ledger, OverBudget
from dpmesh.privacy.door import kept_by
from dpmesh.privacy.report import report
from dpmesh.simulator.checkpoint import Checkpoint
from dpmesh.simulator.engine import Engine
from dpmesh.simulator.exchange import (
    Broadcast,
    Carrier,
    FailingGossip,
    Gossip,
    TimedServer,
    TimedToken,
)
from dpmesh.simulator.interrupt import Interrupt
from dpmesh.simulator.metrics import Testable, UserMetric, build_metrics, metric_name
from dpmesh.simulator.network import Conditions, Network
from dpmesh.simulator.rounds import Callback, Progress, Rounds
from dpmesh.simulator.run import Run
from dpmesh.topology import Topology

StateT = TypeVar("StateT")
ProblemT = TypeVar("ProblemT", bound=Testable)


def simulate(
    algorithm: Algorithm[StateT, ProblemT],
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
        What is learned, with its data spread over the nodes.
    topology
        Who talks to whom, round by round: for algorithms whose messages go to neighbours, and for
        no others.
    rounds
        At least 1.
    key
        Source of all randomness; by default a new one from the operating system. A seeded key makes
        the run reproducible, and its report says that it is no private release.
    delta
        For the privacy report, in [0, 1); by default that of the budget, or of the algorithm if it
        has a `delta` of its own, or 0, at which Gaussian noise has no epsilon.
    budget
        What must not be exceeded: a plan that costs more is refused before the first round, and a
        run that departs from its plan ends before the first release that would cost more.
    metrics
        Names out of ``"loss"``, ``"accuracy"``, ``"regret"``, ``"consensus"``, ``"compression"``,
        ``"node_accuracy"``, and functions ``metric(problem, parameters, received)`` of your own
        that return a number, or one for each node. By default all named ones of the network that
        the problem and the algorithm allow, regret up to 256 nodes.
    every
        Measure in every so many rounds, and in the last; by default about 25 times in a run.
    progress
        Whether to show a progress bar (extra ``progress``); by default in a terminal only.
    callback
        Called with the round and its measurements whenever there are some: a stream of results to
        anywhere.
    network
        Times and failures of the network; ``seconds`` of virtual time are then measured along with
        the metrics. By default messages take no time and all arrive.
    engine
        Several processes that each hold some of the nodes, such as `dpmesh.engines.mpi.MpiEngine`;
        all of them make this call. None runs all nodes in this process. The root measures and
        saves; the others' runs hold their own nodes and no history.
    checkpoint
        A file in which the run keeps its progress. If it is there, the run goes on from it, to the
        same bits as if it had not been interrupted; if not, it is made. Ctrl-C saves before it
        stops the run, unless the round takes longer than a second. The file holds the nodes' own
        parameters and must be kept as they are. It holds no key: give the run's own, seeded or
        from a file that you keep (`Key.save`).
    checkpoint_every
        Save after every so many rounds; by default about every 10 seconds.

    Raises
    ------
    ValueError
        If an argument does not fit, or the plan is over the budget (it says how many rounds would
        not be), or the topology and the problem differ in their nodes, or a
        topology is given or missing where it should not be, or the checkpoint is that of another
        run.
    OSError
        If the checkpoint cannot be written; the last one is then untouched.
    """
    integer("rounds", rounds, at_least=1)
    every = max(1, rounds // 25) if every is None else integer("every", every, at_least=1)
    if delta is None:
        delta = getattr(algorithm, "delta", 0.0) if budget is None else budget.delta
    probability("delta", delta, one=False)
    _kinds(topology, network, key)
    _enough_records(algorithm, problem, rounds)
    plan = algorithm.plan(rounds) if budget is None else budget.require(algorithm, rounds)
    meters = build_metrics(metrics, algorithm, problem)
    settings: dict[str, str | int] = {
        "algorithm": str(algorithm),
        "topology": str(topology),
        "network": str(network),
        "rounds": rounds,
    }
    if checkpoint is not None and key is None:
        fail("key", "one that you keep, since no checkpoint holds it: Key.load, Key.seeded", None)
    key = Key.generate() if key is None else key
    exchange = _exchange(algorithm, problem, topology, network, key)
    nodes, is_root = problem.nodes, engine is None or engine.is_root
    if engine is not None:
        if network is not None:
            fail("network", "None, since an engine's network is a real one", network)
        exchange = engine.carrier(algorithm, topology)
        problem, key, meters = engine.part(problem), engine.key(key), engine.meters(meters)
    start = Progress(algorithm.init(problem, key))
    told = callback if is_root else None
    run = Rounds(algorithm, problem, exchange, key, meters, every, rounds, told, start)
    saved = None
    if checkpoint is not None:
        names = None if metrics is None else [metric_name(metric) for metric in metrics]
        identity = {**settings, "nodes": nodes, "every": every, "metrics": names}
        saved = Checkpoint(checkpoint, identity, key, checkpoint_every)
        whole = _gathered(run, engine)
        if is_root:
            whole = saved.resume(whole, plan)
        run.recall(whole if engine is None else engine.scatter(whole))
    ledger = Ledger(plan, budget)
    ledger.add(*run.at.ledger)

    with Interrupt(deferred=saved is not None) as interrupt, kept_by(ledger.admit):
        for _ in _with_progress(range(run.at.rounds, rounds), progress if is_root else False):
            known = len(run.at.ledger)
            try:
                run.advance()
            except OverBudget:
                if run.at.rounds == 0:
                    raise
                break
            ledger.add(*run.at.ledger[known:])
            if saved is None:  # then Ctrl-C is not deferred
                continue
            stop = _agreed(interrupt.requested, engine)
            if stop or _agreed(saved.is_due(run.at.rounds, rounds), engine):
                interrupt.settle()
                whole = _gathered(run, engine)
                if is_root:
                    saved.save(whole)
            if stop:
                raise KeyboardInterrupt
    end = _gathered(run, engine)
    return Run(
        settings=settings,
        history=end.history,
        ledger=ledger.plan,
        privacy=report(ledger.plan, delta, seeded=key.is_seeded, nodes=nodes),
        traffic=end.traffic,
        parameters=algorithm.parameters(end.state),
        released=end.received,
    )


def _gathered(run: Rounds, engine: Engine | None) -> Progress:
    """Return what is to be remembered: of all nodes on the root, of its own elsewhere."""
    remembered = run.remembered()
    return remembered if engine is None else engine.gather(remembered)


def _agreed(flag: bool, engine: Engine | None) -> bool:
    """Return whether the flag is up in some process."""
    return flag if engine is None else engine.any(flag)


def _kinds(topology: object, network: object, key: object) -> None:
    """Fail unless the arguments are what they are named after."""
    if topology is not None and not hasattr(topology, "matrix"):
        fail("topology", "a network such as dpmesh.topology.ring(16)", repr(topology))
    if not isinstance(network, (Network, NoneType)):
        fail("network", "a dpmesh.Network or None", repr(network))
    if not isinstance(key, (Key, NoneType)):
        fail("key", "a Key, such as Key.generate(), or None", repr(key))


def _enough_records(algorithm: AnyAlgorithm, problem: Testable, rounds: int) -> None:
    """Fail if records that are used once run out before the run is over."""
    most = algorithm.most_rounds(problem) if isinstance(algorithm, UsesRecordsOnce) else None
    if most is not None and rounds > most:
        fail("rounds", f"at most {most}, as many as the records last, each used once", rounds)


def _exchange(
    algorithm: AnyAlgorithm,
    problem: Testable,
    topology: Topology | None,
    network: Network | None,
    key: Key,
) -> Carrier:
    """Return the exchange by which the algorithm's messages travel."""
    conditions = None if network is None else Conditions(network, problem.nodes, key)
    if algorithm.travels != "gossip":
        if topology is not None:
            fail("topology", f"None, since messages travel by {algorithm.travels}", topology)
        if conditions is None:
            return Broadcast()
        return TimedServer(conditions) if algorithm.travels == "server" else TimedToken(conditions)
    if topology is None:
        fail("topology", "a network for messages to travel over", None)
    if topology.nodes != problem.nodes:
        fail("topology", f"{problem.nodes} nodes, as the problem has", f"{topology.nodes}")
    return Gossip(topology) if conditions is None else FailingGossip(topology, conditions)


def _with_progress(rounds: range, show: bool | None) -> Iterable[int]:
    """Wrap the rounds in a progress bar, where one is wanted and the library is there."""
    if show is None:
        show = sys.stderr.isatty()
    if not show:
        return rounds
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return rounds
    bar: Iterator[int] = tqdm(
        rounds, unit="round", leave=False, initial=rounds.start, total=rounds.stop
    )
    return bar
