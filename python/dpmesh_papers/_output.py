"""What made the results of an experiment."""

from __future__ import annotations

import platform
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from dpmesh._core import __version__


def checkout() -> Path:
    """Return the folder of the checkout whose results and pages a program reads and writes.

    It is the working folder or one above it that has ``docs/results``; without any, the folder in
    which the code lies, which is the checkout of an editable installation.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "docs" / "results").is_dir():
            return folder
    return Path(__file__).parents[2]


def made(**settings: Any) -> dict[str, Any]:
    """Return what made the results: settings, versions, the commit, the day and the machine."""
    here = Path(__file__).parent
    asked = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        found = "unknown: not run in a clone"
    by = {"dpmesh": __version__, "commit": found, "Python": platform.python_version()}
    by |= {"date": date.today().isoformat()}
    by |= {"numpy": np.__version__, "machine": platform.machine(), "system": platform.system()}
    return settings | by
