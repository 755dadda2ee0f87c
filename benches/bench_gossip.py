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
from benches.softmax import scores_to_probabilities
from dpmesh.algorithms.quantized import QuantizedGossip
from dpmesh.schedules import Constant, SampleSize

NODES = 64
DEGREE = 4
BATCH = 10
CLASSES = 10
ROUNDS = 500
GOSSIPY_ROUNDS = 5
DECENTRALIZEPY_ROUNDS = 20
STEP_SIZE = 0.5
CONSENSUS_STEP_SIZE = 0.5
NOISE_STD = 0.01
CLIPPING_NORM = 1.0


def digits() -> dm.data.Dataset:
    """Return 60,000 records of 784 features and unit norm."""
    if os.environ.get("DPMESH_DATA"):
        return dm.data.unit_norm(dm.data.mnist())
    print("DPMESH_DATA is not set: random records", file=sys.stderr)
    rng = np.random.default_rng(0)
    features = rng.random((60_000, 784), dtype=np.float32)
    return dm.data.unit_norm(dm.data.Dataset(features, rng.integers(0, CLASSES, 60_000), "random"))


def softmax_regression() -> dm.LinearProblem:
    """Return softmax regression on the records in equal parts, one for each node."""
    train = digits()
    parts = dm.data.iid(train, NODES, np.random.default_rng(0))
    return dm.LinearProblem(train, parts, "softmax", classes=CLASSES)


def ours(problem: dm.LinearProblem, network: dm.topology.Topology) -> Way:
    algorithm = QuantizedGossip(
        step_size=Constant(STEP_SIZE),
        consensus_step_size=Constant(CONSENSUS_STEP_SIZE),
        sample_size=SampleSize(scale=BATCH),
        noise_std=Constant(NOISE_STD),
        compressor=None,
        clipping_norm=CLIPPING_NORM,
    )
    return lambda: dm.simulate(
        algorithm,
        problem,
        network,
        rounds=ROUNDS,
        metrics=dm.Metrics((), every=ROUNDS, progress=False),
    )


def with_numpy(problem: dm.LinearProblem, weights: np.ndarray) -> Way:
    features = problem.train.features
    labels = problem.train.labels
    parts = np.stack([part[: problem.fewest_records] for part in problem.partition])
    rng = np.random.Generator(np.random.SFC64(1))
    nodes = np.arange(NODES)[:, np.newaxis]
    records_of_batch = np.arange(BATCH)[np.newaxis]

    def run() -> np.ndarray:
        w = np.zeros((NODES, CLASSES, features.shape[1]), np.float32)
        for _ in range(ROUNDS):
            noise = rng.standard_normal(w.shape, dtype=np.float32)
            sent = w + np.float32(NOISE_STD) * noise
            mixed = (weights @ sent.reshape(NODES, -1)).reshape(w.shape)
            batch = parts[nodes, rng.integers(0, parts.shape[1], (NODES, BATCH))]
            x = features[batch]
            # derivatives of the losses by the scores: softmax less one-hot labels
            slopes = x @ w.swapaxes(1, 2)
            scores_to_probabilities(slopes)
            slopes[nodes, records_of_batch, labels[batch]] -= 1
            norms = np.linalg.norm(slopes, axis=2) * np.linalg.norm(x, axis=2)
            factors = np.minimum(1, CLIPPING_NORM / norms) / BATCH
            slopes *= factors[..., np.newaxis]
            gradient = slopes.swapaxes(1, 2) @ x
            w *= np.float32(1 - CONSENSUS_STEP_SIZE)
            w += np.float32(CONSENSUS_STEP_SIZE) * mixed
            w -= np.float32(STEP_SIZE) * gradient
        return w

    return run


def with_jax(problem: dm.LinearProblem, weights: np.ndarray) -> Way:
    import jax
    import jax.numpy as jnp

    features = jnp.asarray(problem.train.features)
    labels = jnp.asarray(problem.train.labels)
    parts = jnp.stack([part[: problem.fewest_records] for part in problem.partition])
    matrix = jnp.asarray(weights)

    def round_(w: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
        noise_key, batch_key = jax.random.split(key)
        sent = w + NOISE_STD * jax.random.normal(noise_key, w.shape, w.dtype)
        mixed = jnp.tensordot(matrix, sent, 1)
        places = jax.random.randint(batch_key, (NODES, BATCH), 0, parts.shape[1])
        batch = jnp.take_along_axis(parts, places, axis=1)
        x = features[batch]
        one_hot = jax.nn.one_hot(labels[batch], CLASSES)
        slopes = jax.nn.softmax(x @ w.swapaxes(1, 2)) - one_hot
        norms = jnp.linalg.norm(slopes, axis=2) * jnp.linalg.norm(x, axis=2)
        factors = jnp.minimum(1, CLIPPING_NORM / norms) / BATCH
        gradient = (slopes * factors[..., jnp.newaxis]).swapaxes(1, 2) @ x
        averaged = (1 - CONSENSUS_STEP_SIZE) * w + CONSENSUS_STEP_SIZE * mixed
        return averaged - STEP_SIZE * gradient, None

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
        optimizer_params={"lr": STEP_SIZE},
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
