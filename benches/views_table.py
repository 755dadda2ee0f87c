"""What a view buys: MNIST over 64 nodes, at an epsilon against any one node and against everybody.

    DPMESH_DATA=folder python -m benches.views_table [records of a node] [rounds]

Gradient descent over round-robin meetings in random order, the best of 8 orders for its worst pair.
Steps by the arena's rule from public numbers (`dpmesh.defaults.step_size`), but at most 2 over the
smoothness, which the proof needs; accuracy of the nodes' own models on the test records.
"""

from __future__ import annotations

import sys
from math import sqrt

import numpy as np

import dpmesh as dm
from dpmesh.defaults import step_size
from dpmesh.privacy.views import OneNode

NODES, DELTA, EPSILONS = 64, 1e-5, (1.0, 2.0, 4.0, 8.0)


def main(records: int = 400, rounds: int = 32) -> None:
    """Print a row for each epsilon: noise and accuracy of either guarantee."""
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
            records=records, noise_multiplier=noise, step_size=step, clipping_norm=clipping_norm
        )

    def accuracy(noise: float | None) -> str:
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
        return f"{run.history['accuracy'][-1]:.1%}"

    print(
        f"MNIST, {NODES} nodes of {records} records, {rounds} rounds, delta {DELTA:g}; "
        f"without noise {accuracy(None)}",
        flush=True,
    )
    print("| epsilon | noise, any one node | accuracy | noise, everybody | accuracy |")
    print("|---|---|---|---|---|")
    for epsilon in EPSILONS:
        row = []
        for view in (OneNode(topology=links), None):
            budget = dm.privacy.Budget(epsilon, delta=DELTA, view=view)
            noise = budget.calibrate(learning, rounds, problem)
            row += [f"{noise:.2f}", accuracy(noise)]
        print(f"| {epsilon:g} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
