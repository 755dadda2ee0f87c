"""The page of ``dpmesh report``: one self-contained HTML page about the results in folders.

`write_page` reads the results and writes the page, or only its table of settings as LaTeX or CSV.
Functions with an underscore yield parts of the page as HTML. *Groups* are the runs that differ in
their seed alone, by the name of their setting.
"""

from __future__ import annotations

import json
import os
import platform
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np

from dpmesh import __version__
from dpmesh._files import replace_text, writable_folder
from dpmesh._validate import fail
from dpmesh.experiments.figures import CURVES, drawings, graph_figures
from dpmesh.experiments.html import document, figures, table
from dpmesh.experiments.results import Result, failures, load_results
from dpmesh.experiments.summary import (
    Groups,
    compared,
    grouped,
    largest_epsilon,
    last_measurements,
    missing_guarantees,
    sentences,
)


def write_page(folders: Sequence[str | Path], target: str | Path | None = None) -> Path:
    """Write a page about the results in folders; needs the extra ``plots``.

    Parameters
    ----------
    folders
        Folders of sweeps, of single runs, or of several runs that `Run.save` wrote. The settings of
        several folders are named by their folder.
    target
        Path of the page; by default ``report.html``, in the folder if there is only one. A path
        that ends in ``.tex`` or ``.csv`` gets the table of settings alone, for a paper.

    Returns
    -------
    Path of the page.

    Raises
    ------
    ValueError
        If a folder holds no finished runs, or `target` is a folder or a file of another kind.
    OSError
        If the page cannot be written.
    """
    places = [Path(folder) for folder in folders]
    if len(places) == 1:
        (folder,) = places
        title = folder.resolve().name
        path = folder / "report.html"
        results, settings = load_results(folder)
    else:
        folders_by_name = _by_name(places)
        title = ", ".join(folders_by_name)
        path = Path("report.html")
        results = []
        settings = {}
        for name, folder in folders_by_name.items():
            results_of_folder, settings[name] = load_results(folder)
            for result in results_of_folder:
                results.append(replace(result, changes={"folder": name, **result.changes}))
    if target is not None:
        path = Path(target)
    if path.is_dir() or path.suffix not in ("", ".html", ".tex", ".csv"):
        got = "a folder" if path.is_dir() else path
        fail("target", "a file that ends in .html, .tex or .csv", got)
    writable_folder(path.parent)
    if path.suffix in (".tex", ".csv"):
        settings_table = compared(grouped(results)).varying
        is_latex = path.suffix == ".tex"
        replace_text(path, settings_table.to_latex() if is_latex else settings_table.to_csv())
        return path
    failed: dict[str, str] = {}
    for folder in places:
        failed |= failures(folder)
    replace_text(path, page(title, results, settings, failed))
    return path


def _by_name(folders: Sequence[Path]) -> dict[str, Path]:
    """Return folders by their paths relative to their common parent folder."""
    shared = os.path.commonpath([folder.resolve() for folder in folders])
    return {str(folder.resolve().relative_to(shared)): folder for folder in folders}


def page(
    title: str,
    results: Sequence[Result],
    settings: Mapping[str, object],
    failed: Mapping[str, str] | None = None,
) -> str:
    """Return the page as HTML: text, tables and figures, without links to other files.

    Parameters
    ----------
    title
        Title of the page.
    results
        Results that the page shows.
    settings
        Settings of the results, in plain types, as `load_results` returns them.
    failed
        Error of each failed run, by the name of its folder.
    """
    groups = grouped(results)
    body = [
        f"<h1>{escape(title)}</h1>",
        *_failed(failed or {}),
        *_summary(results, groups),
        "<h2>What privacy buys</h2>",
        *_compared(groups),
        '<p class="note">Scores of released models on test records; ± is the standard deviation '
        "over runs. Single-site and centralized models are trained without privacy. A verdict "
        "takes 5 runs; its interval is of 95%. No epsilon covers these figures: they are for "
        "research.</p>",
        figures(drawings(results)),
        "<h2>At the end</h2>",
        table(*last_measurements(groups, CURVES)),
        *_networks(results),
        *_reports(groups),
        *_details("Settings", json.dumps(settings, indent=1)),
        "<h2>Versions</h2>",
        table(["", ""], _versions(results[0])),
    ]
    return document(title, body)


def _failed(failed: Mapping[str, str]) -> Iterable[str]:
    """Yield a table of the failed runs, with a row for each error."""
    if not failed:
        return
    names_by_error: dict[str, list[str]] = defaultdict(list)
    for name, error in failed.items():
        names_by_error[error].append(name)
    rows = [[error, str(len(names)), "\n".join(names)] for error, names in names_by_error.items()]
    yield f'<p class="warning">{len(failed)} runs failed. The same command repeats them.</p>'
    yield table(["error", "number", "failed runs"], rows)


def _summary(results: Sequence[Result], groups: Groups) -> Iterable[str]:
    """Yield the numbers of runs and settings, cautions, and the sentences about the results."""
    runs = _counted(len(results), "run")
    yield f'<p class="note">{runs} of {_counted(len(groups), "setting")}. '
    yield "Measurements look at the nodes' own models, their records and test data: they are for "
    yield "research, and no part of the release.</p>"
    assumptions = [text for result in results for text in result.privacy.assumptions]
    if any("seeded" in text for text in assumptions):
        yield '<p class="warning">NOT private: seeded noise. Whoever knows the seed can '
        yield "remove the noise of these runs.</p>"
    for text in missing_guarantees(groups):
        yield f'<p class="warning">{escape(text)}</p>'
    yield from (f"<p>{escape(text)}</p>" for text in sentences(groups))


def _counted(count: int, noun: str) -> str:
    """Return a count with its noun, in singular or plural."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}s"


def _compared(groups: Groups) -> Iterable[str]:
    """Yield the table of epsilon, scores and traffic of each setting."""
    settings_table = compared(groups)
    yield table(*settings_table.varying)
    yield f'<p class="note">{escape(settings_table.constant)}</p>'


def _networks(results: Sequence[Result]) -> Iterable[str]:
    """Yield the communication graphs of the first round."""
    graph_by_description = {
        result.graph["description"]: result.graph for result in results if result.graph is not None
    }
    if graph_by_description:
        yield "<h2>Network in the first round</h2>"
        yield figures(graph_figures(graph_by_description))
    for description, graph in graph_by_description.items():
        gap = f"{graph['nodes']} nodes, spectral gap {graph['spectral_gap']:.4g}"
        yield f"<p>{escape(description)}: {gap}.</p>"


def _reports(groups: Groups) -> Iterable[str]:
    """Yield the privacy report of each setting, folded."""
    yield "<h2>Privacy reports</h2>"
    yield '<p class="note">Each report is for one run alone. Publishing several runs on the same '
    yield "data costs more: dpmesh.privacy.total_cost.</p>"
    for label, runs in groups.items():
        yield from _details(label, str(largest_epsilon(runs)), opened=len(groups) <= 2)


def _details(title: str, text: str, *, opened: bool = False) -> Iterable[str]:
    """Yield text below a title, folded until the reader opens it."""
    attribute = " open" if opened else ""
    summary = f"<summary>{escape(title)}</summary>"
    yield f"<details{attribute}>{summary}<pre>{escape(text)}</pre></details>"


def _versions(first: Result) -> list[list[str]]:
    """Return the versions of the package and of the system."""
    return [
        ["dpmesh", first.run["dpmesh"]],
        ["page by dpmesh", __version__],
        ["numpy", np.__version__],
        ["Python", platform.python_version()],
        ["system", platform.platform()],
    ]
