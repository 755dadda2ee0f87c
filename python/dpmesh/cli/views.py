"""Options of ``dpmesh privacy`` and ``dpmesh audit`` for epsilon under weaker adversaries.

A *view* is the set of messages that the adversary sees, such as the messages that reach one node
(`dpmesh.privacy.views`). Epsilon then also depends on the network and on the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

import dpmesh as dm
import dpmesh.cli._options as options
from dpmesh._validate import fail, one_of

if TYPE_CHECKING:
    from dpmesh.kernels.linear_model import Loss
    from dpmesh.privacy.views import LossFacts, View
    from dpmesh.privacy.views.observers import OnNetwork
    from dpmesh.topology import Topology

_OBSERVER = (
    "Nodes whose view the adversary has: one (any), 3 (node 3), 3,7 (both), any-2 (any two), last "
    "(last round only); default: all."
)
_TOPOLOGY = "Network: meetings (default), matchings, one-peer, ring, torus or complete."

ViewName = Annotated[
    str | None, typer.Option("--view", help=_OBSERVER, rich_help_panel=options.ADVERSARY)
]
Nodes = Annotated[int, typer.Option(help="Number of nodes.", rich_help_panel=options.ADVERSARY)]
TopologyName = Annotated[
    str, typer.Option(help=_TOPOLOGY, show_default=False, rich_help_panel=options.ADVERSARY)
]
Seed = Annotated[int, typer.Option(help="Seed of the network.", rich_help_panel=options.ADVERSARY)]

_LOSS = typer.Option(
    help="Loss: logistic (default), squared, softmax.",
    show_default=False,
    rich_help_panel=options.ADVERSARY,
)
_FEATURE_NORM = typer.Option(help="Largest norm of a record.", rich_help_panel=options.ADVERSARY)
_CLASSES = typer.Option(help="Number of classes.", rich_help_panel=options.ADVERSARY)
_REGULARIZATION = typer.Option(help="Weight decay, lambda.", rich_help_panel=options.ADVERSARY)


class Option(NamedTuple):
    """Option of a command: its type annotated for typer, and its default."""

    annotation: Any
    default: Any


VIEW_OPTIONS = {
    "view": Option(ViewName, None),
    "nodes": Option(Nodes, 16),
    "topology": Option(TopologyName, "meetings"),
    "seed": Option(Seed, 0),
    "loss": Option(Annotated[str, _LOSS], "logistic"),
    "feature_norm": Option(Annotated[float, _FEATURE_NORM], 1.0),
    "classes": Option(Annotated[int | None, _CLASSES], None),
    "regularization": Option(Annotated[float, _REGULARIZATION], 0.0),
}
"""Options of a command by name: what `view_from_options` accepts."""


def view_from_options(
    *,
    view: str | None,
    nodes: int,
    topology: str,
    seed: int,
    loss: Loss,
    feature_norm: float,
    classes: int | None,
    regularization: float,
) -> tuple[View | None, LossFacts | None]:
    """Return the adversary's view that options describe, and the facts about the loss.

    Parameters
    ----------
    view
        Text of ``--view``; None for an adversary who sees all messages.
    nodes, topology, seed
        Number of nodes, name and seed of the network.
    loss, feature_norm, classes, regularization
        As in `dpmesh.privacy.views.LossFacts`.

    Returns
    -------
    View and facts; both are None without a view.
    """
    from dpmesh.privacy.views import LossFacts

    if view is None:
        return None, None
    facts = LossFacts(
        loss=loss, feature_norm=feature_norm, classes=classes, regularization=regularization
    )
    return view_named(view, nodes=nodes, topology=topology, seed=seed), facts


def view_named(text: str, *, nodes: int, topology: str, seed: int) -> OnNetwork:
    """Return the adversary's view on a network that a text such as ``one`` or ``3,7`` names."""
    from dpmesh.privacy import views

    network = topology_named(topology, nodes, seed)
    if text == "one":
        return views.OneNode(topology=network)
    if text == "last":
        return views.LastOnly(topology=network)
    prefix, _, size = text.partition("-")
    if prefix == "any" and size.isdigit():
        return views.AnyCoalition(size=int(size), topology=network)
    if not all(part.isdigit() for part in text.split(",")):
        fail("view", "one, last, any-2, or numbers of nodes such as 3 or 3,7", repr(text))
    members = tuple(map(int, text.split(",")))
    if len(members) == 1:
        return views.Node(node=members[0], topology=network)
    return views.Coalition(nodes=members, topology=network)


def topology_named(name: str, nodes: int, seed: int) -> Topology:
    """Return the network of a name, such as ``ring``; random networks are drawn from the seed."""
    key = dm.Key.seeded(seed)
    makers: dict[str, Callable[[], Topology]] = {
        "meetings": lambda: dm.topology.meetings(nodes, key=key),
        "matchings": lambda: dm.topology.random_matchings(nodes, key=key),
        "one-peer": lambda: dm.topology.one_peer_exponential(nodes),
        "ring": lambda: dm.topology.ring(nodes),
        "torus": lambda: dm.topology.torus(*_sides(nodes)),
        "complete": lambda: dm.topology.complete(nodes),
    }
    return makers[one_of("topology", name, tuple(makers))]()


def _sides(nodes: int) -> tuple[int, int]:
    """Return rows and columns of the torus of this many nodes that is nearest to a square."""
    rows = max(side for side in range(1, int(nodes**0.5) + 1) if nodes % side == 0)
    return rows, nodes // rows
