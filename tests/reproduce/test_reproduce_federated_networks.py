"""Tables 3 to 6 and Figure 4 of the federated paper, with tiny networks: runs and files."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from dpmesh.data import Dataset, iid

pytest.importorskip("jax", reason="needs the extra jax")
from dpmesh.problems import networks
from dpmesh.problems.jax_model import JaxProblem
from dpmesh.reproduce import federated_networks as tables
from dpmesh.reproduce import federated_stability
from dpmesh.reproduce.catalog import REPRODUCTIONS


def tiny(key) -> JaxProblem:
    rng = np.random.default_rng(0)
    train = Dataset(rng.normal(size=(20, 16)).astype(np.float32), np.arange(20) % 3, "noise")
    model = networks.convolutional((4, 4, 1), classes=3, channels=(2, 2), hidden=(3, 3))
    return JaxProblem(train, iid(train, 10, rng), *model, test=train, record_shape=(4, 4, 1))


@pytest.mark.parametrize(
    ("name", "cells"), [("table3", 32), ("table4", 32), ("table5", 26), ("table6", 16)]
)
def test_files(name, cells, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tables, "_proved", lambda training, sampling, z: z)
    one = tiny(None)  # compiled once for all cells
    monkeypatch.setattr(tables, "small_images", lambda key: one)
    monkeypatch.setattr(tables, "small_texts", lambda key: one)
    if name != "table4":  # one table is trained in earnest
        monkeypatch.setattr(tables, "final_accuracy", lambda algorithm, problem, rounds, key: 0.5)
    reported: list[str] = []
    shown = REPRODUCTIONS[f"federated-{name}"]
    assert shown.quick == {"rounds": 1}
    settings = {**shown.settings, **shown.quick}
    table, text, figure = shown.function(tmp_path, **settings, progress=reported.append)
    first, *lines = reported
    assert "rounds for each cell" in first  # reported before the network is compiled
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(lines) == cells
    assert all(0 <= float(row["accuracy"]) <= 100 for row in rows)
    assert all(line in text.read_text() for line in lines)
    assert figure.stat().st_size > 10_000


def test_files_of_figure_4(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(federated_stability, "small_images", tiny)
    monkeypatch.setattr(federated_stability, "EVERY", 1)
    monkeypatch.setattr(federated_stability, "NOISE_MULTIPLIERS", (2.0, 3.0))
    reported: list[str] = []
    table, text, figure = federated_stability.figure4(tmp_path, rounds=2, progress=reported.append)
    with table.open() as file:
        points = list(csv.DictReader(file))
    assert len(points) == 2 * 2 * 2 * 2
    assert len(reported) == 1 + 2 * 2 * 2
    assert all(line in text.read_text() for line in reported[1:])
    assert figure.stat().st_size > 10_000


def test_the_papers_epsilons_are_above_the_proved_ones() -> None:
    """The tight values of an independent search, at 1 % for the paper's images, z = 1."""
    uniform, poisson = (tables._proved(tables.IMAGES, s, 1.0) for s in tables.SAMPLINGS)
    assert uniform == pytest.approx(4.314, rel=0.01)
    assert poisson == pytest.approx(3.7005, rel=0.01)
