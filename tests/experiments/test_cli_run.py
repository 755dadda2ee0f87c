"""``dpmesh run``, ``report`` and ``doctor``: what they print."""

from __future__ import annotations

import re
import sys
from datetime import date
from importlib import util
from pathlib import Path

import pytest
from command import command
from problems import Spendthrift
from test_experiments import TEXT, write
from test_experiments_module import OWN, WITH_OWN

from dpmesh import __version__
from dpmesh._extras import EXTRAS
from dpmesh.experiments import Result
from dpmesh.experiments.sweep import claim
from dpmesh.settings import Settings
from dpmesh.settings.parts import SECTIONS


@pytest.mark.slow
def test_the_command_line_tells_once_what_ails_many_runs(tmp_path) -> None:
    file = write(tmp_path, TEXT.replace("rounds = 6", "rounds = 1000"))
    said = command("run", file, "--output", tmp_path / "r", "--processes", 1, code=1)
    assert said.count("Error: ") == 1
    assert re.search(r"^Error: algorithm\S+ and 3 more: .*rounds: wanted at most", said)


def test_a_date_that_no_run_reads_is_named(tmp_path) -> None:
    settings = Settings({"run": {"seed": date(2026, 1, 1)}, "sweep": {"seeds": [1]}})
    with pytest.raises(ValueError, match=r"run\.seed: wanted no date or time, got 2026-01-01"):
        claim(tmp_path, settings)


def test_the_command_line_keeps_a_budget(tmp_path, monkeypatch, caplog) -> None:
    def call(budget: str, code: int) -> str:
        text = TEXT.replace('"OnlineLearning"', '"Spendthrift"\nepsilon = 0.1')
        file = write(tmp_path, text.partition("[sweep]")[0] + f"[budget]\nepsilon = {budget}\n")
        return command("run", file, "--output", tmp_path / "r", code=code)

    monkeypatch.setitem(SECTIONS["algorithm"], "Spendthrift", Spendthrift)
    most = "line 2: run.rounds: wanted at most 1, which epsilon = 0.05 at delta = 0 allows"
    assert most in call("0.05", code=2)
    assert not (tmp_path / "r").exists()
    call("0.6", code=0)
    assert "the budget ended a run after 4 rounds" in caplog.text
    result = Result.load(tmp_path / "r" / "run")
    assert result.run["settings"]["rounds"] == "4 of 6: there the budget ended"
    assert 0.4 < result.privacy.epsilon <= 0.6


@pytest.mark.slow
def test_noise_without_an_epsilon_is_explained(tmp_path) -> None:
    algorithm = '[algorithm]\nkind = "GradientDescent"\n'
    head = TEXT.replace("delta = 1e-5\n", "").partition("[algorithm]")[0]
    for noise, said in (("20.0", True), ('"none"', False)):
        file = write(tmp_path, f"format = 2\n{head}{algorithm}noise_multiplier = {noise}\n")
        folder = tmp_path / str(said)
        printed = command("run", file, "--output", folder)
        explained = "There is noise, but no epsilon: Gaussian noise needs a delta above 0"
        assert (explained in printed) == said
        assert (explained in (folder / "report.html").read_text()) == said


@pytest.mark.slow
def test_the_command_line_takes_a_module_beside_the_file(tmp_path, monkeypatch) -> None:
    (tmp_path / "own_parts_here.py").write_text(OWN)
    write(tmp_path, WITH_OWN.partition("[sweep]")[0] + "[sweep]\nalgorithm.factor = [0.5, 1.0]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    call = ["run", "experiment.toml", "--module"]
    missing = command(*call, "not_here", code=2)
    assert "module: wanted the name of one that can be imported" in missing
    command(*call, "own_parts_here")
    reported = Result.load(tmp_path / "experiment-results" / "algorithm.factor=0.5").settings
    assert reported["algorithm"].startswith("Halved(")


@pytest.mark.slow
def test_the_command_line_runs_reports_and_explains(tmp_path, monkeypatch) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    docs = Path(__file__).parent.parent.parent / "docs" / "simulator.md"
    example = re.search(r"```toml\n(.*?)```", docs.read_text(), re.S)
    assert example is not None
    text = example[1].replace("[1, 2, 3]", "[1]").replace("4.0, 16.0,", "4.0,")
    path, folder = write(tmp_path, text), tmp_path / "results"
    ran = command("run", path, "--output", folder, "--processes", 1)
    assert f"a page of them: {folder / 'report.html'}" in ran
    assert re.search(r"epsilon = 4.0 +4 +record +replace-one +sees all releases +0\.\d+", ran)
    assert re.search(r"In all rows: runs 1, delta 1e-05, .*over single site -, MB sent", ran)
    assert (folder / "report.html").exists()
    command("report", folder)
    some = folder.glob("algorithm.epsilon=1.0*")
    command("report", folder, *some, "--output", tmp_path / "p")
    assert (tmp_path / "p").exists()
    assert "ends in .html, .tex" in command("report", folder, "--output", "p.pdf", code=2)
    bad = command("run", write(tmp_path, text.replace("iid", "id")), "--output", folder, code=2)
    assert "partition.kind: wanted one of iid" in bad
    assert "epsilon" in command("run", "--settings")
    command("run", code=2)
    command("report", tmp_path / "nowhere", code=2)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install matplotlib" in command("report", folder, code=2)


def test_extras_are_there_or_named_as_missing() -> None:
    said = command("doctor")
    assert __version__ in said
    for extra, distributions in EXTRAS.items():
        modules = ["sklearn" if name == "scikit-learn" else name for name in distributions]
        there = all(util.find_spec(module) is not None for module in modules)
        assert (f"extra      {extra}: " in said) is there
        assert (f"missing    {extra}: pip install {' '.join(distributions)}" in said) is not there


def test_every_extra_of_users_is_known() -> None:
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")
    project = Path(__file__).parent.parent.parent / "pyproject.toml"
    declared = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(declared) - {"demo", "docs", "lint", "test"}


def test_data_sets_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mnist").mkdir()
    monkeypatch.setenv("DPMESH_DATA", str(tmp_path))
    assert "data sets  mnist in DPMESH_DATA" in command("doctor")
    monkeypatch.delenv("DPMESH_DATA")
    assert "DPMESH_DATA is not set" in command("doctor")
