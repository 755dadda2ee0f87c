"""Tables of results as text, as HTML in notebooks, as LaTeX and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_ESCAPED = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
    }
)


class Table(NamedTuple):
    """Table of text cells with a heading for each column; `print` shows it aligned.

    Parameters
    ----------
    heads
        Heading of each column.
    rows
        Cells of each row, as many as headings.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        return self.aligned("l" * len(self.heads))

    def aligned(self, sides: str) -> str:
        """Return the table as text with aligned columns.

        Parameters
        ----------
        sides
            Alignment of each column, a letter each: ``"l"`` for left or ``"r"`` for right.
        """
        lines = [self.heads, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text_lines: list[str] = []
        for line in lines:
            padded_cells: list[str] = []
            for cell, width, side in zip(line, widths, sides, strict=True):
                if side == "l":
                    padded_cells.append(cell.ljust(width))
                else:
                    padded_cells.append(cell.rjust(width))
            text_lines.append("  ".join(padded_cells).rstrip())
        return "\n".join(text_lines)

    def _repr_html_(self) -> str:
        html_rows = [_html_row("th", self.heads)]
        html_rows += [_html_row("td", row) for row in self.rows]
        return f"<table>{''.join(html_rows)}</table>"

    def to_latex(self) -> str:
        """Return a ``tabular`` environment; special characters are escaped."""
        lines = [
            " & ".join(cell.translate(_ESCAPED) for cell in line) + r" \\"
            for line in [self.heads, *self.rows]
        ]
        sides = "l" + "r" * (len(self.heads) - 1)
        begin = rf"\begin{{tabular}}{{{sides}}}"
        end = r"\end{tabular}"
        return "\n".join([begin, lines[0], r"\hline", *lines[1:], end])

    def to_csv(self) -> str:
        """Return the table as comma-separated values, a line for each row."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.heads, *self.rows])
        return text.getvalue()


def _html_row(tag: str, cells: Sequence[str]) -> str:
    """Return a row of an HTML table, whose cells have this tag (``"th"`` or ``"td"``)."""
    html_cells = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
    return f"<tr>{html_cells}</tr>"
