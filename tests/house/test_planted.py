"""The list of planted mistakes follows the code that they are planted in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / ".ci"


@pytest.mark.slow
@pytest.mark.parametrize("script", ["mutants.py", "planted.py"])
def test_each_planted_mistake_has_one_place(script: str) -> None:
    check = [sys.executable, str(FOLDER / script), "--check"]
    found = subprocess.run(check, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
