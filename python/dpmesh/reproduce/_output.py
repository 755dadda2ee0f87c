"""The files that an experiment writes under one name: a table of numbers, a text and a figure."""

from __future__ import annotations

import csv
import io
import platform
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dpmesh._core import __version__
from dpmesh._files import replace_text, replacing

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from matplotlib.figure import Figure

Progress: TypeAlias = Callable[[str], None]
"""Shows a line of text for each finished step."""


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


class Output:
    """Files ``NAME.csv``, ``NAME.txt`` and ``NAME.png`` in a folder.

    Parameters
    ----------
    folder
        Created if missing.
    name
        Name of the experiment.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._base = folder / name
        self.files: list[Path] = []

    def table(self, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write the numbers under a header."""
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(header)
        writer.writerows(rows)
        replace_text(self._new("csv"), text.getvalue())

    def records(self, records: Sequence[DataclassInstance]) -> None:
        """Write dataclass objects of one type, a row for each."""
        names = [field.name for field in fields(records[0])]
        self.table(names, ([asdict(record)[name] for name in names] for record in records))

    def text(self, text: str) -> None:
        """Write the comparison with the paper."""
        replace_text(self._new("txt"), text.rstrip("\n") + "\n")

    def figure(self, figure: Figure) -> None:
        """Write the figure."""
        with replacing(self._new("png")) as file:
            figure.savefig(file, format="png", dpi=150)

    def _new(self, kind: str) -> Path:
        path = self._base.with_name(f"{self._base.name}.{kind}")
        self.files.append(path)
        return path
