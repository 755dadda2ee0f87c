"""Gossip logistic regression, a whole run: 64 nodes, 4-regular, batches of 10, noise and mixing.

In every round each node sends its parameters with Gaussian noise, mixes what it receives, and steps
against the mean of 10 clipped gradients. NumPy and JAX (one compiled scan over all rounds) do the
same with insecure generators, and choose records with replacement, which is cheaper. gossipy sends
one message per node and round instead of four, without noise; decentralizepy, whose nodes are
processes that communicate over TCP, adds no noise and clips nothing. The records are MNIST's if
DPMESH_DATA is set, else random ones of the same shape.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import networkx as nx
import numpy as np

import dpmesh as dm
from benches.decentralizepy_peer import decentralizepy
from benches.measure import Case, Way, skipped
from dpmesh.algorithms.quantized import QuantizedGossip
from dpmesh.schedules import Constant, SampleSize

NODES, DEGREE, BATCH, ROUNDS = 64, 4, 10, 500
GOSSIPY_ROUNDS, DECENTRALIZEPY_ROUNDS = 5, 20
STEP, CONSENSUS, STD, CLIP, CLASSES = 0.5, 0.5, 0.01, 1.0, 10


def digits() -> dm.data.Dataset:
    """60,000 records of 784 features and unit norm."""
    if os.environ.get("DPMESH_DATA"):
        return dm.data.unit_norm(dm.data.mnist())
    print("DPMESH_DATA is not set: random records", file=sys.stderr)
    rng = np.random.default_rng(0)
    features = rng.random((60_000, 784), dtype=np.float32)
    return dm.data.unit_norm(dm.data.Dataset(features, rng.integers(0, CLASSES, 60_000), "random"))


def softmax_regression() -> dm.LinearProblem:
    """The records in equal parts, one for each node."""
    train = digits()
    parts = dm.data.iid(train, NODES, np.random.default_rng(0))
    return dm.LinearProblem(train, parts, "softmax", classes=CLASSES)


def ours(problem: dm.LinearProblem, network: dm.topology.Topology) -> Way:
    algorithm = QuantizedGossip(
        step_size=Constant(STEP),
        consensus_step_size=Constant(CONSENSUS),
        sample_size=SampleSize(scale=BATCH),
        noise_std=Constant(STD),
        compressor=None,
        clipping_norm=CLIP,
    )
    return lambda: dm.simulate(
        algorithm,
        problem,
        network,
        rounds=ROUNDS,
        metrics=dm.Metrics((), every=ROUNDS, progress=False),
    )


def with_numpy(problem: dm.LinearProblem, weights: np.ndarray) -> Way:
    features, labels = problem.train.features, problem.train.labels
    parts = np.stack([part[: problem.records.min()] for part in problem.partition])
    rng, nodes = np.random.Generator(np.random.SFC64(1)), np.arange(NODES)[:, None]

    def run() -> np.ndarray:
        w = np.zeros((NODES, CLASSES, features.shape[1]), np.float32)
        for _ in range(ROUNDS):
            sent = w + np.float32(STD) * rng.standard_normal(w.shape, dtype=np.float32)
            mixed = (weights @ sent.reshape(NODES, -1)).reshape(w.shape)
            chosen = parts[nodes, rng.integers(0, parts.shape[1], (NODES, BATCH))]
            x, y = features[chosen], labels[chosen]
            scores = x @ w.swapaxes(1, 2)
            scores -= scores.max(axis=2, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=2, keepdims=True)
            scores[nodes, np.arange(BATCH)[None], y] -= 1
            norms = np.linalg.norm(scores, axis=2) * np.linalg.norm(x, axis=2)
            scores *= (np.minimum(1, CLIP / norms) / BATCH)[..., None]
            gradient = scores.swapaxes(1, 2) @ x
            w *= np.float32(1 - CONSENSUS)
            w += np.float32(CONSENSUS) * mixed
            w -= np.float32(STEP) * gradient
        return w

    return run


def with_jax(problem: dm.LinearProblem, weights: np.ndarray) -> Way:
    import jax
    import jax.numpy as jnp

    features, labels = jnp.asarray(problem.train.features), jnp.asarray(problem.train.labels)
    parts = jnp.stack([part[: problem.records.min()] for part in problem.partition])
    matrix = jnp.asarray(weights)

    def round_(w: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
        noise, sample = jax.random.split(key)
        sent = w + STD * jax.random.normal(noise, w.shape, w.dtype)
        mixed = jnp.tensordot(matrix, sent, 1)
        places = jax.random.randint(sample, (NODES, BATCH), 0, parts.shape[1])
        chosen = jnp.take_along_axis(parts, places, axis=1)
        x, y = features[chosen], labels[chosen]
        slopes = jax.nn.softmax(x @ w.swapaxes(1, 2)) - jax.nn.one_hot(y, CLASSES)
        norms = jnp.linalg.norm(slopes, axis=2) * jnp.linalg.norm(x, axis=2)
        slopes *= (jnp.minimum(1, CLIP / norms) / BATCH)[..., None]
        gradient = slopes.swapaxes(1, 2) @ x
        return (1 - CONSENSUS) * w + CONSENSUS * mixed - STEP * gradient, None

    @jax.jit
    def run(key: jax.Array) -> jax.Array:
        w = jnp.zeros((NODES, CLASSES, features.shape[1]), jnp.float32)
        return jax.lax.scan(round_, w, jax.random.split(key, ROUNDS))[0]

    return lambda: run(jax.random.key(1)).block_until_ready()


def with_gossipy(problem: dm.LinearProblem, graph: nx.Graph) -> Way:
    import logging

    import gossipy
    import torch
    from gossipy.core import AntiEntropyProtocol, CreateModelMode, StaticP2PNetwork
    from gossipy.data import DataDispatcher
    from gossipy.data.handler import ClassificationDataHandler
    from gossipy.model.handler import TorchModelHandler
    from gossipy.model.nn import LogisticRegression
    from gossipy.node import GossipNode
    from gossipy.simul import GossipSimulator

    gossipy.LOG.setLevel(logging.ERROR)
    features = torch.from_numpy(problem.train.features)
    data = ClassificationDataHandler(features, torch.from_numpy(problem.train.labels), test_size=0)
    dispatcher = DataDispatcher(data, n=NODES, eval_on_user=False)
    model = TorchModelHandler(
        net=LogisticRegression(features.shape[1], CLASSES),
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": STEP},
        criterion=torch.nn.CrossEntropyLoss(),
        local_epochs=0,
        batch_size=BATCH,
        create_model_mode=CreateModelMode.MERGE_UPDATE,
    )
    nodes = GossipNode.generate(
        data_dispatcher=dispatcher,
        p2p_net=StaticP2PNetwork(NODES, nx.to_numpy_array(graph)),
        model_proto=model,
        round_len=100,
        sync=True,
    )
    simulator = GossipSimulator(nodes, dispatcher, 100, AntiEntropyProtocol.PUSH)
    simulator.init_nodes()
    return lambda: simulator.start(n_rounds=GOSSIPY_ROUNDS)


def cases() -> Iterator[Case]:
    problem = softmax_regression()
    graph = nx.random_regular_graph(DEGREE, NODES, seed=1)
    network = dm.topology.from_networkx(graph)
    weights = network.matrix(0).weights.astype(np.float32)
    peers = {"numpy": with_numpy(problem, weights)}
    if not skipped("jax"):
        peers["jax"] = with_jax(problem, weights.toarray())
    if not skipped("gossipy"):
        peers["gossipy"] = with_gossipy(problem, graph)
    peers |= decentralizepy(DECENTRALIZEPY_ROUNDS)
    yield Case(
        f"gossip, {NODES} nodes, a round",
        ours(problem, network),
        peers=peers,
        goals={"numpy": 3.0, "jax": 3.0, "gossipy": 50.0, "decentralizepy": 50.0},
        part={"gossipy": GOSSIPY_ROUNDS / ROUNDS, "decentralizepy": DECENTRALIZEPY_ROUNDS / ROUNDS},
        values=ROUNDS,
        rounds=3,
    )
