"""A round of SGD without replacement at scale: all nodes, their models, and their controllers.

1,000 nodes with 10 models of 50 weights each, mini-batches of 50. With deep Q-learning these are
10,000 networks of 128 hidden units, each trained in every round, in one process. The peer, a numpy
loop over the nodes, takes the local steps of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

import dpmesh as dm
from benches.measure import Case
from dpmesh.algorithms.controllers import AlwaysGlobal, AlwaysLocal, AnyController, RandomGlobal
from dpmesh.privacy import Ledger
from dpmesh.run import Broadcast, Channel
from dpmesh_papers.deep_q import DeepQ

NODES, MODELS, DIM, BATCH, ROUNDS = 1_000, 10, 50, 50, 30
WARM_UP = 12  # rounds until a replay memory holds a mini-batch


def problem() -> dm.LinearProblem:
    """Records of norm just below 1, enough for all rounds."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((NODES * BATCH * ROUNDS, DIM), dtype=np.float32)
    x *= np.float32(0.999) / np.linalg.norm(x, axis=1, keepdims=True)
    dataset = dm.Dataset(x, rng.integers(MODELS, size=len(x)), "synthetic")
    parts = tuple(np.arange(len(x)).reshape(NODES, -1))
    return dm.LinearProblem(dataset, parts, "logistic", classes=MODELS, feature_norm=1.0)


def rounds_of(learned: dm.LinearProblem, controller: AnyController) -> Callable[[], object]:
    """Return a function that runs the next round, and starts a run anew at its end."""
    algorithm = dm.WithoutReplacement(models=MODELS, batch_size=BATCH, controller=controller)
    key = dm.Key.seeded(0)
    channel = Channel(Broadcast(), key, Ledger(algorithm.plan(ROUNDS), nodes=NODES))
    state, t = algorithm.init(learned, key), 0

    def run() -> None:
        nonlocal state, t
        if t == ROUNDS:  # the same records again; what was learned stays
            state, t = replace(state, used=np.zeros_like(state.used)), WARM_UP
        state = channel.run(algorithm, state, t, learned, key).state
        channel.ledger.end_round()
        t += 1

    for _ in range(WARM_UP if isinstance(controller, DeepQ) else 0):
        run()
    return run


def loop_of_steps(learned: dm.LinearProblem) -> Callable[[], object]:
    """Return a function that takes the local steps of a round, node after node."""
    x, y = learned.train.features, learned.train.labels
    w = np.zeros((NODES, MODELS, DIM), dtype=np.float32)

    def run() -> None:
        for m in range(NODES):
            records = learned.partition[m][:BATCH]
            targets = np.where(y[records, np.newaxis] == np.arange(MODELS), 1, -1)
            targets = targets.astype(np.float32)
            slopes = -targets / (1 + np.exp(targets * (x[records] @ w[m].T)))
            w[m] -= np.float32(0.2 / BATCH) * slopes.T @ x[records]

    return run


def cases() -> Iterator[Case]:
    """Yield a round under each controller."""
    learned = problem()
    peers = {"numpy loop of local steps": loop_of_steps(learned)}
    for controller in (
        AlwaysLocal(),
        RandomGlobal(0.05),
        AlwaysGlobal(),
        DeepQ(anneal_rounds=ROUNDS),
    ):
        name = f"{NODES:,} nodes x {MODELS}, {type(controller).__name__}"
        local = isinstance(controller, AlwaysLocal)
        run = rounds_of(learned, controller)
        yield Case(name, run, peers if local else {}, rounds=5)
