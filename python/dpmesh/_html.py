"""Reports as HTML for notebooks: tables of names and values."""

from __future__ import annotations

import re
from html import escape
from itertools import groupby

_LINE = re.compile(r" *(not covered|by distance|\S.*?(?=  )) +(\S.*)")
"""A name and its value, separated by two spaces, or by one after the two longest names."""

_COLUMNS = re.compile(" {2,}")


class InNotebooks:
    """Base of reports that a notebook shows as `print` does, names and values as tables."""

    def _repr_html_(self) -> str:
        return as_html(str(self))


def as_html(text: str) -> str:
    """Convert a report to HTML: lines of names and values to tables, others to paragraphs."""
    lines = [(_LINE.fullmatch(line), line) for line in text.splitlines() if line]
    parts = []
    for is_row, group in groupby(lines, key=lambda one: one[0] is not None):
        if not is_row:
            parts += [f"<p>{escape(line)}</p>" for _, line in group]
            continue
        cells = (match.groups() for match, _ in group if match is not None)
        rows = (
            f"<tr><th>{escape(name)}</th><td>{_COLUMNS.sub('</td><td>', escape(value))}</td></tr>"
            for name, value in cells
        )
        parts.append(f"<table>{''.join(rows)}</table>")
    return "".join(parts)
