"""Provenance of results: settings, versions, commit and machine, kept beside each results file."""

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

    The nearest of the working folder and its parents that has ``docs/results``. If none has, the
    folder two levels above this package's code: the checkout, in an editable installation.
    """
    working_folder = Path.cwd()
    for folder in (working_folder, *working_folder.parents):
        if (folder / "docs" / "results").is_dir():
            return folder
    return Path(__file__).parents[2]


def provenance(**settings: Any) -> dict[str, Any]:
    """Return the provenance of results: settings, versions, commit, day and machine."""
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
        A folder of the checkout. Outside of a checkout, or without git, the text says ``unknown``.
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
