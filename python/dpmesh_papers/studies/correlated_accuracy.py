"""Measure the accuracy of models trained with correlated noise, by `dpmesh.simulate`.

    python -m dpmesh_papers.studies.correlated_accuracy [digits|mnist] [SEEDS]

Softmax regression on digits (16 nodes on a 4x4 torus) or on MNIST (64 nodes on an 8x8 torus; needs
DPMESH_DATA). Records have unit norm with a constant; clipping norm 1, delta 1e-5, replace-one, no
colluding nodes, models in a ball of radius 10. Noise is independent, correlated in time, between
partners (pairwise-cancelling), or both. The learning rate is `CorrelatedStrategy.step_size`, so
that nothing is tuned on the test records.

Accuracies are measured of the last messages after 20 more mixings, and of the nodes' local models.
For comparison: "server" has all records in one place, "alone" is a node that learns by itself at
the same epsilon, "pooled" is the server without noise. Results go to docs/results,
correlated-DATA.csv and .txt; a figure is drawn for digits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil, sqrt
from typing import Literal

import numpy as np
from scipy.stats import t

import dpmesh as dm
from dpmesh import kernels, topology
from dpmesh.accounting import analytic_gaussian_noise_to_sensitivity
from dpmesh.noise import correlated
from dpmesh_papers._figure import Panel, drawn, lines_of
from dpmesh_papers._scaffold import Row, kinds, over_seeds, pick
from dpmesh_papers.studies.results import RESULTS, markdown_table, write_rows

DELTA = 1e-5
RADIUS = 10.0
MORE_MIXINGS = 20
SINGLE_NODES = 4
"""Nodes that learn by themselves, whose accuracies are averaged."""

Place = Literal["nodes", "server", "alone"]
"""Places of the records: all nodes, one server, or single nodes that learn by themselves."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Use of records in a run.

    Parameters
    ----------
    name
        Name in the table of results.
    records
        Records of a node that a round uses.
    rounds
        Rounds that use records; a last round sends their result.
    batches
        Number of batches that rounds use cyclically; 0 uses each record once.
    """

    name: str
    records: int
    rounds: int
    batches: int = 0

    @property
    def uses(self) -> int:
        """Number of rounds that use a record."""
        if not self.batches:
            return 1
        return ceil(self.rounds / self.batches)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A kind of noise, and the partition of the records.

    Parameters
    ----------
    name
        Name in the table of results.
    kind
        Class of correlated noise; None for independent noise.
    mixings
        Number of mixings in a round.
    place
        ``"nodes"``, ``"server"`` for all records in one place, ``"alone"`` for single nodes.
    noisy
        False for no noise.
    """

    name: str
    kind: type[correlated.CorrelatedStrategy] | None = None
    mixings: int = 1
    place: Place = "nodes"
    noisy: bool = True


InTime = correlated.InTime
Partners = correlated.BetweenPartners
Both = correlated.Both
EPSILONS = (1.0, 2.0, 4.0, 8.0)
ONLINE = (
    Variant(name="independent"),
    Variant(name="in time", kind=InTime),
    Variant(name="partners, 1 mixing", kind=Partners),
    Variant(name="partners, 3 mixings", kind=Partners, mixings=3),
    Variant(name="both, 3 mixings", kind=Both, mixings=3),
    Variant(name="both, 5 mixings", kind=Both, mixings=5),
    Variant(name="server, independent", place="server"),
    Variant(name="server, in time", kind=InTime, place="server"),
    Variant(name="alone, in time", kind=InTime, place="alone"),
    Variant(name="pooled, no noise", place="server", noisy=False),
)
TABLES: dict[str, list[tuple[Setting, tuple[Variant, ...]]]] = {
    "digits": [
        (Setting(name="online, each record once", records=4, rounds=21), ONLINE),
        (
            Setting(name="cyclic batches, 8 epochs", records=22, rounds=32, batches=4),
            (
                Variant(name="independent"),
                Variant(name="in time", kind=InTime),
                Variant(name="both, 5 mixings", kind=Both, mixings=5),
                Variant(name="server, in time", kind=InTime, place="server"),
            ),
        ),
        (
            Setting(name="all records in 16 rounds", records=89, rounds=16, batches=1),
            (
                Variant(name="independent"),
                Variant(name="partners, 1 mixing", kind=Partners),
                Variant(name="partners, 3 mixings", kind=Partners, mixings=3),
                Variant(name="partners, 5 mixings", kind=Partners, mixings=5),
                Variant(name="server, independent", place="server"),
                Variant(name="alone, independent", place="alone"),
                Variant(name="pooled, no noise", place="server", noisy=False),
            ),
        ),
    ],
    "mnist": [(Setting(name="online, each record once", records=20, rounds=45), ONLINE)],
}


@lru_cache(maxsize=2)
def records_of(data: str) -> tuple[dm.Dataset, dm.Dataset | None]:
    """Return training records, and test records or None if they must be split off."""
    if data == "digits":
        return dm.data.unit_norm(dm.data.with_constant(dm.data.digits())), None
    train, test = (dm.data.with_constant(dm.data.mnist(part)) for part in ("train", "test"))
    return dm.data.unit_norm(train), dm.data.unit_norm(test)


@lru_cache(maxsize=2)
def network(nodes: int) -> topology.Static:
    """Return a square torus, or the network of one node, which is a server."""
    side = round(sqrt(nodes))
    if nodes == 1:
        return topology.complete(1)
    return topology.torus(side, side)


def nodes_of(data: str) -> int:
    """Return the number of nodes among which records are partitioned."""
    if data == "digits":
        return 16
    return 64


def problems(data: str, setting: Setting, seed: int, place: Place) -> list[dm.LinearProblem]:
    """Return the problem of all nodes or of the server, or a problem for each single node."""
    rng = np.random.default_rng(seed)
    train, test = records_of(data)
    if test is None:
        train, test = dm.data.train_test_split(train, 0.2, rng)
    parts = dm.data.iid(train, nodes_of(data), rng, equal_sizes=True)
    if place == "alone":
        partitions = [[part] for part in parts[:SINGLE_NODES]]
    elif place == "server":
        partitions = [[in_order_of_use(parts, setting.records)]]
    else:
        partitions = [list(parts)]
    return [
        dm.LinearProblem(train, partition, "softmax", classes=10, test=test)
        for partition in partitions
    ]


def in_order_of_use(parts: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Return all nodes' records in the order in which rounds use them.

    These are the nodes' first batches of this size, then their second batches, and so on.
    """
    starts = range(0, len(parts[0]), size)
    return np.concatenate([part[start : start + size] for start in starts for part in parts])


def algorithm_of(
    setting: Setting, variant: Variant, epsilon: float, records: int, nodes: int, dim: int
) -> dm.Algorithm:
    """Return the algorithm with its noise and its learning rate by the rule."""
    net = network(nodes)
    rounds = setting.rounds + 1
    noise = None
    if variant.kind is not None:
        noise = variant.kind(topology=net, rounds=rounds, mixings=variant.mixings)
    rule = noise or Independent(topology=net, rounds=rounds)
    step = 4.0
    if variant.noisy:
        step = rule.step_size(
            epsilon=epsilon,
            delta=DELTA,
            records=records,
            dim=dim,
            radius=RADIUS,
            uses=setting.uses,
            separation=max(1, setting.batches),
        )
    if not setting.batches:
        return dm.OnlineLearning(
            epsilon=epsilon if variant.noisy else None,
            delta=DELTA,
            step_size=step,
            radius=RADIUS,
            batch_size=records,
            projection="mixture",
            noise=noise,
        )
    multiplier = analytic_gaussian_noise_to_sensitivity(target_epsilon=epsilon, target_delta=DELTA)
    return dm.GradientDescent(
        records=records * setting.batches,
        noise_multiplier=2 * multiplier * sqrt(setting.uses) if variant.noisy else None,
        step_size=step,
        batches=setting.batches,
        noise=noise,
    )


class Independent(correlated.CorrelatedStrategy):
    """Independent noise; only its rule for the learning rate is used."""

    correlates_time = False


def train(
    data: str, setting: Setting, variant: Variant, epsilon: float, seed: int
) -> tuple[float, float]:
    """Return mean test accuracies (shares) of released models and of the nodes' local models."""
    scores = []
    for task in problems(data, setting, seed, variant.place):
        records = setting.records
        if variant.place == "server":
            records *= nodes_of(data)
        algorithm = algorithm_of(setting, variant, epsilon, records, task.nodes, task.dim)
        net = network(task.nodes)
        key = dm.Key.seeded(seed)
        run = dm.simulate(
            algorithm, task, net, rounds=setting.rounds + 1, key=key, delta=DELTA, metrics=[]
        )
        # mixing of released messages is post-processing
        weights = np.linalg.matrix_power(net.matrix(0).weights.toarray(), MORE_MIXINGS)
        released = kernels.clip_rows(weights.astype(run.released.dtype) @ run.released, RADIUS)
        scores.append((task.accuracy(released).mean(), task.accuracy(run.parameters).mean()))
    released, nodes = np.mean(scores, axis=0)
    return float(released), float(nodes)


def measure(data: str, seeds: int) -> Iterator[Row]:
    """Yield a row for each kind of noise and epsilon, with accuracies in percent."""
    for setting, variants in TABLES[data]:
        for variant, epsilon in product(variants, EPSILONS):
            runs = [train(data, setting, variant, epsilon, seed) for seed in range(seeds)]
            cell = {"setting": setting.name, "noise": variant.name, "epsilon": epsilon}
            released_summary = over_seeds([100 * released for released, _ in runs])
            mean_of_nodes = 100 * float(np.mean([nodes for _, nodes in runs]))
            yield cell | released_summary | {"nodes": mean_of_nodes}


LABELS = {"alone": "single node", "pooled": "centralized", "partners": "between partners"}
"""Words of the page for those of the rows of results."""


def label_of(noise: str) -> str:
    """Return the page's name of a variant of noise."""
    first, comma, rest = noise.partition(",")
    return f"{LABELS.get(first, first)}{comma}{rest}"


def adversary_of(noise: str) -> str:
    """Return the adversary of the epsilon of a variant of noise; empty without noise."""
    place = noise.partition(",")[0]
    if place == "pooled":
        return ""
    if place == "server":
        return "reads models"
    if place in ("partners", "both"):
        return "reads messages, knows no shared noise"
    return "reads messages"


def as_text(results: list[Row]) -> str:
    """Return the page's table: accuracy of released models, in brackets of the local models.

    Rows of a setting are sorted by the accuracy at the smallest epsilon.
    """
    lines = []
    for setting in kinds(results, "setting"):
        lines.append([f"**{setting}**:", *[""] * (1 + len(EPSILONS))])
        setting_rows = pick(results, setting=setting)
        at_first = pick(setting_rows, epsilon=EPSILONS[0])
        for first in sorted(at_first, key=lambda row: -row["accuracy"]):
            variant = first["noise"]
            cells = [
                f"{row['accuracy']:.0f} ({row['nodes']:.0f})"
                for row in pick(setting_rows, noise=variant)
            ]
            lines.append([label_of(variant), adversary_of(variant), *cells])
    epsilons = (f"epsilon {epsilon:g}" for epsilon in EPSILONS)
    return markdown_table(["noise", "adversary", *epsilons], lines)


def draw(results: list[Row]) -> None:
    """Draw accuracy over epsilon with 95% intervals, without variants of 1 or 3 mixings."""
    few_mixings = ("1 mixing", "3 mixings")
    shown = [row for row in results if not row["noise"].endswith(few_mixings)]
    points = []
    for row in shown:
        half_width = t.ppf(0.975, row["seeds"] - 1) * row["spread"] / sqrt(row["seeds"])
        points.append(row | {"noise": label_of(row["noise"]), "interval": half_width})
    panels = [
        Panel(
            title=setting,
            lines=lines_of(
                pick(points, setting=setting),
                by="noise",
                x="epsilon",
                y="accuracy",
                spread="interval",
            ),
            x="epsilon",
            y="accuracy (%)",
            levels={"majority class": 10.0},
            log="x",
            limits=(0, 100),
        )
        for setting in kinds(points, "setting")
    ]
    drawn(panels).savefig(RESULTS.parent / "images" / "correlated_noise.png", dpi=120)


def main(data: str = "digits", seeds: int = 10) -> None:
    """Measure, print and write each cell; draw those of digits."""
    results = []
    for row in measure(data, seeds):
        results.append(row)
        print(row, flush=True)
    write_rows(f"correlated-{data}", results, as_text(results))
    if data == "digits":
        draw(results)


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
