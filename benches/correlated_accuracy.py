"""Accuracy of models trained with correlated noise, beside independent noise.

    python -m benches.correlated_accuracy                       # digits, online and full batches
    python -m benches.correlated_accuracy --seeds 3 --epsilon 1
    python -m benches.correlated_accuracy --data mnist --seeds 2 --epsilon 1      # set DPMESH_DATA

A plain loop in numpy over the package's samplers and gradients: softmax on digits, 16 nodes on a
4x4 torus, or on MNIST, 64 nodes on an 8x8 torus, online only; records of unit norm with a
constant, clipping 1, delta 1e-5, replace-one, models in a ball of radius 10. The step is ``min(4,
(radius / 2) / q)``, where q is the noise of a mixed point at unit steps, so that nothing is tuned
on the test records. "released" is the accuracy of the last messages after 20 more mixings,
"nodes" that of the nodes' own mixed points; means over seeds, and the standard deviation of
"released".
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

import dpmesh as dm
from dpmesh import kernels, topology
from dpmesh.privacy import correlated
from dpmesh.privacy.accounting import analytic_gaussian_noise_multiplier

DELTA, RADIUS, LARGEST_STEP, MORE_MIXINGS = 1e-5, 10.0, 4.0, 20


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How records are used: `rounds` rows, `records` in each, every record in `uses` of them."""

    name: str
    rounds: int
    records: int
    uses: int = 1


ONLINE = Setting(name="online", rounds=22, records=4)
MNIST_ONLINE = Setting(name="online", rounds=46, records=20)
FULL_BATCH = Setting(name="gradient descent", rounds=16, records=89, uses=16)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Which noise: correlated in `time`, with secrets (`space`), and mixings a gradient."""

    name: str
    time: bool = False
    space: bool = False
    mixings: int = 1
    server: bool = False


VARIANTS = {
    "online": [
        Noise(name="independent"),
        Noise(name="time", time=True),
        Noise(name="s1", space=True),
        Noise(name="s3", space=True, mixings=3),
        Noise(name="both 3", time=True, space=True, mixings=3),
        Noise(name="both 5", time=True, space=True, mixings=5),
        Noise(name="server", server=True),
        Noise(name="server, time", server=True, time=True),
    ],
    "gradient descent": [
        Noise(name="independent"),
        Noise(name="s1", space=True),
        Noise(name="s3", space=True, mixings=3),
        Noise(name="s5", space=True, mixings=5),
        Noise(name="server", server=True),
    ],
}


@lru_cache(maxsize=2)
def records_of(data: str) -> tuple[dm.Dataset, dm.Dataset | None]:
    """Return the training and the test records; None if these are to be split off."""
    if data == "digits":
        return dm.data.unit_norm(dm.data.with_constant(dm.data.digits())), None
    train, test = (dm.data.with_constant(dm.data.mnist(part)) for part in ("train", "test"))
    return dm.data.unit_norm(train), dm.data.unit_norm(test)


def problem(data: str, setting: Setting, seed: int, nodes: int, server: bool) -> dm.LinearProblem:
    """Return the records among the nodes, or all of them at one server in the same order."""
    rng = np.random.default_rng(seed)
    train, test = records_of(data)
    if test is None:
        train, test = dm.data.train_test_split(train, 0.2, rng)
    parts = dm.data.iid(train, nodes, rng, equal_sizes=True)
    if server:
        size, rounds = setting.records, setting.rounds if setting.uses == 1 else 1
        order = [part[t * size : (t + 1) * size] for t in range(rounds) for part in parts]
        parts = [np.concatenate(order)]
    return dm.LinearProblem(train, parts, "softmax", classes=10, test=test)


def train(
    name: str, setting: Setting, noise: Noise, epsilon: float, seed: int, coalition: int
) -> tuple[float, float]:
    """Return the accuracies of the released model and of the nodes' own models."""
    side = 4 if name == "digits" else 8
    data = problem(name, setting, seed, side**2, noise.server)
    records = setting.records * (side**2 if noise.server else 1)
    matrix = None if noise.server else topology.torus(side, side).mixing_matrix
    use = correlated.Participation(uses=setting.uses)
    secrets = None
    if noise.space:
        secrets = correlated.partner_secrets(
            matrix, rounds=setting.rounds, mixings=noise.mixings, coalition=coalition
        )
    between = None if secrets is None else secrets.covariance
    objective = (
        correlated.server(setting.rounds)
        if matrix is None
        else correlated.gossip(matrix, setting.rounds, mixings=noise.mixings, covariance=between)
    )
    method = "optimal" if noise.time else "diagonal"
    strategy = correlated.factorize(objective, participation=use, method=method)
    if setting.uses > 1:  # the same noise in every round, as in the table of the specification
        bands = np.full((setting.rounds, 1), setting.uses**-0.5)
        strategy = correlated.Factorization(bands=bands, kind="diagonal", participation=use)
    multiplier = analytic_gaussian_noise_multiplier(target_epsilon=epsilon, target_delta=DELTA)
    per_unit = 2 * multiplier / records
    left = strategy.objective(objective.matrix()) / setting.rounds
    q = per_unit * np.sqrt(data.dim * left)
    step = min(LARGEST_STEP, RADIUS / 2 / q)
    release = correlated.CorrelatedGaussian(
        noise_multiplier=multiplier,
        factorization=strategy,
        sensitivities=2 * step / records,
        secrets=secrets,
    )
    assert release.mu <= 1 / multiplier * (1 + 1e-12)
    return _run(data, setting, noise, release, step, records, matrix, seed)


def _run(
    data: dm.LinearProblem,
    setting: Setting,
    noise: Noise,
    release: correlated.CorrelatedGaussian,
    step: float,
    records: int,
    matrix: topology.MixingMatrix | None,
    seed: int,
) -> tuple[float, float]:
    sampler = correlated.CorrelatedNoise(release=release)
    key, b = dm.Key.seeded(seed), data.zeros()
    weights = np.eye(1) if matrix is None else matrix.weights.toarray()
    mixed, much = (
        np.linalg.matrix_power(weights, times).astype(b.dtype)
        for times in (noise.mixings, MORE_MIXINGS)
    )
    state = sampler.start(np.arange(len(b)), data.dim, dtype=b.dtype)
    for t in range(setting.rounds):
        batch = data.batch(t if setting.uses == 1 else 0, records)
        x = b - b.dtype.type(step) * data.gradient(b, batch, clipping_norm=1.0)
        z, state = sampler.draw(key, state)
        message = x + z
        b = kernels.clip_rows(mixed @ message, RADIUS)
    released = kernels.clip_rows(much @ message, RADIUS)
    return float(data.accuracy(released).mean()), float(data.accuracy(b).mean())


def rows(data: str, epsilons: list[float], seeds: int, coalition: int) -> Iterator[str]:
    for setting in (ONLINE, FULL_BATCH) if data == "digits" else (MNIST_ONLINE,):
        for noise in VARIANTS[setting.name]:
            for epsilon in epsilons:
                runs = [
                    train(data, setting, noise, epsilon, seed, coalition) for seed in range(seeds)
                ]
                released, own = 100 * np.mean(runs, axis=0)
                spread = 100 * np.std([run[0] for run in runs], ddof=1) if seeds > 1 else 0.0
                yield (
                    f"{setting.name:17} {noise.name:13} epsilon {epsilon:<4g} "
                    f"released {released:5.1f} (sd {spread:4.1f})  nodes {own:5.1f}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 2.0, 4.0, 8.0])
    parser.add_argument("--data", choices=["digits", "mnist"], default="digits")
    parser.add_argument("--coalition", type=int, default=0)
    arguments = parser.parse_args()
    for row in rows(arguments.data, arguments.epsilon, arguments.seeds, arguments.coalition):
        print(row, flush=True)


if __name__ == "__main__":
    main()
