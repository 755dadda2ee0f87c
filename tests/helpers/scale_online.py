"""A run on sparse examples of RCV1's size; prints its peak memory in MiB, early and at the end.

Usage: python scale_online.py ROUNDS
"""

from __future__ import annotations

import resource
import sys

import numpy as np
from scipy import sparse

import dpmesh as dm

NODES = 64
DIM = 47_236
NON_ZEROS = 75
ROUNDS_OF_DATA = 1_500


def peak() -> float:
    """Largest resident memory of this process so far, in MiB (Linux counts in KiB)."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def documents() -> dm.Dataset:
    """Sparse examples of norm 1, one for each node and round."""
    rng = np.random.default_rng(0)
    records = NODES * ROUNDS_OF_DATA
    stretch = DIM // NON_ZEROS
    columns = rng.integers(0, stretch, size=(records, NON_ZEROS), dtype=np.int32)
    columns += stretch * np.arange(NON_ZEROS, dtype=np.int32)
    values = np.full(records * NON_ZEROS, NON_ZEROS**-0.5, dtype=np.float32)
    starts = np.arange(0, records * NON_ZEROS + 1, NON_ZEROS)
    features = sparse.csr_array((values, columns.ravel(), starts), shape=(records, DIM))
    return dm.Dataset(features, rng.choice([-1, 1], size=records), "documents")


def main(rounds: int) -> None:
    """Learn with dense Laplace noise, and measure regret at the end."""
    data = documents()
    parts = tuple(np.arange(data.records).reshape(NODES, -1))
    problem = dm.LinearProblem(data, parts, "hinge")
    peaks: list[float] = []
    dm.simulate(
        dm.OnlineLearning(epsilon=1.0),
        problem,
        dm.topology.random_regular(NODES, 4, key=dm.Key.seeded(0)),
        rounds=rounds,
        key=dm.Key.seeded(0),
        metrics=dm.Metrics(
            ["loss"], every=max(1, rounds // 3), callback=lambda *_: peaks.append(peak())
        ),
    )
    print(peaks[0], peaks[-1])


if __name__ == "__main__":
    main(int(sys.argv[1]))
