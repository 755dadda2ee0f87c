"""Files of private statistics that ``dpmesh stats`` and ``dpmesh node`` write: HTML or JSON."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpmesh._files import replace_text
from dpmesh.cli._checks import counted
from dpmesh.experiments.html import document, figures, table

if TYPE_CHECKING:
    from dpmesh.statistics import Answer, Statistics


INTERVAL_NOTE = (
    "The columns noise and sampling are halves of 95% intervals: for what privacy adds, and for "
    "the choice of the records. The 95% interval holds both."
)


def write_answers(output: Path, statistics: Statistics) -> None:
    """Write statistics to a file: as JSON if its name ends in .json, else as an HTML page."""
    if output.suffix == ".json":
        content = json.dumps(statistics.as_dict(), indent=1)
    else:
        content = answers_page(statistics)
    replace_text(output, content)
    typer.echo(f"\nwrote {output}: it holds the answers and what they cost, no records")


def answers_page(statistics: Statistics) -> str:
    """Return statistics as a self-contained HTML page, with pictures if matplotlib is installed."""
    sites = counted(statistics.sites, "site")
    body = [
        f"<h1>Statistics of {statistics.records:,} records at {sites}</h1>",
        f"<p>{INTERVAL_NOTE}</p>",
    ]
    for answer in statistics.answers:
        body.append(f"<h2>{escape(answer.title)}</h2>")
        body.append(_picture(answer))
        body += [table(heads, rows) for heads, rows in answer.tables()]
        notes = [*answer.notes, *answer.warnings]
        if notes:
            items = "".join(f"<li>{escape(note)}</li>" for note in notes)
            body.append(f'<ul class="notes">{items}</ul>')
    cost = f"adversary   {statistics.threat_model}\n{statistics.privacy}"
    body += ["<h2>Privacy</h2>", f'<pre class="report">{escape(cost)}</pre>']
    return document("Statistics", body)


def _picture(answer: Answer) -> str:
    """Return the picture of an answer as HTML: empty if it has none, a note without matplotlib."""
    from dpmesh.statistics.pictures import picture_of

    try:
        picture = picture_of(answer)
    except ModuleNotFoundError as error:
        return f'<p class="note">{escape(str(error))}</p>'
    if picture is None:
        return ""
    return figures([picture])
