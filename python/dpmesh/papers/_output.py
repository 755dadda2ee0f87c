"""What experiments share: the files that they write, and statistics over their seeds."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from matplotlib.figure import Figure

Tell: TypeAlias = Callable[[str], None]
"""Shows a line of text for each finished step."""


CONFIDENCE = 0.95


def interval(values: npt.NDArray[np.float64]) -> float:
    """Half the width of Student's interval of the mean; NaN for one value."""
    if len(values) < 2:
        return np.nan
    factor = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    return float(factor * values.std(ddof=1) / np.sqrt(len(values)))


def over_seeds(accuracies: Sequence[float]) -> dict[str, Any]:
    """Return mean, standard deviation (NaN for one seed) and number, by their names in cells."""
    spread = float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else np.nan
    return {"accuracy": float(np.mean(accuracies)), "spread": spread, "seeds": len(accuracies)}


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
        with self._new("csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            writer.writerows(rows)

    def records(self, records: Sequence[DataclassInstance]) -> None:
        """Write dataclass objects of one type, a row for each."""
        names = [field.name for field in fields(records[0])]
        self.table(names, ([asdict(record)[name] for name in names] for record in records))

    def text(self, text: str) -> None:
        """Write the comparison with the paper."""
        self._new("txt").write_text(text.rstrip("\n") + "\n")

    def figure(self, figure: Figure) -> None:
        """Write the figure."""
        figure.savefig(self._new("png"), dpi=150)

    def _new(self, kind: str) -> Path:
        path = self._base.with_name(f"{self._base.name}.{kind}")
        self.files.append(path)
        return path
