"""Conversion of text reports to HTML for notebooks: lines of names and values become tables."""

from __future__ import annotations

import re
from html import escape
from itertools import groupby

_LINE = re.compile(r" *(not covered|by distance|\S.*?(?=  )) +(\S.*)")
"""A name and its value, separated by two spaces, or by one after the two longest names."""

_COLUMNS = re.compile(" {2,}")


class InNotebooks:
    """Base class of reports, which a notebook shows as `print` does, but with HTML tables."""

    def _repr_html_(self) -> str:
        return as_html(str(self))


def as_html(text: str) -> str:
    """Convert a report to HTML: lines of names and values to tables, others to paragraphs."""
    lines = [line for line in text.splitlines() if line]
    html: list[str] = []
    for is_row, group in groupby(lines, key=_is_name_and_value):
        if is_row:
            html.append(f"<table>{''.join(map(_table_row, group))}</table>")
        else:
            html += [f"<p>{escape(line)}</p>" for line in group]
    return "".join(html)


def _is_name_and_value(line: str) -> bool:
    """Return True if a line has a name and a value."""
    return _LINE.fullmatch(line) is not None


def _table_row(line: str) -> str:
    """Return the HTML row of a line with a name and a value; two spaces separate columns."""
    match = _LINE.fullmatch(line)
    assert match is not None
    name, value = match.groups()
    columns = _COLUMNS.sub("</td><td>", escape(value))
    return f"<tr><th>{escape(name)}</th><td>{columns}</td></tr>"
