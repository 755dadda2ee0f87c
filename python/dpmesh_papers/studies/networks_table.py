"""Compare small networks with linear models under noise: MNIST at one budget, several algorithms.

    DPMESH_DATA=folder python -m dpmesh_papers.studies.networks_table [RECORDS] [SEEDS] [NODES ..]

Three models: a linear one on pixels, a linear one on scattering features, and a small convolutional
network in JAX (5,994 parameters). Learning rates follow the benchmark's one rule from public
numbers (`dpmesh_papers.benchmark.methods.RULE`). The rule assumes that a score moves as far as the
parameters do, as a linear model's does on records of norm 1. So the network's parameters are
rescaled until this is so at the start, on an image of noise: `in_units_of_its_scores`. No choice
used a test record, and no constant was changed for MNIST. Results go to docs/results, as
networks-NODES.csv, and as the page's table to networks-NODES.txt.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpmesh as dm
from dpmesh import accounting
from dpmesh.algorithms import WithoutReplacement
from dpmesh.algorithms.controllers import AlwaysGlobal
from dpmesh.data import Dataset, mnist, random_projection, scattering, unit_norm
from dpmesh.data.preprocessing import with_constant
from dpmesh.keys import Key
from dpmesh.problems import JaxProblem, LinearProblem
from dpmesh.problems.networks import Model, strided_convolutional
from dpmesh_papers._scaffold import Row, kinds, over_seeds, pick
from dpmesh_papers.benchmark import methods
from dpmesh_papers.benchmark.setting import CLIPPING_NORM, ONLINE_ROUNDS, Setting, Trial
from dpmesh_papers.studies.results import in_one_cell, markdown_table, write_rows

DELTA = 1e-5
EPSILONS = (1.0, 2.0, 4.0, 8.0)
TEST_RECORDS = 2_000
SIDE = 28


def in_units_of_its_scores(model: Model, image_shape: tuple[int, ...]) -> Model:
    """Rescale the model's parameters, so that the gradient of a score has norm about 1.

    The norm is the root mean square over classes, over 16 public starts and images of noise.
    """

    def mean_squared_norm(key: jax.Array) -> jax.Array:
        """Return the mean over classes, at a random start and for an image of noise."""
        start_key, image_key = jax.random.split(key)
        image = jax.random.uniform(image_key, image_shape)
        gradients = jax.tree.leaves(jax.jacrev(model.scores)(model.start(start_key), image))
        classes = len(gradients[0])
        return jnp.asarray(sum((leaf**2).sum() for leaf in gradients)) / classes

    keys = jax.random.split(jax.random.key(0), 16)
    unit = float(jnp.sqrt(jax.vmap(mean_squared_norm)(keys).mean()))

    def scaled(factor: float, parameters: Any) -> Any:
        """Return a tree of parameters times a factor."""
        return jax.tree.map(lambda leaf: factor * leaf, parameters)

    return Model(
        lambda key: scaled(unit, model.start(key)),
        lambda parameters, x, y: model.loss(scaled(1 / unit, parameters), x, y),
        lambda parameters, x: model.scores(scaled(1 / unit, parameters), x),
    )


def with_replacement(setting: Setting) -> Trial:
    """Return SGD with replacement as in the benchmark, but with clipped gradients for networks."""
    plain = methods.noisy_sgd_with_replacement(setting)
    rounds = methods.rounds_with_replacement(plain)
    assert plain.noise_to_sensitivity is not None
    noise = np.sqrt(rounds) * plain.noise_to_sensitivity * 2 * CLIPPING_NORM / plain.batch_size
    algorithm = replace(
        plain, step_size=dm.defaults.step_size(noise, rounds=rounds), clipping_norm=CLIPPING_NORM
    )
    return Trial(algorithm, setting.equal_sites, None, rounds)


def without_replacement(setting: Setting) -> Trial:
    """Return one pass over the records, in which nodes update the global model one after another.

    For models that are not linear, no guarantee is proved for other controllers.
    """
    nodes = setting.problem.nodes
    rounds = ONLINE_ROUNDS
    batch = setting.fewest_records // rounds
    # a record is in one release, whose mu of Gaussian differential privacy follows from the budget
    mu = 1 / accounting.analytic_gaussian_noise_to_sensitivity(
        target_epsilon=setting.epsilon, target_delta=setting.delta
    )
    updates = rounds * nodes
    noise = np.sqrt(updates) * 2 * CLIPPING_NORM / (batch * mu)
    algorithm = WithoutReplacement(
        epsilon=setting.epsilon,
        delta=setting.delta,
        batch_size=batch,
        step_size=dm.defaults.step_size(noise, rounds=updates),
        controller=AlwaysGlobal(),
        clipping_norm=CLIPPING_NORM,
    )
    return Trial(algorithm, setting.problem, None, rounds)


def method_named(name: str) -> Callable[[Setting], Trial]:
    """Return the benchmark's method with this name."""
    (row,) = (row for row in methods.ROWS if row.name == name)
    return row.trial


METHODS: dict[str, Callable[[Setting], Trial]] = {
    "gossip": method_named("gradient descent by gossip"),
    "online": method_named("online learning"),
    "without replacement": without_replacement,
    "with replacement": with_replacement,
    "federated": method_named("federated"),
    "quantized": method_named("quantized gossip"),
    "secure sum": method_named("secure aggregation, 1 site may collude"),
}


def problems(records: int, nodes: int, seed: int) -> dict[str, LinearProblem | JaxProblem]:
    """Return the problem of each model by its name, with the same images at the same nodes."""
    generator = np.random.default_rng(seed)
    train = mnist("train").take(generator.permutation(60_000)[: records // nodes * nodes])
    test = mnist("test").take(np.arange(TEST_RECORDS))
    parts = np.arange(train.records).reshape(nodes, -1)

    def linear_problem(train_features: Dataset, test_features: Dataset) -> LinearProblem:
        """Return softmax regression on records of norm 1 with a constant."""
        train_set, test_set = (
            unit_norm(with_constant(unit_norm(part))) for part in (train_features, test_features)
        )
        return LinearProblem(
            train_set, parts, "softmax", classes=10, test=test_set, feature_norm=1.0
        )

    shape = (SIDE, SIDE, 1)
    network = in_units_of_its_scores(strided_convolutional(shape), shape)
    return {
        "linear, pixels": linear_problem(train, test),
        "linear, scattering": linear_problem(scattered(train), scattered(test)),
        "network, pixels": JaxProblem(train, parts, *network, test=test, record_shape=shape),
    }


def scattered(images: Dataset) -> Dataset:
    """Return scattering features of images in 800 random directions, which are public."""
    directions = np.random.default_rng(0)
    return random_projection(scattering(images, (SIDE, SIDE)), 800, directions)


def accuracy(method: str, problem: LinearProblem | JaxProblem, epsilon: float, seed: int) -> float:
    """Return the mean accuracy of the released models of a run, in percent.

    About eight nodes' models are tested.
    """
    setting = Setting(problem=problem, unit="record", epsilon=epsilon, delta=DELTA)
    trial = METHODS[method](setting)
    run = dm.simulate(
        trial.algorithm,
        trial.problem,
        trial.topology,
        rounds=trial.rounds,
        key=Key.seeded(seed).derive(method.encode()),
        budget=setting.budget,
        metrics=dm.Metrics([], progress=False),
    )
    stride = max(1, len(run.released) // 8)
    return 100 * float(trial.problem.accuracy(run.released[::stride]).mean())


def main(records: int = 3_200, seeds: int = 1, *nodes: int) -> None:
    """Measure and print each cell, and write a file for each number of nodes."""
    for count in nodes or (10, 64):
        problems_of_seeds = [problems(records, count, seed) for seed in range(seeds)]
        rows: list[Row] = []
        for method, model, epsilon in product(METHODS, problems_of_seeds[0], EPSILONS):
            accuracies = [
                accuracy(method, problems_of_seed[model], epsilon, seed)
                for seed, problems_of_seed in enumerate(problems_of_seeds)
            ]
            cell = {"nodes": count, "method": method, "model": model, "epsilon": epsilon}
            rows.append(cell | over_seeds(accuracies))
            print(rows[-1], flush=True)
        write_rows(f"networks-{count}", rows, as_text(rows))


def as_text(rows: list[Row]) -> str:
    """Return the page's table: a line per algorithm, a column per model, accuracies by epsilon."""
    models = kinds(rows, "model")
    lines = []
    for method in METHODS:
        line = [method]
        for model in models:
            accuracies = pick(rows, method=method, model=model)
            line.append(in_one_cell(accuracies, lambda row: f"{row['accuracy']:.1f}"))
        lines.append(line)
    return markdown_table(["algorithm", *models], lines)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
