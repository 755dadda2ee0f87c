"""Planted mistakes: each must make the tests fail that are named beside it.

``python .ci/mutants.py`` plants those of ``mutants.toml`` one after the other in a copy of the
package, and runs their tests with it: about a minute each. Arguments choose them by number or by
a word; ``--check`` only finds their places. A mutant that survives is a gap in the tests, or has
its reason beside it (``survives``).
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


def place(package: Path, old: str) -> Path:
    """Return the one file of the package in which a text stands once.

    Raises
    ------
    LookupError
        If it stands nowhere, or several times.
    """
    counts = {path: path.read_text().count(old) for path in package.rglob("*.py")}
    if sum(counts.values()) != 1:
        raise LookupError(f"{sum(counts.values())} places have the text {old!r}")
    return max(counts, key=lambda path: counts[path])


def outcome(mutant: dict[str, Any], folder: Path) -> str:
    """Plant a mistake in a copy of the package and return how its tests end."""
    try:
        path = place(folder / "dpmesh", mutant["old"])
        tests = [next((ROOT / "tests").rglob(f"{name}.py")) for name in mutant["tests"]]
    except (LookupError, StopIteration) as error:
        return f"has no place: {error}"
    asked = tuple(map(str, tests))
    if passed(folder, asked) != 0:
        return "not run: its tests fail without it"
    honest = path.read_text()
    path.write_text(honest.replace(mutant["old"], mutant["new"]))
    try:
        ended = run(folder, asked)
    finally:
        path.write_text(honest)
    known = {0: "survives", 1: "killed", 2: "killed", None: "killed, by time"}
    return known.get(ended, f"not run: pytest ended with {ended}")


def run(folder: Path, tests: tuple[str, ...]) -> int | None:
    """Return how pytest ends with the package of a folder; None if it takes too long."""
    asked = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        found = subprocess.run(asked, env=env, cwd=ROOT, capture_output=True, timeout=SECONDS)
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
        shutil.copytree(
            ROOT / "python" / "dpmesh",
            folder / "dpmesh",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        for number, mutant in enumerate(mutants):
            if asked and not any(word == str(number) or word in mutant["what"] for word in asked):
                continue
            if "--check" in words:
                place(folder / "dpmesh", mutant["old"])
                continue
            ended = outcome(mutant, folder)
            explained = ended == "survives" and mutant.get("survives")
            bad += not (ended.startswith("killed") or explained)
            why = f" ({mutant['survives']})" if explained else ""
            print(f"{number:3d} {mutant['what']}: {ended}{why}", flush=True)
    print(f"{bad} not killed")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
