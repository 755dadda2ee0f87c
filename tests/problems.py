"""Small problems, and an algorithm that keeps to no plan, for tests of several floors."""

from __future__ import annotations

import numpy as np

import dpmesh as dm
from dpmesh.algorithms import Message
from dpmesh.algorithms.registry import DIM, NODES, RECORDS
from dpmesh.privacy import Laplace, Release, Sensitivity

ONE = Sensitivity(1.0, "l2", "a test")


def stream_problem(nodes: int = 4, rounds: int = 6, *, test: bool = True) -> dm.LinearProblem:
    """A record for each node and round, and 50 to test on."""
    rng = np.random.default_rng(3)
    features = rng.normal(size=(nodes * rounds + 50, 5))
    labels = np.where(features[:, 0] > 0, 1, -1)
    everything = dm.Dataset(features, labels, "synthetic")
    train = everything.take(np.arange(nodes * rounds))
    parts = tuple(np.arange(nodes * rounds).reshape(nodes, rounds))
    held_out = everything.take(np.arange(nodes * rounds, len(labels)))
    return dm.LinearProblem(train, parts, "logistic", test=held_out if test else None)


def contract_problem(seed: int = 0, dim: int = DIM) -> dm.LinearProblem:
    """Records of length 1, as many as the registry's examples are made for."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(NODES * RECORDS, dim))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    train = dm.Dataset(x, np.where(rng.random(len(x)) < 0.5, -1, 1), "synthetic")
    parts = tuple(np.split(np.arange(len(x)), NODES))
    return dm.LinearProblem(train, parts, "logistic", feature_norm=1.0)


class Spendthrift(dm.OnlineLearning):
    """Releases its models a second time from round 3 on, which was not planned."""

    first = 3

    def round(self, state, t, problem, key):
        after = yield from super().round(state, t, problem, key)
        if t >= self.first:
            yield Message(after.w, Release(t, Laplace(2.5), ONE), travels=False)
        return after
