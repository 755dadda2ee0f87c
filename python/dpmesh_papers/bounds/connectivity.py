"""Checks that messages keep reaching every node over a network that changes."""

from __future__ import annotations

from collections import deque
from functools import partial

from scipy import sparse
from scipy.sparse.csgraph import connected_components

from dpmesh._validate import fail, integer, probability, require_methods
from dpmesh.topology.topology import Static, Topology


def check_jointly_connected(topology: Topology, window: int, rounds: int) -> None:
    """Fail unless the union of the graphs of any `window` consecutive rounds is connected.

    This is part (4) of Assumption 2 of the online paper, with `window` as its N. Connected means
    strongly connected: a path of positive weights leads from every node to every other.

    Parameters
    ----------
    topology
        The network.
    window
        Number of consecutive rounds in a union, from 1 to `rounds`.
    rounds
        Length of the run: rounds 0 to `rounds` - 1 are checked.

    Raises
    ------
    ValueError
        If the union of some window is not connected; the message names the first such windows.

    Examples
    --------
    >>> import dpmesh as dm
    >>> pairs = dm.topology.meetings(4, key=dm.Key.seeded(1))
    >>> check_jointly_connected(pairs, 3, rounds=12)
    """
    require_methods("topology", topology, "a network, such as ring(16)", "matrix")
    rounds = integer("rounds", rounds, at_least=1)
    window = integer("window", window, at_least=1, below=rounds + 1)
    if isinstance(topology, Static):
        return  # connected, or it would not exist
    component_count = partial(connected_components, connection="strong", return_labels=False)
    graphs: deque[sparse.csr_array] = deque(maxlen=window)
    failing = []
    for last in range(rounds):
        graphs.append(topology.matrix(last).weights)
        first = last - window + 1
        if first >= 0 and component_count(sum(graphs)) > 1:
            failing.append(f"{first} to {last}")
    if failing:
        listed = ", ".join(failing[:5])
        if len(failing) > 5:
            listed += ", .."
        expectation = f"a connected union of graphs over every {window} consecutive rounds"
        total = rounds - window + 1
        fail("topology", expectation, f"{len(failing)} of {total} that are not: rounds {listed}")


def check_weights(topology: Topology, smallest_weight: float, rounds: int) -> None:
    """Fail unless in every round all positive weights and each node's own weight are at least eta.

    This is part (3) of Assumption 2 of the online paper, with `smallest_weight` as its eta. That
    nodes' own weights are at least eta (a_ii >= eta) is an assumption of Lemma 3's source that the
    paper omits: without it nodes may swap their messages for ever.

    Parameters
    ----------
    topology
        The network.
    smallest_weight
        eta, in (0, 1].
    rounds
        Length of the run: rounds 0 to `rounds` - 1 are checked.

    Raises
    ------
    ValueError
        If a weight is too small; the message names the first round and the weight.

    Examples
    --------
    >>> import dpmesh as dm
    >>> check_weights(dm.topology.ring(8), 0.3, rounds=10)
    """
    require_methods("topology", topology, "a network, such as ring(16)", "matrix")
    eta = probability("smallest_weight", smallest_weight, zero=False)
    for t in range(integer("rounds", rounds, at_least=1)):
        matrix = topology.matrix(t)
        smallest = min(matrix.smallest_weight, float(matrix.weights.diagonal().min()))
        if smallest < eta:
            fail(
                "topology",
                f"own and positive weights of at least {eta}",
                f"{smallest} in round {t}",
            )
        if isinstance(topology, Static):
            return
