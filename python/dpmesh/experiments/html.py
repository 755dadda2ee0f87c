"""Parts of self-contained HTML pages: tables, folded text and embedded figures.

Pages of ``dpmesh report``, ``dpmesh fit`` and ``dpmesh stats`` use them. Texts are escaped here;
`body`, `content` and the results are HTML.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = Path(__file__).with_name("page.css").read_text("utf-8")
_SCRIPT = Path(__file__).with_name("page.js").read_text("utf-8")

_LONG = 30
"""Largest number of characters of a column whose cells are kept on one line."""

_UNQUOTED = ' <>/=:;,.()"!*?@$+-_'
"""Characters of an SVG that need no percent-encoding in a data URL between single quotes."""


def document(title: str, body: Iterable[str]) -> str:
    """Return a page with a title and a body, without links to other files.

    Parameters
    ----------
    title
        Title, as text.
    body
        Parts of the body, as HTML; empty ones are left out.
    """
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    content = "\n".join(filter(None, body))
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}{view}</head><body>{content}'
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


def details(title: str, content: str) -> str:
    """Return HTML content below a title, folded until the reader opens it."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table whose heads sort it by their column; a wide table scrolls.

    Parameters
    ----------
    heads
        Head of each column, as text.
    rows
        Cells of each row.
    """
    classes = [_class_attribute(column) for column in zip(heads, *rows, strict=True)]
    head = "".join(map(_head, classes, heads))
    body = "".join(f"<tr>{_row(classes, row)}</tr>" for row in rows)
    return f'<div class="wide" tabindex="0"><table><tr>{head}</tr>{body}</table></div>'


def _head(css_class: str, text: str) -> str:
    """Return the head of a column: a button that sorts the table by the column."""
    if not text:
        return "<td></td>"
    return f'<th scope="col"{css_class}><button>{escape(text)}</button></th>'


def _row(classes: Sequence[str], row: Sequence[object]) -> str:
    """Return the cells of a row."""
    pairs = zip(classes, row, strict=True)
    return "".join(f"<td{css_class}>{escape(str(cell))}</td>" for css_class, cell in pairs)


def _class_attribute(column: Sequence[object]) -> str:
    """Return the class attribute of a column's cells: empty, or for long texts that may wrap."""
    longest = max(len(str(cell)) for cell in column)
    if longest > _LONG:
        return ' class="text"'
    return ""


def figures(figures: Iterable[tuple[Figure, str]]) -> str:
    """Return figures embedded as SVG, each with its PDF to download.

    Parameters
    ----------
    figures
        Figures of matplotlib, each with a caption that is also its alternative text.
    """
    numbered = enumerate(figures, 1)
    return "".join(_figure(figure, text, number) for number, (figure, text) in numbered)


_TENTHS = re.compile(r"(\.\d)\d+|\n\s*")
"""Further digits of decimal numbers, and line breaks, in the tags of an SVG: all to be removed."""


def _figure(figure: Figure, text: str, number: int) -> str:
    """Return a figure as an embedded picture, with its PDF to download."""
    svg = _file_of(figure, "svg", transparent=True).decode()  # on the page's paper
    without_metadata = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.S)
    short = re.sub(r"<[^>]*>|\n\s*", lambda tag: _TENTHS.sub(r"\1 ", tag[0]), without_metadata)
    pdf = base64.b64encode(_file_of(figure, "pdf")).decode()
    pixels = figure.get_figwidth() * 100
    return (
        f'<figure><img style="width: {pixels:.0f}px" '
        f"src='data:image/svg+xml,{quote(short, safe=_UNQUOTED)}' "
        f'alt="{escape(text, quote=True)}"><figcaption>{escape(text)} <span class="export">'
        f'<a download="figure{number}.pdf" href="data:application/pdf;base64,{pdf}">PDF</a>'
        "</span></figcaption></figure>"
    )


def _file_of(figure: Figure, kind: str, *, transparent: bool = False) -> bytes:
    """Return a figure as the bytes of a file of this format."""
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}):
        figure.savefig(file, format=kind, transparent=transparent)
    return file.getvalue()
