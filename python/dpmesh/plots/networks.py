"""Networks, and what their nodes learn of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, integer
from dpmesh.plots.panels import COLOURS, axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    ax = axes(ax)
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
