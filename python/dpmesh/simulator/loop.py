"""The round loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from dpmesh._validate import fail, integer, probability
from dpmesh.algorithms.base import Algorithm
from dpmesh.keys import Key
from dpmesh.privacy.events import Release
from dpmesh.privacy.report import report
from dpmesh.simulator.exchange import Broadcast, Gossip
from dpmesh.simulator.history import History
from dpmesh.simulator.metrics import Testable, build_metrics
from dpmesh.simulator.run import Run, Traffic
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
    delta: float = 0.0,
    metrics: Sequence[str] | None = None,
    every: int | None = None,
    progress: bool | None = None,
    callback: Callable[[int, dict[str, float]], None] | None = None,
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
        For the privacy report, in [0, 1).
    metrics
        Names out of ``"loss"``, ``"accuracy"``, ``"regret"``, ``"consensus"``; by default all that
        the problem and the algorithm allow.
    every
        Measure in every so many rounds, and in the last; by default about 25 times in a run.
    progress
        Whether to show a progress bar (extra ``progress``); by default in a terminal only.
    callback
        Called with the round and its measurements whenever there are some.

    Raises
    ------
    ValueError
        If an argument does not fit, or the topology and the problem differ in their nodes, or a
        topology is given or missing where it should not be.
    """
    integer("rounds", rounds, at_least=1)
    every = max(1, rounds // 25) if every is None else integer("every", every, at_least=1)
    probability("delta", delta, one=False)
    key = Key.generate() if key is None else key
    plan = algorithm.plan(rounds)
    meters = build_metrics(metrics, algorithm, problem)
    gossip = _gossip(algorithm, problem, topology)
    exchange = Broadcast() if gossip is None else gossip

    history = History()
    ledger: list[Release] = []
    messages = bits = 0
    state = algorithm.init(problem, key)
    for t in _with_progress(range(rounds), progress):
        before = algorithm.parameters(state)
        state, info = algorithm.step(state, t, problem, exchange, key)
        ledger += info.releases
        sent = gossip.messages(t) if gossip else info.messages or 0
        messages += int(np.sum(sent))
        bits += int(np.sum(sent * info.bits_per_node))
        for meter in meters:
            meter.observe(before, info)
        if (t + 1) % every == 0 or t + 1 == rounds:
            after = algorithm.parameters(state)
            values: dict[str, float] = {}
            for meter in meters:
                values |= meter.values(after, info.received)
            history.add(t + 1, values)
            if callback is not None:
                callback(t + 1, values)
    return Run(
        settings={"algorithm": str(algorithm), "topology": str(topology), "rounds": rounds},
        history=history,
        ledger=plan.with_releases(ledger),
        privacy=report(plan.with_releases(ledger), delta, seeded=key.is_seeded),
        traffic=Traffic(messages, bits),
        parameters=algorithm.parameters(state),
        released=info.received,
    )


def _gossip(
    algorithm: Algorithm[StateT, ProblemT], problem: ProblemT, topology: Topology | None
) -> Gossip | None:
    """Return the exchange over the network, if the algorithm's messages travel over one."""
    if algorithm.travels != "gossip":
        if topology is not None:
            fail("topology", f"None, since messages travel by {algorithm.travels}", topology)
        return None
    if topology is None:
        fail("topology", "a network for messages to travel over", None)
    if topology.nodes != problem.nodes:
        fail("topology", f"{problem.nodes} nodes, as the problem has", f"{topology.nodes}")
    return Gossip(topology)


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
    bar: Iterator[int] = tqdm(rounds, unit="round", leave=False)
    return bar
