"""Private decentralized gradient descent, written with loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import dpmesh as dm

Gradient = Callable[[np.ndarray], np.ndarray]


def gradient_descent(
    A: np.ndarray,
    gradients: Sequence[Sequence[Gradient]],  # of node i, record r
    noise: Callable[[int], np.ndarray],  # round t -> (nodes, dim)
    *,
    rounds: int,
    dim: int,
    alpha: Callable[[int], float],
    L: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the models after the last round, and what was received in it."""
    nodes = len(gradients)
    x, received = np.zeros((nodes, dim)), np.zeros((nodes, dim))
    for t in range(rounds):
        sent = [x[i] + noise(t)[i] for i in range(nodes)]
        following = np.zeros_like(x)
        for i in range(nodes):
            b = np.zeros(dim)
            for j in range(nodes):
                b = b + A[i, j] * sent[j]
            following[i] = b - alpha(t + 1) * clipped_mean(gradients[i], b, L)
            received[i] = b
        x = following
    return x, received


def clipped_mean(gradients: Sequence[Gradient], point: np.ndarray, L: float) -> np.ndarray:
    """Return the mean of the records' gradients, each clipped to L."""
    mean = np.zeros_like(point)
    for gradient in gradients:
        g = gradient(point)
        mean = mean + g * min(1.0, L / max(np.linalg.norm(g), 1e-300))
    return mean / len(gradients)


def small_problem(nodes: int, records: int, dim: int, seed: int) -> dm.LinearProblem:
    """Return logistic regression on random records."""
    rng = np.random.default_rng(seed)
    x = 2 * rng.normal(size=(nodes * records, dim))
    train = dm.Dataset(x, np.where(rng.random(len(x)) < 0.5, -1, 1), "synthetic")
    parts = tuple(np.split(rng.permutation(len(x)), nodes))
    return dm.LinearProblem(train, parts, "logistic")


def gradients_of(problem: dm.LinearProblem) -> list[list[Gradient]]:
    """Return the gradient of each record's loss, by node."""

    def gradient_of(record: int) -> Gradient:
        features, label = problem.train.features[record], problem.train.labels[record]
        return lambda w: -label * features / (1 + np.exp(label * (features @ w)))

    return [[gradient_of(record) for record in part] for part in problem.partition]
