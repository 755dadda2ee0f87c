"""A plain loop in process for distributed DP-SGD, and the sites of the tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from masked_sums import masked_sum

from dpmesh._privacy_types import Floats
from dpmesh.algorithms import FederatedLearning
from dpmesh.data import Dataset
from dpmesh.keys import Key, Purpose
from dpmesh.problems import LinearProblem


def train(algorithm: FederatedLearning, problem: Any, key: Key) -> tuple[Floats, list[Floats]]:
    """Return the model after all rounds, and the released sums, under real masks."""
    state = algorithm.init(problem, key)
    released = []
    for t in range(algorithm.combination.rounds):
        sums = algorithm.contribution.sums(state.w, t, problem, key)
        total = masked_sum(algorithm.secure_sum, sums, key.stream(Purpose.NOISE, t))
        released.append(total)
        state = algorithm.absorb(state, total, t, problem.regularization)
    return algorithm.parameters(state), released


def by_class(dataset: Dataset, sites: int) -> tuple[npt.NDArray[np.int64], ...]:
    """Give site i the records of classes 2 i and 2 i + 1, as far as there are so many sites."""
    order = np.argsort(dataset.labels, kind="stable")
    return tuple(np.array_split(order, sites))


def linear(
    counts: tuple[int, ...], dim: int, seed: int, loss: Any = "logistic", **options: Any
) -> LinearProblem:
    """Return random records of norm 1, so many at each site."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(sum(counts), dim))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    classes = options.get("classes")
    if classes is None:
        y = np.where(rng.random(len(x)) < 0.5, -1, 1)
    else:
        y = np.arange(len(x)) % classes
    parts = np.split(np.arange(len(x)), np.cumsum(counts)[:-1])
    return LinearProblem(Dataset(x, y), parts, loss, **options)
