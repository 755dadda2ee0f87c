"""The list of planted mistakes follows the code that they are planted in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MUTANTS = Path(__file__).parents[2] / ".ci" / "mutants.py"


def test_each_planted_mistake_has_one_place_and_tests() -> None:
    check = [sys.executable, str(MUTANTS), "--check"]
    found = subprocess.run(check, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
