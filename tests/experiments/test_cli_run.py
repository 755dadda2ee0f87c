"""``dpmesh run`` and ``dpmesh report``: what they print."""

from __future__ import annotations

import re
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from problems import Spendthrift
from test_experiments import TEXT, write
from test_experiments_module import OWN, WITH_OWN

from dpmesh.experiments import Result
from dpmesh.experiments.sweep import claim
from dpmesh.settings import Settings
from dpmesh.settings.parts import SECTIONS


def test_the_command_line_tells_a_wrong_number_of_rounds_without_a_traceback(tmp_path) -> None:
    testing = pytest.importorskip("typer.testing")
    from dpmesh.cli import app

    rounds = next(line for line in TEXT.splitlines() if line.startswith("rounds"))
    file = write(tmp_path, TEXT.replace(rounds, 'rounds = "x"'))
    result = testing.CliRunner().invoke(app, ["run", str(file), "--folder", str(tmp_path / "r")])
    assert result.exit_code == 2
    assert "rounds: wanted" in result.output


def test_the_command_line_tells_once_what_ails_many_runs(tmp_path) -> None:
    testing = pytest.importorskip("typer.testing")
    from dpmesh.cli import app

    file = write(tmp_path, TEXT.replace("rounds = 6", "rounds = 1000"))
    result = testing.CliRunner().invoke(app, ["run", str(file), "--folder", str(tmp_path / "r")])
    assert result.exit_code == 1
    assert result.output.count("Error: ") == 1
    assert re.search(r"^Error: algorithm\S+ and 3 more: .*rounds: wanted at most", result.output)


def test_a_date_that_no_run_reads_is_named(tmp_path) -> None:
    settings = Settings({"run": {"seed": date(2026, 1, 1)}, "sweep": {"seeds": [1]}})
    with pytest.raises(ValueError, match=r"run\.seed: wanted no date or time, got 2026-01-01"):
        claim(tmp_path, settings)


def test_the_command_line_keeps_a_budget(tmp_path, monkeypatch, caplog) -> None:
    testing = pytest.importorskip("typer.testing")
    from dpmesh.cli import app

    def call(budget: str) -> Any:
        text = TEXT.replace('"OnlineLearning"', '"Spendthrift"\nepsilon = 0.1')
        file = write(tmp_path, text.partition("[sweep]")[0] + f"[budget]\nepsilon = {budget}\n")
        return testing.CliRunner().invoke(app, ["run", str(file), "--folder", str(tmp_path / "r")])

    monkeypatch.setitem(SECTIONS["algorithm"], "Spendthrift", Spendthrift)
    refused = call("0.05")
    assert refused.exit_code == 2
    assert (
        "line 2: run.rounds: wanted at most 1, which epsilon = 0.05 at delta = 0 allows"
        in refused.output
    )
    assert not (tmp_path / "r").exists()
    ended = call("0.6")
    assert ended.exit_code == 0, ended.output
    assert "the budget ended a run after 4 rounds" in caplog.text
    result = Result.load(tmp_path / "r" / "run")
    assert result.run["settings"]["rounds"] == "4 of 6: there the budget ended"
    assert 0.4 < result.privacy.epsilon <= 0.6


def test_the_command_line_takes_a_module_beside_the_file(tmp_path, monkeypatch) -> None:
    testing = pytest.importorskip("typer.testing")
    from dpmesh.cli import app

    (tmp_path / "own_parts_here.py").write_text(OWN)
    write(tmp_path, WITH_OWN.partition("[sweep]")[0] + "[sweep]\nalgorithm.factor = [0.5, 1.0]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    call = ["run", "experiment.toml", "--module"]
    missing = testing.CliRunner().invoke(app, [*call, "not_here"])
    assert missing.exit_code == 2
    assert "module: wanted the name of one that can be imported" in missing.output
    result = testing.CliRunner().invoke(app, [*call, "own_parts_here"])
    assert result.exit_code == 0, result.output
    reported = Result.load(tmp_path / "experiment-results" / "algorithm.factor=0.5").settings
    assert reported["algorithm"].startswith("Halved(")


def test_the_command_line_runs_reports_and_explains(tmp_path, monkeypatch) -> None:
    testing = pytest.importorskip("typer.testing")
    pytest.importorskip("matplotlib").use("Agg")
    from dpmesh.cli import app

    def call(*arguments: object) -> Any:
        return testing.CliRunner().invoke(app, [str(argument) for argument in arguments])

    docs = Path(__file__).parent.parent.parent / "docs" / "simulator.md"
    example = re.search(r"```toml\n(.*?)```", docs.read_text(), re.S)
    assert example is not None
    text = example[1].replace("[1, 2, 3]", "[1]")
    path, folder = write(tmp_path, text), tmp_path / "results"
    ran = call("run", path, "--folder", folder, "--processes", 1)
    assert ran.exit_code == 0, ran.output
    assert f"a page of them: {folder / 'report.html'}" in ran.output
    assert re.search(r"epsilon = 4.0 +4 +0\.\d+", ran.output)
    assert re.search(r"In all rows: runs 1, delta 1e-05, .*than alone -, MB sent", ran.output)
    assert (folder / "report.html").exists()
    assert call("report", folder).exit_code == 0
    both = call(
        "report", folder, *folder.glob("algorithm.epsilon=1.0*"), "--output", tmp_path / "p"
    )
    assert (both.exit_code, (tmp_path / "p").exists()) == (0, True)
    bad = call("run", write(tmp_path, text.replace("iid", "id")), "--folder", folder)
    assert bad.exit_code == 2
    assert "partition.kind: wanted one of iid" in bad.output
    assert "epsilon" in call("run", "--keys").output
    assert call("run").exit_code == 2
    assert call("report", tmp_path / "nowhere").exit_code == 2
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    lacking = call("report", folder)
    assert lacking.exit_code == 2
    assert "pip install matplotlib" in lacking.output
