"""Compare central DP-SGD of dpmesh with jax-privacy's, as an outside check.

    python -m dpmesh_papers.studies.central_outside [SEEDS]

Softmax regression on digits, Poisson batches, neighbouring data sets differ by one record added or
removed. Each library samples, clips and draws noise by itself, and finds the noise multiplier by
its own accountant (jax-privacy's is dp-accounting's, by privacy loss distributions). Sampling rate,
learning rate and rounds were fixed before any run. Needs jax-privacy. Results go to
``docs/results/central-outside.csv``, and as text to ``central-outside.txt``.
"""

from __future__ import annotations

import sys
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import accounting, clipped_grad, noise_addition
from jax_privacy.batch_selection import CyclicPoissonSampling

import dpmesh as dm
from dpmesh.data import Dataset, digits, unit_norm
from dpmesh.keys import Key
from dpmesh_papers._scaffold import Row, over_seeds, pick
from dpmesh_papers.studies.results import (
    accuracy,
    in_one_cell,
    markdown_table,
    noise_multiplier,
    write_rows,
)

EPSILONS = (1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5
SAMPLING_RATE = 0.1
ROUNDS = 150
CLIPPING_NORM = 0.5
STEP_SIZE = 4.0
CLASSES = 10


def split(seed: int) -> tuple[Dataset, Dataset]:
    """Return training records (three quarters) and test records, of norm 1, with a constant."""
    dataset = digits()
    features = np.c_[np.asarray(dataset.features), np.ones(dataset.records)]
    records = unit_norm(Dataset(features, dataset.labels, dataset.name))
    order = np.random.default_rng(seed).permutation(records.records)
    training, test = np.split(order, [round(0.75 * records.records)])
    return records.take(training), records.take(test)


class Trained(NamedTuple):
    """A private run.

    Attributes
    ----------
    noise_multiplier
        Standard deviation of the noise over the clipping norm.
    accuracy
        Accuracy of the last model on the test records, a share.
    """

    noise_multiplier: float
    accuracy: float


def ours(train: Dataset, test: Dataset, epsilon: float, seed: int) -> Trained:
    """Train by dpmesh: each record is a client with one step.

    A client sends the step of its record. Steps are clipped at step size times clipping norm, so
    that gradients are clipped at the clipping norm.
    """
    algorithm = dm.FederatedLearning.for_budget(
        dm.ClientUpdates(
            clients=train.records,
            sampling_rate=SAMPLING_RATE,
            sampling="poisson",
            clipping_norm=STEP_SIZE * CLIPPING_NORM,
            steps=1,
            step_size=STEP_SIZE,
        ),
        epsilon=epsilon,
        delta=DELTA,
        rounds=ROUNDS,
    )
    records = np.arange(train.records)[:, np.newaxis]
    problem = dm.LinearProblem(train, tuple(records), "softmax", test=test, classes=CLASSES)
    key = Key.seeded(seed)
    run = dm.simulate(
        algorithm,
        problem,
        rounds=ROUNDS,
        key=key,
        delta=DELTA,
        metrics=dm.Metrics([], progress=False),
    )
    return Trained(
        float(algorithm.noise_multiplier or 0), float(problem.accuracy(run.parameters)[0])
    )


def loss(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the cross-entropy of a record."""
    return optax.softmax_cross_entropy_with_integer_labels(x @ weights, y)


SUM_OF_CLIPPED_GRADIENTS = jax.jit(
    clipped_grad(loss, l2_clip_norm=CLIPPING_NORM, batch_argnums=(1, 2), keep_batch_dim=False)
)


def jax_privacy(train: Dataset, test: Dataset, epsilon: float, seed: int) -> Trained:
    """Train by jax-privacy, calibrated by its own accountant."""
    batch = round(SAMPLING_RATE * train.records)
    multiplier = accounting.calibrate_noise_multiplier(
        target_epsilon=epsilon,
        accountant=accounting.DpsgdTrainingAccountant(accounting.PldAccountantConfig()),
        batch_sizes=batch,
        num_updates=ROUNDS,
        num_samples=train.records,
        target_delta=DELTA,
        tol=1e-4,
    )
    privatizer = noise_addition.gaussian_privatizer(
        stddev=float(multiplier) * CLIPPING_NORM, prng_key=jax.random.key(seed)
    )
    x = jnp.asarray(train.features)
    y = jnp.asarray(train.labels)
    weights = jnp.zeros((x.shape[1], CLASSES), x.dtype)
    state = privatizer.init(weights)
    padded = 3 * batch  # one shape for all batches; rows of zeros have gradients of zeros
    sampling = CyclicPoissonSampling(sampling_prob=SAMPLING_RATE, iterations=ROUNDS)
    for sampled in sampling.batch_iterator(train.records, rng=seed):
        rows = jnp.zeros((padded, x.shape[1]), x.dtype).at[: len(sampled)].set(x[sampled])
        labels = jnp.zeros(padded, y.dtype).at[: len(sampled)].set(y[sampled])
        clipped_sum = SUM_OF_CLIPPED_GRADIENTS(weights, rows, labels)
        noisy_sum, state = privatizer.update(clipped_sum, state)
        weights = weights - STEP_SIZE / batch * noisy_sum
    predictions = np.asarray(jnp.asarray(test.features) @ weights).argmax(axis=1)
    return Trained(float(multiplier), float((predictions == test.labels).mean()))


def main(seeds: int = 10) -> None:
    """Measure, print and write noise multipliers and accuracies of both libraries."""
    rows = []
    for epsilon, train_and_test in product(EPSILONS, (ours, jax_privacy)):
        runs = [train_and_test(*split(seed), epsilon, seed) for seed in range(seeds)]
        row = {
            "epsilon": epsilon,
            "library": train_and_test.__name__,
            "noise_multiplier": runs[0].noise_multiplier,  # the same for all seeds
        }
        rows.append(row | over_seeds([100 * run.accuracy for run in runs]))
        print(rows[-1], flush=True)
    write_rows("central-outside", rows, as_text(rows))


def as_text(rows: list[Row]) -> str:
    """Return the page's table: a line per epsilon, dpmesh / jax-privacy."""
    lines = []
    for epsilon in EPSILONS:
        rows_of_epsilon = pick(rows, epsilon=epsilon)
        noise = in_one_cell(rows_of_epsilon, noise_multiplier)
        lines.append([f"{epsilon:g}", noise, in_one_cell(rows_of_epsilon, accuracy)])
    libraries = "here / jax-privacy"
    return markdown_table(
        ["epsilon", f"noise multiplier, {libraries}", f"accuracy (%), {libraries}"], lines
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
