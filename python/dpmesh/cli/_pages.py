"""Pages and answers that ``dpmesh stats`` and ``node`` write for people."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpmesh._files import replace_text
from dpmesh.experiments.html import document, figures, table

if TYPE_CHECKING:
    from dpmesh.statistics import Answer, Statistics


def write_answers(output: Path, found: Statistics) -> None:
    """Write the answers as JSON, or as one self-contained HTML page."""
    if output.suffix == ".json":
        content = json.dumps(found.as_dict(), indent=1)
    else:
        content = answers_page(found)
    replace_text(output, content)
    typer.echo(f"\nwrote {output}: it holds the answers and what they cost, no records")


def answers_page(found: Statistics) -> str:
    """Return the answers as one self-contained HTML page, with pictures if matplotlib is there."""
    body = [f"<h1>Statistics of {found.records} records at {found.sites} sites</h1>"]
    for answer in found.answers:
        body.append(f"<h2>{escape(answer.title)}</h2>")
        body.append(_picture(answer))
        body += [table(*shown) for shown in answer.tables()]
        body += [f'<p class="note">{escape(note)}</p>' for note in answer.notes]
        body += [f'<p class="note">{escape(warning)}</p>' for warning in answer.warnings]
    cost = f"against     {found.against}\n{found.privacy}"
    return document("Statistics", [*body, "<h2>Privacy</h2>", f"<pre>{escape(cost)}</pre>"])


def _picture(answer: Answer) -> str:
    """Return the picture of an answer; nothing if it has none, or matplotlib is not there."""
    from dpmesh.statistics.pictures import picture_of

    try:
        picture = picture_of(answer)
    except ModuleNotFoundError as error:
        return f'<p class="note">{escape(str(error))}</p>'
    return "" if picture is None else figures([picture])
