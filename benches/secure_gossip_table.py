"""What sums over neighbours buy: accuracy on digits, beside gossip on the same graphs.

    python -m benches.secure_gossip_table [splits]

Ten nodes of two digits each. Guarantees are for one record (replace-one) at delta 1e-5, against
somebody who sees all sums and c neighbours of each node, or all messages of gossip. The step is 1 /
smoothness and the number of rounds that of `suggested_rounds`, at the number of records for which
one noise for all records is as large as the method's noise in the mean of all nodes: ``N sqrt((k -
c) / n)`` for secure gossip with k neighbours, ``N / sqrt(n)`` for gossip, a node's own count alone.
Gossip also gets 40 rounds, if that is better.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from math import sqrt
from typing import Any

import numpy as np

import dpmesh as dm
from benches.cross_silo_table import DELTA, EPSILONS, averaged, descend, digits_problem, pooled
from benches.suggested_rounds import suggested_rounds
from dpmesh.algorithms import SecureAggregation
from dpmesh.keys import Key
from dpmesh.privacy.accounting import analytic_gaussian_noise_multiplier
from dpmesh.topology import Static, complete, random_regular

STEP, TRACE = 2.0, 0.9
GRAPHS = {
    "complete": complete(10),
    "6 neighbours": random_regular(10, 6, key=Key.seeded(0)),
    "4 neighbours": random_regular(10, 4, key=Key.seeded(0)),
}


def rounds_for(epsilon: float, records: float) -> int:
    return suggested_rounds(
        delta=DELTA, epsilon=epsilon, records=round(records), step_size=STEP, curvature_trace=TRACE
    )


def accuracy(
    algorithm: Any, problem: Any, graph: Static | None, rounds: int, key: Key
) -> tuple[float, float]:
    """Mean accuracy of the nodes, and the accuracy of the mean of their models."""
    settings: dict[str, Any] = {"metrics": dm.Metrics([], progress=False), "delta": DELTA}
    run = dm.simulate(algorithm, problem, graph, rounds=rounds, key=key, **settings)
    mean = run.parameters.mean(axis=0, keepdims=True)
    return float(problem.accuracy(run.parameters).mean()), float(problem.accuracy(mean)[0])


def rows(seed: int) -> dict[str, list[float]]:
    """Accuracies at each epsilon, of one split."""
    problem = digits_problem(seed)
    n, total, key = problem.nodes, int(problem.records.sum()), Key.seeded(seed)
    rng = np.random.default_rng(seed)
    found: dict[str, list[float]] = defaultdict(list)
    found["alone, not private"] = [float(np.mean(descend(problem, 400, STEP, 0.0, rng)))] * 4
    found["pooled, not private"] = [descend(pooled(problem), 400, STEP, 0.0, rng)[0]] * 4
    for epsilon in EPSILONS:
        budget: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA}
        for name, graph in GRAPHS.items():
            degree = int(graph.mixing_matrix.degrees[0])
            for c in (0, 1, 2):
                rounds = rounds_for(epsilon, total * sqrt((degree - c) / n))
                made = dm.SecureGossip.for_budget(
                    **budget,
                    rounds=rounds,
                    topology=graph,
                    dim=problem.dim,
                    records=total,
                    step_size=STEP,
                    colluding=c,
                )
                nodes, mean = accuracy(made, problem, None, rounds, key)
                found[f"secure gossip, {name}, c={c}"].append(nodes)
                if c == 1:
                    found[f"  its nodes' mean, {name}"].append(mean)
            choices = []
            for rounds in {rounds_for(epsilon, total / sqrt(n)), 40}:
                plain = dm.GradientDescent.for_budget(
                    **budget, rounds=rounds, records=int(problem.records.min()), step_size=STEP
                )
                choices.append(accuracy(plain, problem, graph, rounds, key))
            found[f"gossip, {name}"].append(max(nodes for nodes, _ in choices))
            found[f"  its nodes' mean, {name}, gossip"].append(max(mean for _, mean in choices))
        rounds = rounds_for(epsilon, total)
        silo = dm.FederatedLearning.for_budget(
            dm.RecordGradients(clients=n, records=total),
            **budget,
            step_size=STEP,
            average=averaged(rounds),
            combination=SecureAggregation(dim=problem.dim, rounds=rounds),
        )
        found["one secure sum, c=1"].append(accuracy(silo, problem, None, rounds, key)[0])
        alone = []
        for node, own in enumerate(problem.records.tolist()):
            rounds = rounds_for(epsilon, own)
            z = analytic_gaussian_noise_multiplier(target_epsilon=epsilon, target_delta=DELTA)
            part = problem.for_nodes(np.array([node]))
            alone.append(descend(part, rounds, STEP, 2 * z * sqrt(rounds), rng)[0])
        found["alone, private"].append(float(np.mean(alone)))
    return found


if __name__ == "__main__":
    splits = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    runs = [rows(300 + seed) for seed in range(splits)]
    print(f"digits, ten nodes of two digits, {splits} splits")
    print(f"{'':36s}" + "".join(f"{epsilon:>14g}" for epsilon in EPSILONS))
    for row in runs[0]:
        values = np.array([run[row] for run in runs])
        cells = zip(values.mean(axis=0), values.std(axis=0), strict=True)
        print(f"{row:36s}" + "".join(f"  {m:7.3f}+-{s:.3f}" for m, s in cells))
