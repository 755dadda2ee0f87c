"""Pictures of answers: survival curves with bands, histograms with error bars, coefficients.

``dpmesh stats`` puts them into its page. They need matplotlib (extra ``plots``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpmesh._extras import needed_by
from dpmesh.plots.panels import COLOURS, line_style
from dpmesh.statistics.answers import Answer, GroupCurve, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 6.4
HEIGHT = 3.6
LINE = 0.28
"""Width and height of a picture, and height of a line of coefficients, in inches."""

MOST_LABELS = 12
"""Largest number of bins whose names are below their bars; of more bins, every nth name is."""

MOST_LEVEL_LABELS = 4
"""Largest number of names that are horizontal; more names are rotated."""


class Picture(NamedTuple):
    """A picture with a description.

    Attributes
    ----------
    figure
        The figure of matplotlib.
    text
        Description for readers who cannot see the figure.
    """

    figure: Figure
    text: str


def picture_of(answer: Answer) -> Picture | None:
    """Draw an answer with survival curves, bins or coefficients; return None for others.

    Raises
    ------
    ImportError
        If matplotlib is not installed (extra ``plots``).
    """
    with needed_by("a picture"):
        from matplotlib.figure import Figure

    if not (answer.curves or answer.bars or answer.effects):
        return None
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.add_subplot()
    if answer.curves:
        _survival(axes, answer.curves, answer.column)
        return Picture(figure, "Private Kaplan-Meier curves with 95% bands")
    if answer.bars:
        _bars(axes, answer.rows, answer.column)
        return Picture(figure, f"{answer.title} in each bin with 95% intervals")
    figure.set_figheight(1.2 + LINE * len(answer.effects))
    _coefficients(axes, answer.effects, answer.effect_scale)
    return Picture(figure, f"Coefficients of {answer.title} with 95% intervals")


def _survival(axes: Axes, curves: tuple[GroupCurve, ...], by: str) -> None:
    """Draw step curves, which fall at the end of each bin, with their bands."""
    for nth, curve in enumerate(curves):
        colour = COLOURS[nth % len(COLOURS)]
        axes.step(curve.times, curve.survival, where="post", label=curve.name, **line_style(nth))
        axes.fill_between(
            curve.times, curve.low, curve.high, step="post", color=colour, alpha=0.2, linewidth=0
        )
    axes.set_xlabel(curves[0].time)
    axes.set_ylabel("share without the event")
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        axes.legend(frameon=False, title=by)


def _bars(axes: Axes, rows: tuple[Row, ...], column: str) -> None:
    """Draw a bar for each bin with the interval of its count."""
    places = np.arange(len(rows))
    counts = np.array([row.estimate for row in rows])
    below = np.maximum(counts - [row.low for row in rows], 0)
    above = np.maximum([row.high for row in rows] - counts, 0)
    axes.bar(places, np.maximum(counts, 0), color=COLOURS[0], alpha=0.6)
    axes.errorbar(places, counts, [below, above], fmt="none", color=COLOURS[-1], capsize=3)
    step = -(-len(rows) // MOST_LABELS)  # rounded up
    names = [row.name for row in rows][::step]
    if len(names) > MOST_LEVEL_LABELS:
        axes.set_xticks(places[::step], names, rotation=45, ha="right")
    else:
        axes.set_xticks(places[::step], names, rotation=0, ha="center")
    axes.set_xlabel(column)
    axes.set_ylabel("records")
    axes.grid(axis="y", alpha=0.3)


def _coefficients(axes: Axes, rows: Sequence[Row], scale: str) -> None:
    """Draw each coefficient with its interval, and a line at 0."""
    places = np.arange(len(rows))[::-1]
    middle = np.array([row.estimate for row in rows])
    below = middle - np.array([row.low for row in rows])
    above = np.array([row.high for row in rows]) - middle
    axes.axvline(0, color="gray", linewidth=1)
    axes.errorbar(middle, places, xerr=[below, above], fmt="o", color=COLOURS[0], capsize=3)
    axes.set_yticks(places, [row.name for row in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel(scale)
    axes.grid(axis="x", alpha=0.3)
