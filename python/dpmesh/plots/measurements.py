"""Figures as functions that return matplotlib axes; needs the extra ``plots``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import compress
from textwrap import fill
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from dpmesh._extras import needed_by
from dpmesh._validate import fail, instance, integer, require_methods
from dpmesh.privacy.shown import rounded_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpmesh.privacy.plan import Plan
    from dpmesh.privacy.report import Report
    from dpmesh.privacy.views import OneNode
    from dpmesh.run.baselines import Baselines

__all__ = [
    "COLOURS",
    "MARKS",
    "Costly",
    "Curves",
    "against_epsilon",
    "bands",
    "curves",
    "network",
    "tradeoff",
    "views",
]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
"""Okabe and Ito's, which colour-blind readers can distinguish."""

_STYLES = ("-", "--", "-.", ":")  # for print

MARKS = 8
"""Up to this many different epsilons are written below their axis."""

_LEGEND_WIDTH = 40
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


class Curves(Protocol):
    """Anything with measurements over rounds, such as the `history` of a run."""

    def __getitem__(self, metric: str) -> npt.NDArray[np.float64]: ...

    def rounds(self, metric: str) -> npt.NDArray[np.int64]:
        """Rounds in which the metric was measured."""
        ...


class Costly(Protocol):
    """Anything with measurements and a privacy report, such as a run or its saved `Result`."""

    @property
    def history(self) -> Curves:
        """The measurements."""
        ...

    @property
    def privacy(self) -> Report:
        """What it cost."""
        ...


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
    """Draw one metric over the rounds: mean of each group's runs, and a band from least to largest.

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
    ax = _axes(ax)
    for i, (label, histories) in enumerate(groups.items()):
        _check_group(label, histories, "histories")
        for history in histories:
            require_methods(f"{label!r}", history, "the history of a run", "rounds")
        rounds = histories[0].rounds(metric)
        if any(not np.array_equal(history.rounds(metric), rounds) for history in histories):
            fail("groups", "runs measured in the same rounds", f"different ones in {label!r}")
        values = np.array([history[metric] for history in histories])
        places = rounds if x == "round" else np.mean([h[x] for h in histories], axis=0)
        ax.plot(places, values.mean(axis=0), label=label, **_look(i))
        if len(values) > 1:
            low, high = values.min(axis=0), values.max(axis=0)
            ax.fill_between(places, low, high, color=_look(i)["color"], alpha=0.18, linewidth=0)
    return _finished(ax, _LABELS.get(x, x), metric, curves=len(groups))


def against_epsilon(
    groups: Mapping[str, Sequence[Costly]], metric: str = "accuracy", *, ax: Axes | None = None
) -> Axes:
    """Draw what privacy buys: a metric at the end of runs against the epsilon of their reports.

    Runs with the same epsilon, to three digits, are drawn as their mean, with a bar from the least
    to the largest. For accuracies, chance, nodes alone (mean, and a band from worst to best) and
    pooled records, all without privacy, are lines where the first run has `baselines`: no epsilon
    covers them. Where reports differ in relation, unit or delta, the legend says which is whose.

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
    ax = _axes(ax)
    every = sorted({epsilon for _, found in ends for epsilon in found})
    places = dict(zip(every, _over_epsilon(ax, "groups", np.array(every)), strict=True))
    aspects = zip(*(promise for told in promises.values() for promise in told), strict=True)
    differing = [len(set(aspect)) > 1 for aspect in aspects]
    for i, (label, found) in enumerate(ends):
        values = list(found.values())
        means = [float(np.mean(some)) for some in values]
        below = [mean - min(some) for mean, some in zip(means, values, strict=True)]
        above = [max(some) - mean for mean, some in zip(means, values, strict=True)]
        told = [", ".join(compress(promise, differing)) for promise in promises[label]]
        name = f"{label} ({'; '.join(told)})" if any(differing) else label
        at = [places[epsilon] for epsilon in found]
        ax.errorbar(at, means, [below, above], marker="o", capsize=3, label=name, **_look(i))
    first = next(iter(groups.values()))[0]
    if metric in ("accuracy", "released_accuracy"):
        _draw_levels(ax, getattr(first, "baselines", None))
    return _finished(ax, "epsilon", metric, curves=len(ends))


def tradeoff(
    epsilons: npt.ArrayLike,
    values: npt.ArrayLike,
    megabytes: npt.ArrayLike,
    *,
    metric: str = "accuracy",
    ax: Axes | None = None,
) -> Axes:
    """Draw what privacy and traffic buy: a metric against epsilon, with traffic as the dots' area.

    Parameters
    ----------
    epsilons
        Shape (runs,), positive; infinite ones are drawn at the right end, marked "none".
    values
        Shape (runs,): the metric at the end of each run.
    megabytes
        Shape (runs,): what each run sent.
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
        If the arrays differ in length, or there is none.
    """
    ax = _axes(ax)
    eps, value, size = (np.asarray(x, np.float64) for x in (epsilons, values, megabytes))
    if not len(eps) == len(value) == len(size) or not len(eps):
        got = f"lengths {len(eps)}, {len(value)}, {len(size)}"
        fail("epsilons", "as many epsilons, values and megabytes, at least 1", got)
    area = 30 + 220 * size / max(size.max(), 1e-300)
    at = _over_epsilon(ax, "epsilons", eps)
    ax.scatter(at, value, s=area, color=COLOURS[0], alpha=0.55, edgecolor="white")
    text = f"dots: {size.min():.3g} to {size.max():.3g} MB" if np.ptp(size) else f"{size[0]:.3g} MB"
    ax.set_title(text, fontsize="small", loc="right")
    return _finished(ax, "epsilon", metric, curves=1)


def network(
    edges: npt.ArrayLike,
    nodes: int,
    *,
    grid: tuple[int, int] | None = None,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw a graph: a star around its hub, up to 32 other nodes on a circle, more by springs.

    Parameters
    ----------
    edges
        Shape (edges, 2): the linked pairs, as `MixingMatrix.edges`.
    nodes
        Number of nodes.
    grid
        Rows and columns of a torus: its nodes are drawn in a grid, and links around it as arcs.
    title
        Written above.
    ax
        Where to draw; by default a new figure.

    Returns
    -------
    The axes.

    Raises
    ------
    ValueError
        If an edge is not a pair of nodes.
    """
    import networkx as nx

    nodes, pairs = integer("nodes", nodes, at_least=1), np.asarray(edges).reshape(-1, 2)
    if len(pairs) and (pairs.min() < 0 or pairs.max() >= nodes):
        fail("edges", f"pairs of nodes below {nodes}", f"{pairs.min()} to {pairs.max()}")
    ax = _axes(ax)
    graph = nx.empty_graph(nodes)
    graph.add_edges_from(pairs.tolist())
    places = _places(graph, grid)
    for i, j in pairs:
        start, end = places[[i, j]]
        style: dict[str, Any] = {"color": "0.6", "linewidth": 0.8, "zorder": 1}
        if grid is not None and np.abs(end - start).sum() > 1:
            bend = {"arrowstyle": "-", "connectionstyle": "arc3,rad=0.2", **style}
            ax.annotate("", start, end, arrowprops=bend)
        else:
            ax.plot(*places[[i, j]].T, **style)
    x, y = places.T
    ax.scatter(x, y, s=max(4.0, 160 / np.sqrt(nodes)), color=COLOURS[0], zorder=2)
    ax.set_title(title, fontsize="small")
    ax.set_aspect("equal")
    ax.set_axis_off()
    return ax


def views(plan: Plan, view: OneNode, delta: float, *, ax: Axes | None = None) -> Axes:
    """Draw what each node learns of each other one's records: epsilon by observer and target.

    Parameters
    ----------
    plan
        Of a problem: ``algorithm.plan(rounds, problem)``, or the ledger of a run whose budget has a
        view.
    view
        The network, and what is published beside.
    delta
        In [0, 1).
    ax
        Where to draw; by default a new figure.

    Returns
    -------
    The axes.

    Raises
    ------
    ValueError
        If nothing less than the cost against everybody is proved for the plan.
    """
    from dpmesh.privacy.views import Reaction, epsilons_by_pair

    reaction = getattr(plan, "reaction", None)
    if not isinstance(reaction, Reaction):
        reason = getattr(reaction, "reason", "made without a problem")
        fail("plan", "one for which views are proved: algorithm.plan(rounds, problem)", reason)
    table = epsilons_by_pair(delta, reaction, view)
    ax = _axes(ax)
    image = ax.imshow(table, cmap="viridis")
    ax.figure.colorbar(image, ax=ax, label=f"epsilon at delta = {rounded_up(delta)}")
    ax.set_xlabel("node whose record is protected")
    ax.set_ylabel("node that looks on")
    everybody = rounded_up(plan.cost(delta).epsilon, 3)
    ax.set_title(f"against everybody: {everybody}", fontsize="small", loc="right")
    return ax


def _places(graph: Any, grid: tuple[int, int] | None) -> npt.NDArray[np.float64]:
    """Return where to draw each node, shape (nodes, 2)."""
    import networkx as nx

    nodes, degrees = len(graph), dict(graph.degree)
    if grid is not None and grid[0] * grid[1] == nodes:
        return np.array([divmod(node, grid[1])[::-1] for node in range(nodes)], dtype=np.float64)
    hubs = [node for node in graph if degrees[node] == nodes - 1]
    if nodes > 3 and len(hubs) == 1 and sum(degrees.values()) == 2 * (nodes - 1):
        layout = nx.shell_layout(graph, [hubs, [node for node in graph if node != hubs[0]]])
    else:
        layout = nx.circular_layout(graph) if nodes <= 32 else nx.spring_layout(graph, seed=0)
    return np.array([layout[node] for node in range(nodes)])


def _draw_levels(ax: Axes, beside: Baselines | None) -> None:
    """Draw baselines without privacy as lines, each named at its left end."""
    if beside is None or beside.metric != "accuracy":
        return
    ax.axhspan(beside.alone.min(), beside.alone.max(), color="0.5", alpha=0.12, linewidth=0)
    for name, level, style in (
        ("pooled", beside.pooled, "--"),
        ("alone", float(beside.alone.mean()), "-"),
        ("chance", beside.chance, ":"),
    ):
        ax.axhline(level, color="0.45", linestyle=style, linewidth=1)
        at_left = ax.get_yaxis_transform()
        ax.text(0.01, level, name, fontsize="x-small", color="0.35", va="bottom", transform=at_left)


def _check_group(label: str, runs: object, kind: str) -> None:
    instance("groups", runs, f"a list of {kind} for each label", Sequence)
    if not runs:
        fail("groups", "at least 1 run in each group", f"none in {label!r}")


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    with needed_by("a figure"):
        import matplotlib.pyplot as plt

    return plt.subplots(figsize=(5, 3.5), layout="constrained")[1]


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


def _promise(report: Report) -> tuple[str, ...]:
    """Return what an epsilon is about."""
    return report.neighboring_relation.replace("_", "-"), report.unit, f"delta {report.delta:g}"


def _look(i: int) -> dict[str, Any]:
    """Return colour and line style of the i-th curve."""
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": _STYLES[i % len(_STYLES)]}


def _finished(ax: Axes, x: str, metric: str, *, curves: int) -> Axes:
    ax.set_xlabel(x)
    ax.set_ylabel(_LABELS.get(metric, metric.replace("_", " ")))
    ax.grid(alpha=0.3)
    if 1 < curves <= len(COLOURS) * len(_STYLES):  # which all look different
        lines, labels = ax.get_legend_handles_labels()
        wrapped = [fill(label, _LEGEND_WIDTH) for label in labels]
        columns = 1 if curves <= _COLUMN else 2
        ax.legend(lines, wrapped, frameon=False, fontsize="small", ncols=columns)
    return ax


def __dir__() -> list[str]:
    return sorted(__all__)
