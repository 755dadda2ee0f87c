"""Scale as the variable: the same records and epsilon, more nodes, from a ring to an expander.

Two of the papers disagree: with more nodes the online paper expects worse models, and the
without-replacement paper measures better ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import dpmesh.topology as topology
from dpmesh.data import Dataset, iid, unit_norm
from dpmesh.data.preprocessing import with_constant
from dpmesh.defaults import Sizes, choose
from dpmesh.defaults.rule import DEGREE
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import LinearProblem
from dpmesh.run import Metrics, simulate
from dpmesh.topology import Topology
from dpmesh_papers._figure import Panel, drawn, lines_of
from dpmesh_papers._scaffold import (
    Experiment,
    Progress,
    Row,
    only,
    over_seeds,
    paragraph,
    pick,
    with_spread,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECORDS = 100_000
TEST_RECORDS = 2_000
FEATURES = 10
RANDOM_LABELS = 0.1
"""Share of labels drawn at random, so that no model is right on every record."""
EPSILON = 1.0
DELTA = 1e-6
NODES = (1, 10, 100, 1_000, 10_000, 100_000)
RECORDS_OF_NODE = 100
"""Records of a node in the last curve, where the data grow with the nodes."""
MOST_TESTED = 500
"""Number of nodes above which models of evenly spaced nodes are tested, about as many as this."""


def _sides(nodes: int) -> tuple[int, int]:
    """Return the two factors of a number that are closest to each other, the smaller one first."""
    shorter = max(side for side in range(1, isqrt(nodes) + 1) if nodes % side == 0)
    return shorter, nodes // shorter


EXPANDER = f"random {DEGREE}-regular"
NETWORKS: dict[str, Callable[[int], Topology]] = {
    "ring": topology.ring,
    "torus": lambda nodes: topology.torus(*_sides(nodes)),
    EXPANDER: lambda nodes: topology.random_regular(nodes, DEGREE, key=Key.seeded(0)),
}
GROWING = f"{RECORDS_OF_NODE} records a node, {EXPANDER}"


def scale(
    folder: Path, *, seeds: int = 3, most_nodes: int = NODES[-1], progress: Progress = print
) -> list[Path]:
    """Learn from the same records at 1 to `most_nodes` nodes by gossip, on three kinds of network.

    Every message may be public, at the same epsilon for a record. Steps follow from the rule of
    `dpmesh.defaults`. In one curve more the data grow with the nodes.
    """

    def measured(cell: Row) -> Row:
        accuracies = [
            _accuracy(cell["network"], cell["nodes"], cell["records"], Key.seeded(seed))
            for seed in range(seeds)
        ]
        return over_seeds(accuracies)

    experiment = Experiment(folder, "scale", progress)
    experiment.measure(_cells(most_nodes), measured, in_words)
    return experiment.write(as_text, draw)


def _cells(most_nodes: int) -> Iterator[Row]:
    """Yield network, nodes and records of each point."""
    numbers_of_nodes = [nodes for nodes in NODES if nodes <= most_nodes]
    for network in NETWORKS:
        for nodes in numbers_of_nodes:
            yield {"network": network, "nodes": nodes, "records": RECORDS}
    for nodes in numbers_of_nodes:
        records = nodes * RECORDS_OF_NODE
        if records <= RECORDS:
            yield {"network": GROWING, "nodes": nodes, "records": records}


def data(key: Key) -> tuple[Dataset, Dataset]:
    """Return records for training and testing: labels by a hyperplane, some of them at random.

    Features are normal; records have a constant and norm 1.
    """
    draw = generator(key, Purpose.SAMPLE)
    x = draw.normal(size=(RECORDS + TEST_RECORDS, FEATURES))
    labels = (x @ draw.normal(size=FEATURES) > 0).astype(np.int64)
    is_random = draw.random(len(x)) < RANDOM_LABELS
    labels[is_random] = draw.integers(2, size=int(is_random.sum()))
    records = unit_norm(with_constant(unit_norm(Dataset(x, labels))))
    train = records.take(np.arange(RECORDS))
    test = records.take(np.arange(RECORDS, len(x)))
    return train, test


def _accuracy(network: str, nodes: int, records: int, key: Key) -> float:
    """Return the mean test accuracy of the nodes' released models, in percent."""
    train, test = data(key)
    parts = iid(train.take(np.arange(records)), nodes, generator(key, Purpose.SPLIT))
    problem = LinearProblem(train, parts, "softmax", test=test, classes=2, feature_norm=1.0)
    sizes = replace(Sizes.of(problem), features=0)  # a first stage needs links between all nodes
    choice = choose(sizes, epsilon=EPSILON, delta=DELTA, algorithm="gossip", key=Key.seeded(0))
    make_network: Callable[[int], Topology] = topology.complete
    if nodes > DEGREE:
        make_network = NETWORKS.get(network, NETWORKS[EXPANDER])
    run = simulate(
        choice.algorithm,
        problem,
        make_network(nodes),
        rounds=choice.rounds,
        key=key,
        delta=DELTA,
        metrics=Metrics([], progress=False),
    )
    stride = max(1, nodes // MOST_TESTED)
    tested = np.ascontiguousarray(run.released[::stride])
    return 100 * float(problem.accuracy(tested).mean())


def in_words(row: Row) -> str:
    """Return one point as a line."""
    accuracy = with_spread(row["accuracy"], row["spread"], 1)
    return f"{row['network']:<38}{row['nodes']:>8,} nodes {row['records']:>8,} records  {accuracy}"


def as_text(rows: list[Row]) -> str:
    """Return all points, and their conclusion."""
    most = max(row["nodes"] for row in rows)
    first, last = (
        f"{only(rows, network=EXPANDER, nodes=nodes)['accuracy']:.1f}" for nodes in (10, most)
    )
    grown = pick(rows, network=GROWING)
    heading = (
        f"Accuracy (%) of the nodes' released models at epsilon {EPSILON:g}, delta {DELTA:g}, by "
        f"number of nodes; every message may be public. Two classes of {FEATURES} features, where "
        f"{100 * (1 - RANDOM_LABELS / 2):.0f}% is the best possible. Gradient descent by gossip, "
        f"steps by the default rule; mean of {rows[0]['seeds']} seed(s) and standard deviation."
    )
    answer = (
        "Who is right? At fixed data more nodes are worse: each hides its own records by itself, "
        "so that the noise in the mean of all models grows as the square root of their number. "
        f"From 10 to {most:,} nodes a network that mixes well falls from {first} to {last}%. One "
        "that mixes slowly, such as a ring, falls further, as a node averages the noise of its "
        "neighbourhood only. Where the data grow with the nodes, more nodes are better: "
        f"{_listed(grown)}. So it is in the without-replacement paper, whose nodes hold all of the "
        "data each. A sparse network sets an end to that, too: steps are as long as they may be "
        "where noise is averaged over all nodes, and its nodes average fewer."
    )
    lines = [paragraph(heading), "", *map(in_words, rows), "", paragraph(answer)]
    return "\n".join(lines)


def _listed(rows: list[Row]) -> str:
    """Return accuracies and numbers of nodes in words."""
    accuracies = ", ".join(f"{row['accuracy']:.1f}" for row in rows)
    numbers_of_nodes = ", ".join(f"{row['nodes']:,}" for row in rows)
    return f"{accuracies}% at {numbers_of_nodes} nodes"


def draw(rows: list[Row]) -> Figure:
    """Draw accuracy over the number of nodes; needs the extra ``plots``."""
    lines = lines_of(rows, by="network", x="nodes", y="accuracy", spread="spread")
    title = "the same records at more nodes, or more records, too"
    return drawn([Panel(title=title, x="nodes", y="accuracy (%)", log="x", lines=lines)])
