"""Online learning on the ranks of MPI; rank 0 writes the results of all nodes."""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

import dpmesh as dm
from dpmesh import topology
from dpmesh.engines.blocks import blocks
from dpmesh.engines.mpi import MpiGossip

NODES, ROUNDS = 12, 8


def make(network: str) -> tuple[dm.LinearProblem, topology.Topology]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(NODES * ROUNDS, 5))
    train = dm.Dataset(x, np.where(rng.random(len(x)) < 0.5, -1, 1), "synthetic")
    problem = dm.LinearProblem(train, np.arange(len(x)).reshape(ROUNDS, NODES).T, "logistic")
    if network == "ring":
        return problem, topology.ring(NODES)
    key = dm.Key.seeded(8)
    return problem, topology.edge_dropping(topology.torus(3, 4), keep=0.6, key=key)


def main(network: str, path: str) -> None:
    ranks = MPI.COMM_WORLD
    problem, graph = make(network)
    parts = blocks(graph.matrix(0).weights, ranks.size)
    mine = parts[ranks.rank]
    key = dm.Key.seeded(1).for_nodes(mine.astype(np.uint32))
    algorithm, problem = dm.OnlineLearning(epsilon=2.0), problem.for_nodes(mine)
    exchange, state = MpiGossip(graph, parts, ranks), algorithm.init(problem, key)
    for t in range(ROUNDS):
        state, info = algorithm.step(state, t, problem, exchange, key)
    rows = np.hstack([mine[:, None], algorithm.parameters(state), info.received])
    gathered = ranks.gather(rows)
    if gathered is not None:
        together = np.vstack(gathered)
        np.save(path, together[np.argsort(together[:, 0]), 1:])


if __name__ == "__main__":
    main(*sys.argv[1:])
