"""Private decentralized gradient descent, written with loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


def gradient_descent(
    A: np.ndarray,
    gradients: Sequence[Sequence[Callable[[np.ndarray], np.ndarray]]],  # of node i, record r
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
            mean = np.zeros(dim)
            for gradient in gradients[i]:
                g = gradient(b)
                mean = mean + g * min(1.0, L / max(np.linalg.norm(g), 1e-300))
            following[i] = b - alpha(t + 1) * mean / len(gradients[i])
            received[i] = b
        x = following
    return x, received
