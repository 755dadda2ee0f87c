"""What the doctor says is what there is."""

from __future__ import annotations

from importlib import util
from pathlib import Path

import pytest

import dpmesh

testing = pytest.importorskip("typer.testing")

from dpmesh._extras import EXTRAS  # noqa: E402
from dpmesh.cli import app  # noqa: E402


def say() -> str:
    result = testing.CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    return result.output


def test_extras_are_there_or_named_as_missing() -> None:
    said = say()
    assert dpmesh.__version__ in said
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
    assert "data sets  mnist in DPMESH_DATA" in say()
    monkeypatch.delenv("DPMESH_DATA")
    assert "DPMESH_DATA is not set" in say()
