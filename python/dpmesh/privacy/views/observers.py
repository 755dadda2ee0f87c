"""Views: adversaries, each described by the messages that it sees.

Every adversary knows the network, the mixing weights and the noise scales of all rounds, the data
of all other nodes, and the two neighbouring datasets to distinguish. It does not know the noise and
the states of nodes outside of it. `view_cost` computes the epsilon against a view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._epsilons import but_partners
from dpmesh._validate import every, fail, instance, integer, require_methods
from dpmesh.kernels.views import Observer
from dpmesh.topology.topology import Topology


@dataclass(frozen=True, kw_only=True)
class PublishedMessages:
    """Publication of the messages of all nodes in some rounds, for the `also` of a view.

    A public metric that is computed from messages counts as their publication, and so does a
    decision to stop that depends on such a metric.

    Parameters
    ----------
    rounds
        Rounds whose messages are published, from 0; -1 is the last round.

    Raises
    ------
    ValueError
        If `rounds` is not a tuple of integers of at least -1.

    Examples
    --------
    >>> import dpmesh as dm
    >>> last = dm.privacy.views.PublishedMessages(rounds=(-1,))
    >>> dm.privacy.views.OneNode(topology=dm.topology.ring(8), also=(last,)).also
    (PublishedMessages(rounds=(-1,)),)
    """

    rounds: tuple[int, ...]

    def __post_init__(self) -> None:
        instance("rounds", self.rounds, "a tuple of rounds", tuple)
        for t in self.rounds:
            if t != -1:
                integer("rounds", t)


@dataclass(frozen=True, kw_only=True)
class PublishedMean:
    """Publication of the mean of the last round's messages, which a trusted party computes.

    It is for the `also` of a view. If the adversary helps to compute the mean, it sees messages:
    use `PublishedMessages`.

    Examples
    --------
    >>> import dpmesh as dm
    >>> mean = dm.privacy.views.PublishedMean()
    >>> dm.privacy.views.OneNode(topology=dm.topology.ring(8), also=(mean,)).also
    (PublishedMean(),)
    """


Published: TypeAlias = PublishedMessages | PublishedMean


@dataclass(frozen=True, kw_only=True)
class Everybody:
    """Adversary who sees every message: the adversary of ``plan.cost(delta)``.

    Examples
    --------
    >>> import dpmesh as dm
    >>> plan = dm.GradientDescent(records=100, noise_multiplier=40.0).plan(20)
    >>> everybody = dm.privacy.views.Everybody()
    >>> plan.cost(1e-5, view=everybody).epsilon == plan.cost(1e-5).epsilon
    True
    """


@dataclass(frozen=True, kw_only=True)
class EverybodyButPartners:
    """Adversary who sees every message but knows no secret of two honest link partners.

    Parameters
    ----------
    coalition
        Number of nodes, chosen in the worst way, that collude with the adversary; at least 0.

    Raises
    ------
    ValueError
        If `coalition` is not an integer of at least 0.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.privacy.views.EverybodyButPartners(coalition=1)
    EverybodyButPartners(coalition=1)
    """

    coalition: int = 0

    def __post_init__(self) -> None:
        every(self, integer, "coalition")


@dataclass(frozen=True, kw_only=True)
class _OnNetwork:
    topology: Topology
    also: tuple[Published, ...] = ()

    def __post_init__(self) -> None:
        require_methods("topology", self.topology, "a network, such as ring(16)", "matrix")
        instance("also", self.also, "a tuple of PublishedMessages and PublishedMean", tuple)
        for published in self.also:
            instance("also", published, "published messages", PublishedMessages, PublishedMean)


@dataclass(frozen=True, kw_only=True)
class Node(_OnNetwork):
    """Adversary who sees what one given node receives, sends and holds.

    Parameters
    ----------
    node
        Index of the node, from 0.
    topology
        Network of all rounds, which is public.
    also
        What is published beside: `PublishedMessages` or `PublishedMean`.

    Raises
    ------
    ValueError
        If the node is not in the network, or another argument does not fit.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.privacy.views.Node(topology=dm.topology.ring(8), node=3).node
    3
    """

    node: int

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("node", self.node, below=self.topology.nodes)


@dataclass(frozen=True, kw_only=True)
class OneNode(_OnNetwork):
    """Any single node, as long as no two nodes pool what they see: the worst `Node`.

    The parameters `topology` and `also` are as for `Node`.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> draw = np.random.default_rng(0)
    >>> data = dm.data.unit_norm(dm.data.breast_cancer())
    >>> parts = dm.data.iid(data, 8, draw, equal_sizes=True)
    >>> problem = dm.LinearProblem(data, parts, "logistic")
    >>> algorithm = dm.GradientDescent(records=71, noise_multiplier=40.0)
    >>> plan = algorithm.plan(10, problem=problem)
    >>> one = dm.privacy.views.OneNode(topology=dm.topology.ring(8))
    >>> plan.cost(1e-5, view=one).epsilon <= plan.cost(1e-5).epsilon
    True
    """


@dataclass(frozen=True, kw_only=True)
class Coalition(_OnNetwork):
    """Given nodes that pool what they receive, send and hold.

    Records of members are not protected from the coalition, and do not count.

    Parameters
    ----------
    nodes
        Indices of the members.
    topology, also
        As for `Node`.

    Raises
    ------
    ValueError
        If a member is not in the network or occurs twice, or if no node or every node is a member.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.privacy.views.Coalition(topology=dm.topology.ring(8), nodes=(2, 5)).nodes
    (2, 5)
    """

    nodes: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        instance("nodes", self.nodes, "a tuple of nodes", tuple)
        for node in self.nodes:
            integer("nodes", node, below=self.topology.nodes)
        if not 0 < len(set(self.nodes)) == len(self.nodes):
            fail("nodes", "at least 1 node, each once", self.nodes)
        if len(self.nodes) == self.topology.nodes:
            fail("nodes", "at least 1 node outside the coalition, to protect", "all nodes")


@dataclass(frozen=True, kw_only=True)
class AnyCoalition(_OnNetwork):
    """Any coalition of a given number of nodes: the worst `Coalition`.

    Up to 100,000 coalitions are enumerated; for more, epsilon is bounded from single nodes.

    Parameters
    ----------
    size
        Number of members, at least 1 and less than the number of nodes.
    topology, also
        As for `Node`.

    Raises
    ------
    ValueError
        If `size` is out of its range.

    Examples
    --------
    >>> import dpmesh as dm
    >>> plan = dm.GradientDescent(records=100, noise_multiplier=40.0).plan(20)
    >>> dm.privacy.views.AnyCoalition(topology=dm.topology.ring(8), size=2).size
    2
    """

    size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("size", self.size, at_least=1, below=self.topology.nodes)


@dataclass(frozen=True, kw_only=True)
class Links(_OnNetwork):
    """Eavesdropper on given links, who sees the messages on them and no node's state.

    A sender's message of a round is the same on all its links.

    Parameters
    ----------
    links
        Pairs (sender, receiver) of indices of nodes.
    topology, also
        As for `Node`.

    Raises
    ------
    ValueError
        If a pair names an unknown node.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.privacy.views.Links(topology=dm.topology.ring(8), links=((0, 1), (1, 0))).links
    ((0, 1), (1, 0))
    """

    links: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        instance("links", self.links, "a tuple of pairs (sender, receiver)", tuple)
        for link in self.links:
            if not isinstance(link, tuple) or len(link) != 2:
                fail("links", "pairs (sender, receiver)", link)
            for node in link:
                integer("links", node, below=self.topology.nodes)


@dataclass(frozen=True, kw_only=True)
class LastOnly(_OnNetwork):
    """Adversary who sees only the messages of the last round, of all nodes.

    The parameters `topology` and `also` are as for `Node`.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.privacy.views.LastOnly(topology=dm.topology.ring(8)).topology.nodes
    8
    """


OnNetwork: TypeAlias = Node | OneNode | Coalition | AnyCoalition | Links | LastOnly
View: TypeAlias = Everybody | EverybodyButPartners | OnNetwork


def observers_of(view: OnNetwork) -> Sequence[Observer]:
    """Return the possible observers of a view, each as a tuple of its members.

    A view of messages alone, such as `LastOnly`, has one observer without members.
    """
    nodes = range(view.topology.nodes)
    match view:
        case Node():
            return [(view.node,)]
        case OneNode():
            return [(node,) for node in nodes]
        case Coalition():
            return [view.nodes]
        case AnyCoalition():
            return list(combinations(nodes, view.size))
        case Links() | LastOnly():
            return [()]


def published_by(view: OnNetwork, rounds: int) -> npt.NDArray[np.bool_]:
    """Return True for messages that every observer of the view sees, shape (rounds, nodes)."""
    is_seen = np.zeros((rounds, view.topology.nodes), dtype=bool)
    for t in _published_rounds(view.also):
        if t >= rounds:
            fail("also", f"published rounds below {rounds}", t)
        is_seen[t] = True
    if isinstance(view, LastOnly):
        is_seen[-1] = True
    if isinstance(view, Links):
        for t in range(rounds):
            for sender, receiver in view.links:
                weights = view.topology.matrix(t).weights
                start, end = weights.indptr[receiver : receiver + 2]
                is_seen[t, sender] |= sender in weights.indices[start:end]
    return is_seen


def mean_is_published(view: OnNetwork) -> bool:
    """Return True if the mean of the last messages is published."""
    return any(isinstance(published, PublishedMean) for published in view.also)


def in_words(view: View) -> str:
    """Return the adversary of a view in words, for reports."""
    match view:
        case Everybody():
            words = "an adversary who sees every message"
        case EverybodyButPartners():
            words = but_partners(view.coalition)
        case Node():
            words = f"node {view.node}, if it colludes with no other node"
        case OneNode():
            words = "any one node, if no two nodes pool what they see"
        case Coalition():
            words = f"nodes {', '.join(map(str, view.nodes))} together, and no other node"
        case AnyCoalition():
            words = f"any {view.size} nodes together, and no other node"
        case Links():
            words = f"a listener on {len(view.links)} links"
        case LastOnly():
            words = "readers of the last messages alone"
    return words + _published_in_words(getattr(view, "also", ()))


def _published_in_words(publications: Sequence[Published]) -> str:
    words = ""
    for published in publications:
        if isinstance(published, PublishedMean):
            words += ", and the published mean of the last messages"
        else:
            rounds = ", ".join("the last" if t == -1 else str(t) for t in published.rounds)
            words += f", and all messages of round {rounds}"
    return words


def _published_rounds(publications: Sequence[Published]) -> Iterator[int]:
    for published in publications:
        if isinstance(published, PublishedMessages):
            yield from published.rounds
