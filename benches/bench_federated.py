"""A run of federated logistic regression on MNIST against batched NumPy, and pfl-research.

1,000 clients of 50 records, 50 a round, 5 epochs of batches of 10, 30 rounds, each model within a
ball around the global one, noise, the test set after every round. "direct" steps through the
parameters, "span" through the Gram matrix of a client's records (what `FederatedLearning` chooses).
Needs MNIST in the folder DPMESH_DATA names.

Usage: ``python benches/bench_federated.py [threads]``
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from pairs import threads_from_command_line

THREADS = threads_from_command_line()
STARTED = time.perf_counter()

import numpy as np  # noqa: E402

from dpmesh import kernels  # noqa: E402
from dpmesh.data import mnist  # noqa: E402
from dpmesh.estimators import LaplacianSmoothing  # noqa: E402
from dpmesh.keys import Key  # noqa: E402
from dpmesh.papers.federated import (  # noqa: E402
    ROUNDS,
    algorithm_of,
    broadcast,
    mnist_clients,
    standardized,
)
from dpmesh.problems import LinearProblem  # noqa: E402

NOISE = 0.8
Way = Callable[[int], float]


@dataclass(frozen=True, eq=False)
class OneForm(LinearProblem):
    """The problem trained in one form, whatever is cheaper."""

    form: str | None = None

    def local_training(self, start, walks, *, step_size, radius):
        return kernels.linear_training(
            start,
            self.train.features,
            self.train.labels,
            walks,
            self.loss,
            step_size=step_size,
            radius=radius,
            classes=self.classes,
            regularization=self.regularization,
            form=self.form,
        )


def dpmesh_way(problem: LinearProblem) -> Way:
    """A round of our algorithm and its accuracy."""
    algorithm, key = algorithm_of("uniform", NOISE, LaplacianSmoothing(1.0)), Key.generate()
    states = [algorithm.init(problem, key)]

    def run(t: int) -> float:
        if t == 0:
            del states[1:]
        state, _ = algorithm.step(states[-1], t, problem, broadcast, key)
        states[1:] = [state]
        return float(problem.accuracy(algorithm.parameters(state))[0])

    return run


def numpy_way(problem: LinearProblem) -> Way:
    """The same round as array operations on a whole cohort at once, without smoothing."""
    draw = np.random.default_rng()
    x = np.stack([problem.train.features[part] for part in problem.partition])
    y = np.eye(10, dtype=np.float32)[np.stack([problem.train.labels[p] for p in problem.partition])]
    algorithm = algorithm_of("uniform", NOISE, LaplacianSmoothing(1.0))
    radius, decay = algorithm.clipping_norm, problem.regularization
    models = [np.zeros((784, 10), np.float32)]

    def run(t: int) -> float:
        if t == 0:
            del models[1:]
        start, step_size = models[-1], algorithm.local_step_size(t + 1)
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


def compare(ways: dict[str, Way], pairs: int = 3) -> dict[str, list[float]]:
    """Seconds of every round, the ways in turn: processor time on one thread, or else wall time."""
    clock = time.process_time if THREADS == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(pairs):
        for t in range(ROUNDS):
            for name, run in ways.items():
                start = clock()
                run(t)
                seconds[name].append(clock() - start)
    return seconds


def main() -> None:
    kernels.set_threads(THREADS)
    train, test = (standardized(mnist(part)) for part in ("train", "test"))
    problem = mnist_clients(train, test, 1000, Key.generate())
    run = dpmesh_way(problem)
    accuracy = [run(t) for t in range(ROUNDS)][-1]
    whole = time.perf_counter() - STARTED
    print(f"imports, data and {ROUNDS} rounds: {whole:.2f} s, accuracy {accuracy:.3f}")

    given = partial(OneForm, **{k: getattr(problem, k) for k in FIELDS})
    ways = {form: dpmesh_way(given(form=form)) for form in ("direct", "span")}
    ways["numpy"] = numpy_way(problem)
    seconds = compare(ways)
    print("a round and its test set: ms, and how many times as long numpy takes")
    for name, times in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(seconds["numpy"], times, strict=True))
        print(f"{name:>8} {statistics.median(times) * 1e3:>8.2f} {ratio:>7.1f}x")
    if find_spec("pfl") is None:
        print("pfl-research: skipped, not installed (pip install pfl)")


FIELDS = ("train", "partition", "loss", "test", "classes", "regularization")

if __name__ == "__main__":
    main()
