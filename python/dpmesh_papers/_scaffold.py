"""Experiments: cells as rows, measured one after the other, and their files.

A row is a dictionary: the settings of a cell, then its measurements. The same rows stand in the
CSV file; `read` returns them from there, so that texts, figures and pages are made of numbers in
files.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._files import replace_text, replacing
from dpmesh.run.verdict import difference

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Progress: TypeAlias = Callable[[str], None]
"""Shows a line of text for each finished step."""

Row: TypeAlias = dict[str, Any]
"""A cell: settings and measurements, by name. None where there is no number."""

WIDTH = 100
"""Width of the texts, in characters."""
CONFIDENCE = 0.95
"""Coverage of all intervals, as of those of `dpmesh.run.verdict`."""
INTERRUPTED = "interrupted: the other cells did not run"


class IncompleteError(Exception):
    """Error of an experiment, after its files are written, if some of its cells failed.

    Parameters
    ----------
    files
        Files with the other cells; empty if there are none.
    failures
        A description of each cell that failed; at least one.
    """

    def __init__(self, files: Sequence[Path], failures: Sequence[str]) -> None:
        self.files = list(files)
        self.failures = list(failures)
        where = f"; the others are in {files[0]}" if files else ""
        super().__init__(f"{len(failures)} cell(s) failed{where}: {failures[0]}")


class Experiment:
    """The cells of one table or figure, and its files NAME.csv, NAME.txt and NAME.png.

    Parameters
    ----------
    folder
        Created if missing.
    name
        Name of the experiment.
    progress
        Called with a line for each finished cell.
    """

    def __init__(self, folder: Path, name: str, progress: Progress = print) -> None:
        self._base = folder / name
        self.progress = progress
        self.rows: list[Row] = []
        self.failures: list[str] = []

    def measure(
        self,
        cells: Iterable[Row],
        measured: Callable[[Row], Row | Iterable[Row]],
        in_words: Callable[[Row], str] | None = None,
    ) -> None:
        """Measure cells and keep their rows; report one that fails, and go on with the others.

        An interrupt ends it, and `write` still writes what was measured.

        Parameters
        ----------
        cells
            Settings of each cell.
        measured
            Returns the measurements of a cell by name, or several rows of them, such as the points
            of a curve. They join the settings.
        in_words
            Returns a row, the last one of a curve, as a line.
        """
        if INTERRUPTED in self.failures:
            return
        for cell in cells:
            try:
                measurement = measured(cell)
                points = [measurement] if isinstance(measurement, dict) else [*measurement]
            except KeyboardInterrupt:
                self.failures.append(INTERRUPTED)
                return
            except Exception as error:  # the others go on
                settings = ", ".join(f"{name} {value}" for name, value in cell.items())
                self.failures.append(f"{settings}: {type(error).__name__}: {error}")
                self.progress(f"failed: {self.failures[-1]}")
                continue
            self.rows += [cell | row for row in points]
            if in_words is not None:
                self.progress(in_words(self.rows[-1]))

    def write(
        self, text: Callable[[list[Row]], str], draw: Callable[[list[Row]], Figure]
    ) -> list[Path]:
        """Write the rows, the text and the figure that are made of them.

        Raises
        ------
        IncompleteError
            After all is written, if a cell failed.
        KeyboardInterrupt
            After all is written, if `measure` was interrupted.
        """
        if not self.rows:
            raise self._incomplete([])
        files = [
            self._base.with_name(f"{self._base.name}.{kind}") for kind in ("csv", "txt", "png")
        ]
        replace_text(files[0], as_csv(self.rows))
        failed = [f"failed: {failure}" for failure in self.failures]
        replace_text(files[1], "\n".join([text(self.rows).rstrip("\n"), *failed]) + "\n")
        with replacing(files[2]) as file:
            draw(self.rows).savefig(file, format="png", dpi=150)
        if self.failures:
            raise self._incomplete(files)
        return files

    def _incomplete(self, files: Sequence[Path]) -> BaseException:
        if INTERRUPTED in self.failures:
            return KeyboardInterrupt(INTERRUPTED)
        return IncompleteError(files, self.failures)


def as_csv(rows: Sequence[Row]) -> str:
    """Return rows under a header of all their names."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read(path: Path) -> list[Row]:
    """Return the rows of a file that an experiment wrote: numbers as numbers, nothing as None."""
    with path.open(newline="") as file:
        return [{name: _value(cell) for name, cell in row.items()} for row in csv.DictReader(file)]


def _value(cell: str) -> Any:
    if cell in _WORDS:
        return _WORDS[cell]
    if cell.lstrip("-").isdigit():
        return int(cell)
    try:
        return float(cell)
    except ValueError:
        return cell


_WORDS = {"": None, "True": True, "False": False}


def pick(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Return the rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def only(rows: Iterable[Row], **wanted: Any) -> Row:
    """Return the one row that has these values.

    Raises
    ------
    LookupError
        If none has, or several.
    """
    matches = pick(rows, **wanted)
    if len(matches) != 1:
        raise LookupError(f"{len(matches)} rows have {wanted}")
    return matches[0]


def kinds(rows: Iterable[Row], name: str) -> list[Any]:
    """Return the different values of a name, in their order."""
    return list(dict.fromkeys(row[name] for row in rows))


def interval(values: npt.ArrayLike, *, held_out: float = 0.0) -> float:
    """Return half the width of the 95% interval of the mean; NaN for one value.

    Splits of one table overlap: `held_out` is the share of the records that a split holds out, see
    `dpmesh.run.verdict`. At 0 the interval is Student's of independent values.
    """
    values = np.asarray(values, dtype=np.float64)
    if len(values) < 2:
        return np.nan
    return difference(values, held_out=held_out).detectable


def repeated(values: Sequence[float], name: str = "accuracy", *, held_out: float = 0.0) -> Row:
    """Return the mean over repetitions, half its 95% interval, and their number."""
    mean = float(np.mean(values))
    return {name: mean, "interval": interval(values, held_out=held_out), "seeds": len(values)}


def over_seeds(values: Sequence[float]) -> Row:
    """Return the mean over repetitions, their standard deviation, and their number."""
    spread = np.nan
    if len(values) > 1:
        spread = float(np.std(values, ddof=1))
    return {"accuracy": float(np.mean(values)), "spread": spread, "seeds": len(values)}


def with_spread(mean: float, spread: float, digits: int) -> str:
    """Return a mean and its spread, if there is one, with `digits` decimals."""
    text = f"{mean:.{digits}f}"
    if np.isnan(spread):
        return text
    return f"{text} +- {spread:.{digits}f}"


def compared(first: Row, second: Row, name: str = "accuracy", half_width: str = "interval") -> str:
    """Return the verdict on the difference of two means.

    It is ``"ahead"`` or ``"behind"`` if they are further apart than both half widths together,
    which is stricter than a test of the difference; otherwise ``"no clear difference"``, or
    ``"not known from one run each"`` where there is no interval.

    Parameters
    ----------
    first, second
        Rows with both columns.
    name, half_width
        Columns of the mean and of half its interval.
    """
    half_widths = first[half_width] + second[half_width]
    difference_of_means = first[name] - second[name]
    if np.isnan(half_widths):
        return "not known from one run each"
    if abs(difference_of_means) <= half_widths:
        return "no clear difference"
    if difference_of_means > 0:
        return "ahead"
    return "behind"


def paragraph(text: str, width: int = WIDTH) -> str:
    """Return a text in lines of at most `width` characters."""
    return fill(text, width)


def grid(
    rows: Sequence[Row],
    *,
    row: str,
    column: str,
    show: Callable[[Row], str],
    name: Callable[[Any], str] = str,
    head: Callable[[Any], str] = str,
    corner: str = "",
    widths: tuple[int, int] = (24, 14),
) -> list[str]:
    """Return a table of text: a line for each value of `row`, a column for each of `column`.

    ``-`` stands where there is no cell.

    Parameters
    ----------
    rows
        The cells.
    row, column
        The names by whose values lines and columns are told apart.
    show
        Returns the text of a cell.
    name, head
        Return the name of a line and the head of a column from their values.
    corner
        The text above the names of lines.
    widths
        Width of the names of lines, and of each column, in characters.
    """
    name_width, cell_width = widths
    columns = kinds(rows, column)
    heads = "".join(f"{head(value):>{cell_width}}" for value in columns)
    lines = [f"{corner:<{name_width}}{heads}"]
    for value in kinds(rows, row):
        texts = {cell[column]: show(cell) for cell in rows if cell[row] == value}
        cells = "".join(f"{texts.get(place, '-'):>{cell_width}}" for place in columns)
        lines.append(f"{name(value):<{name_width}}{cells}")
    return lines
