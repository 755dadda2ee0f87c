"""Records of what made results: settings, versions and the commit."""

from __future__ import annotations

import platform
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from dpmesh._core import __version__

_NOT_RESULTS = (":/", ":(exclude,top)docs/results")
"""Pathspecs of all files that may change a result: results that a run writes do not."""


def checkout() -> Path:
    """Return the folder of the checkout whose results and pages a program reads and writes.

    It is the working folder or one above it that has ``docs/results``; without any, the folder in
    which the code lies, which is the checkout of an editable installation.
    """
    working_folder = Path.cwd()
    for folder in (working_folder, *working_folder.parents):
        if (folder / "docs" / "results").is_dir():
            return folder
    return Path(__file__).parents[2]


def made(**settings: Any) -> dict[str, Any]:
    """Return what made the results: settings, versions, the commit, the day and the machine."""
    return {
        **settings,
        "dpmesh": __version__,
        "commit": commit_of(Path(__file__).parent),
        "Python": platform.python_version(),
        "date": date.today().isoformat(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
    }


def commit_of(folder: Path) -> str:
    """Return the commit of a checkout, with ``-dirty`` if files other than results differ from it.

    Parameters
    ----------
    folder
        A folder of the checkout. Outside of any, the text says so.
    """

    def git_output(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git_output("rev-parse", "--short=12", "HEAD")
        changes = git_output("status", "--porcelain", "--untracked-files=no", "--", *_NOT_RESULTS)
    except (OSError, subprocess.CalledProcessError):
        return "unknown: not run in a clone"
    if changes:
        return f"{commit}-dirty"
    return commit
