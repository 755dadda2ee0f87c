"""Small runs of every algorithm, whose results a change of the package must keep."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import dpmesh as dm
from dpmesh import topology
from dpmesh.algorithms import Average, TrustedServer
from dpmesh.algorithms.controllers import AlwaysGlobal, Periodic, RandomGlobal
from dpmesh.algorithms.denoisers import LaplacianSmoothing
from dpmesh.noise import Quantizer
from dpmesh.noise.compression import Levels, RandomSparsifier
from dpmesh.run.network import Exponential, LogNormal
from dpmesh.schedules import HorizonPower, InverseSqrt, PowerLaw, SampleSize
from dpmesh_papers.deep_q import DeepQ
from dpmesh_papers.repeats import Repeats

NODES = 4
RECORDS = 12
DIM = 3
ROUNDS = 5
DELTA = 1e-5
LONG = 20_000
"""So many parameters that threads share a row."""

FAILING = dm.Network(
    latency=Exponential(0.1),
    bandwidth=LogNormal(median=1e4, sigma=0.5),
    compute=0.5,
    straggler_fraction=0.4,
    loss=0.3,
    attempts=2,
    offline=0.2,
    outage_rounds=2,
    late_fraction=0.3,
    late_rounds=2,
    max_delay=2,
)
LOSING = dm.Network(latency=0.1, compute=Exponential(1.0), loss=0.3)


def make_records(
    numbers: range, *, dim: int = DIM, classes: int | None = None, dtype: str = "float64"
) -> dm.Dataset:
    """Records with exact features, the same on every machine, of norm at most 1."""
    record = np.array(numbers)[:, np.newaxis]
    place = np.arange(dim)
    digits = (record * record * 7 + place * 13 + record * place * 29) % 17 - 8
    features = np.where(place < DIM, digits / 2**4, digits / 2**15).astype(dtype)
    labels = record[:, 0] * 5 % 7 % (classes or 2)
    return dm.Dataset(features, labels if classes else 2 * labels - 1, "synthetic")


@cache
def make_problem(
    dim: int = DIM, classes: int | None = None, dtype: str = "float64", regularization: float = 0.0
) -> dm.LinearProblem:
    train = make_records(range(NODES * RECORDS), dim=dim, classes=classes, dtype=dtype)
    parts = tuple(np.split(np.arange(NODES * RECORDS), NODES))
    return dm.LinearProblem(
        train,
        parts,
        "logistic",
        test=train,
        classes=classes,
        regularization=regularization,
        feature_norm=1.0,
    )


def online(**changes: Any) -> dm.OnlineLearning:
    return dm.OnlineLearning(**{"epsilon": 2.0, **changes})


def quantized(**changes: Any) -> dm.QuantizedGossip:
    chosen = {
        "step_size": HorizonPower(scale=1.0, exponent=-0.8, rounds=ROUNDS),
        "consensus_step_size": HorizonPower(scale=1.0, exponent=-0.6, rounds=ROUNDS),
        "sample_size": SampleSize(scale=1.0, exponent=0.5, rounds=ROUNDS),
        "noise_std": PowerLaw(scale=0.1, exponent=0.1),
        **changes,
    }
    return dm.QuantizedGossip(**chosen)


def federated(**changes: Any) -> dm.FederatedLearning:
    updates = {"clients": NODES, "sampling_rate": 0.5, "batch_size": 5}
    updates |= {} if "steps" in changes else {"epochs": 1}
    of_updates = {"sampling", "steps", "clients_at_once"} & changes.keys()
    updates |= {name: changes.pop(name) for name in of_updates}
    replaced = updates.get("sampling") == "uniform"
    noise = 2.0 if replaced else 1.0  # over the clipping norm: 1 over the sensitivity
    return dm.FederatedLearning(dm.ClientUpdates(**updates), noise_multiplier=noise, **changes)


def once(**changes: Any) -> dm.WithoutReplacement:
    return dm.WithoutReplacement(**{"delta": DELTA, "batch_size": 2, **changes})


def repeatedly(models: int = 1, **changes: Any) -> dm.WithReplacement:
    chosen = {"noise_multiplier": 4.0, "batch_size": 2, "visits": 2, **changes}
    return dm.WithReplacement(nodes=NODES, records=RECORDS, models=models, **chosen)


def learned(**changes: Any) -> DeepQ:
    chosen = {"anneal_rounds": 2, "hidden": 16, "batch_size": 2, "memory_size": 3, **changes}
    return DeepQ(**chosen)


def descent(**changes: Any) -> dm.GradientDescent:
    return dm.GradientDescent(**{"records": RECORDS, "noise_multiplier": 4.0, **changes})


def varying() -> topology.Topology:
    return topology.edge_dropping(topology.complete(NODES), keep=0.6, key=dm.Key.seeded(8))


Case = tuple[Callable[[], Any], dict[str, Any]]
"""Makes the algorithm; what differs from a run on a ring under the key of seed 3 and AES."""

CASES: dict[str, Case] = {
    "gradient descent": (descent, {}),
    "gradient descent, no noise": (lambda: descent(noise_multiplier=None), {}),
    "gradient descent, varying network": (descent, {"network": varying}),
    "gradient descent, failing network": (descent, {"failing": FAILING}),
    "gradient descent, float32": (descent, {"dtype": "float32"}),
    "gradient descent, chacha20": (descent, {"cipher": "chacha20"}),
    "gradient descent, classes": (descent, {"classes": 3}),
    "gradient descent, long": (descent, {"dim": LONG}),
    "online": (online, {}),
    "online, gaussian": (lambda: online(delta=DELTA), {}),
    "online, mini-batches": (lambda: online(batch_size=2), {}),
    "online, gaussian mini-batches": (lambda: online(delta=DELTA, batch_size=2), {}),
    "online, l1 norm": (lambda: online(norm="l1", projection="box"), {}),
    "online, box": (lambda: online(projection="box", radius=0.5), {}),
    "online, mixture": (lambda: online(projection="mixture", radius=0.5), {}),
    "online, no projection": (lambda: online(projection="none"), {}),
    "online, varying network": (online, {"network": varying}),
    "online, failing network": (online, {"failing": FAILING}),
    "online, float32": (online, {"dtype": "float32"}),
    "online, chacha20": (online, {"cipher": "chacha20"}),
    "online, long": (online, {"dim": LONG}),
    "quantized": (quantized, {}),
    "quantized, clipped": (lambda: quantized(clipping_norm=0.2), {}),
    "quantized, public point": (lambda: quantized(mode="public_point"), {}),
    "quantized, paper": (lambda: quantized(mode="paper", smoothness=1.0), {}),
    "quantized, grid": (lambda: quantized(grid=2.0**-12), {}),
    "quantized, grid sent as it is": (
        lambda: quantized(grid=2.0**-8, compressor=Quantizer(2.0**-8)),
        {},
    ),
    "quantized, floats": (lambda: quantized(compressor=None), {}),
    "quantized, 4 bits": (lambda: quantized(compressor=Quantizer(0.001, bits=4)), {}),
    "quantized, levels": (lambda: quantized(compressor=Levels(3)), {}),
    "quantized, sparse": (lambda: quantized(compressor=RandomSparsifier(0.3)), {}),
    "quantized, varying network": (quantized, {"network": varying}),
    "quantized, failing network": (quantized, {"failing": FAILING}),
    "quantized, float32": (quantized, {"dtype": "float32"}),
    "quantized, chacha20": (quantized, {"cipher": "chacha20"}),
    "quantized, long": (quantized, {"dim": LONG}),
    "federated": (federated, {}),
    "federated, uniform": (lambda: federated(sampling="uniform", steps=2), {}),
    "federated, grid": (lambda: federated(combination=TrustedServer(grid=2.0**-16)), {}),
    "federated, clients drop out": (
        lambda: federated(combination=TrustedServer(arrival_rate=0.7)),
        {},
    ),
    "federated, smoothed": (lambda: federated(denoiser=LaplacianSmoothing(1.0)), {}),
    "federated, one client at a time": (lambda: federated(clients_at_once=1), {}),
    "federated, averaged": (lambda: federated(average=Average()), {}),
    "federated, losing network": (federated, {"failing": LOSING}),
    "federated, float32": (federated, {"dtype": "float32"}),
    "federated, chacha20": (federated, {"cipher": "chacha20"}),
    "federated, long": (lambda: federated(denoiser=LaplacianSmoothing(1.0)), {"dim": LONG}),
    "with replacement": (repeatedly, {}),
    "with replacement, classes": (lambda: repeatedly(3), {"classes": 3}),
    "with replacement, losing network": (repeatedly, {"failing": LOSING}),
    "with replacement, float32": (repeatedly, {"dtype": "float32"}),
    "with replacement, chacha20": (repeatedly, {"cipher": "chacha20"}),
    "with replacement, long": (repeatedly, {"dim": LONG}),
    "without replacement, periodic": (lambda: once(controller=Periodic(2)), {}),
    "without replacement, random": (lambda: once(controller=RandomGlobal(0.5)), {}),
    "without replacement, always": (lambda: once(controller=AlwaysGlobal()), {}),
    "without replacement, learned": (lambda: once(controller=learned()), {}),
    "without replacement, learned from releases": (
        lambda: once(
            controller=learned(sees="released"), public_data=make_records(range(100, 105))
        ),
        {},
    ),
    "without replacement, classes": (
        lambda: once(models=3, controller=RandomGlobal(0.5)),
        {"classes": 3},
    ),
    "without replacement, learned classes": (
        lambda: once(models=3, controller=learned()),
        {"classes": 3},
    ),
    "without replacement, asynchronous in a ball": (
        lambda: once(
            controller=RandomGlobal(0.5),
            arrival_rate=0.6,
            radius=0.5,
            copies=2,
            step_size=InverseSqrt(0.5),
        ),
        {},
    ),
    "without replacement, losing network": (
        lambda: once(controller=RandomGlobal(0.5)),
        {"failing": LOSING},
    ),
    "without replacement, float32": (
        lambda: once(controller=RandomGlobal(0.5)),
        {"dtype": "float32"},
    ),
    "without replacement, chacha20": (
        lambda: once(controller=RandomGlobal(0.5)),
        {"cipher": "chacha20"},
    ),
    "without replacement, long": (lambda: once(controller=learned()), {"dim": LONG}),
}


def ring() -> topology.Topology:
    return topology.ring(NODES)


def network_of(name: str) -> topology.Topology | None:
    """Return the network of a case, or None where messages take no links."""
    make, changes = CASES[name]
    return changes.get("network", ring)() if make().communication == "gossip" else None


def simulate(name: str, **options: Any) -> dm.Run:
    """Run a case of `CASES`, with options of `dpmesh.simulate`."""
    make, changes = CASES[name]
    of_problem = ("dim", "classes", "dtype", "regularization")
    problem = make_problem(
        **{option: changes[option] for option in of_problem if option in changes}
    )
    return dm.simulate(
        make(),
        problem,
        network_of(name),
        rounds=ROUNDS,
        key=dm.Key.seeded(3, cipher=changes.get("cipher", "aes")),
        delta=DELTA,
        metrics=dm.Metrics(["loss", "accuracy"], every=2, callback=options.pop("callback", None)),
        **{"engine": changes.get("failing"), **options},
    )


def repeats() -> Any:
    """Run three repetitions of online learning side by side."""
    dealt = Repeats.deal(make_problem(), 3, key=dm.Key.seeded(1))
    key = dm.Key.seeded(3)
    return dealt.simulate(
        online(), ring(), checkpoints=[6, 12], key=key, network=dm.Network(max_delay=2)
    )
