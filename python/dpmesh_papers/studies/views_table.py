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
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import inf, sqrt

import numpy as np

import dpmesh as dm
from dpmesh.defaults import step_size
from dpmesh.privacy.views import OneNode
from dpmesh.problems.constants import Constants
from dpmesh_papers._scaffold import Row, pick
from dpmesh_papers.studies.results import markdown_table, write_rows

NODES = 64
KEY = dm.Key.seeded(0)
DELTA = 1e-5
EPSILONS = (1.0, 2.0, 4.0, 8.0)
SHOWN = (("noise", 2), ("accuracy", 1))
"""Columns of a row that the page's table shows, and their decimals."""

ORDERS = 8
"""Random orders of meetings, of which the best is taken."""

NO_NOISE = 1e-3
"""Noise without privacy, for the rule of the learning rate."""


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Gradient descent in which pairs of nodes average, ready for any noise.

    Parameters
    ----------
    problem
        Records of `NODES` nodes.
    meetings
        The pairs of nodes in each round.
    records
        Number of records of a node.
    rounds
        Number of rounds.
    """

    problem: dm.LinearProblem
    meetings: dm.topology.Topology
    records: int
    rounds: int

    @cached_property
    def constants(self) -> Constants:
        """Bounds of the loss, for records of norm 1."""
        return self.problem.constants()

    @property
    def clipping_norm(self) -> float:
        """A norm that no gradient has, since the proof needs that none is clipped."""
        return 1.001 * self.constants.loss_lipschitz

    def algorithm(self, noise: float | None, step_size: float = 1.0) -> dm.GradientDescent:
        """Return the algorithm with this noise over sensitivity; None for none."""
        noise_multiplier = None
        if noise is not None:
            noise_multiplier = 2 * noise
        return dm.GradientDescent(
            records=self.records,
            noise_multiplier=noise_multiplier,
            step_size=step_size,
            clipping_norm=self.clipping_norm,
        )

    def accuracy(self, noise: float | None) -> float:
        """Simulate a run, and return the mean accuracy of the nodes' local models, in percent.

        Parameters
        ----------
        noise
            Standard deviation of the noise over the sensitivity; None for no noise.
        """
        noise_of_round = (noise or NO_NOISE) * 2 * self.clipping_norm / self.records
        noise_of_score = sqrt(self.rounds / NODES) * noise_of_round  # in the mean of all nodes
        rule = step_size(noise_of_score, rounds=self.rounds)
        run = dm.simulate(
            self.algorithm(noise, min(rule, 2 / self.constants.smoothness)),
            self.problem,
            self.meetings,
            rounds=self.rounds,
            key=KEY,
            metrics=dm.Metrics(["accuracy"], every=self.rounds),
        )
        return 100 * float(run.history["accuracy"][-1])


def descent_on_mnist(records: int, rounds: int) -> Descent:
    """Return the descent on MNIST, with the best of `ORDERS` orders of meetings."""
    train, test = (dm.data.unit_norm(dm.data.mnist(part)) for part in ("train", "test"))
    order = np.random.default_rng(0).permutation(train.records)[: NODES * records]
    problem = dm.LinearProblem(
        train, order.reshape(NODES, records), "softmax", classes=10, test=test, feature_norm=1.0
    )
    orders = [dm.topology.meetings(NODES, key=KEY, order=number) for number in range(ORDERS)]
    meetings = dm.topology.best_schedule(orders, rounds=rounds).schedule
    return Descent(problem=problem, meetings=meetings, records=records, rounds=rounds)


def main(records: int = 400, rounds: int = 32) -> None:
    """Measure, print and write noise and accuracy of both guarantees at each epsilon."""
    descent = descent_on_mnist(records, rounds)
    views = {"any one node": OneNode(topology=descent.meetings), "everybody": None}
    rows = []
    for epsilon, (adversary, view) in product(EPSILONS, views.items()):
        budget = dm.privacy.Budget(epsilon, delta=DELTA, view=view)
        noise = budget.calibrate(descent.algorithm, rounds, descent.problem)
        row = {
            "epsilon": epsilon,
            "against": adversary,
            "noise": noise,
            "accuracy": descent.accuracy(noise),
        }
        rows.append(row)
        print(row, flush=True)
    non_private = {
        "epsilon": inf,
        "against": "nobody",
        "noise": 0.0,
        "accuracy": descent.accuracy(None),
    }
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
