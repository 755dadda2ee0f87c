"""Algorithm 1 of the without-replacement paper the slow way: one node, one record at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from twins import shorten, subgradient

Vector = np.ndarray
Records = list[tuple[Vector, int]]


def without_replacement(
    *,
    loss: str,
    minibatch: Callable[[int, int], Records],  # (node m, its i-th mini-batch) -> (x, class)s
    order: Callable[[int], list[int]],  # step t -> the nodes that act, one after the other
    is_global: Callable[[int, int, int], bool],  # (t, m, model k)
    noise: Callable[[int, int, int], Vector],  # (t, m, k) -> vector of unit scale
    eta: Callable[[int], float],  # t = 1, 2, ..
    z: float,  # noise over the sensitivity of Lemma 4
    M: int,
    K: int,
    d: int,
    T: int,
    b: Callable[[int], float],  # node m -> what it divides the sum over a mini-batch by
    L: float,
    R: float,
    lam: float,
    binary: bool,  # whether classes are -1 and +1 already
    forgets: bool = False,  # whether the pass ends with w_local = w_global
) -> tuple[Vector, Vector]:
    """Return the local models (M, K, d) and the global ones (K, d) after T steps."""
    w_local = [[np.zeros(d) for _ in range(K)] for _ in range(M)]
    w_global = [np.zeros(d) for _ in range(K)]
    since_release: list[list[list[float]]] = [[[] for _ in range(K)] for _ in range(M)]
    minibatches_used = [0] * M

    def gradient(w: Vector, records: Records, k: int, m: int) -> Vector:
        g = lam * w
        for x, y in records:
            if binary:
                label = y
            else:
                label = 1 if y == k else -1
            g = g + subgradient(loss, w, x, label) / b(m)
        return g

    for t in range(T):
        step = eta(t + 1)
        for m in order(t):
            D = minibatch(m, minibatches_used[m])
            minibatches_used[m] += 1
            for k in range(K):
                since_release[m][k].append(step)
                if is_global(t, m, k):
                    Delta = max(2 * e * L / b(m) for e in since_release[m][k])
                    w = (w_global[k] + w_local[m][k]) / 2 - step * gradient(w_global[k], D, k, m)
                    w = w + z * Delta * noise(t, m, k)
                    w_global[k] = w_local[m][k] = shorten(w, R)
                    since_release[m][k] = []
                else:
                    w = w_local[m][k]
                    w_local[m][k] = shorten(w - 2 * step * gradient(w, D, k, m), R)
    if forgets:
        w_local = [w_global] * M
    return np.array(w_local), np.array(w_global)
