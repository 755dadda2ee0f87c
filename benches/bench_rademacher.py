"""Transductive Rademacher complexity of finite classes, against numpy (draws and one product)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benches.measure import Case
from dpmesh.keys import Key
from dpmesh_papers.bounds.complexity import rademacher_complexity

DRAWS = 200


def case(vectors: int, records: int) -> Case:
    """Half of the records seen: a quarter of the signs are 1, a quarter -1."""
    generator = np.random.default_rng(1)
    members = generator.normal(size=(vectors, records))
    stream, seen_records = Key.seeded(1).stream(1000), records // 2

    def of_numpy() -> float:
        coins = generator.integers(0, 4, size=(DRAWS, records))
        signs = (coins == 0).astype(float) - (coins == 1)
        return float((1 / seen_records + 1 / seen_records) * (signs @ members.T).max(axis=1).mean())

    return Case(
        f"{DRAWS} draws, {vectors} vectors of {records:,}",
        lambda: rademacher_complexity(members, seen_records, DRAWS, stream),
        peers={"numpy": of_numpy},
    )


def cases() -> Iterator[Case]:
    yield case(10, 1_000)
    yield case(100, 10_000)
    yield case(1_000, 1_000)
