"""Lines of figures from the rows of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dpmesh.plots.panels import Line, Panel, drawn
from dpmesh_papers._scaffold import Row, kinds

__all__ = ["Line", "Panel", "drawn", "lines_of"]


def lines_of(
    rows: Iterable[Row],
    *,
    by: str,
    x: str,
    y: str,
    spread: str | None = None,
    paper: str | None = None,
    name: Callable[[Any], str] = str,
) -> list[Line]:
    """Return a line for each value of the column `by`.

    Parameters
    ----------
    rows
        The points of all lines.
    by, x, y
        The columns that tell lines apart, and that hold the two coordinates.
    spread, paper
        The columns of half an interval, and of the paper's numbers; None to draw none.
    name
        Returns the label of a line from its value of `by`.
    """
    rows = list(rows)
    lines = []
    for value in kinds(rows, by):
        points = [row for row in rows if row[by] == value]
        line = Line(
            label=name(value),
            x=_column(points, x),
            y=_column(points, y),
            spread=None if spread is None else _column(points, spread),
            paper=None if paper is None else _column(points, paper),
        )
        lines.append(line)
    return lines


def _column(rows: Iterable[Row], name: str) -> list[Any]:
    """Return the values of a column."""
    return [row[name] for row in rows]
