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

NODES = 1_000
MODELS = 10
DIM = 50
BATCH = 50
ROUNDS = 30
WARM_UP = 12
"""Rounds until a replay memory holds a mini-batch."""


def problem() -> dm.LinearProblem:
    """Return records of norm just below 1, enough for all rounds."""
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
    state = algorithm.init(learned, key)
    t = 0

    def run() -> None:
        nonlocal state, t
        if t == ROUNDS:  # the same records again; models and controllers stay as they are
            state = replace(state, used=np.zeros_like(state.used))
            t = WARM_UP
        state = channel.run(algorithm, state, t, learned, key).state
        channel.ledger.end_round()
        t += 1

    if isinstance(controller, DeepQ):
        for _ in range(WARM_UP):
            run()
    return run


def loop_of_steps(learned: dm.LinearProblem) -> Callable[[], object]:
    """Return a function that takes the local steps of a round, node after node."""
    features = learned.train.features
    labels = learned.train.labels
    w = np.zeros((NODES, MODELS, DIM), dtype=np.float32)

    def run() -> None:
        for node in range(NODES):
            batch = learned.partition[node][:BATCH]
            x = features[batch]
            is_class = labels[batch, np.newaxis] == np.arange(MODELS)
            targets = np.where(is_class, 1, -1).astype(np.float32)
            slopes = -targets / (1 + np.exp(targets * (x @ w[node].T)))
            w[node] -= np.float32(0.2 / BATCH) * slopes.T @ x

    return run


def cases() -> Iterator[Case]:
    """Yield a round under each controller."""
    learned = problem()
    for controller in (
        AlwaysLocal(),
        RandomGlobal(0.05),
        AlwaysGlobal(),
        DeepQ(anneal_rounds=ROUNDS),
    ):
        name = f"{NODES:,} nodes x {MODELS}, {type(controller).__name__}"
        peers = {}
        if isinstance(controller, AlwaysLocal):
            peers = {"numpy loop of local steps": loop_of_steps(learned)}
        yield Case(name, rounds_of(learned, controller), peers, rounds=5)
