"""Slow oracles of the algorithms, written in loops from the papers, to test the fast versions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Vector = np.ndarray


def subgradient(loss: str, w: Vector, x: Vector, y: float) -> Vector:
    """Return a subgradient of a linear model's loss on one example, shape (dim,).

    Labels are -1 and +1, or any numbers in regression.
    """
    margin = float(w @ x)
    if loss == "hinge":
        return -y * x if y * margin < 1 else np.zeros_like(x)
    if loss == "logistic":
        return -y * x / (1 + np.exp(y * margin))
    if loss == "absolute":
        return np.sign(margin - y) * x
    if loss == "huber":
        return min(max(margin - y, -1.0), 1.0) * x
    return (margin - y) * x


def shorten(v: Vector, bound: float, p: int = 2) -> Vector:
    """Scale v to the p-norm `bound` if it is longer."""
    norm = sum(abs(float(c)) ** p for c in v) ** (1 / p)
    return v if norm <= bound else v * (bound / norm)


def project(v: Vector, projection: str, radius: float) -> Vector:
    """Return the nearest point of the ball, of the box around it, or v itself."""
    if projection == "ball":
        return shorten(v, radius)
    if projection == "box":
        return np.array([min(max(c, -radius), radius) for c in v])
    return v


def online_learning(
    *,
    loss: str,
    examples: Callable[[int, int], list[tuple[Vector, float]]],  # (learner i, round t) -> (x, y)s
    A: Callable[[int], Vector],  # round t -> (m, m)
    alpha: Callable[[int], float],
    noise: Callable[[int, int], Vector],  # (learner j, round t) -> vector of unit scale
    norm_factor: float,  # sensitivity -> that of the noise: sqrt(n) for Laplace and L2, else 1
    multiplier: float,  # noise scale / sensitivity: 1 / epsilon for Laplace
    m: int,
    n: int,
    T: int,
    L: float,
    norm: int,  # which norm L bounds: 1 or 2
    projection: str,
    radius: float,
    lam: float,
    h: Callable[[int], float],  # learner i -> what it divides the sum over its examples by
) -> list[list[Vector]]:
    """Algorithms 1 and 2 of the online paper; returns w_t^i for t = 0, .., T."""
    w = [[np.zeros(n) for _ in range(m)]]
    for t in range(T):
        broadcast = []
        for j in range(m):
            sigma = np.zeros(n)
            if t > 0:
                sigma = multiplier * norm_factor * 2 * alpha(t) * L / h(j) * noise(j, t)
            broadcast.append(w[t][j] + sigma)
        following = []
        for i in range(m):
            b = np.zeros(n)
            for j in range(m):
                b = b + A(t)[i, j] * broadcast[j]
            if projection == "mixture":
                b = shorten(b, radius)
            g = np.zeros(n)
            for x, y in examples(i, t):
                g = g + shorten(subgradient(loss, b, x, y), L, norm) / h(i)
            g = g + lam * b
            following.append(project(b - alpha(t + 1) * g, projection, radius))
        w.append(following)
    return w
