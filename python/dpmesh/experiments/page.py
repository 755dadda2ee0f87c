"""One self-contained HTML page about all results in a folder."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import dpmesh.plots as plots
from dpmesh import __version__
from dpmesh._files import replace_text, writable_folder
from dpmesh._validate import fail
from dpmesh.experiments.experiment import Result
from dpmesh.experiments.html import document, figures, table
from dpmesh.experiments.results import finished
from dpmesh.experiments.summary import (
    Groups,
    compared,
    dearest,
    grouped,
    measured,
    sentences,
    without_budget,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CURVES = ("accuracy", "released_accuracy", "loss", "regret", "consensus_distance")


def write_page(folders: Sequence[str | Path], target: str | Path | None = None) -> Path:
    """Write a page about the results in folders; needs the extra ``plots``.

    Parameters
    ----------
    folders
        Folders of sweeps, of single runs, or of several that `Run.save` wrote. The results of
        several folders stand side by side, each under the name of its folder.
    target
        The page; by default ``report.html``, in the folder if there is only one.

    Returns
    -------
    Where the page is.

    Raises
    ------
    ValueError
        If a folder holds no finished runs, or `target` is a folder.
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
    if path.is_dir():
        fail("target", "a file", f"a folder: {path}")
    writable_folder(path.parent)
    replace_text(path, page(title, results, settings))
    return path


def _by_name(folders: Sequence[Path]) -> dict[str, Path]:
    """Return folders by the parts of their paths that differ."""
    shared = os.path.commonpath([folder.resolve() for folder in folders])
    return {str(folder.resolve().relative_to(shared)): folder for folder in folders}


def page(title: str, results: Sequence[Result], settings: Any) -> str:
    """Return the page: text, tables and pictures, with no link to anywhere else."""
    groups = grouped(results)
    seeded = any("seeded" in text for r in results for text in r.privacy.assumptions)
    warning = (
        '<p class="warning">Runs with a seed are reproducible and no private release: '
        "whoever knows the seed can remove the noise.</p>"
    )
    first = results[0].run
    versions = {"dpmesh": first["dpmesh"], "page by dpmesh": __version__, "numpy": np.__version__}
    versions |= {"Python": platform.python_version(), "system": platform.platform()}
    said = sentences(groups)
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="note">{len(results)} runs of {len(groups)} settings. Curves are means over '
        "seeds, bands reach from least to largest. Click a column's head to sort a table, a figure "
        "to enlarge it. Measurements look at the nodes' own models, their records and test data: "
        "they are for research, and no part of the release.</p>",
        warning if seeded else "",
        "<h2>What privacy buys</h2>",
        figures(_against_epsilon(results), large=True),
        f'<div class="wide">{table(*compared(groups))}</div>',
        '<p class="note">Scores of released models on test records; alone and pooled are trained '
        "without privacy. A verdict takes 5 runs; its interval is of 95%. No epsilon covers these "
        "figures: they are for research.</p>",
        "<ul>",
        *(f"<li><b>{escape(name)}</b>: {escape(text)}</li>" for name, text in said.items()),
        "</ul>",
        "<h2>Over the rounds</h2>",
        f'<div class="wide">{table(*measured(groups, _CURVES))}</div>',
        figures(_curves(groups)),
        "<h2>Privacy, accuracy, traffic</h2>",
        figures(_tradeoffs(results)),
        *_graph(results),
        "<h2>Privacy reports</h2>",
        '<p class="note">Each report is for one run alone. Publishing several runs on the same '
        "data costs more: dpmesh.privacy.total_cost.</p>",
        *(
            f"<h3>{escape(label)}</h3><pre>{escape(str(dearest(runs)))}</pre>"
            for label, runs in groups.items()
        ),
        "<h2>Settings</h2>",
        f"<pre>{escape(json.dumps(settings, indent=1))}</pre>",
        "<h2>Versions</h2>",
        table(["", ""], [[name, value] for name, value in versions.items()]),
    ]
    return document(title, body)


def _shared(groups: Groups) -> set[str]:
    """Return the metrics that all runs measured."""
    return set.intersection(*(set(r.history.metrics) for runs in groups.values() for r in runs))


def _against_epsilon(results: Sequence[Result]) -> Iterable[tuple[Figure, str]]:
    """Draw the released models' accuracy against epsilon, beside baselines as lines."""
    released = [result for result in results if result.privacy.epsilon > 0]
    metric = "released_accuracy"
    if not released or metric not in _shared({"": released}):
        return
    figure, ax = _figure(7.5, 4.2)
    plots.against_epsilon(without_budget(released), metric, ax=ax)
    yield figure, "accuracy of released models against epsilon, beside chance, alone and pooled"


def _curves(groups: Groups) -> Iterable[tuple[Figure, str]]:
    shared = _shared(groups)
    histories = {label: [run.history for run in runs] for label, runs in groups.items()}
    for metric in (name for name in _CURVES if name in shared):
        figure, ax = _figure()
        plots.bands(histories, metric, ax=ax)
        yield figure, f"{metric} over the rounds"
    for x, words in {"seconds": "virtual time", "megabytes": "megabytes sent"}.items():
        if {"accuracy", x} <= shared:
            figure, ax = _figure()
            plots.bands(histories, "accuracy", x=x, ax=ax)
            yield figure, f"accuracy over {words}"


def _tradeoffs(results: Sequence[Result]) -> Iterable[tuple[Figure, str]]:
    results = [result for result in results if result.privacy.epsilon > 0]  # released something
    if not results:
        return
    shared = _shared({"": results})
    epsilons = [result.privacy.epsilon for result in results]
    sent = [result.traffic.megabytes for result in results]
    for metric in (name for name in ("accuracy", "released_accuracy", "loss") if name in shared):
        figure, ax = _figure()
        ends = [result.history.last(metric) for result in results]
        plots.tradeoff(epsilons, ends, sent, metric=metric, ax=ax)
        yield figure, f"{metric} against epsilon and megabytes"


def _graph(results: Sequence[Result]) -> Iterable[str]:
    graphs = {r.graph["description"]: r.graph for r in results if r.graph is not None}
    if graphs:
        yield "<h2>Network in the first round</h2>"
    for description, graph in graphs.items():
        gap = f"{graph['nodes']} nodes, spectral gap {graph['spectral_gap']:.4g}"
        yield f"<p>{escape(description)}: {gap}.</p>"
        if graph["edges"] is not None:
            figure, ax = _figure()
            grid = graph.get("grid")
            plots.network(graph["edges"], graph["nodes"], grid=grid, title=gap, ax=ax)
            yield figures([(figure, f"graph of {description}")])


def _figure(width: float = 5, height: float = 3.5) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()
