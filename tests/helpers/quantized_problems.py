"""Problems, networks and settings for tests of quantized gossip."""

from __future__ import annotations

import numpy as np

import dpmesh as dm
from dpmesh import topology
from dpmesh.noise import Quantizer
from dpmesh.schedules import HorizonPower, PowerLaw, SampleSize


def make_problem(
    loss: str = "logistic",
    nodes: int = 4,
    records: int = 9,
    dim: int = 3,
    *,
    regularization: float = 0.0,
    seed: int = 0,
) -> dm.LinearProblem:
    """Records of norm at most 1, more of them on some nodes than on others."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(nodes * records, dim))
    features /= np.maximum(np.linalg.norm(features, axis=1), 1)[:, np.newaxis]
    labels = np.where(features @ rng.normal(size=dim) > 0, 1, -1)
    cuts = np.arange(1, nodes) * records - rng.integers(0, records // 2, nodes - 1)
    parts = tuple(np.split(rng.permutation(nodes * records), cuts))
    dataset = dm.Dataset(features, labels, "synthetic")
    return dm.LinearProblem(dataset, parts, loss, regularization=regularization, feature_norm=1.0)


def make_topology(kind: str, nodes: int, key: dm.Key) -> topology.Topology:
    if kind == "dropping":
        return topology.edge_dropping(topology.complete(nodes), keep=0.5, key=key)
    return topology.complete(nodes) if kind == "complete" else topology.ring(nodes)


def make_algorithm(rounds: int, **changes) -> dm.QuantizedGossip:
    chosen = {
        "step_size": HorizonPower(scale=0.5, exponent=-0.9, rounds=rounds),
        "consensus_step_size": HorizonPower(scale=0.9, exponent=-0.7, rounds=rounds),
        "sample_size": SampleSize(scale=1.0, exponent=0.5, rounds=rounds),
        "noise_std": PowerLaw(scale=0.1, exponent=0.05),
        "compressor": Quantizer(0.05),
        **changes,
    }
    return dm.QuantizedGossip(**chosen)
