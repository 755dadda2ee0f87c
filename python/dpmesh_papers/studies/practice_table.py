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
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dpmesh as dm
from dpmesh.algorithms import ServerAdam
from dpmesh.keys import Key
from dpmesh.problems import JaxProblem
from dpmesh.problems.networks import cross_entropy
from dpmesh_papers._scaffold import Row, over_seeds, pick
from dpmesh_papers.studies.results import accuracy, markdown_table, write_rows

CLIENTS = 200
RATE = 0.2
"""Share of the clients that take part in a round, on average."""
ROUNDS = 40
HIDDEN = 16
EPSILONS = (2.0, 8.0, inf)
DELTA = CLIENTS**-1.1
STEP_SIZES = (0.03, 0.1, 0.3, 1.0)
CLIPPING_NORMS = (0.3, 1.0, 3.0)
GLOBAL_STEPS = (1.0, 3.0)
ADAM = 0.03
"""Global step size of server Adam, as a multiple of the other practices'."""
PROXIMAL = 1.0
"""Weight of FedProx's proximal term."""
TUNING_SEED = 1_000
"""Seed of the split on which step sizes and clipping norms are chosen."""


@dataclass(frozen=True, kw_only=True)
class Practice:
    """A practice of federated learning.

    Parameters
    ----------
    name
        Name in the table.
    proximal
        Weight of the proximal term of clients' losses, as in FedProx.
    control_variates
        If true, clients correct their steps by control variates, as in SCAFFOLD.
    optimizer
        Optimizer of the server; None for steps along the average update.
    """

    name: str
    proximal: float = 0.0
    control_variates: bool = False
    optimizer: ServerAdam | None = None

    @property
    def step_size_unit(self) -> float:
        """The global step size for a factor of 1 in `GLOBAL_STEPS`."""
        if self.optimizer is not None:
            return ADAM
        return 1.0


class Settings(NamedTuple):
    """Settings that are chosen on the split for tuning.

    Attributes
    ----------
    step_size
        Step size of clients.
    clipping_norm
        Largest L2 norm of a client's update.
    server_step_size
        Global step size.
    """

    step_size: float
    clipping_norm: float
    server_step_size: float


PRACTICES = (
    Practice(name="FedAvg"),
    Practice(name="FedProx", proximal=PROXIMAL),
    Practice(name="server Adam", optimizer=ServerAdam()),
    Practice(name="SCAFFOLD", control_variates=True),
)


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


def trained_accuracy(
    problem: JaxProblem,
    practice: Practice,
    settings: Settings,
    *,
    noise_multiplier: float | None,
    steps: int,
    seed: int,
) -> float:
    """Run once; return the accuracy of the last model on the test digits, in percent."""
    updates = dm.ClientUpdates(
        clients=CLIENTS,
        sampling_rate=RATE,
        batch_size=10,
        steps=steps,
        step_size=settings.step_size,
        clipping_norm=settings.clipping_norm,
        proximal=practice.proximal,
        control_variates=practice.control_variates,
    )
    algorithm = dm.FederatedLearning(
        updates,
        noise_multiplier=noise_multiplier,
        optimizer=practice.optimizer,
        step_size=settings.server_step_size,
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
    problems = [problem_of(seed) for seed in range(seeds)]
    tuning_problem = problem_of(TUNING_SEED)
    for practice, epsilon in product(PRACTICES, EPSILONS):
        yield tuned_row(practice, epsilon, steps, tuning_problem, problems)


def tuned_row(
    practice: Practice,
    epsilon: float,
    steps: int,
    tuning_problem: JaxProblem,
    problems: list[JaxProblem],
) -> Row:
    """Choose settings on one split; return the accuracies on the others, with seeds 0, 1, ..."""
    noise = noise_at(epsilon)

    def trained(problem: JaxProblem, settings: Settings, seed: int) -> float:
        return trained_accuracy(
            problem, practice, settings, noise_multiplier=noise, steps=steps, seed=seed
        )

    grid = [
        Settings(step, norm, practice.step_size_unit * factor)
        for step, norm, factor in product(STEP_SIZES, CLIPPING_NORMS, GLOBAL_STEPS)
    ]
    best = max(grid, key=lambda settings: trained(tuning_problem, settings, TUNING_SEED))
    accuracies = [trained(problem, best, seed) for seed, problem in enumerate(problems)]
    cell = {"practice": practice.name, "epsilon": epsilon, "steps": steps}
    return cell | over_seeds(accuracies) | best._asdict()


def as_text(rows: list[Row]) -> str:
    """Return the page's table: accuracy, its standard deviation, and the chosen settings."""
    lines = []
    for practice in PRACTICES:
        cells = [
            f"{accuracy(row)} ({row['step_size']:g}, {row['clipping_norm']:g}, "
            f"{row['server_step_size']:g})"
            for row in pick(rows, practice=practice.name)
        ]
        lines.append([practice.name, *cells])
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
