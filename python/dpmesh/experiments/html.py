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
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5b6875; --paper: #fff; --code: #f3f5f7;
        --line: #dde3e8; --link: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaee; --soft: #9aa7b4; --paper: #14191f; --code: #1d242c; --line: #2c353f;
          --link: #56b4e9; }
  .figures img { filter: invert(.92) hue-rotate(180deg); } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 1080px; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; }
.figures img { width: 500px; max-width: 100%; cursor: zoom-in; }
.figures img.large { width: 100%; cursor: zoom-out; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .5rem; text-align: right; border-bottom: 1px solid var(--line);
         font-size: .85rem; } td { white-space: nowrap; }
th { cursor: pointer; } th[aria-sort] { color: var(--link); }
th:first-child, td:first-child { text-align: left; }
pre { background: var(--code); padding: .8rem; overflow-x: auto; font-size: .85rem; }
.note { color: var(--soft); } .warning { border-left: 4px solid #D55E00; padding-left: .8rem; }
"""

_SCRIPT = """
for (const img of document.querySelectorAll('.figures img'))
  img.onclick = () => img.classList.toggle('large');
for (const head of document.querySelectorAll('th')) head.onclick = () => {
  const table = head.closest('table'), place = head.cellIndex;
  const down = head.ariaSort === 'ascending';
  const value = row => row.cells[place].textContent;
  const order = (a, b) => {
    const [x, y] = [parseFloat(value(a)), parseFloat(value(b))];
    return isNaN(x) || isNaN(y) ? value(a).localeCompare(value(b)) : x - y;
  };
  const rows = [...table.rows].slice(1).sort(order);
  if (down) rows.reverse();
  for (const other of table.rows[0].cells) other.removeAttribute('aria-sort');
  head.ariaSort = down ? 'descending' : 'ascending';
  rows.forEach(row => row.parentNode.append(row));
};
"""


def document(title: str, body: Iterable[str]) -> str:
    """Return a page of these parts, with no link to anywhere else."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    content = "\n".join(filter(None, body))
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}{view}</head><body>{content}'
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table with a line of heads."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    lines = ("".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def figures(drawn: Iterable[tuple[Figure, str]], *, large: bool = False) -> str:
    """Return figures, each with a text for those who cannot see it, embedded in the page."""
    pictures, kind = [], ' class="large"' if large else ""
    for figure, text in drawn:
        file = io.BytesIO()
        figure.savefig(file, format="svg", transparent=True)  # on the page's paper
        data = base64.b64encode(file.getvalue()).decode()
        source = f"data:image/svg+xml;base64,{data}"
        pictures.append(f'<img{kind} src="{source}" alt="{escape(text, quote=True)}">')
    return f'<div class="figures">{"".join(pictures)}</div>'
