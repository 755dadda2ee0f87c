"""Gossip by secure sums of neighbours, written with loops, Python integers and masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np

MODULUS = 2**64


def secure_gossip(
    A: np.ndarray,
    gradients: Sequence[Sequence[Callable[[np.ndarray], np.ndarray]]],  # of node i, record r
    noise: Callable[[int, int, int], Sequence[int]],  # round, receiver v, sender j -> dim integers
    *,
    rounds: int,
    p: np.ndarray,  # the public start, shape (dim,)
    records: int,  # N, of all nodes
    alpha: Callable[[int], float],
    C: float,
    decay: float,
    grid: Callable[[int], float],  # of a round
    masks: Random,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the points after the last round, and the sums of each."""
    n = len(gradients)
    dim = len(p)
    neighbors = [[j for j in range(n) if j != v and A[v, j] > 0] for v in range(n)]
    points = [p.copy() for _ in range(n)]
    sums = []
    for t in range(rounds):
        y = []
        for j in range(n):
            G = np.zeros(dim)
            for gradient in gradients[j]:
                g = gradient(points[j])
                G = G + g * min(1.0, C / max(np.linalg.norm(g), 1e-300))
            direction = n / records * G + decay * points[j]
            w = A[neighbors[j][0], j]
            y.append(w * (points[j] - alpha(t + 1) / (len(neighbors[j]) * w) * direction))
        s = []
        for v in range(n):
            between = {
                (i, j): [masks.randrange(MODULUS) for _ in range(dim)]
                for i in neighbors[v]
                for j in neighbors[v]
                if i < j
            }
            total = [0] * dim
            for j in neighbors[v]:
                e = noise(t, v, j)
                for k in range(dim):
                    message = round(y[j][k] / grid(t)) + int(e[k])
                    message += sum(between[j, i][k] for i in neighbors[v] if j < i)
                    message -= sum(between[i, j][k] for i in neighbors[v] if i < j)
                    total[k] = (total[k] + message % MODULUS) % MODULUS
            s.append([x - MODULUS if x >= MODULUS // 2 else x for x in total])
        sums.append(grid(t) * np.array(s, float))
        points = [sums[-1][v] + A[v, v] * points[v] for v in range(n)]
    return np.array(points), sums
