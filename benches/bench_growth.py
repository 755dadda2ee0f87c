"""Growth of the cost of whole runs: linear in rounds, nodes and dimension.

Each line is the time per coordinate, node and round, and what the run adds to the memory at its
peak. The time falls at first, as the fixed cost of a round is shared by more and more numbers. The
figure of `python -m benches.figures` shows it, with the slopes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import dpmesh as dm
from benches.measure import Case
from dpmesh.algorithms import ClientUpdates, FederatedLearning, QuantizedGossip
from dpmesh.schedules import Constant, SampleSize


def algorithms(nodes: int) -> dict[str, Any]:
    """Return an algorithm of each kind; all nodes use one record in every round."""
    federated = FederatedLearning(
        ClientUpdates(clients=nodes, sampling_rate=1.0, clipping_norm=1.0, batch_size=1, steps=1),
        noise_multiplier=1.0,
    )
    gossip = QuantizedGossip(
        step_size=Constant(0.1),
        consensus_step_size=Constant(0.5),
        sample_size=SampleSize(scale=1),
        noise_std=Constant(0.01),
        compressor=None,
        clipping_norm=1.0,
    )
    return {"online": dm.OnlineLearning(), "gossip": gossip, "federated": federated}


def case(kind: str, quantity: str, rounds: int, nodes: int, dim: int) -> Case:
    """Return a run of one size on the curve of a growing quantity."""
    records = 20  # of a node, drawn repeatedly
    if kind == "online":
        records = rounds  # each is used once
    rng = np.random.default_rng(0)
    features = rng.standard_normal((nodes * records, dim), dtype=np.float32)
    labels = np.where(features[:, 0] > 0, 1, -1)
    train = dm.data.unit_norm(dm.data.Dataset(features, labels, "random"))
    parts = np.arange(len(features)).reshape(-1, nodes).T
    problem = dm.LinearProblem(train, tuple(parts), "hinge")
    algorithm = algorithms(nodes)[kind]
    network = None
    if algorithm.communication != "server":
        network = dm.topology.ring(nodes)

    def run() -> dm.Run:
        return dm.simulate(
            algorithm,
            problem,
            network,
            rounds=rounds,
            metrics=dm.Metrics((), every=rounds, progress=False),
        )

    name = f"{kind}, {quantity}: {rounds} x {nodes} x {dim}"
    return Case(name, run, values=rounds * nodes * dim, rounds=3, memory=True)


def cases() -> Iterator[Case]:
    for kind in ("online", "gossip", "federated"):
        for rounds in (10, 100, 1_000, 10_000):
            yield case(kind, "rounds", rounds, 64, 10)
        for nodes in (64, 640, 6_400, 64_000):
            yield case(kind, "nodes", 20, nodes, 10)
        for dim in (100, 1_000, 10_000, 100_000):
            yield case(kind, "dimension", 20, 64, dim)
