"""The page that ``dpmesh fit`` writes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from dpmesh.experiments.html import document, table

if TYPE_CHECKING:
    from dpmesh.sklearn import Evaluation


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
