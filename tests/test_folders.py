"""Commands find out before they begin that nothing can be written where results shall go."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dpmesh._folders import writable_folder

testing = pytest.importorskip("typer.testing")

EXPERIMENT = """
[run]
rounds = 2
[data]
source = "digits"
positive = [1]
[partition]
kind = "iid"
nodes = 2
[problem]
kind = "linear"
loss = "logistic"
[topology]
kind = "ring"
[algorithm]
kind = "OnlineLearning"
"""


@pytest.fixture(params=["a file", "below a file", "read-only"])
def unwritable(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    place = tmp_path / "there"
    if request.param == "read-only":
        if os.name != "posix" or os.geteuid() == 0:
            pytest.skip("who runs this may write everywhere")
        place.mkdir(0o500)
        return place
    place.write_text("mine")
    return place if request.param == "a file" else place / "results"


def never(*_: object, **__: object) -> None:
    raise AssertionError("began to work")


@pytest.mark.parametrize(
    ("command", "work"),
    [
        (["demo"], "dpmesh.demo.run_demo"),
        (["reproduce", "federated-figureS15"], "dpmesh.papers.federated_signals.figure_s15"),
        (["run", "experiment.toml"], "dpmesh.experiments.sweep.run_into"),
    ],
    ids=["demo", "reproduce", "run"],
)
def test_a_command_tells_it_before_its_runs(
    command: list[str],
    work: str,
    unwritable: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    from dpmesh.cli import app

    monkeypatch.chdir(tmp_path)
    Path("experiment.toml").write_text(EXPERIMENT)
    monkeypatch.setattr(work, never)
    result = testing.CliRunner().invoke(app, [*command, "--folder", str(unwritable)])
    assert result.exit_code == 2, result.output
    assert "cannot write into this folder: " in result.output
    assert str(unwritable) in result.output


def test_a_report_tells_it_before_its_figures(
    unwritable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    from dpmesh.cli import app

    def report(*output: str) -> str:
        result = testing.CliRunner().invoke(app, ["report", str(tmp_path / "results"), *output])
        assert result.exit_code == 2, result.output
        return result.output

    file = tmp_path / "experiment.toml"
    file.write_text(EXPERIMENT)
    invoke: Callable[..., object] = testing.CliRunner().invoke
    invoke(app, ["run", str(file), "--folder", str(tmp_path / "results")])
    monkeypatch.setattr("dpmesh.experiments.page.page", never)
    assert "cannot write into this folder: " in report("--output", str(unwritable / "page.html"))
    assert "target: wanted a file, got a folder" in report("--output", str(tmp_path))


def test_a_writable_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    folder = writable_folder(tmp_path / "new" / "folder")
    assert list(folder.iterdir()) == []
    assert writable_folder(folder) == folder
