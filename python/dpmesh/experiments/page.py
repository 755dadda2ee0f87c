"""One self-contained HTML page about all results in a folder."""

from __future__ import annotations

import json
import os
import platform
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from dpmesh import __version__
from dpmesh._files import replace_text, writable_folder
from dpmesh._validate import fail
from dpmesh.experiments.figures import CURVES, drawings, graphs
from dpmesh.experiments.html import document, figures, table
from dpmesh.experiments.results import Result, failures, finished
from dpmesh.experiments.summary import Groups, compared, dearest, grouped, measured, sentences


def write_page(folders: Sequence[str | Path], target: str | Path | None = None) -> Path:
    """Write a page about the results in folders; needs the extra ``plots``.

    Parameters
    ----------
    folders
        Folders of sweeps, of single runs, or of several that `Run.save` wrote. The results of
        several folders stand side by side, each under the name of its folder.
    target
        The page; by default ``report.html``, in the folder if there is only one. A name that ends
        in ``.tex`` or ``.csv`` gets the table of settings alone, for a paper.

    Returns
    -------
    Where the page is.

    Raises
    ------
    ValueError
        If a folder holds no finished runs, or `target` is a folder or a file of another kind.
    OSError
        If it cannot be written; it is not made then.
    """
    places = [Path(folder) for folder in folders]
    if len(places) == 1:
        (folder,) = places
        title, path = folder.resolve().name, folder / "report.html"
        results, settings = finished(folder)
    else:
        found = {name: finished(folder) for name, folder in _by_name(places).items()}
        title, path = ", ".join(found), Path("report.html")
        results = [
            replace(result, changes={"folder": name, **result.changes})
            for name, (own, _) in found.items()
            for result in own
        ]
        settings = {name: own for name, (_, own) in found.items()}
    path = path if target is None else Path(target)
    if path.is_dir() or path.suffix not in ("", ".html", ".tex", ".csv"):
        got = "a folder" if path.is_dir() else path
        fail("target", "a file that ends in .html, .tex or .csv", got)
    writable_folder(path.parent)
    if path.suffix in (".tex", ".csv"):
        rows = compared(grouped(results)).varying
        replace_text(path, rows.to_latex() if path.suffix == ".tex" else rows.to_csv())
        return path
    failed = {name: why for folder in places for name, why in failures(folder).items()}
    replace_text(path, page(title, results, settings, failed))
    return path


def _by_name(folders: Sequence[Path]) -> dict[str, Path]:
    """Return folders by the parts of their paths that differ."""
    shared = os.path.commonpath([folder.resolve() for folder in folders])
    return {str(folder.resolve().relative_to(shared)): folder for folder in folders}


def page(
    title: str, results: Sequence[Result], settings: Any, failed: Mapping[str, str] | None = None
) -> str:
    """Return the page: text, tables and pictures, with no link to anywhere else.

    Parameters
    ----------
    title
        Its title.
    results
        Those that it is about.
    settings
        What they have in common, in plain types.
    failed
        Why runs failed, by their names.
    """
    groups = grouped(results)
    body = [
        f"<h1>{escape(title)}</h1>",
        *_failed(failed or {}),
        *_summary(results, groups),
        "<h2>What privacy buys</h2>",
        *_compared(groups),
        '<p class="note">Scores of released models on test records; ± is the standard deviation '
        "over runs. Alone and pooled are trained without privacy. A verdict takes 5 runs; its "
        "interval is of 95%. No epsilon covers these figures: they are for research.</p>",
        figures(drawings(results)),
        "<h2>At the end</h2>",
        table(*measured(groups, CURVES)),
        *_networks(results),
        *_reports(groups),
        *_details("Settings", json.dumps(settings, indent=1)),
        "<h2>Versions</h2>",
        table(["", ""], _versions(results[0])),
    ]
    return document(title, body)


def _failed(failed: Mapping[str, str]) -> Iterable[str]:
    """Show the runs that failed, each reason once."""
    if not failed:
        return
    names: dict[str, list[str]] = defaultdict(list)
    for name, why in failed.items():
        names[why].append(name)
    rows = [[why, str(len(those)), "\n".join(those)] for why, those in names.items()]
    yield f'<p class="warning">{len(failed)} runs failed. The same command repeats them.</p>'
    yield table(["error", "number", "failed runs"], rows)


def _summary(results: Sequence[Result], groups: Groups) -> Iterable[str]:
    """Show how many runs there are, and what can be said of them."""
    count = f"{len(results)} run{'s' * (len(results) > 1)}"
    yield f'<p class="note">{count} of {len(groups)} setting{"s" * (len(groups) > 1)}. '
    yield "Measurements look at the nodes' own models, their records and test data: they are for "
    yield "research, and no part of the release.</p>"
    if any("seeded" in text for r in results for text in r.privacy.assumptions):
        yield '<p class="warning">Runs with a seed are reproducible and no private release: '
        yield "whoever knows the seed can remove the noise.</p>"
    yield from (f"<p>{escape(text)}</p>" for text in sentences(groups))


def _compared(groups: Groups) -> Iterable[str]:
    found = compared(groups)
    yield table(*found.varying)
    yield f'<p class="note">{escape(found.constant)}</p>'


def _networks(results: Sequence[Result]) -> Iterable[str]:
    known = {r.graph["description"]: r.graph for r in results if r.graph is not None}
    if known:
        yield "<h2>Network in the first round</h2>"
        yield figures(graphs(known))
    for description, graph in known.items():
        gap = f"{graph['nodes']} nodes, spectral gap {graph['spectral_gap']:.4g}"
        yield f"<p>{escape(description)}: {gap}.</p>"


def _reports(groups: Groups) -> Iterable[str]:
    yield "<h2>Privacy reports</h2>"
    yield '<p class="note">Each report is for one run alone. Publishing several runs on the same '
    yield "data costs more: dpmesh.privacy.total_cost.</p>"
    for label, runs in groups.items():
        yield from _details(label, str(dearest(runs)), opened=len(groups) <= 2)


def _details(title: str, text: str, *, opened: bool = False) -> Iterable[str]:
    how = " open" if opened else ""
    yield f"<details{how}><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def _versions(first: Result) -> list[list[str]]:
    return [
        ["dpmesh", first.run["dpmesh"]],
        ["page by dpmesh", __version__],
        ["numpy", np.__version__],
        ["Python", platform.python_version()],
        ["system", platform.platform()],
    ]
