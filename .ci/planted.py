"""Planted mistakes of size, thread, type and panel in the kernels, all in one build.

``python .ci/planted.py`` plants every mistake of ``planted.toml`` in a copy of the crates, each
behind a switch, builds their tests once, and runs for each mistake the test beside it with its
switch on: a few seconds each. The test must fail, and pass with all switches off. ``--check`` only
finds the places.

A mistake replaces one expression by another of its type; ``old`` stands once in the crates.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[1]
SWITCH = "DPMESH_PLANTED"
SECONDS = 300

MODULE = f"""//! The planted mistake that this process makes.

use std::sync::LazyLock;

static NUMBER: LazyLock<Option<usize>> =
    LazyLock::new(|| std::env::var("{SWITCH}").ok().and_then(|number| number.parse().ok()));

pub(crate) fn is(number: usize) -> bool {{
    *NUMBER == Some(number)
}}
"""


@dataclass(frozen=True)
class Mistake:
    """An expression of a crate, what replaces it, and the test that must fail then."""

    what: str
    old: str
    new: str
    test: str
    crate: str = "core"


def mistakes() -> list[Mistake]:
    """Read the mistakes of ``planted.toml``."""
    tables = tomllib.loads((Path(__file__).parent / "planted.toml").read_text())["planted"]
    return [Mistake(**table) for table in tables]


def place(rust: Path, mistake: Mistake) -> Path:
    """Return the one file of a crate in which an expression stands once.

    Raises
    ------
    LookupError
        If it stands nowhere, or several times.
    """
    files = (rust / mistake.crate / "src").rglob("*.rs")
    counts = {path: path.read_text().count(mistake.old) for path in files}
    if sum(counts.values()) != 1:
        raise LookupError(f"{sum(counts.values())} places have the text {mistake.old!r}")
    return max(counts, key=lambda path: counts[path])


def plant(rust: Path, planted: list[Mistake]) -> None:
    """Put every mistake behind its switch."""
    for number, mistake in enumerate(planted):
        path = place(rust, mistake)
        switched = f"(if crate::planted::is({number}) {{ {mistake.new} }} else {{ {mistake.old} }})"
        path.write_text(path.read_text().replace(mistake.old, switched))
    for crate in {mistake.crate for mistake in planted}:
        source = rust / crate / "src"
        (source / "planted.rs").write_text(MODULE)
        library = source / "lib.rs"
        library.write_text(library.read_text() + "\nmod planted;\n")


def built_tests(folder: Path, crate: str) -> Path:
    """Build the unit tests of a crate and return their program."""
    command = ["cargo", "test", "--package", f"dpmesh-{crate}", "--lib", "--no-run"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    program = re.search(r"Executable unittests .*\((.*)\)", built.stderr)
    if program is None:
        sys.exit(f"the planted mistakes do not compile:\n{built.stderr}")
    return folder / program.group(1)


def fails(program: Path, test: str, number: int | None) -> bool:
    """Return whether a test fails, with the switch of a mistake on; one that hangs fails."""
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    if number is not None:
        environment[SWITCH] = str(number)
    command = [str(program), "--exact", test]
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return True
    if ended.returncode == 0 and "1 passed" not in ended.stdout:
        sys.exit(f"no test is called {test}")
    return ended.returncode != 0


def main(words: list[str]) -> int:
    """Plant all mistakes and run their tests; return 1 if one survives."""
    planted = mistakes()
    if "--check" in words:
        for mistake in planted:
            place(ROOT / "rust", mistake)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "rust", folder / "rust", ignore=shutil.ignore_patterns("target"))
        for path in ROOT.glob("Cargo.*"):
            shutil.copy(path, folder)
        plant(folder / "rust", planted)
        programs = {crate: built_tests(folder, crate) for crate in {m.crate for m in planted}}
        for test, crate in sorted({(mistake.test, mistake.crate) for mistake in planted}):
            if fails(programs[crate], test, None):
                sys.exit(f"{test} fails without a mistake")
        survivors = 0
        for number, mistake in enumerate(planted):
            caught = fails(programs[mistake.crate], mistake.test, number)
            survivors += not caught
            outcome = "caught" if caught else "SURVIVES"
            print(f"{number:3d} {mistake.what}: {outcome} by {mistake.test}", flush=True)
    print(f"{len(planted) - survivors} of {len(planted)} caught")
    return min(survivors, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
