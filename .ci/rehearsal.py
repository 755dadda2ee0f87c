"""Run a job of a workflow on this machine: ``python .ci/rehearsal.py FILE:JOB [--wheel WHEEL]``.

The job gets what a runner would give it and nothing else: a copy of the tracked files, and a fresh
virtual environment that holds only what its steps install. Actions are replaced by what they leave
behind (`ACTIONS`); an action or an expression without a replacement is an error. Three things
differ, to save minutes: the package is not built for each job but installed from one wheel, sources
compile without optimization, and tests are only collected where ``.ci/run`` runs them: in an
environment with the extra ``test``, and under `--collect`. Toolchains stay as they are.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
WORKFLOWS = ROOT / ".github" / "workflows"
ACTIONS = {
    "actions/checkout": "checkout",
    "actions/setup-python": "python",
    "Swatinem/rust-cache": "nothing",
    "PyO3/maturin-action": "maturin",
    "actions/upload-artifact": "nothing",
    "rust-lang/crates-io-auth-action": "nothing",
}
"""What takes the place of an action."""

DOCKER = r"""#!{python}
# Run the command of `docker run OPTIONS IMAGE COMMAND` in a fresh virtual environment instead.
import os, subprocess, sys, tempfile, venv
options = iter(sys.argv[2:])
for word in options:
    if word in ("--volume", "--workdir"):
        next(options)
    elif not word.startswith("-"):
        break
with tempfile.TemporaryDirectory() as folder:
    venv.create(folder, with_pip=True)
    path = folder + "/bin:" + os.environ["PATH"]
    sys.exit(subprocess.call(list(options), env={{**os.environ, "PATH": path}}))
"""
PIPX = """#!/bin/sh
# `pipx run PACKAGE ARGUMENTS`
set -e
folder=$(mktemp -d)
{python} -m venv "$folder"
"$folder/bin/pip" install --quiet "$2"
shift
"$folder/bin/$@"
"""


RUSTUP = """#!/bin/sh
# The toolchain stays: a rehearsal changes nothing outside of its folder.
"""


@dataclass(frozen=True)
class Job:
    """One job of a workflow."""

    workflow: str
    name: str
    runs_on: str
    matrix: Mapping[str, Any]
    steps: tuple[Mapping[str, Any], ...]

    @property
    def has_commands(self) -> bool:
        """Whether any step is a command, and not an action."""
        return any("run" in step for step in self.steps)


def jobs() -> Iterator[Job]:
    """Read all jobs of all workflows; of a matrix, the first row of Linux on x86-64."""
    for file in sorted(WORKFLOWS.glob("*.yml")):
        workflow = YAML(typ="safe").load(file.read_text())
        for name, job in workflow["jobs"].items():
            row = _row(job.get("strategy", {}).get("matrix", {}))
            runs_on = _expand(job["runs-on"], {"matrix": row})
            yield Job(file.name, name, runs_on, row, tuple(job["steps"]))


def _row(matrix: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first row of a matrix that runs on Linux on x86-64, if any does."""
    axes = {name: values for name, values in matrix.items() if isinstance(values, list)}
    axes = {name: values for name, values in axes.items() if name not in ("include", "exclude")}
    rows = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    linux = [row for row in rows if row.get("os", "ubuntu-latest") == "ubuntu-latest"]
    return (linux or rows)[0]


def _expand(text: str, known: Mapping[str, Mapping[str, Any]]) -> str:
    """Replace ``${{ group.name }}`` by its value."""

    def value(match: re.Match[str]) -> str:
        group, _, name = match[1].partition(".")
        try:
            return str(known[group][name])
        except KeyError:
            raise ValueError(f"{match[0]}: a rehearsal does not know this expression") from None

    return re.sub(r"\$\{\{\s*(.*?)\s*\}\}", value, text)


def _applies(condition: str, known: Mapping[str, Mapping[str, Any]]) -> bool:
    """Evaluate the condition of a step: `always()`, or one comparison with a text."""
    if condition == "always()":
        return True
    match = re.fullmatch(r"(\w+)\.(\w+) (==|!=) '(.*)'", condition)
    if match is None:
        raise ValueError(f"if: {condition}: a rehearsal does not know this condition")
    equal = str(known[match[1]][match[2]]) == match[4]
    return equal if match[3] == "==" else not equal


class Rehearsal:
    """A folder, an environment and a job that runs in them."""

    def __init__(self, job: Job, folder: Path, wheel: Path | None, collect: bool) -> None:
        self.job = job
        self.folder = folder
        self.wheel = wheel
        self.collect = collect
        self.tree = folder / "tree"
        self.known = {"matrix": job.matrix}
        self.environment = self._runner()

    def _runner(self) -> dict[str, str]:
        """Return the environment of a runner: its tools, and none of ours."""
        tools = self.folder / "tools"
        tools.mkdir()
        scripts = Path(sys.executable).parent
        for name, text in (("docker", DOCKER), ("pipx", PIPX), ("rustup", RUSTUP)):
            (tools / name).write_text(text.format(python=Path(sys.executable).resolve()))
            (tools / name).chmod(0o755)
        ours = {"PYTHONPATH", "VIRTUAL_ENV", "PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST"}
        environment = {name: value for name, value in os.environ.items() if name not in ours}
        paths = [path for path in os.environ["PATH"].split(os.pathsep) if Path(path) != scripts]
        environment["PATH"] = os.pathsep.join([str(tools), *paths])
        environment["GITHUB_SERVER_URL"] = "https://repository.example"
        environment["GITHUB_REPOSITORY"] = "owner/dpmesh"
        environment["GITHUB_REF_NAME"] = "v0"
        environment["CARGO_TARGET_DIR"] = str(self.folder / "target")
        for profile in ("RELEASE", "DEV"):
            environment[f"CARGO_PROFILE_{profile}_OPT_LEVEL"] = "0"
            environment[f"CARGO_PROFILE_{profile}_CODEGEN_UNITS"] = "256"
        return environment

    def run(self) -> None:
        """Run all steps that apply."""
        self.tree.mkdir()
        for step in self.job.steps:
            if not _applies(step.get("if", "always()"), self.known):
                continue
            if "uses" in step:
                action = step["uses"].partition("@")[0]
                if action not in ACTIONS:
                    raise ValueError(f"uses: {action}: a rehearsal has nothing in its place")
                getattr(self, "_" + ACTIONS[action])(step.get("with", {}))
            else:
                self._command(step)

    def _nothing(self, inputs: Mapping[str, Any]) -> None:
        """Leave nothing behind."""

    def _checkout(self, inputs: Mapping[str, Any]) -> None:
        """Copy the tracked files, as they are now."""
        listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
        for name in listed.rstrip("\0").split("\0"):
            source, target = ROOT / name, self.tree / name
            if source.exists() or source.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)

    def _python(self, inputs: Mapping[str, Any]) -> None:
        """Make an empty environment of the Python that is here, whatever version is asked for."""
        where = self.folder / "python"
        subprocess.check_call([Path(sys.executable).resolve(), "-m", "venv", where])
        self.environment["PATH"] = f"{where / 'bin'}{os.pathsep}{self.environment['PATH']}"

    def _maturin(self, inputs: Mapping[str, Any]) -> None:
        """Put a wheel or an sdist where the action would put it."""
        words = shlex.split(_expand(inputs["args"], self.known))
        out = self.tree / words[words.index("--out") + 1]
        out.mkdir()
        if inputs.get("command", "build") == "sdist":
            maturin = [sys.executable, "-m", "maturin", "sdist", "--out", str(out)]
            subprocess.check_call(maturin, cwd=self.tree)
        elif self.wheel is None:
            raise ValueError(f"{self.job.workflow}:{self.job.name} needs --wheel")
        else:
            shutil.copy2(self.wheel, out)

    def _command(self, step: Mapping[str, Any]) -> None:
        """Run a step's command as a runner does, with the wheel in the place of the sources."""
        command = _expand(step["run"], self.known)
        if self.wheel is not None:
            command = re.sub(r"""(-e )?(["'])\.(\[[\w,]+\])\2""", rf'"{self.wheel}\3"', command)
        print(f"== {self.job.workflow}:{self.job.name}: {command.strip()}", flush=True)
        if self.collect or "[test]" in command:
            self.environment["PYTEST_ADDOPTS"] = "--collect-only -q"
        own = {name: _expand(str(value), self.known) for name, value in step.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", command],
            cwd=self.tree,
            env={**self.environment, **own},
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"{self.job.workflow}:{self.job.name}: exit status {done.returncode}")


def main() -> None:
    """Rehearse the jobs named on the command line."""
    parser = argparse.ArgumentParser(description="Run a workflow's job on this machine.")
    parser.add_argument("job", help="such as wheels.yml:wheel")
    parser.add_argument("--wheel", type=Path, help="a wheel of this package, built from this tree")
    parser.add_argument("--collect", action="store_true", help="collect tests, and run none")
    given = parser.parse_args()
    named = {f"{job.workflow}:{job.name}": job for job in jobs()}
    if given.job not in named:
        raise SystemExit(f"{given.job}: no such job; there are {', '.join(named)}")
    wheel = given.wheel and given.wheel.resolve()
    with TemporaryDirectory() as folder:
        Rehearsal(named[given.job], Path(folder), wheel, given.collect).run()


if __name__ == "__main__":
    main()
