"""Problems and controllers for tests of SGD without replacement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import dpmesh as dm
from dpmesh.algorithms.controllers import AlwaysGlobal, AlwaysLocal, Periodic

FIXED = [AlwaysGlobal(), AlwaysLocal(), Periodic(3)]


def make_problem(
    sizes, dim: int, classes: int | None = None, *, loss="logistic", seed: int = 0, **options
) -> dm.LinearProblem:
    """Records of norm at most 1, `sizes` of them at each node."""
    rng = np.random.default_rng(seed)
    records = sum(sizes)
    features = rng.normal(size=(records, dim))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = rng.integers(classes, size=records) if classes else rng.choice([-1, 1], size=records)
    parts = tuple(np.split(rng.permutation(records), np.cumsum(sizes)[:-1]))
    dataset = dm.data.Dataset(features, labels, "synthetic")
    return dm.LinearProblem(
        dataset, parts, loss, classes=classes, feature_norm=1.0, test=dataset, **options
    )


def neighbours(problem: dm.LinearProblem, node: int, place: int):
    """Return the problem with one record made extreme, and with it turned around."""
    datasets = []
    for sign in (1, -1):
        x = problem.train.features.copy()
        x[problem.partition[node][place]] = sign * np.eye(x.shape[1])[0]
        datasets.append(replace(problem, train=replace(problem.train, features=x)))
    return datasets
