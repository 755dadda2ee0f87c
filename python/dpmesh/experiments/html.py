"""Parts of self-contained HTML pages: tables, and pictures that are embedded."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff;
       max-width: 1080px; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; }
.figures img { width: 500px; max-width: 100%; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .5rem; text-align: right; border-bottom: 1px solid #ddd;
         font-size: .85rem; } td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
pre { background: #f5f5f5; padding: .8rem; overflow-x: auto; font-size: .85rem; }
.note { color: #555; } .warning { border-left: 4px solid #D55E00; padding-left: .8rem; }
"""


def document(title: str, body: Iterable[str]) -> str:
    """Return a page of these parts, with no link to anywhere else."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    content = "\n".join(filter(None, body))
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}{view}</head><body>{content}</body></html>\n'
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table with a line of heads."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    lines = ("".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def figures(drawn: Iterable[tuple[Figure, str]]) -> str:
    """Return figures, each with a text for those who cannot see it, embedded in the page."""
    pictures = []
    for figure, text in drawn:
        file = io.BytesIO()
        figure.savefig(file, format="svg")
        data = base64.b64encode(file.getvalue()).decode()
        source = f"data:image/svg+xml;base64,{data}"
        pictures.append(f'<img src="{source}" alt="{escape(text, quote=True)}">')
    return f'<div class="figures">{"".join(pictures)}</div>'
