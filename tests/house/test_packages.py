"""One distribution, two packages: both are built, and entry points lead from one to the other."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from mesh_parties import Parties

import dpmesh
import dpmesh._entry_points as entry_points
from dpmesh.experiments import Experiment
from dpmesh.settings import Settings

tomllib = pytest.importorskip("tomllib", reason="reads pyproject.toml")
typer = pytest.importorskip("typer")

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = {path.parent.name for path in (ROOT / "python").glob("*/__init__.py")}
LEARNED = {"kind": "DeepQ", "sees": "released", "anneal_rounds": 4}


def test_the_build_names_all_packages() -> None:
    """Without their names maturin leaves all but one out, and does not say so."""
    assert (
        {*PROJECT["tool"]["maturin"]["python-packages"]} == PACKAGES == {"dpmesh", "dpmesh_papers"}
    )


def test_a_source_distribution_holds_both(tmp_path: Path) -> None:
    maturin = Path(sys.executable).with_name("maturin")
    if not maturin.exists():
        pytest.skip("needs maturin")
    subprocess.run([maturin, "sdist", "--out", tmp_path], cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/python/")[2] for name in file.getnames()}
    for package in PACKAGES:
        wanted = (ROOT / "python" / package).rglob("*.py")
        assert {str(path.relative_to(ROOT / "python")) for path in wanted} <= names


def test_the_installed_distribution_holds_both() -> None:
    """It is a wheel, which lists its files, or editable, which names a folder."""
    distribution = metadata.distribution("dpmesh")
    files = {str(file): file for file in distribution.files or ()}
    editable = [file for name, file in files.items() if name.endswith(".pth")]
    for package in PACKAGES:
        if editable:
            folder = Path(editable[0].read_text().strip())
            assert (folder / package / "__init__.py").exists()
        else:
            assert f"{package}/__init__.py" in files


def test_the_installed_entry_points_are_the_projects() -> None:
    declared = PROJECT["project"]["entry-points"]
    for group in (entry_points.COMMANDS, entry_points.KINDS):
        assert {*entry_points.all_loaded(group)} == {*declared[group]}, "install dpmesh again"


def test_a_command_that_is_not_installed_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dpmesh.cli import app

    monkeypatch.setattr(entry_points, "_entry_points", lambda group: [])
    with pytest.raises(SystemExit) as stopped:
        typer.main.get_command(app)(["reproduce", "--help"])
    assert stopped.value.code == 2
    assert "pip install" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("module", ["deploy", "experiments", "sklearn", "statistics", "audit"])
def test_the_papers_are_not_loaded(module: str) -> None:
    code = f"import sys, dpmesh.{module}; print([m for m in sys.modules if 'dpmesh_papers' in m])"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert loaded.stdout.decode().strip() == "[]"


def experiment() -> dict[str, Any]:
    return {
        "format": 2,
        "run": {"rounds": 5, "delta": 1e-5},
        "data": {"source": "digits", "public_fraction": 0.1},
        "partition": {"kind": "iid", "nodes": 4},
        "problem": {"loss": "softmax"},
        "topology": {"kind": "ring"},
        "algorithm": {
            "kind": "WithoutReplacement",
            "batch_size": 2,
            "step_size": 0.1,
            "controller": LEARNED,
        },
    }


def test_experiments_name_kinds_of_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    made = Experiment.of(Settings(experiment()))
    controller: Any = made.algorithm
    assert type(controller.controller).__module__ == "dpmesh_papers.deep_q"
    monkeypatch.setattr(entry_points, "_entry_points", lambda group: [])
    with pytest.raises(ValueError, match=r"controller.kind: wanted one of AlwaysGlobal.*'DeepQ'"):
        Experiment.of(Settings(experiment()))


def test_contracts_read_no_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They mean the same whatever a party has installed."""

    def read(group: str) -> list[metadata.EntryPoint]:
        raise AssertionError(f"a contract read the entry points {group}")

    monkeypatch.setattr(entry_points, "_entry_points", read)
    Parties(tmp_path / "rule", "without replacement")
    with pytest.raises(ValueError, match=r"wanted one of AlwaysGlobal.*'DeepQ'"):
        Parties(tmp_path / "learned", "without replacement", changes={"controller": LEARNED})


def test_versions_agree() -> None:
    assert dpmesh.__version__ == metadata.version("dpmesh")


def test_files_state_one_version() -> None:
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    version = cargo["package"]["version"]
    crates = {name: one for name, one in cargo["dependencies"].items() if "path" in one}
    assert {one["version"] for one in crates.values()} == {version}
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    (heading, *_) = [
        line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")
    ]
    assert heading.split()[1] == version
