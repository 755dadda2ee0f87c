"""Epsilon of each observer of each target: the table behind a figure, and the mean pair."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpmesh._validate import instance
from dpmesh.kernels.views import all_pairs, solve_pairs
from dpmesh.privacy.views.cost import MARGIN, epsilon_of
from dpmesh.privacy.views.observers import OneNode, observers_of
from dpmesh.privacy.views.reaction import Reaction
from dpmesh.privacy.views.system import systems_of


def epsilons_by_pair(
    delta: float, reaction: Reaction, view: OneNode, *, gap: float = 1e-2
) -> npt.NDArray[np.float64]:
    """Return what each node learns of each other one's records.

    Every pair is solved: some seconds for 64 nodes and 100 rounds.

    Parameters
    ----------
    delta
        In [0, 1).
    reaction
        The run's public numbers.
    view
        The network, and what is published beside.
    gap
        Relative gap at which a search may stop.

    Returns
    -------
    Shape (nodes, nodes): row v, column u is the epsilon against node v of a record of node u; NaN
    on the diagonal.

    Raises
    ------
    ValueError
        If an argument does not fit.
    """
    instance("reaction", reaction, "a Reaction", Reaction)
    instance("view", view, "OneNode(topology=..)", OneNode)
    observers, nodes = observers_of(view), view.topology.nodes
    pairs = all_pairs(observers, nodes)
    mu = np.zeros(len(pairs))
    for system in systems_of(reaction, view):
        mu = np.maximum(mu, solve_pairs(system, observers, pairs, gap=gap)[0])
    table = np.full((nodes, nodes), np.nan)
    epsilons = [epsilon_of(float(value) * MARGIN, delta, reaction.distribution) for value in mu]
    table[pairs[:, 0], pairs[:, 1]] = epsilons
    return table
