"""Compare two guarantees of gossip on MNIST: against any one node, and against all messages.

    DPMESH_DATA=folder python -m dpmesh_papers.studies.views_table [RECORDS] [ROUNDS]

64 nodes of RECORDS records run gradient descent. In each round pairs of nodes average (a
*meeting*), by a round-robin schedule in random order; of 8 orders the program takes the best for
the worst pair of nodes. One epsilon bounds what any one node learns about another's record (network
DP), the other what an adversary learns who sees all messages. Noise that suffices against one node
is smaller.

Learning rates follow the benchmark's rule from public numbers (`dpmesh.defaults.step_size`), but
are at most 2 over the smoothness, which the proof needs. Accuracy is that of the nodes' local
models on the test records. Results go to ``docs/results/views.csv``, and as text to ``views.txt``.
"""

from __future__ import annotations

import sys
from itertools import product
from math import inf, sqrt

import numpy as np

import dpmesh as dm
from dpmesh.defaults import step_size
from dpmesh.privacy.views import OneNode
from dpmesh_papers._scaffold import Row, pick
from dpmesh_papers.studies.results import markdown_table, write_rows

NODES = 64
DELTA = 1e-5
EPSILONS = (1.0, 2.0, 4.0, 8.0)
SHOWN = (("noise", 2), ("accuracy", 1))
"""Columns of a row that the page's table shows, and their decimals."""

ORDERS = 8
"""Random orders of meetings, of which the best is taken."""

NO_NOISE = 1e-3
"""Noise without privacy, for the rule of the learning rate."""


def main(records: int = 400, rounds: int = 32) -> None:
    """Measure, print and write noise and accuracy of both guarantees at each epsilon."""
    train, test = (dm.data.unit_norm(dm.data.mnist(part)) for part in ("train", "test"))
    order = np.random.default_rng(0).permutation(train.records)[: NODES * records]
    problem = dm.LinearProblem(
        train, order.reshape(NODES, records), "softmax", classes=10, test=test, feature_norm=1.0
    )
    key = dm.Key.seeded(0)
    orders = [dm.topology.meetings(NODES, key=key, order=number) for number in range(ORDERS)]
    schedule = dm.topology.best_schedule(orders, rounds=rounds).schedule
    constants = problem.constants()
    clipping_norm = 1.001 * constants.loss_lipschitz

    def algorithm(noise: float | None, step: float = 1.0) -> dm.GradientDescent:
        return dm.GradientDescent(
            records=records, noise_multiplier=2 * noise, step_size=step, clipping_norm=clipping_norm
        )

    def accuracy(noise: float | None) -> float:
        noise_of_round = (noise or NO_NOISE) * 2 * clipping_norm / records
        noise_of_score = sqrt(rounds / NODES) * noise_of_round  # in the mean of all nodes
        step = min(step_size(noise_of_score, rounds=rounds), 2 / constants.smoothness)
        run = dm.simulate(
            algorithm(noise, step),
            problem,
            schedule,
            rounds=rounds,
            key=key,
            metrics=dm.Metrics(["accuracy"], every=rounds),
        )
        return 100 * float(run.history["accuracy"][-1])

    rows = []
    for epsilon, view in product(EPSILONS, (OneNode(topology=schedule), None)):
        budget = dm.privacy.Budget(epsilon, delta=DELTA, view=view)
        noise = budget.calibrate(algorithm, rounds, problem)
        against = "everybody"
        if view is not None:
            against = "any one node"
        row = {"epsilon": epsilon, "against": against, "noise": noise, "accuracy": accuracy(noise)}
        rows.append(row)
        print(row, flush=True)
    non_private = {"epsilon": inf, "against": "nobody", "noise": 0.0, "accuracy": accuracy(None)}
    write_rows("views", [*rows, non_private], as_text(rows))


def as_text(rows: list[Row]) -> str:
    """Return the page's table: a line per epsilon, noise and accuracy of both guarantees."""
    lines = []
    for epsilon in EPSILONS:
        epsilon_rows = pick(rows, epsilon=epsilon)
        numbers = [f"{row[name]:.{digits}f}" for row in epsilon_rows for name, digits in SHOWN]
        lines.append([f"{epsilon:g}", *numbers])
    head = ["epsilon"]
    for adversary in ("any single node", "sees every message"):
        head += [f"noise: {adversary}", f"accuracy (%): {adversary}"]
    return markdown_table(head, lines)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
