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
    from matplotlib.axes import Axes
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
    """Yield figures with captions: scores, then metrics over rounds, time and traffic.

    Scores are drawn if all runs have them: against epsilon, or by method if all runs have the same.
    A metric is drawn if all runs measured it.
    """
    by_setting = results_by_setting(results)
    if all(np.isfinite(scores(runs)).all() for runs in by_setting.values()):
        yield _scores(by_setting, _levels(results))
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


def _scores(results: ResultsBySetting, levels: Levels) -> tuple[Figure, str]:
    """Return the figure of scores, with its caption."""
    epsilons = {setting.epsilon for setting in results}
    if len(epsilons) > 1:
        figure = _against_epsilon(results, levels)
    else:
        figure = _by_method(results, levels)
    caption = "score of released models"
    if levels:
        caption += ", with the majority class, single sites and the centralized model"
    return figure, f"{caption}; bars are 95% intervals"


# Panels of lines


def _against_epsilon(results: ResultsBySetting, levels: Levels) -> Figure:
    """Draw scores against epsilon, a panel for each network.

    The axis of epsilon is logarithmic, with runs without noise ("none") at its end.
    """
    places = _places_of_epsilons(results)
    ticks = None
    if len(places) <= MARKS:
        ticks = {place: epsilon for epsilon, place in places.items()}
    panels = []
    for title, methods in _panel_contents(results, lambda setting: setting.network):
        lines = []
        for method, settings in methods.items():
            in_order = sorted(settings, key=lambda setting: places[setting.epsilon])
            scores_of_settings = [scores(results[setting]) for setting in in_order]
            lines.append(
                Line(
                    label=method,
                    x=[places[setting.epsilon] for setting in in_order],
                    y=[float(np.mean(values)) for values in scores_of_settings],
                    spread=[interval(values) for values in scores_of_settings],
                )
            )
        panels.append(
            Panel(
                title=title,
                lines=lines,
                x="epsilon",
                y="score",
                levels=levels,
                log="x",
                ticks=ticks,
            )
        )
    return drawn(panels, columns=_columns(len(panels)))


def _places_of_epsilons(results: ResultsBySetting) -> dict[str, float]:
    """Return the place of each epsilon on its axis; "none" is at 10 times the largest number."""
    values: dict[str, float] = {}
    for setting in results:
        values[setting.epsilon] = inf
        if setting.epsilon != "none":
            values[setting.epsilon] = float(setting.epsilon)
    finite = [value for value in values.values() if value < inf]
    last_place = 10 * max(finite, default=0.1)
    return {epsilon: min(value, last_place) for epsilon, value in values.items()}


def _curves(results: ResultsBySetting, metric: str, x: str) -> Figure:
    """Draw a metric over rounds, time or bytes, a panel for each network and epsilon."""
    has_several_epsilons = len({setting.epsilon for setting in results}) > 1

    def title_of(setting: Setting) -> str:
        parts = [setting.network]
        if has_several_epsilons:
            parts.append(f"epsilon {setting.epsilon}")
        return ", ".join(filter(None, parts))

    panels = []
    for title, methods in _panel_contents(results, title_of):
        lines = []
        for method, settings in methods.items():
            histories = [run.history for setting in settings for run in results[setting]]
            lines.append(mean_line(method, histories, metric, x))
        panels.append(
            Panel(title=title, lines=lines, x=in_words(x), y=in_words(metric), kind="bands")
        )
    return drawn(panels, columns=_columns(len(panels)))


def _panel_contents(
    results: ResultsBySetting, title_of: Callable[[Setting], str]
) -> list[tuple[str, dict[str, list[Setting]]]]:
    """Return the title of each panel, and the settings of each method in it.

    Parameters
    ----------
    results
        The results.
    title_of
        Function that returns the title of a setting's panel.

    Returns
    -------
    Pairs of a title, and settings by method. If there are several panels, their titles are wrapped,
    and an empty title becomes "no network".
    """
    by_title: dict[str, dict[str, list[Setting]]] = defaultdict(lambda: defaultdict(list))
    for setting in results:
        by_title[title_of(setting)][setting.method].append(setting)
    if len(by_title) < 2:
        return [*by_title.items()]
    return [(fill(title or "no network", 40), methods) for title, methods in by_title.items()]


# Dots of methods


def _by_method(results: ResultsBySetting, levels: Levels) -> Figure:
    """Draw scores as dots, a row for each method, the best on top, a panel for each network."""
    from matplotlib.figure import Figure

    methods = _methods_by_score(results)
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
        _draw_scores(ax, results, network, methods)
        for (name, level), dashes in zip(levels.items(), DASHES, strict=False):
            ax.axvline(level, color="gray", linestyle=dashes, label=name)
        title = ""
        if len(networks) > 1:
            title = network or "no network"
        ax.set(title=title, xlabel="score")
        ax.set_yticks(range(len(methods)), names)
        ax.grid(alpha=0.3)
    for ax in axes[len(networks) :]:
        ax.remove()
    if levels:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(levels), frameon=False)
    return figure


def _methods_by_score(results: ResultsBySetting) -> list[str]:
    """Return the methods, by the best mean score of their settings, the lowest first."""
    best: dict[str, float] = defaultdict(lambda: -inf)
    for setting, runs in results.items():
        best[setting.method] = max(best[setting.method], float(np.mean(scores(runs))))
    return sorted(best, key=best.__getitem__)


def _draw_scores(ax: Axes, results: ResultsBySetting, network: str, methods: Sequence[str]) -> None:
    """Draw the mean scores in one network, each at the height of its method's place."""
    for setting, runs in results.items():
        if setting.network != network:
            continue
        values = scores(runs)
        ax.errorbar(
            np.mean(values),
            methods.index(setting.method),
            xerr=interval(values),
            fmt="o",
            capsize=3,
            color=plots.COLOURS[0],
        )


def _levels(results: Sequence[Result]) -> Levels:
    """Return the mean scores of non-private baselines; empty unless all runs have them."""
    baselines_by_run = []
    for run in results:
        baselines = run.baselines
        if baselines is not None and baselines.metric == "accuracy":
            baselines_by_run.append(baselines)
    if len(baselines_by_run) < len(results):
        return {}
    return {
        "majority class": float(
            np.mean([baselines.majority_class for baselines in baselines_by_run])
        ),
        "single site": float(
            np.mean([baselines.single_sites.mean() for baselines in baselines_by_run])
        ),
        "centralized": float(np.mean([baselines.centralized for baselines in baselines_by_run])),
    }


def _columns(panels: int) -> int:
    """Return the number of panels in a row."""
    if panels == 4:
        return 2
    return min(3, panels)
