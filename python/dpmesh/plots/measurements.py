"""Figures of metrics over the rounds: curves of single runs, means and bands of repeated runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, instance, require_methods
from dpmesh.plots.panels import Line, axes, interval, label_axes, line_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAND_OPACITY = 0.18
"""Opacity of bands, so that lines stay visible where several bands overlap."""


class MetricHistory(Protocol):
    """Measurements of metrics over the rounds of one run, such as ``run.history``."""

    def __getitem__(self, metric: str) -> npt.NDArray[np.float64]:
        """Return the measurements of a metric, shape (measurements,)."""

    def rounds(self, metric: str) -> npt.NDArray[np.int64]:
        """Return the rounds in which the metric was measured, shape (measurements,)."""


def curves(histories: Mapping[str, MetricHistory], metric: str, *, ax: Axes | None = None) -> Axes:
    """Draw one metric of several runs over the rounds.

    Parameters
    ----------
    histories
        The history of each run, by label.
    metric
        Name of the metric.
    ax
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    The axes.

    Raises
    ------
    ValueError
        If `histories` is not a mapping of histories, or a run lacks the metric.
    """
    instance("histories", histories, "the history of each run, by a label", Mapping)
    groups = {label: [history] for label, history in histories.items()}
    return bands(groups, metric, ax=ax)


def bands(
    groups: Mapping[str, Sequence[MetricHistory]],
    metric: str,
    *,
    x: str = "round",
    ax: Axes | None = None,
) -> Axes:
    """Draw the mean of a metric over repeated runs, with a band of its 95% interval.

    The interval is Student's t interval of each round by itself. With fewer than 3 runs there is no
    band.

    Parameters
    ----------
    groups
        Histories of runs that differ in their seed, measured in the same rounds, by label.
    metric
        Name of the metric.
    x
        Horizontal axis: ``"round"``, or a metric measured in the same rounds, such as ``"seconds"``
        or ``"megabytes"``, of which the mean over the runs is drawn.
    ax
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    The axes.

    Raises
    ------
    ValueError
        If a group is empty or holds other objects than histories, a run lacks the metric, or the
        runs of a group were measured in different rounds.
    """
    ax = axes(ax)
    for i, (label, histories) in enumerate(groups.items()):
        style = line_style(i)
        line = mean_line(label, histories, metric, x)
        ax.plot(line.x, line.y, label=label, color=style["color"], linestyle=style["linestyle"])
        half_widths = np.asarray(line.spread)
        low = np.subtract(line.y, half_widths)
        high = np.add(line.y, half_widths)
        ax.fill_between(line.x, low, high, color=style["color"], alpha=BAND_OPACITY, linewidth=0)
    return label_axes(ax, x, metric, curves=len(groups))


def mean_line(
    label: str, histories: Sequence[MetricHistory], metric: str, x: str = "round"
) -> Line:
    """Return one line of `bands`: the mean of a metric over runs, and the half-width of its band.

    Parameters
    ----------
    label
        Label of the line.
    histories
        Histories of at least one run, measured in the same rounds.
    metric, x
        As for `bands`.

    Raises
    ------
    ValueError
        As `bands`, about one group.
    """
    instance("groups", histories, "a list of histories for each label", Sequence)
    if not histories:
        fail("groups", "at least 1 run in each group", f"none in {label!r}")
    for history in histories:
        require_methods(f"{label!r}", history, "the history of a run", "rounds")
    rounds = histories[0].rounds(metric)
    for history in histories:
        if not np.array_equal(history.rounds(metric), rounds):
            fail("groups", "runs measured in the same rounds", f"different ones in {label!r}")
    values = np.array([history[metric] for history in histories])  # shape (runs, rounds)
    if x == "round":
        positions = rounds.tolist()
    else:
        positions = np.mean([history[x] for history in histories], axis=0).tolist()
    means = values.mean(axis=0).tolist()
    half_widths = [interval(values_in_round) for values_in_round in values.T]
    return Line(label=label, x=positions, y=means, spread=half_widths)
