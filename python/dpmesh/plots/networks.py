"""Drawings of communication graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, integer
from dpmesh.plots.panels import COLOURS, axes

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes

Positions: TypeAlias = npt.NDArray[np.float64]
"""Horizontal and vertical position of each node, shape (nodes, 2)."""

LINK_COLOUR = "0.6"
LINK_WIDTH = 0.8
CIRCLE_NODES = 32
"""Largest number of nodes that are drawn on a circle."""


def network(
    edges: npt.ArrayLike,
    nodes: int,
    *,
    grid: tuple[int, int] | None = None,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw a communication graph.

    A star is drawn around its hub. Any other graph of up to 32 nodes is drawn on a circle, and a
    larger graph by a spring layout.

    Parameters
    ----------
    edges
        Linked pairs of nodes, shape (edges, 2), as `MixingMatrix.edges`.
    nodes
        Number of nodes.
    grid
        Rows and columns of a torus, to draw its nodes in a grid; links around the torus are arcs.
    title
        Title above the axes.
    ax
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    The axes.

    Raises
    ------
    ValueError
        If an edge is not a pair of nodes.
    """
    import networkx as nx

    nodes = integer("nodes", nodes, at_least=1)
    pairs = np.asarray(edges).reshape(-1, 2)
    if len(pairs) and (pairs.min() < 0 or pairs.max() >= nodes):
        fail("edges", f"pairs of nodes below {nodes}", f"{pairs.min()} to {pairs.max()}")
    ax = axes(ax)
    graph = nx.empty_graph(nodes)
    graph.add_edges_from(pairs.tolist())
    positions = _positions(graph, grid)
    for pair in pairs:
        ends = positions[pair]
        is_wrapped = grid is not None and np.abs(ends[1] - ends[0]).sum() > 1
        _draw_link(ax, ends, is_arc=is_wrapped)
    marker_area = max(4.0, 160 / np.sqrt(nodes))
    ax.scatter(positions[:, 0], positions[:, 1], s=marker_area, color=COLOURS[0], zorder=2)
    ax.set_title(title, fontsize="small")
    ax.set_aspect("equal")
    ax.set_axis_off()
    return ax


def _draw_link(ax: Axes, ends: Positions, *, is_arc: bool) -> None:
    """Draw one link, straight or as an arc, between the positions `ends` of shape (2, 2)."""
    if not is_arc:
        ax.plot(ends[:, 0], ends[:, 1], color=LINK_COLOUR, linewidth=LINK_WIDTH, zorder=1)
        return
    arc = {
        "arrowstyle": "-",
        "connectionstyle": "arc3,rad=0.2",
        "color": LINK_COLOUR,
        "linewidth": LINK_WIDTH,
        "zorder": 1,
    }
    ax.annotate("", ends[0], ends[1], arrowprops=arc)


def _positions(graph: nx.Graph, grid: tuple[int, int] | None) -> Positions:
    """Return the position of each node, shape (nodes, 2)."""
    import networkx as nx

    nodes = len(graph)
    if grid is not None and grid[0] * grid[1] == nodes:
        row_and_column = np.array([divmod(node, grid[1]) for node in range(nodes)])
        return row_and_column[:, ::-1].astype(np.float64)
    hub = _hub(graph)
    if hub is not None:
        leaves = [node for node in graph if node != hub]
        layout = nx.shell_layout(graph, [[hub], leaves])
    elif nodes <= CIRCLE_NODES:
        layout = nx.circular_layout(graph)
    else:
        layout = nx.spring_layout(graph, seed=0)
    return np.array([layout[node] for node in range(nodes)])


def _hub(graph: nx.Graph) -> int | None:
    """Return the hub of a star of more than 3 nodes; None for any other graph."""
    nodes = len(graph)
    hubs = [node for node, degree in graph.degree if degree == nodes - 1]
    is_star = nodes > 3 and len(hubs) == 1 and graph.number_of_edges() == nodes - 1
    if is_star:
        hub: int = hubs[0]
        return hub
    return None
