"""What runs measured: over rounds, and against epsilon."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, instance, require_methods
from dpmesh.plots.style import axes, finished, interval, look
from dpmesh.privacy.shown import rounded_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpmesh.privacy.report import Report
    from dpmesh.run.baselines import Baselines

MARKS = 8
"""Up to this many different epsilons are written below their axis."""

SIDE_BY_SIDE = 6
"""Points between the bars of two labels at one epsilon."""


class Curves(Protocol):
    """Anything with measurements over rounds, such as the `history` of a run."""

    def __getitem__(self, metric: str) -> npt.NDArray[np.float64]: ...

    def rounds(self, metric: str) -> npt.NDArray[np.int64]:
        """Rounds in which the metric was measured."""


class Costly(Protocol):
    """Anything with measurements and a privacy report, such as a run or its saved `Result`."""

    @property
    def history(self) -> Curves:
        """The measurements."""

    @property
    def privacy(self) -> Report:
        """What it cost."""


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
    return bands({label: [history] for label, history in histories.items()}, metric, ax=ax)


def bands(
    groups: Mapping[str, Sequence[Curves]],
    metric: str,
    *,
    x: str = "round",
    ax: Axes | None = None,
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
        _check_group(label, histories, "histories")
        for history in histories:
            require_methods(f"{label!r}", history, "the history of a run", "rounds")
        rounds = histories[0].rounds(metric)
        if any(not np.array_equal(history.rounds(metric), rounds) for history in histories):
            fail("groups", "runs measured in the same rounds", f"different ones in {label!r}")
        values = np.array([history[metric] for history in histories])
        places = rounds if x == "round" else np.mean([h[x] for h in histories], axis=0)
        mean, half = values.mean(axis=0), np.array([interval(column) for column in values.T])
        ax.plot(places, mean, label=label, **look(i))
        colour = look(i)["color"]
        ax.fill_between(places, mean - half, mean + half, color=colour, alpha=0.18, linewidth=0)
    return finished(ax, x, metric, curves=len(groups))


def against_epsilon(
    groups: Mapping[str, Sequence[Costly]], metric: str = "accuracy", *, ax: Axes | None = None
) -> Axes:
    """Draw what privacy buys: a metric at the end of runs against the epsilon of their reports.

    Runs with the same epsilon, to three digits, are drawn as their mean, with its 95% interval
    (Student's, of 3 runs and more), those of several labels side by side. For accuracies, chance,
    nodes alone (mean, and a band from worst to best) and pooled records, all without privacy, are
    lines, means over all runs that have `baselines`: no epsilon covers them. Where reports differ
    in relation, unit or delta, the legend shows which is whose.

    Parameters
    ----------
    groups
        The runs for each label, of any epsilons; infinite ones are drawn at the right end, marked
        "none".
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
        If a group is empty or holds something else, a run lacks the metric, or an epsilon is 0.
    """
    ends: list[tuple[str, dict[float, list[float]]]] = []
    promises: dict[str, dict[tuple[str, ...], None]] = defaultdict(dict)  # each once, in order
    for label, runs in groups.items():
        _check_group(label, runs, "runs")
        by_epsilon: dict[float, list[float]] = defaultdict(list)
        for run in runs:
            if not (hasattr(run, "privacy") and hasattr(run, "history")):
                fail(f"{label!r}", "runs, with privacy and history", type(run).__name__)
            epsilon = float(rounded_up(run.privacy.epsilon, 3))
            by_epsilon[epsilon].append(float(run.history[metric][-1]))
            promises[label][_promise(run.privacy)] = None
        ends.append((label, dict(sorted(by_epsilon.items()))))
    ax = axes(ax)
    from matplotlib.transforms import ScaledTranslation  # there, since `axes` found it

    every = sorted({epsilon for _, found in ends for epsilon in found})
    places = dict(zip(every, _over_epsilon(ax, "groups", np.array(every)), strict=True))
    aspects = zip(*(promise for reported in promises.values() for promise in reported), strict=True)
    differing = [len(set(aspect)) > 1 for aspect in aspects]
    for i, (label, found) in enumerate(ends):
        values = list(found.values())
        means = [float(np.mean(some)) for some in values]
        reported = [", ".join(compress(promise, differing)) for promise in promises[label]]
        name = f"{label} ({'; '.join(reported)})" if any(differing) else label
        at = [places[epsilon] for epsilon in found]
        aside = SIDE_BY_SIDE * (i - (len(ends) - 1) / 2) / 72
        shifted = ax.transData + ScaledTranslation(aside, 0, ax.figure.dpi_scale_trans)
        bars = look(i) | {"marker": "o", "capsize": 3, "label": name, "transform": shifted}
        ax.errorbar(at, means, [interval(some) for some in values], **bars)
    if metric in ("accuracy", "released_accuracy"):
        every_run = [run for runs in groups.values() for run in runs]
        beside = [getattr(run, "baselines", None) for run in every_run]
        _draw_levels(ax, [each for each in beside if each and each.metric == "accuracy"])
    return finished(ax, "epsilon", metric, curves=len(ends))


def _draw_levels(ax: Axes, known: Sequence[Baselines]) -> None:
    """Draw the means of baselines without privacy as lines, each named at its left end."""
    if not known:
        return
    at = [(b.alone.min(), b.alone.max(), b.pooled, b.alone.mean(), b.chance) for b in known]
    worst, best, pooled, alone, chance = np.mean(at, axis=0)
    ax.axhspan(worst, best, color="0.5", alpha=0.12, linewidth=0)
    for name, level, style in (
        ("pooled", pooled, "--"),
        ("alone", alone, "-"),
        ("chance", chance, ":"),
    ):
        ax.axhline(level, color="0.45", linestyle=style, linewidth=1)
        at_left = ax.get_yaxis_transform()
        ax.text(0.01, level, name, fontsize="x-small", color="0.35", va="bottom", transform=at_left)


def _check_group(label: str, runs: object, kind: str) -> None:
    instance("groups", runs, f"a list of {kind} for each label", Sequence)
    if not runs:
        fail("groups", "at least 1 run in each group", f"none in {label!r}")


def _promise(report: Report) -> tuple[str, ...]:
    """Return what an epsilon is about."""
    return report.neighboring_relation.replace("_", "-"), report.unit, f"delta {report.delta:g}"


def _over_epsilon(
    ax: Axes, argument: str, epsilons: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Mark epsilons below a logarithmic axis, and return where they are."""
    if not (epsilons > 0).all():
        fail(argument, "positive epsilons", epsilons[~(epsilons > 0)][0])
    finite = np.isfinite(epsilons)
    last = 10 * epsilons[finite].max() if finite.any() else 1.0
    ax.set_xscale("log")
    marks = dict.fromkeys(rounded_up(epsilon, 3) for epsilon in np.sort(epsilons[finite]))
    if len(marks) <= MARKS:
        none = {"none": last} if not finite.all() else {}
        ax.set_xticks([*map(float, marks), *none.values()], labels=[*marks, *none])
        ax.minorticks_off()
    return np.where(finite, epsilons, last)
