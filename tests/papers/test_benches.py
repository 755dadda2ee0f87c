"""Benchmarks of speed: what they time is a whole run, as often as they need it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpmesh.data import Dataset
from dpmesh.problems import LinearProblem

ROOT = Path(__file__).parents[2]


def test_rounds_of_federated_learning_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan had one round only, so that the second one was refused."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benches.bench_federated import CLIENTS, dpmesh_way

    draw = np.random.default_rng(0)
    records = Dataset(draw.normal(size=(2 * CLIENTS, 4)), draw.integers(3, size=2 * CLIENTS))
    parts = tuple(np.arange(2 * CLIENTS).reshape(CLIENTS, 2))
    run = dpmesh_way(LinearProblem(records, parts, "softmax", classes=3, test=records))
    accuracies = [run(t) for t in range(3)]
    assert [run(t) for t in range(3)] == accuracies
