"""Slow, loop-written twin of federated learning, read off Algorithm 1: oracle of the fast one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Vector = np.ndarray


def shorten(v: Vector, bound: float) -> Vector:
    """Clip(v, L) = v / max(1, |v| / L)."""
    return v / max(1.0, np.sqrt(sum(float(c) ** 2 for c in v)) / bound)


def gradient(w: Vector, batch: Sequence[tuple[Vector, float]], lam: float) -> Vector:
    """Return the gradient of the mean logistic loss with weight decay; labels are -1 and +1."""
    g = np.zeros_like(w)
    for x, y in batch:
        g = g - y * x / (1 + np.exp(y * float(w @ x))) / len(batch)
    return g + lam * w


def laplacian_system(n: int, s: float) -> Vector:
    """Return A = I + s L for the cycle of n."""
    A = np.eye(n)
    for i in range(n):
        for j in ((i - 1) % n, (i + 1) % n):
            A[i, i] += s
            A[i, j] -= s
    return A


def epoch_orders(coins: Sequence[float], records: Sequence[int], passes: int) -> list[list[int]]:
    """Return the records of each pass, in the order of its coins."""
    orders = []
    for e in range(passes):
        coins_of_pass = coins[e * len(records) : (e + 1) * len(records)]
        orders.append([record for _, record in sorted(zip(coins_of_pass, records, strict=True))])
    return orders


def client_update(
    w: Vector,
    orders: Sequence[Sequence[int]],
    example: Callable[[int], tuple[Vector, float]],
    *,
    b: int,
    K: int | None,
    eta: float,
    L: float,
    lam: float,
) -> Vector:
    batches = [order[i : i + b] for order in orders for i in range(0, len(order), b)]
    local = w
    for batch in batches[:K]:
        g = gradient(local, [example(r) for r in batch], lam)
        local = w + shorten(local - eta * g - w, L)
    return local - w


def federated_learning(
    *,
    cohort: Callable[[int], Sequence[int]],  # round t -> clients that did not drop out
    orders: Callable[[int, int], list[list[int]]],  # (client j, round t) -> record orders
    example: Callable[[int], tuple[Vector, float]],
    noise: Callable[[int], Vector],  # round t -> standard normal vector
    N: int,
    tau: float,
    arrival_rate: float,
    T: int,
    n: int,
    L: float,
    z: float | None,
    replace_one: bool,
    b: int,
    K: int | None,
    eta_l: Callable[[int], float],
    eta_g: float,
    sigma: float,
    lam: float,
    a: Callable[[int], float] | None,
    adapt: tuple[float, float, float] | None = None,  # quantile, step, noise on the bits' number
    server: tuple[str, ...] | None = None,  # "momentum" or "adam", and its numbers
) -> Vector:
    """Return the output after T rounds."""
    w = [np.zeros(n)]
    m = np.zeros(n)
    v = np.zeros(n)
    S = arrival_rate * (round(tau * N) if replace_one else tau * N)
    for t in range(T):
        total = np.zeros(n)
        inside = 0.0
        for j in cohort(t):
            update = client_update(
                w[t], orders(j, t), example, b=b, K=K, eta=eta_l(t + 1), L=L, lam=lam
            )
            total = total + update
            if any(orders(j, t)):
                inside += (np.sqrt(sum(update**2)) < L * (1 - 1e-6)) - 0.5
        if adapt is None and z is not None:
            total = total + z * L * (2 if replace_one else 1) * noise(t)
        if adapt is not None:
            quantile, step, bits_std = adapt
            if z is not None:  # Theorem 1 of Andrew et al., of a bit's two values +-1/2
                sensitivity = 2 if replace_one else 1
                z_delta = (z**-2 - (2 * bits_std / sensitivity) ** -2) ** -0.5
                total = total + z_delta * L * sensitivity * noise(t)[:n]
                inside += bits_std * noise(t)[n]
            L = L * np.exp(-step * (0.5 + inside / S - quantile))
        delta = np.linalg.solve(laplacian_system(n, sigma), total) / S
        if server is None:
            direction = delta
        elif server[0] == "momentum":
            m = server[1] * m + delta
            direction = m
        else:
            m = server[1] * m + (1 - server[1]) * delta
            v = server[2] * v + (1 - server[2]) * delta**2
            direction = m / (np.sqrt(v) + server[3])
        w.append(w[t] + eta_g * direction)
    if a is None:
        return w[T]
    weights = [a(t + 1) for t in range(T + 1)]
    return sum(weight * v for weight, v in zip(weights, w, strict=True)) / sum(weights)
