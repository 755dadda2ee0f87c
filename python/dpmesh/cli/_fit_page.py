"""The page that ``dpmesh fit`` writes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from dpmesh.privacy.shown import as_given
from dpmesh.ranges import Number

if TYPE_CHECKING:
    from dpmesh.sklearn import Evaluation

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5b6875; --paper: #fff; --bar: #b9c4cf;
        --ours: #0072b2; --line: #dde3e8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaee; --soft: #9aa7b4; --paper: #14191f; --bar: #4b5866; --ours: #56b4e9;
          --line: #2c353f; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 46rem; margin: 2.5rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; line-height: 1.3; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
.row { display: grid; grid-template-columns: 15rem 1fr 10rem; gap: .8rem; align-items: center;
       margin: .45rem 0; font-variant-numeric: tabular-nums; }
.bar { height: 1.1rem; border-radius: .2rem; background: var(--bar); }
.ours .bar { background: var(--ours); } .ours { font-weight: 600; }
.note { color: var(--soft); font-size: .9rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line);
         vertical-align: top; }
pre { white-space: pre-wrap; font-size: .85rem; }
@media (max-width: 36rem) { .row { grid-template-columns: 1fr; gap: .1rem; } }
"""


def fit_page(found: Evaluation, *, label: str, unused: Sequence[str]) -> str:
    """Return one self-contained HTML page about a fit, for light and dark screens."""
    model, report = found.estimator.model_, found.estimator.report_
    rows = found.baselines.rows(found.score, found.estimator.epsilon)
    bars = "".join(
        f'<div class="row{" ours" if "federation" in name else ""}"><span>{escape(name)}</span>'
        f'<div class="bar" style="width: {100 * min(max(score, 0.0), 1.0):.1f}%"></div>'
        f"<span>{escape(shown)}</span></div>"
        for name, score, shown in rows
    )
    columns = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(_range(kind))}</td></tr>"
        for name, kind in zip(model.columns.names, model.columns.kinds, strict=True)
    )
    left_out = f"<p>Not used: {escape(', '.join(unused))}.</p>" if unused else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(label)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>
<body>
<h1>{escape(found.sentence)}</h1>
<h2>{"Accuracy" if found.baselines.metric == "accuracy" else "R²"} for {escape(label)}, on held-out
records of all sites</h2>
{bars}
<p class="note">For research: the baselines are trained without noise, and the scores are computed
from held-out records. No epsilon covers them. The model file is what the report below covers.
{escape(found.note)}</p>
<h2>Privacy of the model</h2>
<pre>{escape(str(report))}</pre>
<h2>Columns and their public ranges</h2>
<table>{columns}</table>
{left_out}
</body></html>
"""


def _range(kind: object) -> str:
    if isinstance(kind, Number):
        shown = f"{as_given(kind.low)} to {as_given(kind.high)}"
        return f"{shown}, may be missing" if kind.missing else shown
    return ", ".join(map(str, getattr(kind, "categories", ())))
