"""Tables for readers: as text, as HTML in notebooks, as LaTeX for a paper, as CSV."""

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
    """A table for readers.

    Parameters
    ----------
    heads
        Heading of each column.
    rows
        Cells of each row, as many as there are headings.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        return self.aligned("l" * len(self.heads))

    def aligned(self, sides: str) -> str:
        """Return lines of text; `sides` has the alignment of each column, ``"l"`` or ``"r"``."""
        lines = [self.heads, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = (
            "  ".join(
                cell.ljust(width) if side == "l" else cell.rjust(width)
                for cell, width, side in zip(line, widths, sides, strict=True)
            )
            for line in lines
        )
        return "\n".join(map(str.rstrip, padded))

    def _repr_html_(self) -> str:
        head, *lines = (
            "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in line)
            for tag, line in [("th", self.heads), *(("td", row) for row in self.rows)]
        )
        return f"<table>{''.join(f'<tr>{line}</tr>' for line in [head, *lines])}</table>"

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
