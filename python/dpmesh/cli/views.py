"""Options of ``dpmesh privacy`` that name an observer, a network and a loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

import typer

import dpmesh as dm
from dpmesh._validate import fail, one_of

if TYPE_CHECKING:
    from dpmesh.cli.answers import Answer
    from dpmesh.kernels.linear_model import Loss
    from dpmesh.privacy.views import LossFacts, View
    from dpmesh.topology import Topology

Observer = Annotated[
    str | None,
    typer.Option(
        "--view",
        help="Cost against an observer: one (any node), 3 (node 3), 3,7 (both), any-2 (any two), "
        "last. The options below describe the network and the loss.",
    ),
]
Nodes = Annotated[int, typer.Option(help="Number of nodes.")]
Network = Annotated[
    str, typer.Option(help="meetings, matchings, one-peer, ring, torus or complete.")
]
Seed = Annotated[int, typer.Option(help="Seed of the network.")]
Seen: TypeAlias = "tuple[View | None, LossFacts | None]"
"""The view that the options describe, and the facts that it rests on; None without --view."""

LossName = Annotated[str, typer.Option("--loss", help="logistic, squared or softmax.")]
FeatureNorm = Annotated[float, typer.Option(help="Largest norm of a record.")]
Classes = Annotated[int | None, typer.Option(help="Number of classes.")]
Regularization = Annotated[float, typer.Option(help="Weight decay, lambda.")]


def with_view(command: Callable[..., Answer]) -> Callable[..., Answer]:
    """Give a command the options of a view, in place of its `seen`, which they describe."""
    own, more = (signature(each, eval_str=True) for each in (command, _seen))
    options = more.parameters

    @wraps(command)
    def viewed(**given: Any) -> Answer:
        described = {name: given.pop(name) for name in options}
        return command(**given, seen=_seen(**described))

    kept = [each for each in own.parameters.values() if each.name != "seen"]
    merged = own.replace(parameters=[*kept, *options.values()])
    viewed.__signature__ = merged  # type: ignore[attr-defined]
    viewed.__annotations__ = {each.name: each.annotation for each in merged.parameters.values()}
    return viewed


def _seen(
    *,
    view: Observer = None,
    nodes: Nodes = 16,
    network: Network = "meetings",
    seed: Seed = 0,
    loss: LossName = "logistic",
    feature_norm: FeatureNorm = 1.0,
    classes: Classes = None,
    regularization: Regularization = 0.0,
) -> Seen:
    from dpmesh.privacy import views

    if view is None:
        return None, None
    facts = views.LossFacts(
        loss=cast("Loss", loss),
        feature_norm=feature_norm,
        classes=classes,
        regularization=regularization,
    )
    return seat_of(view, nodes=nodes, network=network, seed=seed), facts


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
    one_of("network", name, tuple(makers))
    made: Topology = makers[name]()
    return made


def _sides(nodes: int) -> tuple[int, int]:
    """Return the sides of the torus nearest to a square."""
    rows = max(side for side in range(1, int(nodes**0.5) + 1) if nodes % side == 0)
    return rows, nodes // rows
