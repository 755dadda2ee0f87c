"""The arena: every row keeps its budget by public numbers alone, or says why it does not run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dpmesh as dm
from dpmesh.data import Dataset
from dpmesh.keys import Key
from dpmesh.problems import LinearProblem
from dpmesh.reproduce.arena.cells import ALONE, CHANCE, Cell, cells_of
from dpmesh.reproduce.arena.given import Row, Setting
from dpmesh.reproduce.arena.methods import ROWS
from dpmesh.reproduce.arena.results import as_markdown, as_text, read, verdict, write
from dpmesh.reproduce.gradient_perturbation import ChocoSGD


def problem(seed: int) -> LinearProblem:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(240, 4)).astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    data = Dataset(x, draw.integers(3, size=240))
    parts = tuple(np.split(np.arange(200), 5))
    return LinearProblem(
        data, parts, "softmax", test=data.take(np.arange(200, 240)), classes=3, feature_norm=1.0
    )


def setting(seed: int) -> Setting:
    return Setting(problem=problem(seed), unit="record", epsilon=3.0, delta=1e-5)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_follows_from_public_numbers_and_keeps_the_budget(row: Row) -> None:
    one, other = row.trial(setting(0)), row.trial(setting(1))
    assert one.algorithm == other.algorithm
    assert one.rounds == other.rounds
    plan = one.algorithm.plan(one.rounds, one.problem)
    view = one.budget.view if one.budget else None
    cost = plan.cost(1e-5) if view is None else plan.cost(1e-5, view=view)
    assert 2.9 < cost.epsilon <= 3.0 * (1 + 1e-9)
    assert (plan.neighboring_relation, plan.unit in ("record", "user")) == ("replace_one", True)


def test_the_arena_runs_on_a_small_task(tmp_path: Path) -> None:
    testing = pytest.importorskip("typer.testing")
    for extra in ("sklearn", "matplotlib"):
        pytest.importorskip(extra)
    from dpmesh.cli import app

    arguments = ["arena", "breast-cancer", "--quick", "--folder", str(tmp_path)]
    result = testing.CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "arena.json").read_text())
    cells = {cell["method"]: cell for cell in found["cells"]}
    assert {row.name for row in ROWS} <= {*cells}
    for row in ROWS:
        cell = cells[row.name]
        assert cell["why"] or cell["proved"] <= 2.0 * (1 + 1e-9) or cell["view"]
    assert cells["pooled, without privacy"]["accuracy"] > cells[CHANCE]["accuracy"] + 0.1
    assert found["verdict"] in (tmp_path / "arena.txt").read_text()
    assert found["made"]["breast-cancer"]["seeds"] == 1
    assert "data:image/svg+xml" in (tmp_path / "arena.html").read_text()


def test_a_task_without_data_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DPMESH_DATA", str(tmp_path))
    reported: list[str] = []
    (cell,) = cells_of("rcv1", epsilons=[1.0], seeds=1, quick=True, progress=reported.append)
    assert "rcv1_train.binary.bz2" in cell.why
    assert cell.why in as_text([cell])


def test_a_folder_keeps_the_results_of_other_tasks(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    def cell(task: str, accuracy: float) -> Cell:
        return Cell(task=task, method=ALONE, trust="x", epsilon=None, accuracy=accuracy)

    write([cell("rcv1", 0.5)], tmp_path, {"rcv1": {"seeds": 1}})
    write([cell("mnist-10", 0.6)], tmp_path, {"mnist-10": {"seeds": 2}})
    write([cell("rcv1", 0.7)], tmp_path, {"rcv1": {"seeds": 3}})
    cells, made = read(tmp_path)
    assert [(c.task, c.accuracy) for c in cells] == [("mnist-10", 0.6), ("rcv1", 0.7)]
    assert made == {"mnist-10": {"seeds": 2}, "rcv1": {"seeds": 3}}
    (tmp_path / "arena.json").write_text('{"cells": []}')
    with pytest.raises(ValueError, match="remove it, or name another folder"):
        read(tmp_path)


def test_the_verdict_names_what_beats_a_node_alone() -> None:
    def cell(method: str, accuracy: float | None, epsilon: float | None, trust: str = "x") -> Cell:
        of = {"task": "rcv1", "method": method, "trust": trust, "epsilon": epsilon}
        return Cell(**of, accuracy=accuracy, spread=0.01, seeds=3)  # type: ignore[arg-type]

    cells = [cell(CHANCE, 0.5, None), cell(ALONE, 0.6, None)]
    rows = [cell("A", 0.55, 1.0), cell("A", 0.7, 2.0), cell("B", 0.8, 2.0), cell("C", None, 1.0)]
    for accuracy in (0.59, 0.64):  # the interval of 3 runs is 5 points wide on either side
        said = verdict([*cells, cell("A", accuracy, 1.0)])
        assert "no private method clearly beats it" in said
    expected = "is clearly beaten by B from epsilon 2 on (80.0%, trusting x)."
    assert verdict([*cells, *rows]).endswith(expected)
    empty = replace(rows[-1], why="no data")
    assert "- C: no data" in as_markdown([*cells, *rows[:-1], empty], {})


def test_choco_sends_differences_until_all_know_the_models() -> None:
    """With whole messages it is gossip of stepped models; with parts, the copies catch up."""
    task, links = problem(0), dm.topology.ring(5)
    whole = ChocoSGD(
        step_size=0.5,
        sample_size=40,
        records=40,
        noise_multiplier=None,
        clipping_norm=1.0,
        keep=1.0,
        consensus_step_size=1.0,
    )
    run = dm.simulate(whole, task, links, rounds=4, key=Key.seeded(0), metrics=[], progress=False)
    x, mixing = task.zeros(), links.matrix(0).weights.toarray()
    for _ in range(4):
        gradient = task.gradient(x, task.everything, clipping_norm=1.0)
        x = mixing @ (x - 0.5 * gradient)
    np.testing.assert_allclose(run.parameters, x, atol=1e-12)
    parts = replace(whole, keep=0.5, consensus_step_size=0.5)
    run = dm.simulate(parts, task, links, rounds=40, key=Key.seeded(0), metrics=[], progress=False)
    whole_run = dm.simulate(
        whole, task, links, rounds=40, key=Key.seeded(0), metrics=[], progress=False
    )
    assert np.abs(run.parameters.mean(axis=0) - whole_run.parameters.mean(axis=0)).max() < 0.1
    assert run.traffic.bits < 0.75 * whole_run.traffic.bits
