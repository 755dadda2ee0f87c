"""Figures of metrics over the rounds of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, instance, require_methods
from dpmesh.plots.panels import Line, axes, finished, interval, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Curves(Protocol):
    """Anything with measurements over rounds, such as the `history` of a run."""

    def __getitem__(self, metric: str) -> npt.NDArray[np.float64]: ...

    def rounds(self, metric: str) -> npt.NDArray[np.int64]:
        """Rounds in which the metric was measured."""


def curves(histories: Mapping[str, Curves], metric: str, *, ax: Axes | None = None) -> Axes:
    """Draw one metric of several runs over the rounds.

    Parameters
    ----------
    histories
        The history of each run, by label.
    metric
        Name of the metric.
    ax
        Where to draw; by default a new figure.

    Returns
    -------
    The axes.

    Raises
    ------
    ValueError
        If `histories` holds no histories, or one lacks the metric.
    """
    instance("histories", histories, "the history of each run, by a label", Mapping)
    groups = {label: [history] for label, history in histories.items()}
    return bands(groups, metric, ax=ax)


def bands(
    groups: Mapping[str, Sequence[Curves]], metric: str, *, x: str = "round", ax: Axes | None = None
) -> Axes:
    """Draw one metric over the rounds: the mean of each group's runs, and its 95% interval.

    The interval is Student's, of 3 runs and more.

    Parameters
    ----------
    groups
        For each label the histories of runs that differ in their seed, measured in the same rounds.
    metric
        Name of the metric.
    x
        ``"round"``, or a metric measured along with it, such as ``"seconds"`` or ``"megabytes"``:
        its mean over the runs.
    ax
        Where to draw; by default a new figure.

    Returns
    -------
    The axes.

    Raises
    ------
    ValueError
        If a group holds no histories, one lacks the metric, a group is empty, or its runs were
        measured in different rounds.
    """
    ax = axes(ax)
    for i, (label, histories) in enumerate(groups.items()):
        style = look(i)
        line = mean_line(label, histories, metric, x)
        colour, dashes = style["color"], style["linestyle"]
        ax.plot(line.x, line.y, label=label, color=colour, linestyle=dashes)
        half_widths = np.asarray(line.spread)
        low = np.subtract(line.y, half_widths)
        high = np.add(line.y, half_widths)
        ax.fill_between(line.x, low, high, color=colour, alpha=0.18, linewidth=0)
    return finished(ax, x, metric, curves=len(groups))


def mean_line(label: str, histories: Sequence[Curves], metric: str, x: str = "round") -> Line:
    """Return the mean of a metric over runs, and half of its 95% interval, as `bands` draws them.

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
    values = np.array([history[metric] for history in histories])
    if x == "round":
        positions = rounds.tolist()
    else:
        positions = np.mean([history[x] for history in histories], axis=0).tolist()
    half_widths = [interval(column) for column in values.T]
    return Line(label=label, x=positions, y=values.mean(axis=0).tolist(), spread=half_widths)
