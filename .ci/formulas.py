"""Formulas between dollars on the pages of the site, as MathML, which browsers draw."""

from __future__ import annotations

import re

from latex2mathml.converter import convert

_CODE = r"^```.*?^```|`[^`\n]*`"
_FORMULA = r"\$\$(.+?)\$\$|\$([^$\s](?:[^$]*?[^$\s])?)\$"
_drawn: list[str] = []


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put a mark in the place of each formula, which Markdown would read as text; not in code."""
    return re.sub(f"{_CODE}|{_FORMULA}", _marked, markdown, flags=re.S | re.M)


def on_page_content(html: str, **_: object) -> str:
    """Put the formulas in the places of their marks."""
    return re.sub(r"FORMULA(\d+)X", lambda found: _drawn[int(found[1])], html)


def _marked(found: re.Match[str]) -> str:
    block, inline = found[1], found[2]
    if block is None and inline is None:
        return found[0]
    _drawn.append(convert(block or inline, display="block" if block else "inline"))
    return f"FORMULA{len(_drawn) - 1}X"
