"""The files that an experiment writes: a table of numbers, a text and a figure of one name."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from matplotlib.figure import Figure

Tell: TypeAlias = Callable[[str], None]
"""Shows a line of text for each finished step."""


class Output:
    """Files ``NAME.csv``, ``NAME.txt`` and ``NAME.png`` in a folder.

    Parameters
    ----------
    folder
        Made if it is not there.
    name
        Of the experiment.
    """

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._base = folder / name
        self.files: list[Path] = []

    def table(self, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write the numbers under a header."""
        with self._new("csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            writer.writerows(rows)

    def records(self, records: Sequence[DataclassInstance]) -> None:
        """Write dataclass objects of one type, a row for each."""
        names = [field.name for field in fields(records[0])]
        self.table(names, ([asdict(record)[name] for name in names] for record in records))

    def text(self, text: str) -> None:
        """Write the comparison with the paper."""
        self._new("txt").write_text(text.rstrip("\n") + "\n", encoding="utf-8")

    def figure(self, figure: Figure) -> None:
        """Write the figure."""
        figure.savefig(self._new("png"), dpi=150)

    def _new(self, kind: str) -> Path:
        path = self._base.with_name(f"{self._base.name}.{kind}")
        self.files.append(path)
        return path
