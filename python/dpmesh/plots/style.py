"""Colours, lines and axes of all figures."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtrit

from dpmesh._extras import needed_by

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
"""Okabe and Ito's, which colour-blind readers can distinguish."""

_STYLES = ("-", "--", "-.", ":")  # for print

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


def axes(ax: Axes | None) -> Axes:
    """Return these axes, or those of a new figure."""
    if ax is not None:
        return ax
    with needed_by("a figure"):
        import matplotlib.pyplot as plt

    return plt.subplots(figsize=(5, 3.5), layout="constrained")[1]


def look(i: int) -> dict[str, Any]:
    """Return colour and line style of the i-th curve."""
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": _STYLES[i % len(_STYLES)]}


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
    if 1 < curves <= len(COLOURS) * len(_STYLES):  # which all look different
        lines, labels = ax.get_legend_handles_labels()
        wrapped = [fill(label, LEGEND_WIDTH) for label in labels]
        columns = 1 if curves <= _COLUMN else 2
        ax.legend(lines, wrapped, frameon=False, fontsize="small", ncols=columns)
    return ax
