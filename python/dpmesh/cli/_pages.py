"""What ``dpmesh fit``, ``stats`` and ``node`` write for people: pages, and answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpmesh._files import replace_text
from dpmesh.experiments.html import document, figures, table

if TYPE_CHECKING:
    from dpmesh.sklearn import Evaluation
    from dpmesh.statistics import Answer, Statistics


def fit_page(found: Evaluation, *, label: str, unused: Sequence[str]) -> str:
    """Return one self-contained HTML page about a fit, for light and dark screens."""
    columns = found.estimator.model_.columns
    ranges = [
        [name, f"{kind.form}{', may be missing' * kind.may_be_missing}"]
        for name, kind in zip(columns.names, columns.kinds, strict=True)
    ]
    body = [
        f"<h1>A private model of {escape(label)}</h1>",
        f"<p><b>{escape(found.sentence)}</b></p>",
        "<h2>On held-out records of all sites</h2>",
        table(found.epsilons()[0], found.epsilons()[1:]) if found.by_epsilon else "",
        table(*found.verdict.table),
        '<p class="note">For research: the baselines are trained without noise, and the scores are '
        "computed from held-out records. No epsilon covers them. The model file is what the report "
        f"below covers. {escape(found.note)}</p>",
        "<h2>Privacy of the model</h2>",
        f"<pre>{escape(str(found.estimator.report_))}</pre>",
        f"<pre>{escape(found.estimator.report_.plain_words)}</pre>",
        "<h2>Columns and their public ranges</h2>",
        table(["", ""], ranges),
        f"<p>Not used: {escape(', '.join(unused))}.</p>" if unused else "",
    ]
    return document(label, body)


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
