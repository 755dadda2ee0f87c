"""The workflows: valid, hardened, and their commands run here before a runner runs them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("ruamel.yaml", reason="needs the extra 'lint'")
typer_main = pytest.importorskip("typer.main")

from dpmesh.cli import app  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
UNITS = sorted((ROOT / "packaging").glob("*.service"))
REHEARSAL = ROOT / ".ci" / "rehearsal.py"

RUN = [
    "ci.yml:portable",
    "wheels.yml:wheel",
    "wheels.yml:musl",
    "wheels.yml:sdist",
    "wheels.yml:crates",
]
"""Jobs whose commands all run."""
COLLECT = ["ci.yml:flower", "ci.yml:oldest", "reproduce.yml:nvflare"]
"""Jobs of other versions of packages: they install, and collect the tests that `.ci/run` runs."""
NOT_HERE = {
    "ci.yml:everything": "it is .ci/run",
    "ci.yml:platforms": "it is README's test command, which .ci/run runs",
    "ci.yml:dependencies": "it needs the databases of advisories",
    "ci.yml:torch": "it needs macOS, where PyTorch comes without CUDA",
    "mutants.yml:planted": "it takes hours, every week",
    "mutants.yml:schedules": "it takes minutes, every week; a quarter of it is a test here",
    "reproduce.yml:small": "it takes an hour, every week",
    "wheels.yml:release_crates": "it publishes",
}


def imported(name: str) -> ModuleType:
    """Import a program of .ci."""
    found = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    return module


def tool(name: str, *arguments: str | Path) -> None:
    """Run a checker of this environment."""
    program = Path(sys.executable).parent / name
    if not program.exists():
        pytest.skip("needs the extra 'lint'")
    checked = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_valid(workflow: Path) -> None:
    tool("check-jsonschema", "--builtin-schema", "vendor.github-workflows", workflow)


def test_updates_of_dependencies_are_asked_for() -> None:
    tool("check-jsonschema", "--builtin-schema", "vendor.dependabot", GITHUB / "dependabot.yml")


def test_workflows_are_hardened() -> None:
    tool("zizmor", "--offline", "--quiet", GITHUB)  # pinned actions, few permissions, no injections


def test_a_scalar_that_ends_in_a_colon_is_refused(tmp_path: Path) -> None:
    """The mistake that once kept all jobs of ci.yml from running."""
    text = (GITHUB / "workflows" / "ci.yml").read_text()
    quoted = '"cargo test -p dpmesh-core --lib --test kernels -- stream:: noise_values::"'
    assert quoted in text
    broken = tmp_path / "ci.yml"
    broken.write_text(text.replace(quoted, quoted.strip('"')))
    with pytest.raises(AssertionError, match="mapping values are not allowed"):
        test_a_workflow_is_valid(broken)


def test_every_job_is_rehearsed_or_says_why_not() -> None:
    named = {
        f"{job.workflow}:{job.name}" for job in imported("rehearsal").jobs() if job.has_commands
    }
    assert named == {*RUN, *COLLECT, *NOT_HERE}


def test_a_release_has_an_address() -> None:
    address = imported("address")
    where = "https://host.example/owner/dpmesh/blob/v1"
    readme = address.absolute_links((ROOT / "README.md").read_text(), where)
    assert "](docs/" not in readme
    assert "(https://host.example/owner/dpmesh/raw/v1/docs/images/demo.png)" in readme
    pyproject = address.with_urls((ROOT / "pyproject.toml").read_text(), where)
    assert 'Repository = "https://host.example/owner/dpmesh"' in pyproject


def test_published_crates_have_an_address() -> None:
    tomllib = pytest.importorskip("tomllib", reason="reads Cargo.toml")
    address = imported("address")
    where = "https://host.example/owner/dpmesh/blob/v1"
    workspace = address.with_repository((ROOT / "Cargo.toml").read_text(), where)
    repository = tomllib.loads(workspace)["workspace"]["package"]["repository"]
    assert repository == "https://host.example/owner/dpmesh"
    for path in sorted(ROOT.glob("rust/*/Cargo.toml")):
        crate = tomllib.loads(address.in_repository(path.read_text()))
        assert crate["package"]["repository"] == {"workspace": True}, path


def test_files_for_services_are_valid() -> None:
    tool("check-jsonschema", "--builtin-schema", "vendor.readthedocs", ROOT / ".readthedocs.yaml")
    citation = ROOT / "CITATION.cff"
    tool("check-jsonschema", "--builtin-schema", "vendor.citation-file-format", citation)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_of_systemd_is_valid(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze")
    here = tmp_path / unit.name
    here.write_text(unit.read_text().replace("/opt/dpmesh/bin/dpmesh", "/bin/true"))
    checked = subprocess.run([analyze, "verify", here], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert not checked.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_of_systemd_gives_options_that_exist(unit: Path) -> None:
    (command,) = re.findall(r"^ExecStart=\S+ (.*)$", unit.read_text(), re.M)
    name = command.split()[0]
    known = {
        option
        for parameter in typer_main.get_command(app).commands[name].params
        for option in parameter.opts
    }
    assert set(re.findall(r"--[a-z]+", command)) <= known


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this tree, from the build folder that the last installation left.

    The workers of pytest-xdist share it: builds of one folder damage each other's wheels.
    """
    fcntl = pytest.importorskip("fcntl", reason="needs locks of files")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "wheel"
    folder.mkdir(exist_ok=True)
    with (shared / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the process that holds it
        if not any(folder.glob("*.whl")):
            built = [
                sys.executable,
                "-m",
                "pip",
                "wheel",
                "--quiet",
                "--no-deps",
                "-w",
                folder,
                ROOT,
            ]
            subprocess.run(built, check=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("job", [*RUN, *COLLECT])
def test_the_commands_of_a_job_run(job: str, wheel: Path, tmp_path: Path) -> None:
    command = [sys.executable, REHEARSAL, job, "--wheel", wheel]
    if job in COLLECT:
        command.append("--collect")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, (done.stdout + done.stderr)[-10_000:]
