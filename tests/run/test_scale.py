"""Many nodes: no Python loop over them, and memory in proportion to nodes x dim."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest

import dpmesh as dm
from dpmesh import topology
from dpmesh.run import Exponential, Network

ROUNDS = 4
NETWORKS = {
    "ideal": None,
    "failing": Network(latency=Exponential(0.1), loss=0.1, offline=0.1, max_delay=2),
}


def many(nodes: int, dim: int = 10) -> tuple[dm.LinearProblem, topology.Topology]:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((nodes * ROUNDS, dim), dtype=np.float32)
    train = dm.Dataset(features, np.where(features[:, 0] > 0, 1, -1), "random")
    parts = tuple(np.arange(nodes * ROUNDS).reshape(nodes, ROUNDS))
    return dm.LinearProblem(train, parts, "logistic"), topology.torus(nodes // 8, 8)


def run(problem: dm.LinearProblem, network: topology.Topology, conditions: Any) -> dm.Run:
    return dm.simulate(
        dm.OnlineLearning(epsilon=1.0),
        problem,
        network,
        rounds=ROUNDS,
        key=dm.Key.seeded(1),
        metrics=["loss", "consensus_distance"],
        engine=conditions,
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_python_does_as_much_for_many_nodes_as_for_few(name: str) -> None:
    def calls(nodes: int) -> int:
        problem, network = many(nodes)
        run(problem, network, NETWORKS[name])  # what is cached is made
        count = 0

        def counter(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(counter)
        try:
            run(problem, network, NETWORKS[name])
        finally:
            sys.setprofile(None)
        return count

    few, more = calls(4096), calls(8192)
    assert more - few < 64  # not even one call for each of the additional nodes


@pytest.mark.slow
def test_memory_is_a_few_times_nodes_x_dim() -> None:
    def states(nodes: int, dim: int) -> float:
        problem, network = many(nodes, dim)
        run(problem, network, None)
        tracemalloc.start()
        run(problem, network, None)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most / (nodes * dim * 4)

    assert states(2_000, 100) < 8
    assert states(20_000, 100) < 8
    assert states(2_000, 1_000) < 8
