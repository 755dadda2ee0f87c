"""Figure 2 of the federated paper: its files, and who is left out, on digits of scikit-learn."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from dpmesh.data import digits
from dpmesh.keys import Key
from dpmesh_papers import federated, federated_curves


@pytest.fixture
def small(monkeypatch) -> None:
    monkeypatch.setattr(federated_curves, "mnist", lambda part: digits())
    for module in (federated, federated_curves):
        monkeypatch.setattr(module, "TRAINING_RECORDS", 1500)


def test_nobody_trains_on_what_is_left_out(small) -> None:
    key, images = Key.seeded(3), digits()
    problem = federated.mnist_clients(images, images, 500, key)
    validation = federated_curves.left_out(images, key)
    both = np.concatenate([problem.train.features, validation.features])
    assert validation.records == images.records - 1500
    np.testing.assert_array_equal(
        both[np.lexsort(both.T)], images.features[np.lexsort(images.features.T)]
    )


def test_losses_of_parts_are_those_of_the_whole(small, monkeypatch) -> None:
    images = digits()
    problem = federated.mnist_clients(images, images, 500, Key.seeded(3))
    model = np.random.default_rng(0).normal(size=(1, problem.dim))
    whole = problem.objective(model, np.arange(problem.train.records)[np.newaxis])
    monkeypatch.setattr(federated_curves, "AT_ONCE", 400)
    assert federated_curves._loss(problem, model) == pytest.approx(whole[0], rel=1e-9)


@pytest.mark.slow
def test_files(small, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(federated_curves, "ROUNDS", 5)
    monkeypatch.setattr(federated_curves, "AT_ONCE", 400)  # of 1,500 records, so unequal parts
    reported: list[str] = []
    table, text, figure = federated_curves.figure2(tmp_path, seeds=2, progress=reported.append)
    with table.open() as file:
        points = list(csv.DictReader(file))
    assert len(points) == 2 * 4 * 2 * 5
    assert len(reported) == 2 * 4
    assert all(line in text.read_text() for line in reported)
    assert {point["round"] for point in points} == set("12345")
    assert all(0 <= float(point["accuracy"]) <= 100 for point in points)
    final = [p for p in points if p["round"] == "5"]
    assert all(0 <= float(p["training_accuracy"]) <= 100 for p in final)
    assert max(float(p["validation_loss"]) for p in final if p["smoothing"] == "1.0") < np.log(10)
    last = [float(p["loss"]) for p in points if p["round"] == "5" and p["smoothing"] == "1.0"]
    assert max(last) < np.log(10)  # it learns
    assert figure.stat().st_size > 10_000
