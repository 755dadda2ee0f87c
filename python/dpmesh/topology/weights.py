"""Weights for the links of a graph, such that the mixing matrix is doubly stochastic."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from scipy import sparse

from dpmesh._validate import fail, one_of
from dpmesh.topology.matrix import MixingMatrix

Weights: TypeAlias = Literal["metropolis", "max_degree", "equal"]
"""How a link (i, j) between nodes of degrees d_i and d_j is weighted.

``"metropolis"``
    1 / (1 + max(d_i, d_j)): each node needs to know its neighbours' degrees only.
``"max_degree"``
    1 / (1 + d), where d is the largest degree of the graph.
``"equal"``
    1 / d for each neighbour and nothing for the node itself; for regular graphs only. On an even
    ring, or any other bipartite graph, gossip then never converges: the spectral gap is 0.

With the first two a node keeps the rest of 1 for itself. On a regular graph they are the same.
"""


def weigh(links: sparse.csr_array, weights: Weights = "metropolis") -> MixingMatrix:
    """Return the mixing matrix of an undirected graph.

    Parameters
    ----------
    links
        Shape (nodes, nodes), symmetric: each nonzero entry is a link. The diagonal is ignored.
    weights
        ``"metropolis"``, ``"max_degree"`` or ``"equal"``, see `Weights`.

    Raises
    ------
    ValueError
        If `weights` is unknown, or is ``"equal"`` and the graph is not regular.
    """
    one_of("weights", weights, ("metropolis", "max_degree", "equal"))
    links = links.tocoo()
    off_diagonal = (links.row != links.col) & (links.data != 0)
    i, j = links.row[off_diagonal], links.col[off_diagonal]
    nodes = links.shape[0]
    degrees = np.bincount(i, minlength=nodes)
    if weights == "equal":
        least, most = int(degrees.min()), int(degrees.max())
        if least != most:
            wanted = "'metropolis' or 'max_degree' for a graph that is not regular"
            fail("weights", wanted, f"'equal' for degrees from {least} to {most}")
        share = np.full(len(i), 1 / max(most, 1))
    elif weights == "max_degree":
        share = np.full(len(i), 1 / (1 + degrees.max()))
    else:
        share = 1 / (1 + np.maximum(degrees[i], degrees[j]))
    sent = sparse.csr_array((share, (i, j)), shape=(nodes, nodes))
    own = 1.0 * (degrees == 0) if weights == "equal" else 1 - sent.sum(axis=1)
    return MixingMatrix(sent + sparse.diags_array(own))
