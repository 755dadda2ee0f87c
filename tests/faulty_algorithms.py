"""Small algorithms, correct and with the faults of papers, for audits to tell apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmesh import kernels
from dpmesh.algorithms import Info
from dpmesh.keys import Key, Purpose
from dpmesh.privacy import Gaussian, Mechanism, Plan, Sensitivity
from dpmesh.privacy.mechanisms import Emission


@dataclass(frozen=True)
class Toy:
    """What the small algorithms below share: Gaussian noise, and no messages but their releases."""

    noise_multiplier: float = 1.0

    def sensitivity(self, t: int) -> Sensitivity:
        raise NotImplementedError

    neighboring_relation = "replace_one"

    def mechanism(self) -> Mechanism:
        return Gaussian(self.noise_multiplier)

    def plan(self, rounds: int) -> Plan:
        planned = (self.mechanism().planned(t, self.sensitivity(t)) for t in range(rounds))
        return Plan(tuple(planned), self.neighboring_relation, "record")

    def release(self, values: np.ndarray, t: int, key: Key) -> Emission:
        return self.mechanism().release(
            values, self.sensitivity(t), key.stream(Purpose.NOISE, t), round=t
        )

    def parameters(self, state):
        return state


def info(emission: Emission) -> Info:
    return Info((emission.release,), emission.bits_per_node, emission.values, np.zeros(1))


@dataclass(frozen=True)
class PoissonMean(Toy):
    """A server's noisy mean over users who take part by a coin of their own; clipping norm 1.

    A problem is one value in [-1, 1] for each user, and NaN for one who is not there. The divisor
    is the expected number of participants, or, at fault, their number (federated, Algorithm 1).
    """

    users: int = 12
    sampling_rate: float = 0.5
    by_realised_batch: bool = False

    neighboring_relation = "add_remove"

    def sensitivity(self, t: int) -> Sensitivity:
        return Sensitivity(1 / (self.users * self.sampling_rate), "l2", "clipping norm / divisor")

    def init(self, problem: np.ndarray, key: Key) -> None:
        return None

    def step(self, state: None, round: int, problem: np.ndarray, exchange: Any, key: Key):
        coins = kernels.bernoulli(self.users, self.sampling_rate, key.stream(Purpose.SAMPLE, round))
        chosen = problem[coins & ~np.isnan(problem)]
        expected = self.users * self.sampling_rate
        divisor = max(1, len(chosen)) if self.by_realised_batch else expected
        mean = np.array([[np.clip(chosen, -1, 1).sum() / divisor]])
        return None, info(self.release(mean, round, key))


@dataclass(frozen=True)
class StronglyConvexSteps(Toy):
    """Two local logistic steps and a release of half the result (without_replacement, Lemma 4).

    The paper takes 1 / (a lambda t), far beyond what makes gradient maps non-expansive; `delayed`
    starts the same schedule late enough. A problem is two batches of numbers x with labels y.
    """

    delayed: bool = False

    regularization = 1e-4
    a = 0.5
    lipschitz = 2.0  # of the loss, 1 + lambda R
    batch_size = 50

    def step_size(self, t: int) -> float:
        smoothness = 0.25 + self.regularization
        start = 2 * smoothness / (self.a * self.regularization) if self.delayed else 0.0
        return 1 / (self.a * self.regularization * (t + start))

    def sensitivity(self, t: int) -> Sensitivity:
        bound = 2 * self.step_size(1) * self.lipschitz / self.batch_size
        return Sensitivity(bound, "l2", "2 eta L / b at the oldest step since the last release")

    def init(self, problem: Any, key: Key) -> None:
        return None

    def step(self, state: None, round: int, problem: Any, exchange: Any, key: Key):
        w = 0.0
        for t, (x, y) in enumerate(problem, start=1):
            gradient = np.mean(-y * x / (1 + np.exp(np.clip(y * w * x, -700, 700))))
            w -= 2 * self.step_size(t) * (gradient + self.regularization * w)
        return None, info(self.release(np.array([[w / 2]]), round, key))


@dataclass(frozen=True)
class NonconvexGossip(Toy):
    """One node of the quantized paper, without its quantizer: x <- (1 - beta) x + beta z - alpha g.

    A problem is one constant for each record, whose gradient is that constant minus x, clipped: a
    nonconvex loss, Lipschitz with 1. The sensitivity is that of Lemma 2, in which only the replaced
    record moves the gradient, or, with `lipschitz` 1, the one that lets all of them follow x.
    """

    lipschitz: float = 0.0

    alpha = 0.04
    beta = 0.1
    C = 1.0
    records = 50

    def sensitivity(self, t: int) -> Sensitivity:
        bound = 0.0
        for _ in range(t):
            gradient = min(self.C / self.records + self.lipschitz * bound, self.C)
            bound = (1 - self.beta) * bound + self.alpha * gradient
        return Sensitivity(bound, "l2", "recursion of Lemma 2")

    def init(self, problem: np.ndarray, key: Key) -> np.ndarray:
        return np.zeros((1, 1))

    def step(self, state: np.ndarray, round: int, problem: np.ndarray, exchange: Any, key: Key):
        emission = self.release(state, round, key)
        gradient = np.clip(problem - state, -self.C / 2, self.C / 2).mean()
        x = (1 - self.beta) * state + self.beta * emission.values - self.alpha * gradient
        return x, info(emission)
