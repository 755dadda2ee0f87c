"""Small problems, and an algorithm that keeps to no plan, for tests of several floors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dpmesh as dm
from dpmesh.algorithms import Message
from dpmesh.algorithms.registry import DIM, NODES, RECORDS
from dpmesh.noise import Laplace, Sensitivity
from dpmesh.privacy import Release

ONE = Sensitivity(1.0, "l2", "a test")


def stream_problem(nodes: int = 4, rounds: int = 6, *, test: bool = True) -> dm.LinearProblem:
    """Return a problem with a record for each node and round, and 50 to test on."""
    rng = np.random.default_rng(3)
    features = rng.normal(size=(nodes * rounds + 50, 5))
    labels = np.where(features[:, 0] > 0, 1, -1)
    everything = dm.Dataset(features, labels, "synthetic")
    train = everything.take(np.arange(nodes * rounds))
    parts = tuple(np.arange(nodes * rounds).reshape(nodes, rounds))
    held_out = everything.take(np.arange(nodes * rounds, len(labels)))
    return dm.LinearProblem(train, parts, "logistic", test=held_out if test else None)


def contract_problem(seed: int = 0, dim: int = DIM) -> dm.LinearProblem:
    """Return records of norm 1, as many as the registry's examples are made for."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(NODES * RECORDS, dim))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    train = dm.Dataset(x, np.where(rng.random(len(x)) < 0.5, -1, 1), "synthetic")
    parts = tuple(np.split(np.arange(len(x)), NODES))
    return dm.LinearProblem(train, parts, "logistic", feature_norm=1.0)


def jax_network(train: dm.Dataset, parts: tuple[np.ndarray, ...], **options) -> Any:
    """Return a network in JAX: five units of tanh between the features and three classes."""
    jax = pytest.importorskip("jax", reason="needs the extra jax")

    def start(key):
        first, second = jax.random.split(key)
        shapes = (first, (5, train.dim)), (second, (3, 5))
        return [jax.random.normal(key_of_layer, shape) for key_of_layer, shape in shapes]

    def scores(params, x):
        return params[1] @ jax.numpy.tanh(params[0] @ x)

    loss = dm.problems.networks.cross_entropy(scores)
    return dm.problems.JaxProblem(train, parts, start, loss, scores, test=train, **options)


def torch_network(train: dm.Dataset, parts: tuple[np.ndarray, ...], **options) -> Any:
    """Return the network of `jax_network` as a PyTorch module."""
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    torch.set_num_threads(1)  # its threads spin where others want the processors

    def make_module():
        layers = torch.nn.Linear(train.dim, 5, bias=False), torch.nn.Linear(5, 3, bias=False)
        return torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1])

    return dm.problems.TorchProblem(train, parts, make_module, test=train, **options)


NETWORKS = {"jax": jax_network, "torch": torch_network}


def network_records(*, extreme: bool = False) -> tuple[dm.Dataset, tuple[np.ndarray, ...]]:
    """Return records for the registry's examples; the first may be an extreme one."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(NODES * RECORDS, DIM)).astype(np.float32)
    y = rng.integers(0, 3, len(x))
    if extreme:
        x[0] = -1e3 * x[0]
        y[0] = (y[0] + 1) % 3
    return dm.Dataset(x, y, "synthetic"), tuple(np.split(np.arange(len(x)), NODES))


class Spendthrift(dm.OnlineLearning):
    """Releases its models a second time from round 3 on, which was not planned."""

    first = 3

    def round(self, state, t, problem, key):
        after = yield from super().round(state, t, problem, key)
        if t >= self.first:
            yield Message(after.w, Release(t, Laplace(2.5), ONE), is_sent=False)
        return after
