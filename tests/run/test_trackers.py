"""Trackers get each measurement, offline, with the real packages."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from problems import stream_problem

import dpmesh as dm
from dpmesh.run import trackers


def learn(callback: Any) -> dm.Run:
    algorithm, ring = dm.OnlineLearning(epsilon=4.0), dm.topology.ring(4)
    measured = dm.Metrics(every=2, callback=callback)
    return dm.simulate(algorithm, stream_problem(4, 6), ring, rounds=6, metrics=measured)


def test_only_numbers_and_only_what_is_covered() -> None:
    values = {"loss": 1.0, "released_accuracy": 0.5, "node_accuracy": [0.1, 0.2]}
    assert trackers._numbers(values, False) == {"loss": 1.0, "released_accuracy": 0.5}
    assert trackers._numbers(values, True) == {"released_accuracy": 0.5}


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_what_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    with trackers.tensorboard(tmp_path) as callback:
        run = learn(callback)
    (file,) = tmp_path.glob("events*")
    content = file.read_bytes()
    for name in run.history.metrics:
        assert content.count(name.encode()) >= 3


@pytest.mark.filterwarnings("ignore")
def test_mlflow_keeps_rounds_and_says_how_a_run_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database would need sqlalchemy
    mlflow = pytest.importorskip("mlflow")
    where = tmp_path.as_uri()
    client = mlflow.MlflowClient(where)
    client.create_experiment("digits", artifact_location=str(tmp_path))
    with trackers.mlflow("digits", tracking_uri=where) as callback:
        run = learn(callback)

    def failing() -> None:
        with trackers.mlflow("digits", tracking_uri=where, released_only=True):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    runs = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert {one.info.status for one in runs} == {"FINISHED", "FAILED"}
    (kept,) = (one for one in runs if one.info.status == "FINISHED")
    history = client.get_metric_history(kept.info.run_id, "accuracy")
    assert [one.step for one in history] == run.history.rounds("accuracy").tolist()
    assert [one.value for one in history] == run.history["accuracy"].tolist()


@pytest.mark.filterwarnings("ignore")
def test_wandb_runs_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with trackers.wandb("digits", mode="offline", dir=tmp_path) as callback:
        run = learn(callback)
    (file,) = tmp_path.glob("wandb/offline*/*.wandb")
    for name in run.history.metrics:
        assert name.encode() in file.read_bytes()
