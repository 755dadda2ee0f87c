"""The examples run, and each draws its figure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dpmesh

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_draws_its_figure(example: Path, tmp_path: Path) -> None:
    for extra in ("sklearn", "jax", "matplotlib"):
        pytest.importorskip(extra)
    home = str(Path(dpmesh.__file__).parent.parent)
    environment = {**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": home}
    command = [sys.executable, str(example)]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=600)
    assert (tmp_path / f"{example.stem}.png").stat().st_size > 10_000


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_on_the_page_with_its_figure(example: Path) -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    assert f'--8<-- "examples/{example.name}"' in page
    assert f"](images/{example.stem}.png)" in page
    assert (ROOT / "docs" / "images" / f"{example.stem}.png").is_file()
