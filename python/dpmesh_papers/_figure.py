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
    """Return a line for each value of `by`: columns of rows over another one."""
    rows = list(rows)
    lines = []
    for value in kinds(rows, by):
        mine = [row for row in rows if row[by] == value]
        columns = [None if c is None else [row[c] for row in mine] for c in (spread, paper)]
        xs, ys = ([row[column] for row in mine] for column in (x, y))
        lines.append(Line(label=name(value), x=xs, y=ys, spread=columns[0], paper=columns[1]))
    return lines
