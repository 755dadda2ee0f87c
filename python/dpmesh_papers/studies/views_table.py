"""MNIST over 64 nodes, at an epsilon against any one node and against an all-seeing adversary.

    DPMESH_DATA=folder python -m dpmesh_papers.studies.views_table [records of a node] [rounds]

Gradient descent over round-robin meetings in random order, the best of 8 orders for its worst pair.
Steps by the benchmark's rule from public numbers (`dpmesh.defaults.step_size`), but at most 2 over
the smoothness, which the proof needs; accuracy of the nodes' own models on the test records.
Results go to ``docs/results/views.csv``, and as the page's table beside it.
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
"""Numbers of a row of the page's table, and their decimals."""


def main(records: int = 400, rounds: int = 32) -> None:
    """Keep noise and accuracy of either guarantee at each epsilon."""
    train, test = (dm.data.unit_norm(dm.data.mnist(part)) for part in ("train", "test"))
    order = np.random.default_rng(0).permutation(train.records)[: NODES * records]
    problem = dm.LinearProblem(
        train, order.reshape(NODES, records), "softmax", classes=10, test=test, feature_norm=1.0
    )
    key = dm.Key.seeded(0)
    orders = [dm.topology.meetings(NODES, key=key, order=k) for k in range(8)]
    links = dm.topology.best_schedule(orders, rounds=rounds).schedule
    constants = problem.constants()
    clipping_norm = 1.001 * constants.loss_lipschitz

    def learning(noise: float | None, step: float = 1.0) -> dm.GradientDescent:
        return dm.GradientDescent(
            records=records, noise_multiplier=2 * noise, step_size=step, clipping_norm=clipping_norm
        )

    def accuracy(noise: float | None) -> float:
        of_score = sqrt(rounds / NODES) * (noise or 1e-3) * 2 * clipping_norm / records
        step = min(step_size(of_score, rounds=rounds), 2 / constants.smoothness)
        run = dm.simulate(
            learning(noise, step),
            problem,
            links,
            rounds=rounds,
            key=key,
            metrics=dm.Metrics(["accuracy"], every=rounds),
        )
        return 100 * float(run.history["accuracy"][-1])

    rows = []
    for epsilon, view in product(EPSILONS, (OneNode(topology=links), None)):
        budget = dm.privacy.Budget(epsilon, delta=DELTA, view=view)
        noise = budget.calibrate(learning, rounds, problem)
        against = "everybody"
        if view is not None:
            against = "any one node"
        rows.append({"epsilon": epsilon, "against": against, "noise": noise})
        rows[-1]["accuracy"] = accuracy(noise)
        print(rows[-1], flush=True)
    without = {"epsilon": inf, "against": "nobody", "noise": 0.0, "accuracy": accuracy(None)}
    write_rows("views", [*rows, without], as_text(rows))


def as_text(rows: list[Row]) -> str:
    """Return the page's table."""
    lines = []
    for epsilon in EPSILONS:
        epsilon_rows = pick(rows, epsilon=epsilon)
        numbers = [f"{row[name]:.{digits}f}" for row in epsilon_rows for name, digits in SHOWN]
        lines.append([f"{epsilon:g}", *numbers])
    head = ["epsilon", "noise, any one node", "accuracy (%)", "noise, everybody", "accuracy (%)"]
    return markdown_table(head, lines)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
