"""Options of ``dpmesh privacy`` that name an observer, a network and a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

import dpmesh as dm
from dpmesh._validate import fail, one_of

if TYPE_CHECKING:
    from dpmesh.privacy.views import LossFacts, View
    from dpmesh.topology import Topology

_OBSERVER = (
    "Cost against an observer: one (any node), 3 (node 3), 3,7 (both), any-2 (any two), last. The "
    "options below describe the network and the loss."
)
_NETWORK = "meetings, matchings, one-peer, ring, torus or complete."

Observer = Annotated[str | None, typer.Option("--view", help=_OBSERVER)]
Nodes = Annotated[int, typer.Option(help="Number of nodes.")]
Network = Annotated[str, typer.Option(help=_NETWORK)]
Seed = Annotated[int, typer.Option(help="Seed of the network.")]

OF_A_VIEW: dict[str, tuple[Any, Any]] = {
    "view": (Observer, None),
    "nodes": (Nodes, 16),
    "network": (Network, "meetings"),
    "seed": (Seed, 0),
    "loss": (Annotated[str, typer.Option(help="logistic, squared or softmax.")], "logistic"),
    "feature_norm": (Annotated[float, typer.Option(help="Largest norm of a record.")], 1.0),
    "classes": (Annotated[int | None, typer.Option(help="Number of classes.")], None),
    "regularization": (Annotated[float, typer.Option(help="Weight decay, lambda.")], 0.0),
}
"""Options of a command by name, each with its default: what `seen` takes."""


def seen(
    *, view: str | None, nodes: int, network: str, seed: int, **facts: Any
) -> tuple[View | None, LossFacts | None]:
    """Return the view that options describe, and the facts that it rests on; None without one."""
    from dpmesh.privacy.views import LossFacts

    if view is None:
        return None, None
    return seat_of(view, nodes=nodes, network=network, seed=seed), LossFacts(**facts)


def seat_of(text: str, *, nodes: int, network: str, seed: int) -> Any:
    """Return the view on a network that the options describe."""
    from dpmesh.privacy import views

    graph: dict[str, Any] = {"topology": network_named(network, nodes, seed)}
    if text == "one":
        return views.OneNode(**graph)
    if text == "last":
        return views.LastOnly(**graph)
    many, _, size = text.partition("-")
    if many == "any" and size.isdigit():
        return views.AnyCoalition(size=int(size), **graph)
    if not all(part.isdigit() for part in text.split(",")):
        fail("view", "one, last, any-2, or numbers of nodes such as 3 or 3,7", repr(text))
    members = tuple(map(int, text.split(",")))
    if len(members) == 1:
        return views.Node(node=members[0], **graph)
    return views.Coalition(nodes=members, **graph)


def network_named(name: str, nodes: int, seed: int) -> Topology:
    """Return a network by its name."""
    key = dm.Key.seeded(seed)
    makers: dict[str, Any] = {
        "meetings": lambda: dm.topology.meetings(nodes, key=key),
        "matchings": lambda: dm.topology.random_matchings(nodes, key=key),
        "one-peer": lambda: dm.topology.one_peer_exponential(nodes),
        "ring": lambda: dm.topology.ring(nodes),
        "torus": lambda: dm.topology.torus(*_sides(nodes)),
        "complete": lambda: dm.topology.complete(nodes),
    }
    made: Topology = makers[one_of("network", name, tuple(makers))]()
    return made


def _sides(nodes: int) -> tuple[int, int]:
    """Return the sides of the torus nearest to a square."""
    rows = max(side for side in range(1, int(nodes**0.5) + 1) if nodes % side == 0)
    return rows, nodes // rows
