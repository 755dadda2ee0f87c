"""Accuracy of models trained with correlated noise, by `dm.simulate`, beside what was expected.

    python -m benches.correlated_accuracy                                 # digits
    python -m benches.correlated_accuracy --seeds 3 --epsilon 1
    python -m benches.correlated_accuracy --data mnist --seeds 2 --epsilon 1      # set DPMESH_DATA

Softmax on digits, 16 nodes on a 4x4 torus, or on MNIST, 64 nodes on an 8x8 torus; records of unit
norm with a constant, clipping 1, delta 1e-5, replace-one, no colluding nodes, models in a ball of
radius 10. The step is that of `CorrelatedStrategy.step_size`, so that nothing is tuned on the test
records. Columns: accuracy of the last messages after 20 more mixings and its standard deviation
over seeds, of the nodes' own models, and the figure that the method's specification has. "server"
has all records in one place, "alone" is a node that works by itself at the same epsilon, and
"pooled" is the server without noise. Chance is 10%.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import numpy as np

import dpmesh as dm
from dpmesh import kernels, topology
from dpmesh.privacy import correlated
from dpmesh.privacy.accounting import analytic_gaussian_noise_multiplier

DELTA, RADIUS, MORE_MIXINGS, ALONE = 1e-5, 10.0, 20, 4

COLORS = {
    "pooled, no noise": "#333333",
    "server, in time": "#56B4E9",
    "server, independent": "#CC79A7",
    "both, 5 mixings": "#0072B2",
    "partners, 5 mixings": "#0072B2",
    "in time": "#009E73",
    "independent": "#D55E00",
    "alone, in time": "#999999",
    "alone, independent": "#999999",
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a run uses records: `records` of a node in each of `rows` rounds, `batches` in turn."""

    name: str
    records: int
    rows: int
    batches: int = 0
    """0 uses each record once."""

    @property
    def uses(self) -> int:
        return -(-self.rows // self.batches) if self.batches else 1


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Which noise, where the records are, and the accuracy that is expected by epsilon."""

    name: str
    kind: type[correlated.CorrelatedStrategy] | None = None
    mixings: int = 1
    place: str = "nodes"
    noisy: bool = True
    expected: tuple[float | None, ...] = ()


InTime, Partners, Both = correlated.InTime, correlated.BetweenPartners, correlated.Both
EPSILONS = (1.0, 2.0, 4.0, 8.0)
ONLINE = (
    Variant(name="independent", expected=(12, 14, 20, 35)),
    Variant(name="in time", kind=InTime, expected=(15, 21, 33, 53)),
    Variant(name="partners, 1 mixing", kind=Partners, expected=(17, 25, 41, 63)),
    Variant(name="partners, 3 mixings", kind=Partners, mixings=3, expected=(22, 35, 56, 73)),
    Variant(name="both, 3 mixings", kind=Both, mixings=3, expected=(33, 53, 71, 79)),
    Variant(name="both, 5 mixings", kind=Both, mixings=5, expected=(41, 61, 76, 82)),
    Variant(name="server, independent", place="server", expected=(23, 42, 64, 78)),
    Variant(name="server, in time", kind=InTime, place="server", expected=(43, 67, 79, 83)),
    Variant(name="alone, in time", kind=InTime, place="alone"),
    Variant(name="pooled, no noise", place="server", noisy=False),
)
MNIST = {
    "independent": (47, 63, 71, 75),
    "in time": (66, 72, 75, 78),
    "partners, 1 mixing": (69, None, 75, None),
    "partners, 3 mixings": (73, 76, 80, 82),
    "both, 3 mixings": (74, None, 80, None),
    "both, 5 mixings": (76, 79, 81, 82),
    "server, independent": (79, None, 82, None),
    "server, in time": (82, 82, 82, 82),
}
TABLES: dict[str, list[tuple[Setting, tuple[Variant, ...]]]] = {
    "digits": [
        (Setting(name="online, each record once", records=4, rows=21), ONLINE),
        (
            Setting(name="cyclic batches, 8 epochs", records=22, rows=32, batches=4),
            (
                Variant(name="independent", expected=(15, None, 45, None)),
                Variant(name="in time", kind=InTime, expected=(21, None, 65, None)),
                Variant(
                    name="both, 5 mixings", kind=Both, mixings=5, expected=(60, None, 88, None)
                ),
                Variant(
                    name="server, in time",
                    kind=InTime,
                    place="server",
                    expected=(73, None, 88, None),
                ),
            ),
        ),
        (
            Setting(name="all records in 16 rounds", records=89, rows=16, batches=1),
            (
                Variant(name="independent", expected=(28, 48, 70, 83)),
                Variant(name="partners, 1 mixing", kind=Partners, expected=(50, 71, 83, 87)),
                Variant(
                    name="partners, 3 mixings", kind=Partners, mixings=3, expected=(66, 82, 86, 87)
                ),
                Variant(
                    name="partners, 5 mixings", kind=Partners, mixings=5, expected=(72, 83, 86, 87)
                ),
                Variant(name="server, independent", place="server", expected=(75, 84, 87, 88)),
                Variant(name="alone, independent", place="alone"),
                Variant(name="pooled, no noise", place="server", noisy=False),
            ),
        ),
    ],
    "mnist": [
        (
            Setting(name="online, each record once", records=20, rows=45),
            tuple(replace(one, expected=MNIST.get(one.name, ())) for one in ONLINE),
        )
    ],
}


@lru_cache(maxsize=2)
def records_of(data: str) -> tuple[dm.Dataset, dm.Dataset | None]:
    """Return the training and the test records; None if these are to be split off."""
    if data == "digits":
        return dm.data.unit_norm(dm.data.with_constant(dm.data.digits())), None
    train, test = (dm.data.with_constant(dm.data.mnist(part)) for part in ("train", "test"))
    return dm.data.unit_norm(train), dm.data.unit_norm(test)


@lru_cache(maxsize=2)
def network(nodes: int) -> topology.Static:
    """Return a square torus; one node is a server."""
    side = round(sqrt(nodes))
    return topology.complete(1) if nodes == 1 else topology.torus(side, side)


def problem(data: str, setting: Setting, seed: int, place: str) -> list[dm.LinearProblem]:
    """Return the records among the nodes, all in one place batch by batch, or of nodes alone."""
    rng = np.random.default_rng(seed)
    train, test = records_of(data)
    if test is None:
        train, test = dm.data.train_test_split(train, 0.2, rng)
    nodes = 16 if data == "digits" else 64
    parts = dm.data.iid(train, nodes, rng, equal_sizes=True)
    size = setting.records
    if place == "alone":
        held = [[part] for part in parts[:ALONE]]
    elif place == "server":
        every = range(0, len(parts[0]), size)
        held = [[np.concatenate([part[t : t + size] for t in every for part in parts])]]
    else:
        held = [list(parts)]
    return [dm.LinearProblem(train, own, "softmax", classes=10, test=test) for own in held]


def algorithm_of(
    setting: Setting, variant: Variant, epsilon: float, records: int, nodes: int, dim: int
) -> dm.Algorithm:
    """Return the algorithm with its noise, and the step of the rule."""
    net, rounds = network(nodes), setting.rows + 1
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
    multiplier = analytic_gaussian_noise_multiplier(target_epsilon=epsilon, target_delta=DELTA)
    return dm.GradientDescent(
        records=records * setting.batches,
        noise_multiplier=multiplier * sqrt(setting.uses) if variant.noisy else None,
        step_size=step,
        batches=setting.batches,
        noise=noise,
    )


class Independent(correlated.CorrelatedStrategy):
    """For the rule of the step alone."""

    correlates_time = False


def train(
    data: str, setting: Setting, variant: Variant, epsilon: float, seed: int
) -> tuple[float, float]:
    """Return the accuracies of the released model and of the nodes' own models."""
    scores = []
    for own in problem(data, setting, seed, variant.place):
        together = (16 if data == "digits" else 64) if variant.place == "server" else 1
        records = setting.records * together
        algorithm = algorithm_of(setting, variant, epsilon, records, own.nodes, own.dim)
        net, key = network(own.nodes), dm.Key.seeded(seed)
        run = dm.simulate(
            algorithm, own, net, rounds=setting.rows + 1, key=key, delta=DELTA, metrics=[]
        )
        weights = np.linalg.matrix_power(net.matrix(0).weights.toarray(), MORE_MIXINGS)
        released = kernels.clip_rows(weights.astype(run.released.dtype) @ run.released, RADIUS)
        scores.append((own.accuracy(released).mean(), own.accuracy(run.parameters).mean()))
    released, nodes = np.mean(scores, axis=0)
    return float(released), float(nodes)


class Row(NamedTuple):
    """Accuracies of a kind of noise in percent, by epsilon."""

    setting: Setting
    variant: Variant
    released: list[float]
    spread: list[float]
    own: list[float]


def rows(data: str, epsilons: list[float], seeds: int) -> Iterator[Row]:
    """Yield a row of the table for each kind of noise."""
    for setting, variants in TABLES[data]:
        for variant in variants:
            row = Row(setting, variant, [], [], [])
            for epsilon in epsilons:
                runs = [train(data, setting, variant, epsilon, seed) for seed in range(seeds)]
                released, own = 100 * np.mean(runs, axis=0)
                spread = np.std([run[0] for run in runs], ddof=1) if seeds > 1 else 0.0
                row.released.append(released)
                row.spread.append(100 * spread)
                row.own.append(own)
            yield row


def in_words(row: Row, epsilons: list[float]) -> str:
    """Return a row beside what was expected."""
    known = dict(zip(EPSILONS, row.variant.expected, strict=False))
    line = f"{row.setting.name:25} {row.variant.name:20}"
    for epsilon, released, spread, own in zip(
        epsilons, row.released, row.spread, row.own, strict=True
    ):
        wanted = known.get(epsilon)
        line += f" | {released:3.0f} (sd {spread:2.0f}) nodes {own:3.0f}"
        line += f" expected {'-' if wanted is None else wanted:>2}"
    return line


def draw(finished: list[Row], epsilons: list[float], path: str) -> None:
    """Draw the released models' accuracy by epsilon; needs the extra ``plots``."""
    import matplotlib.pyplot as plt

    settings = list(dict.fromkeys(row.setting for row in finished))
    figure, axes = plt.subplots(
        1, len(settings), figsize=(4 * len(settings), 4.4), sharey=True, squeeze=False
    )
    for ax, setting in zip(axes[0], settings, strict=True):
        for row in finished:
            if row.setting == setting and row.variant.name in COLORS:
                plain = row.variant.place == "nodes"
                style = {"marker": "o"} if plain else {"linestyle": "--"}
                color = COLORS[row.variant.name]
                ax.plot(epsilons, row.released, color=color, label=row.variant.name, **style)
        ax.axhline(10, color="#999999", linestyle=":", label="chance")
        ax.set(xscale="log", xlabel="epsilon", title=setting.name, ylim=(0, 100))
        ax.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons], minor=False)
        ax.minorticks_off()
        ax.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncol=2)
    axes[0, 0].set_ylabel("accuracy, percent")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epsilon", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--data", choices=["digits", "mnist"], default="digits")
    parser.add_argument("--figure", help="Draw the table into this file.")
    arguments = parser.parse_args()
    epsilons, finished = list(arguments.epsilon), []
    print(f"{'':46}" + "".join(f" | epsilon {epsilon:<24g}" for epsilon in epsilons))
    for row in rows(arguments.data, epsilons, arguments.seeds):
        finished.append(row)
        print(in_words(row, epsilons), flush=True)
    if arguments.figure:
        draw(finished, epsilons, arguments.figure)


if __name__ == "__main__":
    main()
