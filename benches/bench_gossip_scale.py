"""Gossip of many nodes in one process: noise, mixing and a step of each node in every round.

Online learning with Laplace noise on a random 4-regular graph, through the whole round loop. NumPy
and SciPy do the same with an insecure generator. The name of a case says how much memory a run
takes in addition to the data, in units of the nodes' parameters.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np

import dpmesh as dm
from benches.measure import Case, Way

ROUNDS = 5
EPSILON = 1.0
SIZES = [(100_000, 100), (10_000, 1_000)]
"""Nodes, and numbers of a model."""


def records(nodes: int, dim: int) -> dm.LinearProblem:
    """Return random records of norm 1, one for each node and round; a label is a feature's sign."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((nodes * ROUNDS, dim), dtype=np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = np.where(features[:, 0] > 0, 1, -1)
    parts = tuple(np.arange(nodes * ROUNDS).reshape(nodes, ROUNDS))
    return dm.LinearProblem(dm.Dataset(features, labels, "random"), parts, "logistic")


def ours(problem: dm.LinearProblem, network: dm.topology.Topology) -> Way:
    algorithm = dm.OnlineLearning(epsilon=EPSILON)
    return lambda: dm.simulate(
        algorithm,
        problem,
        network,
        rounds=ROUNDS,
        metrics=dm.Metrics((), every=ROUNDS, progress=False),
    )


def with_numpy(problem: dm.LinearProblem, network: dm.topology.Topology) -> Way:
    weights = network.matrix(0).weights.astype(np.float32)
    rng = np.random.Generator(np.random.SFC64(1))
    dim = problem.dim
    features = problem.train.features
    labels = problem.train.labels

    def run() -> np.ndarray:
        w = np.zeros((problem.nodes, dim), np.float32)
        for t in range(ROUNDS):
            step_size = np.float32(0.5 / np.sqrt(t + 1))
            noise_scale = 2 * step_size * np.sqrt(dim) / EPSILON
            noise = noise_scale * rng.laplace(size=w.shape)
            mixed = weights @ (w + noise.astype(np.float32))
            records_of_round = problem.batch(t, 1)[:, 0]
            x = features[records_of_round]
            y = labels[records_of_round].astype(np.float32)
            margins = y * np.einsum("ij,ij->i", mixed, x)
            slopes = -y * (0.5 - 0.5 * np.tanh(0.5 * margins))  # of the logistic loss
            w = mixed - step_size * slopes[:, np.newaxis] * x
            w *= np.minimum(1, 1 / np.linalg.norm(w, axis=1))[:, np.newaxis]
        return w

    return run


def copies(run: Way, problem: dm.LinearProblem) -> float:
    """Return the peak memory of a run, in units of the parameters of all nodes."""
    tracemalloc.start()
    run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / (problem.nodes * problem.dim * problem.train.features.itemsize)


def cases() -> Iterator[Case]:
    for nodes, dim in SIZES:
        problem = records(nodes, dim)
        network = dm.topology.random_regular(nodes, 4, key=dm.Key.seeded(1))
        run = ours(problem, network)
        memory = f"memory of {copies(run, problem):.1f} states"
        yield Case(
            f"gossip, {nodes:,} nodes x {dim:,}, {ROUNDS} rounds, {memory}",
            run,
            peers={"numpy": with_numpy(problem, network)},
            rounds=3,
        )
