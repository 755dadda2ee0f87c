"""Measurements as tidy records, in every format, and metrics of the user's own."""

from __future__ import annotations

import csv
import json
from typing import Any

import numpy as np
import pytest
from problems import stream_problem as make_problem
from test_simulate import run

import dpmesh as dm
from dpmesh.run import History, tracked
from dpmesh.run.history import Record


def history() -> History:
    measured = History()
    measured.add(5, {"accuracy": 0.5, "seconds": 2.0})
    measured.add(10, {"accuracy": np.float32(0.75), "by_node": np.array([1, 2, 3]), "seconds": 4.5})
    measured.add(15, {"accuracy": np.nan, "seconds": 7.0})
    return measured


def test_it_prints_briefly() -> None:
    assert repr(history()) == "History(7 measurements: accuracy, seconds, by_node)"


ROWS = [
    (5, None, "accuracy", 0.5),
    (5, None, "seconds", 2.0),
    (10, None, "accuracy", 0.75),
    (10, 0, "by_node", 1.0),
    (10, 1, "by_node", 2.0),
    (10, 2, "by_node", 3.0),
    (10, None, "seconds", 4.5),
    (15, None, "accuracy", None),
    (15, None, "seconds", 7.0),
]


def without_nan(rows: Any) -> list[tuple[Any, ...]]:
    return [tuple(None if x is None or x != x else x for x in row) for row in rows]


def test_records_are_one_for_each_number() -> None:
    assert without_nan(history().records) == ROWS
    assert Record._fields == ("round", "node", "metric", "value")
    assert history().metrics == ("accuracy", "seconds")
    assert history().node_metrics == ("by_node",)
    np.testing.assert_array_equal(history()["seconds"], [2.0, 4.5, 7.0])
    np.testing.assert_array_equal(history().rounds("accuracy"), [5, 10, 15])
    np.testing.assert_array_equal(history().node_values("by_node"), [[1, 2, 3]])


def test_what_it_told_makes_it_again() -> None:
    found = History.from_dicts(json.loads(json.dumps(history().as_dicts())))
    assert without_nan(found.records) == ROWS
    np.testing.assert_array_equal(found.node_values("by_node"), [[1, 2, 3]])


def test_measurements_go_to_a_tracker_only_if_covered() -> None:
    logged: list[tuple[str, float, int]] = []
    values = {"loss": 1.0, "released_accuracy": 0.5, "node_accuracy": np.array([0.1, 0.2])}
    for only in (True, False):
        tracked(lambda *one: logged.append(one), released_only=only)(3, values)
    covered = ("released_accuracy", 0.5, 3)
    assert logged == [covered, ("loss", 1.0, 3), covered]


def test_when_a_level_was_reached() -> None:
    assert history().first("accuracy", 0.6) == 10
    assert history().first("accuracy", 0.6, of="seconds") == 4.5
    assert history().first("accuracy", 0.9) is None


def test_csv_holds_all_records(tmp_path) -> None:
    history().to_csv(tmp_path / "h.csv")
    with (tmp_path / "h.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == ["round", "node", "metric", "value"]
    assert rows[3] == ["10", "0", "by_node", "1.0"]
    assert len(rows) == len(ROWS)


def test_tables_of_pandas_hold_all_records() -> None:
    pytest.importorskip("pandas")
    table = history().to_pandas()
    assert table["node"].isna().tolist() == [row[1] is None for row in ROWS]
    assert table["node"].dropna().tolist() == [0, 1, 2]
    assert table["metric"].tolist() == [row[2] for row in ROWS]
    assert table["round"].dtype == np.int64
    assert table["value"].dtype == np.float64
    assert History().to_pandas().empty


def test_users_measure_what_they_like() -> None:
    def largest(problem: Any, parameters: Any, received: Any) -> float:
        return float(np.abs(parameters).max())

    def drift(problem: Any, parameters: Any, received: Any) -> Any:
        return np.linalg.norm(parameters - received, axis=1)

    seen = []
    result = run(
        make_problem(),
        metrics=dm.Metrics(
            [largest, "node_accuracy", drift],
            every=3,
            callback=lambda t, values: seen.append((t, sorted(values))),
        ),
    )
    assert result.history.metrics == ("largest", "megabytes")
    assert result.history.node_metrics == ("node_accuracy", "drift")
    assert result.history.last("largest") == np.abs(result.parameters).max()
    assert result.history.node_values("drift").shape == (2, 4)
    accuracies = make_problem().accuracy(result.parameters)
    np.testing.assert_array_equal(result.history.node_values("node_accuracy")[-1], accuracies)
    assert seen == [(t, ["drift", "largest", "megabytes", "node_accuracy"]) for t in (3, 6)]


def test_a_metric_cannot_change_what_the_rounds_go_on_with() -> None:
    def centred(problem: Any, parameters: Any, received: Any) -> float:
        parameters -= parameters.mean(axis=0)
        return float(np.abs(parameters).max())

    def cleared(problem: Any, parameters: Any, received: Any) -> float:
        received[:] = 0
        return 0.0

    for metric in (centred, cleared):
        with pytest.raises(ValueError, match="read-only"):
            run(make_problem(), metrics=[metric])


@pytest.mark.parametrize("value", [np.ones((2, 2)), np.ones(3), [], "text", None])
def test_a_measurement_is_a_number_or_one_for_each_node(value: Any) -> None:
    def mine(problem: Any, parameters: Any, received: Any) -> Any:
        return value

    with pytest.raises(ValueError, match="mine: wanted a number, or one for each node, got"):
        run(make_problem(), metrics=[mine])


def test_an_unknown_metric_is_named() -> None:
    with pytest.raises(ValueError, match="metric: wanted one of 'by_node', got 'accuracy'"):
        history().node_values("accuracy")
    with pytest.raises(ValueError, match="metric: wanted one of 'accuracy', 'seconds', got 'b'"):
        history().first("b", 1.0)
    with pytest.raises(ValueError, match=r"metric: wanted one of the network, got 'by_node', of e"):
        history()["by_node"]
    with pytest.raises(
        ValueError, match=r"metric: wanted a metric of each node, .*, got 'accuracy'"
    ):
        History().node_values("accuracy")


def test_regret_of_many_nodes_is_measured_when_asked_for_only() -> None:
    many = make_problem(300, 2)
    topology = dm.topology.ring(300)
    options: dict[str, Any] = {"rounds": 2, "key": dm.Key.seeded(0)}
    quiet = dm.simulate(dm.OnlineLearning(), many, topology, **options)
    assert "regret" not in quiet.history.metrics
    asked = dm.simulate(dm.OnlineLearning(), many, topology, metrics=["regret"], **options)
    assert "regret" in asked.history.metrics
