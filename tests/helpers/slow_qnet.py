"""Q-networks the slow way: one by one, in float64, from the definitions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmesh_papers.qnet import QWeights

Weights = dict[str, np.ndarray]

Transition = tuple[np.ndarray, int, float, float, np.ndarray]
"""State, action, reward, discount, next state."""


def one_network(weights: QWeights, i: int) -> Weights:
    return {name: array[i].astype(np.float64) for name, array in weights._asdict().items()}


def slow_values(weights: Weights, x: np.ndarray, activation: str) -> np.ndarray:
    sums = weights["hidden_weights"] @ x + weights["hidden_biases"]
    hidden = sums
    if activation == "relu":
        hidden = np.maximum(sums, 0)
    return weights["value_weights"] @ hidden + weights["value_biases"]


def slow_loss(weights: Weights, target: Weights, batch: list[Transition], activation: str) -> float:
    loss = 0.0
    for state, action, reward, discount, next_state in batch:
        y = reward + discount * slow_values(target, next_state, activation).max()
        loss += (slow_values(weights, state, activation)[action] - y) ** 2 / len(batch)
    return loss


def slow_gradient(weights: Weights, target: Weights, batch: list[Transition], act: str) -> Weights:
    gradient = {name: np.zeros_like(array) for name, array in weights.items()}
    for state, action, reward, discount, next_state in batch:
        y = reward + discount * slow_values(target, next_state, act).max()
        sums = weights["hidden_weights"] @ state + weights["hidden_biases"]
        hidden = sums
        if act == "relu":
            hidden = np.maximum(sums, 0)
        slope = 2 * (slow_values(weights, state, act)[action] - y) / len(batch)
        gradient["value_biases"][action] += slope
        gradient["value_weights"][action] += slope * hidden
        back = slope * weights["value_weights"][action]
        if act == "relu":
            back = back * (sums > 0)
        gradient["hidden_biases"] += back
        gradient["hidden_weights"] += np.outer(back, state)
    return gradient


@dataclass
class SlowAdam:
    """Kingma and Ba, Algorithm 1, as optax.adam has it (epsilon outside the root)."""

    m: Weights
    v: Weights
    t: int = 0

    @classmethod
    def at_start(cls, weights: Weights) -> SlowAdam:
        m, v = ({name: np.zeros_like(w) for name, w in weights.items()} for _ in range(2))
        return cls(m, v)

    def step(self, weights: Weights, gradient: Weights) -> None:
        self.t += 1
        for name, g in gradient.items():
            self.m[name] = 0.9 * self.m[name] + 0.1 * g
            self.v[name] = 0.999 * self.v[name] + 0.001 * g**2
            m = self.m[name] / (1 - 0.9**self.t)
            v = self.v[name] / (1 - 0.999**self.t)
            weights[name] = weights[name] - 0.01 * m / (np.sqrt(v) + 1e-8)
