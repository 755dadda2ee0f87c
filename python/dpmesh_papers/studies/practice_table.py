"""Federated practice at one epsilon, on digits split by class: FedAvg, FedProx, Adam, SCAFFOLD.

    python -m dpmesh_papers.studies.practice_table [seeds] [steps of a client]

200 clients hold 7 digits each, sorted by class, so that nearly all have digits of one class; a
fifth takes part in a round, by coins, for 40 rounds; delta is 200^-1.1. A layer of 16 units in JAX
learns. Each cell has the best local step size, clipping norm and global step size of the grid below
at its own epsilon, on another split: that choice is counted in no epsilon. Results go to
``docs/results/practice.csv``, and as the page's table beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpmesh as dm
from dpmesh.algorithms import ServerAdam
from dpmesh.keys import Key
from dpmesh.problems import JaxProblem
from dpmesh.problems.networks import cross_entropy
from dpmesh_papers._scaffold import Row, over_seeds, pick
from dpmesh_papers.studies.results import markdown_table, write_rows

CLIENTS = 200
RATE = 0.2
ROUNDS = 40
HIDDEN = 16
EPSILONS = (2.0, 8.0, inf)
DELTA = CLIENTS**-1.1
STEP_SIZES = (0.03, 0.1, 0.3, 1.0)
CLIPPING_NORMS = (0.3, 1.0, 3.0)
GLOBAL_STEPS = (1.0, 3.0)
ADAM = 0.03
"""Global step size of server Adam, as a multiple of the other practices'."""
MU = 1.0
"""Weight of FedProx's proximal term."""
TUNED = 1_000
"""Seed of the split on which step sizes and clipping norms are chosen."""
PRACTICES: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedProx": {"proximal": MU},
    "server Adam": {"optimizer": ServerAdam()},
    "SCAFFOLD": {"control_variates": True},
}


def problem_of(seed: int) -> JaxProblem:
    """Return digits at clients by class, for a network of one hidden layer."""

    def start(key: Any) -> Any:
        return {
            "hidden": 0.3 * jax.random.normal(key, (64, HIDDEN)),
            "out": jnp.zeros((HIDDEN, 10)),
        }

    def scores(params: Any, pixels: Any) -> Any:
        return jnp.tanh(pixels @ params["hidden"]) @ params["out"]

    digits = dm.data.unit_norm(dm.data.digits())
    train, test = dm.data.train_test_split(digits, 0.2, np.random.default_rng(seed))
    parts = np.array_split(np.argsort(train.labels, kind="stable"), CLIENTS)
    return JaxProblem(
        train, parts, start, cross_entropy(scores), scores, test=test, nodes_at_once=64
    )


def accuracy(
    problem: JaxProblem, noise: float | None, steps: int, seed: int, settings: dict[str, Any]
) -> float:
    """Run once; return the accuracy of the last model on the test digits, in percent."""
    options = dict(settings)
    optimizer = options.pop("optimizer", None)
    step_size = options.pop("server_step_size")
    updates = dm.ClientUpdates(
        clients=CLIENTS, sampling_rate=RATE, batch_size=10, steps=steps, **options
    )
    algorithm = dm.FederatedLearning(
        updates, noise_multiplier=noise, optimizer=optimizer, step_size=step_size
    )
    run = dm.simulate(
        algorithm,
        problem,
        rounds=ROUNDS,
        key=Key.seeded(seed),
        metrics=dm.Metrics([], progress=False),
    )
    return 100 * float(problem.accuracy(run.released)[0])


def noise_at(epsilon: float) -> float | None:
    """Return the least noise multiplier at an epsilon."""
    if epsilon == inf:
        return None
    updates = dm.ClientUpdates(clients=CLIENTS, sampling_rate=RATE, steps=1)
    learning = dm.FederatedLearning.for_budget(updates, epsilon=epsilon, delta=DELTA, rounds=ROUNDS)
    return learning.noise_multiplier


def rows(seeds: int, steps: int) -> Iterator[Row]:
    """Yield the accuracy of each practice at each epsilon, and its chosen settings."""
    problems = {seed: problem_of(seed) for seed in (*range(seeds), TUNED)}
    for name, practice in PRACTICES.items():
        unit = ADAM if "optimizer" in practice else 1.0
        grid = [
            {"step_size": step, "clipping_norm": norm, "server_step_size": unit * factor}
            for step, norm, factor in product(STEP_SIZES, CLIPPING_NORMS, GLOBAL_STEPS)
        ]
        for epsilon in EPSILONS:
            noise = noise_at(epsilon)
            tried = [
                accuracy(problems[TUNED], noise, steps, TUNED, practice | choice) for choice in grid
            ]
            best = grid[int(np.argmax(tried))]
            accuracies = [
                accuracy(problems[seed], noise, steps, seed, practice | best)
                for seed in range(seeds)
            ]
            yield (
                {"practice": name, "epsilon": epsilon, "steps": steps}
                | over_seeds(accuracies)
                | best
            )


def as_text(rows: list[Row]) -> str:
    """Return the page's table: accuracy, its standard deviation, and the chosen settings."""
    lines = []
    for name in PRACTICES:
        cells = [
            f"{row['accuracy']:.1f} ± {row['spread']:.1f} ({row['step_size']:g}, "
            f"{row['clipping_norm']:g}, {row['server_step_size']:g})"
            for row in pick(rows, practice=name)
        ]
        lines.append([name, *cells])
    return markdown_table([f"{rows[0]['steps']} local steps", "epsilon 2", "8", "no noise"], lines)


def main(seeds: int = 5, steps: int = 10) -> None:
    """Print cells as they are finished, and keep them."""
    results = []
    for row in rows(seeds, steps):
        results.append(row)
        print(row, flush=True)
    write_rows("practice", results, as_text(results))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
