"""Colours and axes of all figures, and figures of several panels with one legend.

A `Panel` is a pair of axes with `Line`s. `drawn` draws panels as one figure, in which each method
(label) has the same colour in all panels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import TYPE_CHECKING, Literal, TypedDict, cast

import numpy as np
from scipy.special import stdtrit

from dpmesh._extras import needed_by

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
"""Colours by Okabe and Ito, which colour-blind readers can distinguish."""

LEGEND_WIDTH = 40
"""Number of characters in a line of the legend, at which longer labels are wrapped."""

_COLUMN = 14
"""Largest number of curves in one column of a legend."""

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
"""Line styles of curves, so that curves also differ without colours."""
LEVEL_DASHES = DASHES[1:]
"""Line styles of horizontal lines."""
FEW = 6
"""Largest number of positions on a logarithmic axis of which each has a tick."""
PANEL = (4.2, 3.4)
"""Width and height of a panel in inches, without the legend."""
CATEGORY_HEIGHT = 1.6
"""Height below a panel for categories on its horizontal axis, in inches."""
TITLE_WIDTH = 38
"""Number of characters in a line of a panel's title."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One method in one panel.

    Parameters
    ----------
    label
        Name of the method, which determines the colour.
    x, y
        Positions and heights of the points, of equal length. Texts in `x` are categories, which no
        line joins.
    spread
        Half-height of the bar or band at each point; None for no bars.
    paper
        Numbers of a paper to compare with, drawn as crosses on a dotted line; None for a missing
        number.
    """

    label: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float]
    spread: Sequence[float] | None = None
    paper: Sequence[float | None] | None = None

    @property
    def is_categorical(self) -> bool:
        """True if `x` holds categories."""
        return any(isinstance(position, str) for position in self.x)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes.

    Parameters
    ----------
    title, x, y
        Title of the panel, and labels of the horizontal and the vertical axis.
    lines
        The lines; a panel without lines is left out.
    levels
        Heights of horizontal lines, by name.
    log
        Names of the logarithmic axes.
    ticks
        Ticks of the horizontal axis: positions, or labels by position; None for matplotlib's ticks.
    limits
        Ends of the vertical axis; None for matplotlib's limits.
    kind
        ``"marks"``: lines with marks and error bars. ``"bands"``: lines with bands. ``"dots"``:
        small dots without lines.
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

    @property
    def is_categorical(self) -> bool:
        """True if a line has categories on the horizontal axis."""
        return any(line.is_categorical for line in self.lines)


class LineStyle(TypedDict):
    """Colour and dashes of a curve, as matplotlib's keyword arguments."""

    color: str
    linestyle: str


def drawn(panels: Sequence[Panel], *, columns: int = 0) -> Figure:
    """Draw panels in rows of `columns`, with one legend; needs the extra ``plots``.

    Parameters
    ----------
    panels
        The panels; panels without lines are left out.
    columns
        Number of panels in a row; 0 for all in one row.

    Returns
    -------
    The figure.
    """
    from matplotlib.figure import Figure

    panels = [panel for panel in panels if panel.lines]
    columns = min(columns or len(panels), len(panels))
    rows = math.ceil(len(panels) / columns)
    panel_width, panel_height = PANEL
    if any(panel.is_categorical for panel in panels):
        panel_height += CATEGORY_HEIGHT
    width = panel_width * columns
    figure = Figure(figsize=(width, panel_height * rows), layout="constrained")
    styles = _styles(panels)
    methods: dict[str, Artist] = {}
    levels: dict[str, Artist] = {}
    for position, panel in enumerate(panels, start=1):
        ax = figure.add_subplot(rows, columns, position)
        for line in panel.lines:
            handle = _draw(ax, line, panel.kind, styles[line.label])
            methods.setdefault(line.label, handle)
        for level_number, (name, level) in enumerate(panel.levels.items()):
            dashes = LEVEL_DASHES[level_number % len(LEVEL_DASHES)]
            levels.setdefault(name, ax.axhline(level, color="gray", linestyle=dashes))
        _label(ax, panel)
    handles = methods | levels
    if len(handles) > 1:
        _add_legend(figure, handles, width)
    return figure


def _add_legend(figure: Figure, handles: Mapping[str, Artist], width: float) -> None:
    """Add a legend to the right of the panels, and widen the figure by the legend's width.

    Parameters
    ----------
    figure
        The figure.
    handles
        Artist of each label.
    width
        Width of the figure without the legend, in inches.
    """
    names = [fill(name.replace("$", r"\$"), LEGEND_WIDTH) for name in handles]
    lines = "\n".join(names).split("\n")
    longest = max(len(line) for line in lines)
    figure.set_figwidth(width + 0.8 + 0.08 * longest)
    figure.legend(list(handles.values()), names, loc="outside right upper", frameon=False)


def _styles(panels: Sequence[Panel]) -> dict[str, LineStyle]:
    """Return the style of each label: colours first by the order of the panel with most lines."""
    fullest_first = sorted(panels, key=lambda panel: -len(panel.lines))
    labels = dict.fromkeys(line.label for panel in fullest_first for line in panel.lines)
    styles: dict[str, LineStyle] = {}
    for i, label in enumerate(labels):
        dashes = DASHES[i // len(COLOURS) % len(DASHES)]
        styles[label] = {"color": COLOURS[i % len(COLOURS)], "linestyle": dashes}
    return styles


def _draw(ax: Axes, line: Line, kind: str, style: LineStyle) -> Artist:
    """Draw one line of a panel of this `kind`; return its artist for the legend."""
    colour = style["color"]
    if line.paper is not None:
        _draw_paper(ax, line, line.paper, colour)
    if kind == "bands":
        return _draw_band(ax, line, style)
    linestyle = style["linestyle"]
    if kind == "dots" or line.is_categorical:
        linestyle = ""
    marker_size = 4
    if kind == "dots":
        marker_size = 1
    container = ax.errorbar(
        line.x,
        line.y,
        line.spread,
        label=line.label,
        color=colour,
        linestyle=linestyle,
        marker="o",
        markersize=marker_size,
        capsize=3,
    )
    return cast("Artist", container)  # legends accept containers too


def _draw_paper(ax: Axes, line: Line, numbers: Sequence[float | None], colour: str) -> None:
    """Draw the paper's numbers as crosses, joined by a dotted line unless x is categorical."""
    if all(number is None for number in numbers):
        return
    heights = [np.nan if number is None else number for number in numbers]
    linestyle = "" if line.is_categorical else ":"
    ax.plot(line.x, heights, linestyle=linestyle, color=colour, marker="x", markersize=4)


def _draw_band(ax: Axes, line: Line, style: LineStyle) -> Artist:
    """Draw a curve with its spread as a band; a single point is marked."""
    colour, dashes = style["color"], style["linestyle"]
    if line.spread is not None:
        low = np.subtract(line.y, line.spread)
        high = np.add(line.y, line.spread)
        ax.fill_between(line.x, low, high, color=colour, alpha=0.2, linewidth=0)
    marker = "o" if len(line.x) == 1 else ""
    curves = ax.plot(
        line.x, line.y, marker=marker, label=line.label, color=colour, linestyle=dashes
    )
    return curves[0]


def _label(ax: Axes, panel: Panel) -> None:
    """Set the title, labels, scales, ticks and limits of one panel."""
    ax.set(title=fill(panel.title, TITLE_WIDTH), xlabel=panel.x, ylabel=panel.y)
    ticks = panel.ticks
    if "x" in panel.log:
        ax.set_xscale("log")
        ax.tick_params(axis="x", which="minor", labelbottom=False)  # they overlap
        positions = sorted({float(x) for line in panel.lines for x in line.x})
        if ticks is None and len(positions) <= FEW:
            ticks = positions
    if "y" in panel.log:
        ax.set_yscale("log")
    if ticks is not None:
        names = ticks if isinstance(ticks, Mapping) else {}
        ax.set_xticks(list(ticks), [names.get(x, f"{x:,.10g}") for x in ticks])
        ax.set_xticks([], minor=True)  # their labels would overlap
    if panel.limits is not None:
        ax.set_ylim(*panel.limits)
    if panel.is_categorical:
        ax.tick_params(axis="x", rotation=90)
    ax.grid(alpha=0.3)


def axes(ax: Axes | None) -> Axes:
    """Return these axes; for None the axes of a new figure."""
    if ax is not None:
        return ax
    with needed_by("a figure"):
        import matplotlib.pyplot as plt

    return plt.subplots(figsize=(5, 3.5), layout="constrained")[1]


def line_style(i: int) -> LineStyle:
    """Return colour and dashes of the i-th curve, from 0."""
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i % len(DASHES)]}


def interval(values: Sequence[float]) -> float:
    """Return the half-width of Student's 95% interval of a mean; NaN for fewer than 3 values."""
    if len(values) < 3:
        return float("nan")
    degrees_of_freedom = len(values) - 1
    quantile = stdtrit(degrees_of_freedom, 0.975)
    standard_error = np.std(values, ddof=1) / np.sqrt(len(values))
    return float(quantile * standard_error)


def in_words(metric: str) -> str:
    """Return the label of a metric on an axis."""
    return _LABELS.get(metric, metric.replace("_", " "))


def label_axes(ax: Axes, x: str, metric: str, *, curves: int) -> Axes:
    """Label axes with curves of a metric, with a legend if all curves have different styles.

    Parameters
    ----------
    ax
        The axes with the curves.
    x, metric
        Names of the metrics on the horizontal and the vertical axis.
    curves
        Number of curves.

    Returns
    -------
    The axes.
    """
    ax.set_xlabel(in_words(x))
    ax.set_ylabel(in_words(metric))
    ax.grid(alpha=0.3)
    distinct_styles = len(COLOURS) * len(DASHES)
    if 1 < curves <= distinct_styles:
        lines, labels = ax.get_legend_handles_labels()
        wrapped = [fill(label, LEGEND_WIDTH) for label in labels]
        columns = 1 if curves <= _COLUMN else 2
        ax.legend(lines, wrapped, frameon=False, fontsize="small", ncols=columns)
    return ax
