"""A run of federated logistic regression on MNIST against batched NumPy, pfl-research and Flower.

1,000 clients of 50 records, 50 a round, 5 epochs of batches of 10, 30 rounds, each model within a
ball around the global one, noise, the test set after every round. "direct" updates the parameters,
"span" works in the Gram matrix of a client's records (what `FederatedLearning` chooses). Needs
MNIST in the folder DPMESH_DATA names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benches.flower_peer import flower
from benches.measure import THREADS, Case
from benches.pfl_peer import pfl
from dpmesh.algorithms import FederatedLearning
from dpmesh.algorithms.denoisers import LaplacianSmoothing
from dpmesh.data import mnist
from dpmesh.keys import Key
from dpmesh.privacy import Ledger
from dpmesh.problems import LinearProblem
from dpmesh.run import Broadcast, Channel
from dpmesh_papers.federated import ROUNDS, algorithm_of, mnist_clients, standardized

NOISE = 0.8
FLOWER_ROUNDS = 5  # of the simulation, whose rounds take long
SMOOTHED = algorithm_of("uniform", NOISE, LaplacianSmoothing(1.0))
FIELDS = ("train", "partition", "loss", "test", "classes", "regularization")
Way = Callable[[int], float]


@dataclass(frozen=True, eq=False)
class OneForm(LinearProblem):
    """The problem trained in one form, whichever is cheaper."""

    form: str | None = None

    def local_training(self, start, walks, *, step_size, radius):
        updates, _ = self._linear.train(
            start,
            walks,
            step_size=step_size,
            radius=radius,
            regularization=self.regularization,
            form=self.form,
        )
        return updates


def dpmesh_way(problem: Any, algorithm: FederatedLearning = SMOOTHED) -> Way:
    """A round of our algorithm and its accuracy."""
    key = Key.generate()
    channel = Channel(Broadcast(), key, Ledger(algorithm.plan(1), nodes=problem.nodes))
    states = [algorithm.init(problem, key)]

    def run(t: int) -> float:
        if t == 0:
            del states[1:]
        step = channel.run(algorithm, states[-1], t, problem, key)
        channel.ledger.end_round()
        states[1:] = [step.state]
        return float(problem.accuracy(algorithm.parameters(step.state))[0])

    return run


def numpy_way(problem: LinearProblem) -> Way:
    """The same round as array operations on a whole cohort at once, without smoothing."""
    draw = np.random.default_rng()
    x = np.stack([problem.train.features[part] for part in problem.partition])
    y = np.eye(10, dtype=np.float32)[np.stack([problem.train.labels[p] for p in problem.partition])]
    algorithm = SMOOTHED
    updates: Any = algorithm.contribution
    radius, decay = updates.clipping_norm, problem.regularization
    models = [np.zeros((784, 10), np.float32)]

    def run(t: int) -> float:
        if t == 0:
            del models[1:]
        start, step_size = models[-1], updates.step_size(t + 1)
        cohort = draw.choice(1000, 50, replace=False)
        features, targets = x[cohort], y[cohort]
        w = np.repeat(start[np.newaxis], 50, axis=0)
        for _ in range(5):
            order = np.argsort(draw.random((50, 50)), axis=1)
            for first in range(0, 50, 10):
                batch = order[:, first : first + 10, np.newaxis]
                records = np.take_along_axis(features, batch, 1)
                slopes = records @ w
                slopes -= slopes.max(-1, keepdims=True)
                np.exp(slopes, out=slopes)
                slopes /= slopes.sum(-1, keepdims=True)
                slopes -= np.take_along_axis(targets, batch, 1)
                gradient = records.transpose(0, 2, 1) @ slopes
                gradient *= -step_size / 10
                w *= 1 - step_size * decay
                w += gradient
                w -= start
                norms = np.sqrt(np.einsum("nij,nij->n", w, w))
                w *= np.minimum(1, radius / norms)[:, np.newaxis, np.newaxis].astype(np.float32)
                w += start
        w -= start
        total = w.sum(0)
        total += draw.standard_normal(total.shape, dtype=np.float32) * np.float32(
            NOISE * 2 * radius
        )
        models[1:] = [start + total / 50]
        guesses = (problem.test.features @ models[-1]).argmax(1)
        return float((guesses == problem.test.labels).mean())

    return run


def rounds_of(run: Way) -> Callable[[], list[float]]:
    """All rounds of a run, from its start."""
    return lambda: [run(t) for t in range(ROUNDS)]


def clients() -> LinearProblem:
    train, test = (standardized(mnist(part)) for part in ("train", "test"))
    return mnist_clients(train, test, 1000, Key.generate())


def start_to_finish() -> None:
    """A script of its own: imports, data, all rounds, the result."""
    script = Path(__file__).with_name("federated_script.py")
    subprocess.run([sys.executable, script], check=True, stdout=subprocess.DEVNULL)


def cases() -> Iterator[Case]:
    if not os.environ.get("DPMESH_DATA"):
        print("DPMESH_DATA is not set: skipped", file=sys.stderr)
        return
    problem = clients()
    setting = partial(OneForm, **{k: getattr(problem, k) for k in FIELDS})
    peers_of_setting = {**pfl("linear", epochs=5, rounds=ROUNDS), **flower(FLOWER_ROUNDS)}
    direct = {"numpy": 5.0, "pfl": 40.0, "flower": 100.0}
    for form, goals in (("direct", direct), ("span", {"numpy": 12.0})):
        yield Case(
            f"federated, {form}, a round",
            rounds_of(dpmesh_way(setting(form=form))),
            peers={"numpy": rounds_of(numpy_way(problem)), **peers_of_setting},
            part={"flower": FLOWER_ROUNDS / ROUNDS},
            goals=goals,
            values=ROUNDS,
            rounds=3,
        )
    if THREADS > 1:  # wall time: our processor time does not include other processes
        yield Case("federated, start to finish", start_to_finish, most=2.0, rounds=3)
