"""How the cost of a whole run of online learning grows: linearly in rounds, nodes and dimension.

Each line is the time for one number: of one coordinate, one node and one round. It falls at first,
while what a round costs whatever its size is shared by more and more numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import dpmesh as dm
from benches.measure import Case


def case(what: str, rounds: int, nodes: int, dim: int) -> Case:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((nodes * rounds, dim), dtype=np.float32)
    labels = np.where(features[:, 0] > 0, 1, -1)
    train = dm.data.unit_norm(dm.data.Dataset(features, labels, "random"))
    parts = np.arange(len(features)).reshape(-1, nodes).T
    problem = dm.LinearProblem(train, tuple(parts), "hinge")
    network, algorithm = dm.topology.ring(nodes), dm.OnlineLearning()

    def run() -> dm.Run:
        return dm.simulate(
            algorithm, problem, network, rounds=rounds, metrics=(), every=rounds, progress=False
        )

    return Case(f"{what}: {rounds} x {nodes} x {dim}", run, values=rounds * nodes * dim, rounds=3)


def cases() -> Iterator[Case]:
    for rounds in (100, 1_000, 10_000):
        yield case("rounds", rounds, 64, 10)
    for nodes in (64, 640, 6_400, 64_000):
        yield case("nodes", 20, nodes, 10)
    for dim in (100, 1_000, 10_000, 100_000):
        yield case("dimension", 20, 64, dim)
