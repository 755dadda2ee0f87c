"""Parts of self-contained HTML pages: tables, and pictures that are embedded."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE, _SCRIPT = (
    Path(__file__).with_name(name).read_text("utf-8") for name in ("page.css", "page.js")
)


_LONG = 30
"""Letters from which on a cell of a table may have several lines."""

_UNQUOTED = ' <>/=:;,.()"!*?@$+-_'
"""What may stand in a quoted attribute that holds an address."""


def document(title: str, body: Iterable[str]) -> str:
    """Return a page of these parts, with no link to anywhere else."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    content = "\n".join(filter(None, body))
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}{view}</head><body>{content}'
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


def details(title: str, content: str) -> str:
    """Return content that is folded until somebody opens it."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table with a line of heads, which sort it; it scrolls where it is too wide."""
    kinds = [_kind(column) for column in zip(heads, *rows, strict=True)]
    head = "".join(
        f'<th scope="col"{kind}><button>{escape(text)}</button></th>' if text else "<td></td>"
        for kind, text in zip(kinds, heads, strict=True)
    )
    lines = (
        "".join(f"<td{k}>{escape(str(cell))}</td>" for k, cell in zip(kinds, row, strict=True))
        for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide" tabindex="0"><table><tr>{head}</tr>{body}</table></div>'


def _kind(column: Sequence[object]) -> str:
    return ' class="text"' if max(len(str(cell)) for cell in column) > _LONG else ""


def figures(drawn: Iterable[tuple[Figure, str]]) -> str:
    """Return figures, each with a text for those who cannot see it, embedded in the page.

    They may be saved as SVG and PDF.
    """
    return "".join(_figure(*one, number) for number, one in enumerate(drawn, 1))


_TENTHS = re.compile(r"(\.\d)\d+|\n\s*")
"""Tenths of a point are enough for places in tags; what labels say stays."""


def _figure(figure: Figure, text: str, number: int) -> str:
    picture = _drawn(figure, "svg", transparent=True).decode()  # on the page's paper
    bare = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", picture, flags=re.S)
    lean = re.sub(r"<[^>]*>|\n\s*", lambda tag: _TENTHS.sub(r"\1 ", tag[0]), bare)
    paper = base64.b64encode(_drawn(figure, "pdf")).decode()
    inches = figure.get_figwidth()
    return (
        f'<figure><img style="width: {inches * 100:.0f}px" '
        f"src='data:image/svg+xml,{quote(lean, safe=_UNQUOTED)}' "
        f'alt="{escape(text, quote=True)}"><figcaption>{escape(text)} <span class="export">'
        f'<a download="figure{number}.pdf" href="data:application/pdf;base64,{paper}">PDF</a>'
        "</span></figcaption></figure>"
    )


def _drawn(figure: Figure, kind: str, **how: Any) -> bytes:
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}):
        figure.savefig(file, format=kind, **how)
    return file.getvalue()
