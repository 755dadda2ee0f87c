"""Figures of a page about runs: a panel for each network, a colour for each method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

import dpmesh.plots as plots
from dpmesh.experiments.results import Result
from dpmesh.experiments.summary import Setting, placed, scores
from dpmesh.plots.measurements import mean_line
from dpmesh.plots.panels import DASHES, Line, Panel, drawn, in_words, interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = ("accuracy", "released_accuracy", "loss", "regret", "consensus_distance")
"""Metrics that a page shows over the rounds, where all runs measured them."""

MARKS = 8
"""Up to this many different epsilons are written below their axis."""

Found = Mapping[Setting, Sequence[Result]]


def drawings(results: Sequence[Result]) -> Iterable[tuple[Figure, str]]:
    """Draw scores of released models, then what was measured over the rounds and for the bytes."""
    found = placed(results)
    if all(np.isfinite(scores(runs)).all() for runs in found.values()):
        levels = _levels(results)
        draw = _against_epsilon if len({one.epsilon for one in found}) > 1 else _by_method
        beside = ", beside chance, alone and pooled" if levels else ""
        yield draw(found, levels), f"score of released models{beside}; bars are 95% intervals"
    shared = set.intersection(*(set(run.history.metrics) for run in results))
    over_rounds = shared - ({"accuracy"} if "released_accuracy" in shared else set())
    for metric in (name for name in CURVES if name in over_rounds):
        words = f"{in_words(metric)} over the rounds; bands are 95% intervals"
        yield _curves(found, metric, "round"), words
    for x in ("seconds", "megabytes"):
        if {"accuracy", x} <= shared:
            yield _curves(found, "accuracy", x), f"{in_words('accuracy')}, over {in_words(x)}"


def graphs(known: Mapping[str, Mapping[str, Any]]) -> Iterable[tuple[Figure, str]]:
    """Draw networks, by their descriptions, that are small enough."""
    from matplotlib.figure import Figure

    for description, graph in known.items():
        if graph["edges"] is None:
            continue
        figure = Figure(figsize=(4, 3.2), layout="constrained")
        grid = graph.get("grid")
        plots.network(graph["edges"], graph["nodes"], grid=grid, ax=figure.subplots())
        yield figure, f"graph of {description}"


def _against_epsilon(found: Found, levels: Mapping[str, float]) -> Figure:
    """Draw scores against epsilon, on a logarithmic axis with "none" at its end."""
    epsilons = {one.epsilon: inf if one.epsilon == "none" else float(one.epsilon) for one in found}
    last = 10 * max((x for x in epsilons.values() if x < inf), default=0.1)
    places = {text: min(x, last) for text, x in epsilons.items()}

    def line(method: str, mine: Sequence[Setting]) -> Line:
        mine = sorted(mine, key=lambda one: places[one.epsilon])
        values = [scores(found[one]) for one in mine]
        y, spread = [float(np.mean(some)) for some in values], [interval(some) for some in values]
        return Line(label=method, x=[places[one.epsilon] for one in mine], y=y, spread=spread)

    few = {place: text for text, place in places.items()} if len(places) <= MARKS else None
    how = {"x": "epsilon", "y": "score", "levels": levels, "log": "x", "ticks": few}
    return _panels(found, lambda one: one.network, line, **how)


def _curves(found: Found, metric: str, x: str) -> Figure:
    """Draw a metric over rounds, time or bytes, a panel for each network and epsilon."""
    several = len({one.epsilon for one in found}) > 1

    def panel(one: Setting) -> str:
        at = f"epsilon {one.epsilon}" if several else ""
        return ", ".join(filter(None, (one.network, at)))

    def line(method: str, mine: Sequence[Setting]) -> Line:
        return mean_line(method, [run.history for one in mine for run in found[one]], metric, x)

    return _panels(found, panel, line, x=in_words(x), y=in_words(metric), kind="bands")


def _panels(
    found: Found,
    panel: Callable[[Setting], str],
    line: Callable[[str, Sequence[Setting]], Line],
    **how: Any,
) -> Figure:
    """Draw panels, by their titles, with a line for each method that runs there."""
    members: dict[str, dict[str, list[Setting]]] = defaultdict(lambda: defaultdict(list))
    for one in found:
        members[panel(one)][one.method].append(one)
    panels = [
        Panel(
            title=fill(title or "no network", 40) if len(members) > 1 else title,
            lines=[line(method, mine) for method, mine in methods.items()],
            **how,
        )
        for title, methods in members.items()
    ]
    return drawn(panels, columns=_beside(len(panels)))


def _by_method(found: Found, levels: Mapping[str, float]) -> Figure:
    """Draw scores as dots, a row for each method, the best on top, a panel for each network."""
    from matplotlib.figure import Figure

    best: dict[str, float] = defaultdict(lambda: -inf)
    for one, runs in found.items():
        best[one.method] = max(best[one.method], float(np.mean(scores(runs))))
    methods, networks = sorted(best, key=best.__getitem__), list({one.network: 0 for one in found})
    columns = _beside(len(networks))
    rows = -(-len(networks) // columns)
    names = [fill(name, 32) for name in methods]
    lines = 1 + max(name.count("\n") for name in names)
    size = 2.6 + 2.4 * columns, 0.6 + rows * (0.8 + max(0.32, 0.17 * lines) * len(methods))
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for ax, network in zip(axes, networks, strict=False):
        for one, runs in found.items():
            if one.network == network:
                place, mean = methods.index(one.method), np.mean(scores(runs))
                bar = interval(scores(runs))
                ax.errorbar(mean, place, xerr=bar, fmt="o", capsize=3, color=plots.COLOURS[0])
        for (name, level), dashes in zip(levels.items(), DASHES, strict=False):
            ax.axvline(level, color="gray", linestyle=dashes, label=name)
        ax.set(title=(network or "no network") if len(networks) > 1 else "", xlabel="score")
        ax.set_yticks(range(len(methods)), names)
        ax.grid(alpha=0.3)
    for ax in axes[len(networks) :]:
        ax.remove()
    if levels:
        named = axes[0].get_legend_handles_labels()
        figure.legend(*named, loc="outside lower center", ncols=len(levels), frameon=False)
    return figure


def _levels(results: Sequence[Result]) -> dict[str, float]:
    """Return the means of baselines without privacy, of runs that know them all."""
    known = [run.baselines for run in results]
    beside = [one for one in known if one is not None and one.metric == "accuracy"]
    if len(beside) < len(results):
        return {}
    means = np.mean([(one.chance, one.alone.mean(), one.pooled) for one in beside], axis=0)
    return dict(zip(("chance", "alone", "pooled"), map(float, means), strict=True))


def _beside(panels: int) -> int:
    """Return how many panels stand beside each other."""
    return 2 if panels == 4 else min(3, panels)
