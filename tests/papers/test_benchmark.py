"""The benchmark: every row keeps its budget by public numbers alone, or says why it is left out."""

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
from dpmesh_papers.benchmark import folder as benchmark_folder
from dpmesh_papers.benchmark.cells import ALONE, ALONE_PRIVATE, MAJORITY, POOLED, Cell, cells_of
from dpmesh_papers.benchmark.methods import ROWS
from dpmesh_papers.benchmark.results import AS_MAJORITY, as_markdown, read, save, verdict
from dpmesh_papers.benchmark.setting import MethodRow, Setting
from dpmesh_papers.gradient_perturbation import ChocoSGD


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
    own = problem(seed)
    return Setting(problem=own, unit="record", epsilon=3.0, delta=1e-5, featured=lambda: own)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_follows_from_public_numbers_and_keeps_the_budget(row: MethodRow) -> None:
    one, other = row.trial(setting(0)), row.trial(setting(1))
    assert one.algorithm == other.algorithm
    assert one.rounds == other.rounds
    plan = one.algorithm.plan(one.rounds, one.problem)
    view = one.budget.view if one.budget else None
    cost = plan.cost(1e-5) if view is None else plan.cost(1e-5, view=view)
    assert 2.9 < cost.epsilon <= 3.0 * (1 + 1e-9)
    assert (plan.neighboring_relation, plan.unit in ("record", "user")) == ("replace_one", True)


@pytest.mark.slow
def test_the_benchmark_runs_on_a_small_task(tmp_path: Path) -> None:
    for extra in ("sklearn", "matplotlib"):
        pytest.importorskip(extra)
    from command import command

    arguments = "benchmark", "breast-cancer", "--quick", "--output", tmp_path
    assert "split 0" in command(*arguments)
    found = json.loads((tmp_path / "benchmark.json").read_text())
    cells = {cell["method"]: cell for cell in found["cells"]}
    assert {row.name for row in ROWS} <= {*cells}
    for row in ROWS:
        cell = cells[row.name]
        assert cell["why"] or cell["proved"] <= 2.0 * (1 + 1e-9) or cell["view"]
    assert cells[POOLED]["accuracy"][0] > cells[MAJORITY]["accuracy"][0] + 0.1
    assert (
        verdict([*map(Cell.from_dict, found["cells"])]) in (tmp_path / "benchmark.md").read_text()
    )
    assert found["made"]["breast-cancer"]["quick"] is True
    page = (tmp_path / "benchmark.html").read_text()
    assert "data:image/svg+xml" in page
    assert "- *: better than" in page
    assert "split 0" not in command(*arguments)  # it goes on, from the end


def test_a_task_without_data_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DPMESH_DATA", str(tmp_path))
    reported: list[str] = []
    ((cell,),) = cells_of(
        "rcv1", epsilons=[1.0], splits=1, most_records=9, progress=reported.append
    )
    assert "rcv1_train.binary.bz2" in cell.why
    assert cell.why in as_markdown([cell], {})


def test_a_folder_keeps_the_results_of_other_tasks(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    def cell(task: str, accuracy: float, epsilon: float | None = None) -> Cell:
        return Cell(task=task, method=ALONE, trust="x", epsilon=epsilon, accuracy=(accuracy,))

    save([cell("rcv1", 0.5)], tmp_path, {"rcv1": {"keys": 1}})
    save([cell("mnist-10", 0.6)], tmp_path, {"mnist-10": {"keys": 2}})
    save([cell("rcv1", 0.7, 4.0), cell("rcv1", 0.9, 1.0)], tmp_path, {"rcv1": {"keys": 3}})
    cells, made = read(tmp_path)
    assert [(c.task, c.accuracy[0]) for c in cells] == [
        ("mnist-10", 0.6),
        ("rcv1", 0.9),
        ("rcv1", 0.7),
    ]
    assert made == {"mnist-10": {"keys": 2}, "rcv1": {"keys": 3}}
    (tmp_path / "benchmark.json").write_text('{"cells": []}')
    with pytest.raises(ValueError, match="remove it, or name another folder"):
        read(tmp_path)


def test_cells_of_other_settings_are_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only another date, as a night has two, and other epsilons keep the earlier cells."""
    kept = Cell(task="rcv1", method=ALONE, trust="x", epsilon=4.0, accuracy=(0.5,))
    fresh = Cell(task="rcv1", method=ALONE, trust="x", epsilon=1.0, accuracy=(0.6,))
    save([kept], tmp_path, {"rcv1": {"epsilons": [4.0], "commit": "a", "date": "day 1"}})
    monkeypatch.setattr(
        benchmark_folder, "cells_of", lambda _, **options: [[*options["earlier"], fresh]]
    )

    def run(**settings: str) -> None:
        options = benchmark_folder.Options(epsilons=[1.0])
        benchmark_folder.run_task("rcv1", tmp_path, options, settings, lambda _: None)

    run(commit="a", date="day 2")
    cells, provenances = read(tmp_path)
    assert [cell.epsilon for cell in cells] == [1.0, 4.0]
    assert provenances["rcv1"] == {"epsilons": [1.0, 4.0], "commit": "a", "date": "day 2"}
    run(commit="b", date="day 2")
    cells, provenances = read(tmp_path)
    assert [cell.epsilon for cell in cells] == [1.0]
    assert provenances["rcv1"]["epsilons"] == [1.0]


@pytest.mark.slow
def test_splits_go_on_where_they_ended() -> None:
    of = {"epsilons": [2.0], "most_records": None, "progress": lambda _: None}
    begun = cells_of("breast-cancer", splits=2, earlier=[], **of)  # type: ignore[arg-type]
    some = [next(begun) for _ in range(8)][-1]
    assert [len(cell.accuracy) for cell in some] == [1] * 8
    (*_, whole) = cells_of("breast-cancer", splits=1, earlier=some, **of)  # type: ignore[arg-type]
    (*_, fresh) = cells_of("breast-cancer", splits=1, earlier=[], **of)  # type: ignore[arg-type]
    assert [(c.method, c.accuracy) for c in whole] == [(c.method, c.accuracy) for c in fresh]


def test_chosen_rows_run_beside_the_baselines() -> None:
    of = {"epsilons": [2.0], "most_records": None, "progress": lambda _: None}
    (*_, some) = cells_of("breast-cancer", splits=1, methods=["one message"], **of)  # type: ignore[arg-type]
    private = {cell.method for cell in some if cell.epsilon is not None}
    assert private == {ALONE_PRIVATE} | {r.name for r in ROWS if "one message" in r.name}
    (*_, again) = cells_of("breast-cancer", splits=1, earlier=some, methods=["one message"], **of)  # type: ignore[arg-type]
    assert again == some


def test_the_verdict_takes_paired_intervals_of_enough_splits() -> None:
    """What all splits have in common cancels; chance and unstable cells beat nobody."""
    shared = np.random.default_rng(0).normal(0, 0.05, 10)

    def cell(method: str, gain: float, epsilon: float | None = 1.0, own: float = 0.01) -> Cell:
        draw = np.random.default_rng(len(method))
        accuracy = tuple(0.6 + gain + shared + draw.normal(0, own, 10))
        of = {"task": "rcv1", "trust": "x", "epsilon": epsilon}
        return Cell(method=method, accuracy=accuracy, **of)  # type: ignore[arg-type]

    levels = [cell(MAJORITY, -0.1, None), cell(ALONE, 0.0, None)]
    for tie in (cell("tie", 0.005), cell("noisy", 0.1, own=0.25)):
        assert "no private method clearly beats it" in verdict([*levels, tie])
    better = cell("A", 0.04)  # less than the spread of the splits
    assert "clearly beaten by A from epsilon 1 on" in verdict([*levels, better])
    few = [replace(one, accuracy=one.accuracy[:4]) for one in (*levels, better)]
    assert verdict(few).endswith("4 splits give no verdict.")
    empty = Cell(task="rcv1", method="C", trust="x", epsilon=1.0, why="no data")
    page = as_markdown([*levels, cell("lost", -0.1), cell("noisy", 0.1, own=0.25), empty], {})
    assert "- C: no data" in page
    for name, words in (("lost", AS_MAJORITY), ("noisy", "unstable")):
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {name}"))
        assert [text.strip() for text in line.split("|")][2:4] == ["x", words]
    sorted_page = as_markdown([*levels, cell("worse", 0.03), cell("best", 0.08), empty], {})
    rows = [line.split("|")[1].strip() for line in sorted_page.splitlines() if line[:2] == "| "]
    assert rows.index("best") < rows.index("worse") < rows.index(ALONE) < rows.index("C")


def test_choco_sends_differences_until_all_know_the_models() -> None:
    """With whole messages it is gossip of stepped models; with parts, the copies catch up."""
    task, links = problem(0), dm.topology.ring(5)
    whole = ChocoSGD(
        step_size=0.5,
        sample_size=40,
        records=40,
        noise_to_sensitivity=None,
        clipping_norm=1.0,
        keep=1.0,
        consensus_step_size=1.0,
    )
    run = dm.simulate(
        whole, task, links, rounds=4, key=Key.seeded(0), metrics=dm.Metrics([], progress=False)
    )
    x, mixing = task.zeros(), links.matrix(0).weights.toarray()
    for _ in range(4):
        gradient = task.gradient(x, task.full_batches, clipping_norm=1.0)
        x = mixing @ (x - 0.5 * gradient)
    np.testing.assert_allclose(run.parameters, x, atol=1e-12)
    parts = replace(whole, keep=0.5, consensus_step_size=0.5)
    run = dm.simulate(
        parts, task, links, rounds=40, key=Key.seeded(0), metrics=dm.Metrics([], progress=False)
    )
    whole_run = dm.simulate(
        whole, task, links, rounds=40, key=Key.seeded(0), metrics=dm.Metrics([], progress=False)
    )
    assert np.abs(run.parameters.mean(axis=0) - whole_run.parameters.mean(axis=0)).max() < 0.1
    assert run.traffic.bits < 0.75 * whole_run.traffic.bits
