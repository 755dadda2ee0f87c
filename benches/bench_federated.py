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
from benches.softmax import scores_to_probabilities
from dpmesh.algorithms import FederatedLearning
from dpmesh.algorithms.denoisers import LaplacianSmoothing
from dpmesh.data import mnist
from dpmesh.keys import Key
from dpmesh.privacy import Ledger
from dpmesh.problems import LinearProblem
from dpmesh.run import Broadcast, Channel
from dpmesh_papers.federated import ROUNDS, algorithm_of, mnist_clients, standardized

CLIENTS = 1000
COHORT = 50
RECORDS = 50
"""Records of a client."""
BATCH = 10
PIXELS = 28 * 28
CLASSES = 10
NOISE = 0.8
"""Standard deviation of the noise over the sensitivity of the sum, twice the clipping norm."""
FLOWER_ROUNDS = 5
"""Rounds of Flower's simulation, which take long."""
SMOOTHED = algorithm_of("uniform", NOISE, LaplacianSmoothing(1.0))
FIELDS = ("train", "partition", "loss", "test", "classes", "regularization")
Way = Callable[[int], float]


@dataclass(frozen=True, eq=False)
class OneForm(LinearProblem):
    """The problem whose local training has this form, even where the other one is cheaper."""

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
    """Return a function that runs round t of our algorithm, and returns its test accuracy.

    Round 0 starts a run anew.
    """
    key = Key.generate()
    plan = algorithm.plan(ROUNDS)
    start = algorithm.init(problem, key)
    state = start
    channel = Channel(Broadcast(), key, Ledger(plan, nodes=problem.nodes))

    def run(t: int) -> float:
        nonlocal state, channel
        if t == 0:
            state = start
            channel = Channel(Broadcast(), key, Ledger(plan, nodes=problem.nodes))
        state = channel.run(algorithm, state, t, problem, key).state
        channel.ledger.end_round()
        return float(problem.accuracy(algorithm.parameters(state))[0])

    return run


class NumPyRun:
    """The same rounds as array operations on a whole cohort at once, without smoothing.

    Parameters
    ----------
    problem
        Equal clients of `RECORDS` records.
    """

    def __init__(self, problem: LinearProblem) -> None:
        self.problem = problem
        self.draw = np.random.default_rng()
        one_hot = np.eye(CLASSES, dtype=np.float32)
        self.features = np.stack([problem.train.features[part] for part in problem.partition])
        self.targets = np.stack([one_hot[problem.train.labels[part]] for part in problem.partition])
        self.updates: Any = SMOOTHED.contribution
        self.model = np.zeros((PIXELS, CLASSES), np.float32)

    def run(self, t: int) -> float:
        """Run round t, the first of which starts anew; return the test accuracy."""
        if t == 0:
            self.model = np.zeros_like(self.model)
        radius = self.updates.clipping_norm
        cohort = self.draw.choice(CLIENTS, COHORT, replace=False)
        total = self.trained(cohort, self.updates.step_size(t + 1)).sum(0)
        noise = self.draw.standard_normal(total.shape, dtype=np.float32)
        total += noise * np.float32(NOISE * 2 * radius)
        self.model = self.model + total / COHORT
        test = self.problem.test
        predictions = (test.features @ self.model).argmax(1)
        return float((predictions == test.labels).mean())

    def trained(self, cohort: np.ndarray, step_size: float) -> np.ndarray:
        """Return the updates of a cohort, shape (clients, pixels, classes)."""
        features = self.features[cohort]
        targets = self.targets[cohort]
        start = self.model
        decay = self.problem.regularization
        models = np.repeat(start[np.newaxis], len(cohort), axis=0)
        for _ in range(self.updates.epochs):
            order = np.argsort(self.draw.random((len(cohort), RECORDS)), axis=1)
            for first in range(0, RECORDS, BATCH):
                batch = order[:, first : first + BATCH, np.newaxis]
                x = np.take_along_axis(features, batch, 1)
                # derivatives of the losses by the scores: softmax less one-hot labels
                slopes = x @ models
                scores_to_probabilities(slopes)
                slopes -= np.take_along_axis(targets, batch, 1)
                gradient = x.transpose(0, 2, 1) @ slopes
                gradient *= -step_size / BATCH
                models *= 1 - step_size * decay
                models += gradient
                self.project(models, start)
        models -= start
        return models

    def project(self, models: np.ndarray, centre: np.ndarray) -> None:
        """Project models in place onto the ball of the clipping norm around a centre."""
        models -= centre
        norms = np.sqrt(np.einsum("nij,nij->n", models, models))
        factors = np.minimum(1, self.updates.clipping_norm / norms)
        models *= factors[:, np.newaxis, np.newaxis].astype(np.float32)
        models += centre


def rounds_of(run: Way) -> Callable[[], list[float]]:
    """Return a function that runs all rounds, from the start."""
    return lambda: [run(t) for t in range(ROUNDS)]


def clients() -> LinearProblem:
    """Return MNIST at its clients, as softmax regression."""
    train, test = (standardized(mnist(part)) for part in ("train", "test"))
    return mnist_clients(train, test, CLIENTS, Key.generate())


def start_to_finish() -> None:
    """Run a user's script in a process: imports, data, all rounds, the result."""
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
            peers={"numpy": rounds_of(NumPyRun(problem).run), **peers_of_setting},
            part={"flower": FLOWER_ROUNDS / ROUNDS},
            goals=goals,
            values=ROUNDS,
            rounds=3,
        )
    if THREADS > 1:  # wall time: our processor time does not include other processes
        yield Case("federated, start to finish", start_to_finish, most=2.0, rounds=3)
