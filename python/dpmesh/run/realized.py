"""What a failing network did in a run: which messages entered which states, and who received them.

All of it is drawn from the run's key and from public numbers, so that it is known before the run.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import sparse

from dpmesh.kernels.views import Received
from dpmesh.keys import Key
from dpmesh.run.failing import FailingGossip
from dpmesh.run.network import Conditions, Network
from dpmesh.topology.matrix import MixingMatrix
from dpmesh.topology.topology import Topology


class RealizedNetwork:
    """A topology with the losses, delays and outages of one run, for views of it.

    A node is taken to receive all messages of the nodes that are its neighbours in a round, lost
    ones included: those of the round, and those that are that late.

    Parameters
    ----------
    topology
        Who talks to whom, if nothing fails.
    network
        What fails, and how messages are delayed.
    key
        That of the run, seeded: a run mixes fresh bits into a key from the operating system.

    Examples
    --------
    ```python
    realized = RealizedNetwork(topology, network, key)
    plan.cost(1e-5, view=OneNode(topology=realized))
    ```

    Examples
    --------
    >>> import dpmesh as dm
    >>> ring, key = dm.topology.ring(8), dm.Key.seeded(0)
    >>> seen = dm.run.RealizedNetwork(ring, dm.Network(loss=0.1), key)
    >>> dm.privacy.views.OneNode(topology=seen).topology.nodes
    8
    """

    def __init__(self, topology: Topology, network: Network, key: Key) -> None:
        self.nodes, self._topology = topology.nodes, topology
        self._carrier = FailingGossip(topology, Conditions(network, topology.nodes, key))

    def __repr__(self) -> str:
        return f"{self._topology} as it failed in a run"

    def matrix(self, round: int) -> MixingMatrix:
        """Return the weights of a round if nothing failed."""
        return self._topology.matrix(round)

    def mixed(self, round: int) -> Iterator[tuple[int, sparse.csr_array]]:
        """Return which messages a round mixes: the round they are of, and their weights.

        The messages of the round itself come first.
        """
        links, shape = self._carrier.links(round), (self.nodes, self.nodes)
        delays = links.delays * links.carried
        own = sparse.diags_array(links.matrix.weights.diagonal())
        for delay in sorted({0, *delays.tolist()}):
            used = links.carried & (links.delays == delay)
            places = links.receivers[used], links.senders[used]
            weights = sparse.csr_array((links.weights[used], places), shape=shape)
            yield round - delay, sparse.csr_array(weights + own) if delay == 0 else weights

    def received(self, rounds: int) -> list[Received]:
        """Return what arrives in the first `rounds` rounds, or might have."""
        found: set[Received] = set()
        for t in range(rounds):
            links = self._carrier.links(t)
            ends = np.stack([links.receivers, links.senders], axis=1).tolist()
            for (receiver, sender), delay in zip(ends, links.delays.tolist(), strict=True):
                found |= {Received(made, receiver, sender) for made in (t, t - delay)}
        return sorted(found)
