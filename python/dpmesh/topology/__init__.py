"""Communication graphs and their mixing matrices, static or changing over time.

A `Topology` returns the `MixingMatrix` of each round. Topologies are public and must not depend on
data. Random ones are drawn from a key: the same key gives the same graphs.
"""

from dpmesh.topology.directed import PushMatrix, directed, random_directed
from dpmesh.topology.graphs import (
    Weights,
    complete,
    erdos_renyi,
    from_networkx,
    random_regular,
    ring,
    star,
    torus,
)
from dpmesh.topology.matrix import MixingMatrix
from dpmesh.topology.meetings import best_schedule, meetings, one_peer_exponential
from dpmesh.topology.topology import (
    Static,
    Topology,
    Varying,
    cycle,
    edge_dropping,
    random_matchings,
    shuffled,
)

__all__ = [
    "MixingMatrix",
    "PushMatrix",
    "Static",
    "Topology",
    "Varying",
    "Weights",
    "best_schedule",
    "complete",
    "cycle",
    "directed",
    "edge_dropping",
    "erdos_renyi",
    "from_networkx",
    "meetings",
    "one_peer_exponential",
    "random_directed",
    "random_matchings",
    "random_regular",
    "ring",
    "shuffled",
    "star",
    "torus",
]
