"""Slow, loop-written twin of the quantized paper's Algorithm 1: the oracle of the fast version."""

from __future__ import annotations

from collections.abc import Callable
from math import floor

import numpy as np

Vector = np.ndarray


def quantize(y: Vector, step: float, u: Vector) -> Vector:
    """Quantizer (3) with the coins u."""
    z = np.empty(len(y))
    for c in range(len(y)):
        t = float(y[c]) / step
        p = t - floor(t)
        z[c] = step * (floor(t) + 1 if u[c] < p else floor(t))
    return z


def quantized_gossip(
    *,
    x0: list[Vector],  # of every node
    gradient: Callable[[int, Vector, int], Vector],  # (node i, point, record) -> clipped gradient
    regularization: float,
    records: Callable[[int, int], list[int]],  # (node i, iteration k) -> the sampled ones
    A: Callable[[int], Vector],
    alpha: float,
    beta: float,
    noise: Callable[[int, int], Vector],  # (node i, iteration k) -> n_k^i
    coins: Callable[[int, int], Vector],
    step: float | None,  # None: not quantized
    n: int,
    K: int,
    at_public_point: bool = False,
) -> tuple[list[list[Vector]], list[list[Vector]]]:
    """Algorithm 1; returns x_k^i for k = 0, .., K + 1 and z_k^i for k = 0, .., K."""
    x = [[np.array(x0[i], dtype=float) for i in range(n)]]
    messages = []
    for k in range(K + 1):
        z = []
        for i in range(n):
            y = x[k][i] + noise(i, k)
            z.append(y if step is None else quantize(y, step, coins(i, k)))
        messages.append(z)
        following = []
        for i in range(n):
            point = z[i] if at_public_point else x[k][i]
            g = np.zeros(len(x0[0]))
            for record in records(i, k):
                g = g + gradient(i, point, record) / len(records(i, k))
            g = g + regularization * point
            mixed = np.zeros(len(x0[0]))
            for j in range(n):
                mixed = mixed + A(k)[i, j] * z[j]
            following.append((1 - beta) * x[k][i] + beta * mixed - alpha * g)
        x.append(following)
    return x, messages
