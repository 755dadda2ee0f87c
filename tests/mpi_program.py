"""A run on the ranks of MPI, whose results rank 0 writes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import dpmesh as dm
from dpmesh import topology
from dpmesh.schedules import HorizonPower, PowerLaw, SampleSize
from dpmesh.simulator import Run

NODES, ROUNDS = 12, 8


def make(network: str) -> tuple[dm.LinearProblem, topology.Topology]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(NODES * ROUNDS, 5))
    train = dm.Dataset(x, np.where(rng.random(len(x)) < 0.5, -1, 1), "synthetic")
    parts = tuple(np.arange(len(x)).reshape(ROUNDS, NODES).T)
    problem = dm.LinearProblem(train, parts, "logistic", test=train)
    if network == "ring":
        return problem, topology.ring(NODES)
    key = dm.Key.seeded(8)
    return problem, topology.edge_dropping(topology.torus(3, 4), keep=0.6, key=key)


def algorithm(name: str):
    if name == "online":
        return dm.OnlineLearning(epsilon=2.0)
    return dm.QuantizedGossip(
        step_size=HorizonPower(1.0, -0.8, ROUNDS),
        consensus_step_size=HorizonPower(1.0, -0.6, ROUNDS),
        sample_size=SampleSize(1.0, 0.5, ROUNDS),
        noise_std=PowerLaw(0.1, 0.1),
    )


def run(name: str, network: str, **options) -> Run:
    problem, graph = make(network)
    options = {"key": dm.Key.seeded(1), "every": 3, "delta": 1e-5, **options}
    return dm.simulate(algorithm(name), problem, graph, rounds=ROUNDS, **options)


def main(name: str, network: str, folder: str) -> None:
    from dpmesh.engines.mpi import MpiEngine

    engine = MpiEngine(make(network)[1])
    checkpoint = Path(folder) / "checkpoint"
    result = run(name, network, engine=engine, checkpoint=checkpoint, checkpoint_every=2)
    assert len(result.parameters) == (NODES if engine.is_root else len(engine.nodes))
    if engine.is_root:
        result.save(folder)
        np.save(Path(folder) / "parameters.npy", result.parameters)


if __name__ == "__main__":
    main(*sys.argv[1:])
