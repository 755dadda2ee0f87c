"""Figure 6 of the federated paper: a short run of its curves on real digits."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from dpmesh.data import digits, train_test_split
from dpmesh_papers import federated_membership as figure6


@pytest.mark.slow
def test_noise_hides_members(tmp_path, monkeypatch) -> None:
    """1,600 digits, half of them at 200 clients, learned by heart without noise."""
    images, test = train_test_split(digits(), 0.1, np.random.default_rng(0))
    monkeypatch.setattr(figure6, "CLIENTS", 200)
    monkeypatch.setattr(figure6, "SHADOWS", 4)
    monkeypatch.setattr(figure6, "mnist", lambda part: {"train": images, "test": test}[part])
    monkeypatch.setattr(figure6, "standardized", lambda images: images)
    reported: list[str] = []
    table, text, figure = figure6.figure6(tmp_path, rounds=20, progress=reported.append)
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert len(reported) == 12
    assert len(rows) == 12 * 4
    ends = [row for row in rows if row["round"] == "20"]
    auc = {
        name: np.mean([float(row["threshold_auc"]) for row in ends if row["model"] == name])
        for name in ("Non-DP", "DP-Fed", "DP-Fed-LS")
    }
    assert auc["Non-DP"] > max(auc["DP-Fed"], auc["DP-Fed-LS"]) > 0.45
    without = [row for row in rows if row["model"] == "Non-DP"]
    losses = {
        name: [float(row[f"{name}_loss"]) for row in without] for name in ("training", "test")
    }
    assert losses["training"][0] > losses["training"][3]
    assert losses["training"][3] < losses["test"][3] < np.log(10)
    assert all(line in text.read_text() for line in reported)
    assert figure.stat().st_size > 10_000
