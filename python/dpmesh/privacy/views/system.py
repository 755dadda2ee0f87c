"""From a reaction and a network to the numbers that the solver takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from scipy import sparse

from dpmesh._core import ViewSystem
from dpmesh.kernels.views import Mixing, view_system
from dpmesh.privacy.views.observers import OnNetwork, mean_is_published, published_by
from dpmesh.privacy.views.reaction import Numbers, Reaction


def mixings_of(reaction: Reaction, topology: Any) -> list[Mixing]:
    """Return which messages enter which states: those of round t the states of round t + 1."""
    mixings = []
    for t in range(reaction.rounds):
        gain = float(reaction.lipschitz[t])
        for message_round, weights in _mixed(topology, t):
            if message_round == t and reaction.own_message is not None:
                mixings.append(Mixing(t, t, _with_own(weights, gain, reaction.own_message[t])))
            else:
                mixings.append(Mixing(t, message_round, weights, gain))
    return mixings


def _mixed(topology: Any, t: int) -> Iterable[tuple[int, sparse.csr_array]]:
    """Return which messages a round mixes: its own, and late ones of a realized network."""
    realized = getattr(topology, "mixed", None)
    if realized is None:
        return [(t, topology.matrix(t).weights)]
    mixed: Iterable[tuple[int, sparse.csr_array]] = realized(t)
    return mixed


def systems_of(reaction: Reaction, view: OnNetwork) -> Iterator[ViewSystem]:
    """Yield the solver's system of a record; of a record in one round, the system of each round."""
    nodes = view.topology.nodes
    mixings = mixings_of(reaction, view.topology)
    arrived = getattr(view.topology, "received", None)
    for sensitivity in _records(reaction):
        yield view_system(
            mixings,
            noise=reaction.noise,
            fresh=sensitivity,
            nodes=nodes,
            own=reaction.own_state,
            rounding=reaction.rounding,
            published=published_by(view, reaction.rounds),
            received=() if arrived is None else arrived(reaction.rounds),
            mean_of_last=mean_is_published(view),
        )


def _records(reaction: Reaction) -> Iterator[Numbers]:
    """Return a record's effect on each state: in all rounds, or in each that may use it."""
    if not reaction.one_round:
        yield reaction.sensitivity
        return
    for t in range(reaction.rounds):
        effect = np.zeros_like(reaction.sensitivity)
        effect[t] = reaction.sensitivity[t]
        if effect.any():
            yield effect


def _with_own(weights: sparse.csr_array, gain: float, curvature: Numbers) -> sparse.csr_array:
    """Weights times `gain`; the own one less step size times curvature, at worst."""
    scaled = sparse.csr_array(weights * gain)
    diagonal = scaled.diagonal()
    least = np.abs(diagonal[:, None] - curvature[None, :]).max(axis=1)
    return sparse.csr_array(scaled + sparse.diags_array(least - diagonal))
