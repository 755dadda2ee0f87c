"""Planted mistakes: each must make the tests fail that are named beside it.

``python .ci/mutants.py`` plants those of ``mutants.toml`` one after the other in a copy of the
package and of the kernels, and runs their tests with it: about a minute each. Tests are named by
their files, those of Rust by crate and module (``crate::module``). Arguments choose mutants by
number or by a word; ``--check`` only finds their places and tests. A mutant that survives is a gap
in the tests, or has its reason beside it (``survives``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).parents[1]
SECONDS = 900


def place(folder: Path, old: str) -> Path:
    """Return the one file of the code in which a text stands once.

    Raises
    ------
    LookupError
        If it stands nowhere, or several times.
    """
    files = [*(folder / "dpmesh").rglob("*.py"), *(folder / "rust").rglob("*.rs")]
    counts = {path: path.read_text().count(old) for path in files}
    if sum(counts.values()) != 1:
        raise LookupError(f"{sum(counts.values())} places have the text {old!r}")
    return max(counts, key=lambda path: counts[path])


def is_placed(folder: Path, mutant: dict[str, Any], number: int) -> bool:
    """Return whether the code has the place of a mutant once and its tests exist; print why not."""
    try:
        place(folder, mutant["old"])
        commands(mutant["tests"])
    except LookupError as error:
        print(f"{number:3d} {mutant['what']}: {error}")
        return False
    return True


def copied(folder: Path) -> None:
    """Copy the package and the workspace of its kernels, without what was built."""
    built = shutil.ignore_patterns("__pycache__", "target")
    shutil.copytree(ROOT / "python" / "dpmesh", folder / "dpmesh", ignore=built)
    shutil.copytree(ROOT / "rust", folder / "rust", ignore=built)
    for path in ROOT.glob("Cargo.*"):
        shutil.copy(path, folder)


def commands(names: list[str]) -> tuple[tuple[str, ...], ...]:
    """Return the commands that run the tests of crates, and one for all files of Python."""
    crates = [name.split("::") for name in names if "::" in name]
    cargo = [("cargo", "test", "--quiet", "--tests", "--package", *words) for words in crates]
    files = [str(found_test(name)) for name in names if "::" not in name]
    pytest = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files)
    return (*cargo, *([pytest] if files else []))


def found_test(name: str) -> Path:
    """Return the file of tests of this name; fail with a `LookupError` without one."""
    for path in (ROOT / "tests").rglob(f"{name}.py"):
        return path
    raise LookupError(f"no file of tests is called {name}")


def outcome(mutant: dict[str, Any], folder: Path) -> str:
    """Plant a mistake in a copy of the code and return how its tests end."""
    try:
        path = place(folder, mutant["old"])
        asked = commands(mutant["tests"])
    except LookupError as error:
        return f"has no place: {error}"
    if any(passed(folder, command) != 0 for command in asked):
        return "not run: its tests fail without it"
    honest = path.read_text()
    path.write_text(honest.replace(mutant["old"], mutant["new"]))
    try:
        built = [run(folder, (*command, "--no-run")) for command in asked if command[0] == "cargo"]
        if any(built):
            return "not run: it does not compile"
        ended = next((end for command in asked if (end := run(folder, command)) != 0), 0)
    finally:
        path.write_text(honest)
    known = {0: "survives", 1: "killed", 2: "killed", 101: "killed", None: "killed, by time"}
    return known.get(ended, f"not run: its tests ended with {ended}")


def run(folder: Path, command: tuple[str, ...]) -> int | None:
    """Return how a command ends with the code of a folder; None if it takes too long."""
    cwd = folder if command[0] == "cargo" else ROOT
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    env["PROPTEST_RNG_SEED"] = "1"
    try:
        found = subprocess.run(command, env=env, cwd=cwd, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return found.returncode


passed = cache(run)
"""How tests end with the package as it is, once for each choice of tests."""


def main(words: list[str]) -> int:
    """Plant the mutants that are asked for; return how many were not killed without a reason."""
    mutants = tomllib.loads((Path(__file__).parent / "mutants.toml").read_text())["mutant"]
    asked = [word for word in words if word != "--check"]
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copied(folder)
        for number, mutant in enumerate(mutants):
            if asked and not any(word == str(number) or word in mutant["what"] for word in asked):
                continue
            if "--check" in words:
                bad += not is_placed(folder, mutant, number)
                continue
            ended = outcome(mutant, folder)
            explained = ended == "survives" and mutant.get("survives")
            bad += not (ended.startswith("killed") or explained)
            why = f" ({mutant['survives']})" if explained else ""
            print(f"{number:3d} {mutant['what']}: {ended}{why}", flush=True)
    print(f"{bad} without a place" if "--check" in words else f"{bad} not killed")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
