"""Figures of a page about runs: scores and metrics, a panel for each network.

Terms: a *setting* is a method, a network and an epsilon, with the runs of all seeds; *levels* are
horizontal or vertical lines at the scores of non-private baselines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from textwrap import fill
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

import dpmesh.plots as plots
from dpmesh._files import JsonObject
from dpmesh.experiments.results import Result
from dpmesh.experiments.summary import Setting, results_by_setting, scores
from dpmesh.plots.measurements import mean_line
from dpmesh.plots.panels import DASHES, Line, Panel, drawn, in_words, interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = ("accuracy", "released_accuracy", "loss", "regret", "consensus_distance")
"""Metrics that a page shows over the rounds, if all runs measured them."""

MARKS = 8
"""Largest number of different epsilons that have labels on their axis."""

ResultsBySetting: TypeAlias = Mapping[Setting, Sequence[Result]]
"""Results of each method, network and epsilon."""

Levels: TypeAlias = Mapping[str, float]
"""Mean score of each baseline, by name."""


def drawings(results: Sequence[Result]) -> Iterable[tuple[Figure, str]]:
    """Yield figures with captions: scores, then metrics over rounds, time and traffic."""
    by_setting = results_by_setting(results)
    if all(np.isfinite(scores(runs)).all() for runs in by_setting.values()):
        levels = _levels(results)
        caption = "score of released models"
        if levels:
            caption += ", with the majority class, single sites and the centralized model"
        epsilons = {setting.epsilon for setting in by_setting}
        draw = _against_epsilon if len(epsilons) > 1 else _by_method
        yield draw(by_setting, levels), f"{caption}; bars are 95% intervals"
    measured = set.intersection(*(set(run.history.metrics) for run in results))
    over_rounds = set(measured)
    if "released_accuracy" in measured:
        over_rounds.discard("accuracy")
    for metric in CURVES:
        if metric in over_rounds:
            caption = f"{in_words(metric)} over the rounds; bands are 95% intervals"
            yield _curves(by_setting, metric, "round"), caption
    for x in ("seconds", "megabytes"):
        if {"accuracy", x} <= measured:
            caption = f"{in_words('accuracy')}, over {in_words(x)}"
            yield _curves(by_setting, "accuracy", x), caption


def graph_figures(graphs: Mapping[str, JsonObject]) -> Iterable[tuple[Figure, str]]:
    """Yield a figure with a caption for each graph that is small enough.

    Parameters
    ----------
    graphs
        Graphs as `Experiment.graph` returns them, by description.
    """
    from matplotlib.figure import Figure

    for description, graph in graphs.items():
        if graph["edges"] is None:
            continue
        figure = Figure(figsize=(4, 3.2), layout="constrained")
        grid = graph.get("grid")
        plots.network(graph["edges"], graph["nodes"], grid=grid, ax=figure.subplots())
        yield figure, f"graph of {description}"


def _against_epsilon(results: ResultsBySetting, levels: Levels) -> Figure:
    """Draw scores against epsilon, on a logarithmic axis with "none" at its end."""
    values = {}
    for setting in results:
        text = setting.epsilon
        values[text] = inf if text == "none" else float(text)
    finite = [value for value in values.values() if value < inf]
    last = 10 * max(finite, default=0.1)
    places = {text: min(value, last) for text, value in values.items()}

    def line(method: str, settings: Sequence[Setting]) -> Line:
        """Return the mean scores of a method, from the smallest epsilon on."""
        in_order = sorted(settings, key=lambda setting: places[setting.epsilon])
        scores_of_settings = [scores(results[setting]) for setting in in_order]
        return Line(
            label=method,
            x=[places[setting.epsilon] for setting in in_order],
            y=[float(np.mean(values)) for values in scores_of_settings],
            spread=[interval(values) for values in scores_of_settings],
        )

    ticks = None
    if len(places) <= MARKS:
        ticks = {place: text for text, place in places.items()}

    def panel(title: str, lines: Sequence[Line]) -> Panel:
        return Panel(
            title=title, lines=lines, x="epsilon", y="score", levels=levels, log="x", ticks=ticks
        )

    return _panels(results, lambda setting: setting.network, line, panel)


def _curves(results: ResultsBySetting, metric: str, x: str) -> Figure:
    """Draw a metric over rounds, time or bytes, a panel for each network and epsilon."""
    has_several_epsilons = len({setting.epsilon for setting in results}) > 1

    def title(setting: Setting) -> str:
        parts = [setting.network]
        if has_several_epsilons:
            parts.append(f"epsilon {setting.epsilon}")
        return ", ".join(filter(None, parts))

    def line(method: str, settings: Sequence[Setting]) -> Line:
        histories = [run.history for setting in settings for run in results[setting]]
        return mean_line(method, histories, metric, x)

    def panel(title: str, lines: Sequence[Line]) -> Panel:
        return Panel(title=title, lines=lines, x=in_words(x), y=in_words(metric), kind="bands")

    return _panels(results, title, line, panel)


def _panels(
    results: ResultsBySetting,
    title_of: Callable[[Setting], str],
    line: Callable[[str, Sequence[Setting]], Line],
    panel: Callable[[str, Sequence[Line]], Panel],
) -> Figure:
    """Draw a panel for each title, with a line for each method.

    Parameters
    ----------
    results
        The results.
    title_of
        Function that returns the title of a setting's panel.
    line
        Function that returns the line of a method from its settings in a panel.
    panel
        Function that returns the panel of a title and its lines.
    """
    methods_by_title: dict[str, dict[str, list[Setting]]] = defaultdict(lambda: defaultdict(list))
    for setting in results:
        methods_by_title[title_of(setting)][setting.method].append(setting)
    panels = []
    for title, methods in methods_by_title.items():
        if len(methods_by_title) > 1:
            title = fill(title or "no network", 40)
        panels.append(
            panel(title, [line(method, settings) for method, settings in methods.items()])
        )
    return drawn(panels, columns=_columns(len(panels)))


def _by_method(results: ResultsBySetting, levels: Levels) -> Figure:
    """Draw scores as dots, a row for each method, the best on top, a panel for each network."""
    from matplotlib.figure import Figure

    best: dict[str, float] = defaultdict(lambda: -inf)
    for setting, runs in results.items():
        best[setting.method] = max(best[setting.method], float(np.mean(scores(runs))))
    methods = sorted(best, key=best.__getitem__)
    networks = [*dict.fromkeys(setting.network for setting in results)]
    names = [fill(name, 32) for name in methods]
    columns = _columns(len(networks))
    rows = -(-len(networks) // columns)
    lines = 1 + max(name.count("\n") for name in names)
    width = 2.6 + 2.4 * columns
    height = 0.6 + rows * (0.8 + max(0.32, 0.17 * lines) * len(methods))
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for ax, network in zip(axes, networks, strict=False):
        for setting, runs in results.items():
            if setting.network != network:
                continue
            values = scores(runs)
            place = methods.index(setting.method)
            ax.errorbar(
                np.mean(values),
                place,
                xerr=interval(values),
                fmt="o",
                capsize=3,
                color=plots.COLOURS[0],
            )
        for (name, level), dashes in zip(levels.items(), DASHES, strict=False):
            ax.axvline(level, color="gray", linestyle=dashes, label=name)
        title = (network or "no network") if len(networks) > 1 else ""
        ax.set(title=title, xlabel="score")
        ax.set_yticks(range(len(methods)), names)
        ax.grid(alpha=0.3)
    for ax in axes[len(networks) :]:
        ax.remove()
    if levels:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(levels), frameon=False)
    return figure


def _levels(results: Sequence[Result]) -> Levels:
    """Return the mean scores of non-private baselines; empty unless all runs have them."""
    of_accuracy = []
    for run in results:
        baselines = run.baselines
        if baselines is not None and baselines.metric == "accuracy":
            of_accuracy.append(baselines)
    if len(of_accuracy) < len(results):
        return {}
    return {
        "majority class": float(np.mean([baselines.majority_class for baselines in of_accuracy])),
        "single site": float(np.mean([baselines.single_sites.mean() for baselines in of_accuracy])),
        "centralized": float(np.mean([baselines.centralized for baselines in of_accuracy])),
    }


def _columns(panels: int) -> int:
    """Return the number of panels in a row."""
    if panels == 4:
        return 2
    return min(3, panels)
