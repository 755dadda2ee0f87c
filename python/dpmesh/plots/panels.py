"""Colours and axes of all figures; figures of panels, in which a method has one colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import stdtrit

from dpmesh._extras import needed_by

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
"""Okabe and Ito's, which colour-blind readers can distinguish."""

LEGEND_WIDTH = 40
"""Characters in a line of the legend; longer labels are wrapped."""

_COLUMN = 14
"""Lines in a column of the legend."""

_LABELS = {
    "accuracy": "test accuracy, nodes' models",
    "released_accuracy": "test accuracy, released models",
    "loss": "mean loss on fresh records",
    "regret": "average regret per record",
    "worst_regret": "average regret of the worst node",
    "consensus_distance": "distance from the average model",
    "seconds": "virtual time in seconds",
    "megabytes": "megabytes sent",
}

DASHES = ("-", "--", "-.", ":")
"""Of lines, for print."""
FEW = 6
"""Places on a logarithmic axis that are all named."""
PANEL, TITLE_WIDTH = (4.2, 3.4), 38
"""Inches of a panel, beside which the legend stands, and characters above it."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One method in one panel.

    Parameters
    ----------
    label
        Its name, by which it has a colour.
    x, y
        Numbers of one length; words in `x` are categories, which no line joins.
    spread
        Half the height of the bar or band around each.
    paper
        The paper's numbers, drawn dotted.
    """

    label: str
    x: Sequence[Any]
    y: Sequence[float]
    spread: Sequence[float] | None = None
    paper: Sequence[float | None] | None = None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes.

    Parameters
    ----------
    title, x, y
        In words: of the panel, and of its axes.
    lines
        What is drawn; a panel without any is left out.
    levels
        Heights of horizontal lines, by name.
    log
        Which axes are logarithmic.
    ticks
        Of x, if not the default's: numbers, or their texts by number.
    limits
        Of y, if not those of the lines.
    kind
        Lines with marks and bars, lines alone with bands, or dots.
    """

    title: str
    lines: Sequence[Line]
    x: str = ""
    y: str = ""
    levels: Mapping[str, float] = field(default_factory=dict)
    log: Literal["", "x", "y", "xy"] = ""
    ticks: Sequence[float] | Mapping[float, str] | None = None
    limits: tuple[float, float] | None = None
    kind: Literal["marks", "bands", "dots"] = "marks"


def drawn(panels: Sequence[Panel], *, columns: int = 0) -> Figure:
    """Draw panels, so many beside each other, with one legend; needs the extra ``plots``."""
    from matplotlib.figure import Figure

    panels = [panel for panel in panels if panel.lines]
    columns = min(columns or len(panels), len(panels))
    height = -(-len(panels) // columns)
    words = any(_are_words(line.x) for panel in panels for line in panel.lines)
    width, high = PANEL[0] * columns, (PANEL[1] + 1.6 * words) * height
    figure = Figure(figsize=(width, high), layout="constrained")
    looks = _looks(panels)
    known, levels = dict[str, Any](), dict[str, Any]()
    for place, panel in enumerate(panels):
        ax = figure.add_subplot(height, columns, place + 1)
        for line in panel.lines:
            known.setdefault(line.label, _draw(ax, line, panel.kind, looks[line.label]))
        for number, (name, level) in enumerate(panel.levels.items()):
            dashes = DASHES[1:][number % 3]
            levels.setdefault(name, ax.axhline(level, color="gray", linestyle=dashes))
        _label(ax, panel)
    known |= levels  # below the methods
    if len(known) > 1:
        names = [fill(name.replace("$", r"\$"), LEGEND_WIDTH) for name in known]
        longest = max(len(line) for name in names for line in name.split("\n"))
        figure.set_figwidth(width + 0.8 + 0.08 * longest)
        figure.legend(list(known.values()), names, loc="outside right upper", frameon=False)
    return figure


def _looks(panels: Sequence[Panel]) -> dict[str, dict[str, Any]]:
    """Return colour and dashes of each label, in the order of the fullest panel."""
    fullest = sorted(panels, key=lambda panel: -len(panel.lines))
    labels = dict.fromkeys(line.label for panel in fullest for line in panel.lines)
    count = len(COLOURS)
    return {
        label: {"color": COLOURS[i % count], "linestyle": DASHES[i // count % len(DASHES)]}
        for i, label in enumerate(labels)
    }


def _draw(ax: Axes, line: Line, kind: str, look: dict[str, Any]) -> Any:
    """Draw one line; return what a legend shows of it."""
    colour, named = look["color"], look | {"label": line.label}
    if line.paper is not None and any(number is not None for number in line.paper):
        numbers = [np.nan if number is None else number for number in line.paper]
        joined = "" if _are_words(line.x) else ":"
        ax.plot(line.x, numbers, linestyle=joined, color=colour, marker="x", markersize=4)
    if kind == "bands":
        if line.spread is not None:
            low, high = (np.array(line.y) + sign * np.array(line.spread) for sign in (-1, 1))
            ax.fill_between(line.x, low, high, color=colour, alpha=0.2, linewidth=0)
        return ax.plot(line.x, line.y, marker="o" if len(line.x) == 1 else "", **named)[0]
    if kind == "dots" or _are_words(line.x):
        named["linestyle"] = ""
    named |= {"marker": "o", "markersize": 1 if kind == "dots" else 4, "capsize": 3}
    return ax.errorbar(line.x, line.y, line.spread, **named)


def _are_words(x: Sequence[Any]) -> bool:
    return any(isinstance(place, str) for place in x)


def _label(ax: Axes, panel: Panel) -> None:
    ax.set(title=fill(panel.title, TITLE_WIDTH), xlabel=panel.x, ylabel=panel.y)
    ticks = panel.ticks
    if "x" in panel.log:
        ax.set_xscale("log")
        ax.tick_params(axis="x", which="minor", labelbottom=False)  # they overlap
        places = sorted({x for line in panel.lines for x in line.x})
        ticks = places if ticks is None and len(places) <= FEW else ticks
    if "y" in panel.log:
        ax.set_yscale("log")
    if ticks is not None:
        named = ticks if isinstance(ticks, Mapping) else {}
        ax.set_xticks(list(ticks), [named.get(x, f"{x:,.10g}") for x in ticks])
        ax.set_xticks([], minor=True)  # their labels would overlap
    if panel.limits is not None:
        ax.set_ylim(*panel.limits)
    if any(_are_words(line.x) for line in panel.lines):
        ax.tick_params(axis="x", rotation=90)
    ax.grid(alpha=0.3)


def axes(ax: Axes | None) -> Axes:
    """Return these axes, or those of a new figure."""
    if ax is not None:
        return ax
    with needed_by("a figure"):
        import matplotlib.pyplot as plt

    return plt.subplots(figsize=(5, 3.5), layout="constrained")[1]


def look(i: int) -> dict[str, Any]:
    """Return colour and line style of the i-th curve."""
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i % len(DASHES)]}


def interval(values: Sequence[float]) -> float:
    """Return half the 95% interval of the mean (Student's); NaN for fewer than 3 values."""
    if len(values) < 3:
        return float("nan")
    free = len(values) - 1
    return float(stdtrit(free, 0.975) * np.std(values, ddof=1) / np.sqrt(len(values)))


def in_words(metric: str) -> str:
    """Return what a metric is called on an axis."""
    return _LABELS.get(metric, metric.replace("_", " "))


def finished(ax: Axes, x: str, metric: str, *, curves: int) -> Axes:
    """Label axes of so many curves of a metric, with a legend if they look different."""
    ax.set_xlabel(in_words(x))
    ax.set_ylabel(in_words(metric))
    ax.grid(alpha=0.3)
    if 1 < curves <= len(COLOURS) * len(DASHES):  # which all look different
        lines, labels = ax.get_legend_handles_labels()
        wrapped = [fill(label, LEGEND_WIDTH) for label in labels]
        columns = 1 if curves <= _COLUMN else 2
        ax.legend(lines, wrapped, frameon=False, fontsize="small", ncols=columns)
    return ax
