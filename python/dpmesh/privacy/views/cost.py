"""Epsilon under weaker adversaries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import get_args

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import shortest_path

import dpmesh.accounting as accounting
from dpmesh._epsilons import rounded_up
from dpmesh._html import InNotebooks
from dpmesh._validate import fail, instance, number, positive, probability
from dpmesh.kernels.views import Certificate, Observer, all_pairs, worst_pair
from dpmesh.privacy.cost import Cost
from dpmesh.privacy.views.coalitions import any_coalition
from dpmesh.privacy.views.observers import (
    AnyCoalition,
    Everybody,
    EverybodyButPartners,
    OneNode,
    OnNetwork,
    View,
    in_words,
    observers_of,
)
from dpmesh.privacy.views.reaction import Distribution, NotProved, Reaction
from dpmesh.privacy.views.system import systems_of
from dpmesh.topology.topology import Static

MARGIN = 1 + 1e-9
"""Covers the rounding of the solver's sums."""


@dataclass(frozen=True, kw_only=True)
class ViewCost(InNotebooks):
    """Epsilon of a run when all messages are public and, if proved less, under a view.

    Attributes
    ----------
    view
        Who looks on, in words.
    epsilon
        Against the view; that against everybody where nothing less is proved.
    delta
        The delta of both.
    everybody
        Epsilon against somebody who sees every message.
    mu, mu_at_least
        The view is mu-Gaussian-DP (for discrete and Laplace noise: mu^2 / 2 zero-concentrated), and
        what no better search could go below. None where nothing below `everybody` is proved.
    observer, target
        The worst ones, if there is one worst pair.
    accountant
        Names the argument.
    reason
        Why `everybody` is all that is proved; empty otherwise.
    """

    view: str
    epsilon: float
    delta: float
    everybody: float
    accountant: str
    mu: float | None = None
    mu_at_least: float | None = None
    observer: Observer | None = None
    target: int | None = None
    reason: str = ""

    def __str__(self) -> str:
        lines = [
            f"everybody  epsilon = {rounded_up(self.everybody, 4)}, delta = {self.delta:g}, "
            "against everybody who sees all messages"
        ]
        if self.reason:
            lines.append(f"view       not proved against {self.view}: {self.reason}")
        else:
            lines.append(f"view       epsilon = {rounded_up(self.epsilon, 4)} against {self.view}")
            lines.append(f"accountant {self.accountant}")
        return "\n".join(lines)


def epsilon_of(mu: float, delta: float, distribution: Distribution = "gaussian") -> float:
    """Return the epsilon of a view's mu at `delta`.

    Gaussian noise: mu-Gaussian-DP. Discrete Gaussian and Laplace noise: mu^2 / 2 zero-concentrated
    differential privacy, by its Rényi curve.

    Parameters
    ----------
    mu
        At least 0; infinite where messages carry no noise.
    delta
        In [0, 1). At 0 every positive mu has an infinite epsilon.
    distribution
        Of the noise.

    Raises
    ------
    ValueError
        If `delta` is outside [0, 1).
    """
    probability("delta", delta, one=False)
    if mu == 0:
        return 0.0
    if delta == 0 or mu == inf:
        return inf
    if distribution == "gaussian":
        return accounting.gdp_epsilon(delta=delta, mu=float(mu))
    return accounting.rdp_epsilon(delta=delta, rdp=accounting.rdp_gaussian(1 / mu)).epsilon


def view_cost(
    delta: float,
    reaction: Reaction | NotProved,
    view: View,
    *,
    everybody: Cost | None = None,
    gap: float = 1e-3,
) -> ViewCost:
    """Return what a run costs against a view, beside what it costs against everybody.

    Parameters
    ----------
    delta
        In [0, 1).
    reaction
        The run's public numbers, or why there is no such proof.
    view
        Who looks on.
    everybody
        The cost against everybody at the same delta, such as ``plan.cost(delta)``; by default that
        of the same argument without any unseen message. The view's epsilon is never above it.
    gap
        Relative gap at which the search for the least bound may stop.

    Raises
    ------
    ValueError
        If an argument does not fit.
    """
    instance("reaction", reaction, "a Reaction, or NotProved", Reaction, NotProved)
    expected = "one of dpmesh.privacy.views, such as OneNode(topology=..)"
    instance("view", view, expected, *get_args(View))
    positive("gap", gap)
    if isinstance(reaction, NotProved):
        if everybody is None:
            fail("everybody", "the cost against everybody where no view is proved", None)
        return _fallback(delta, view, everybody, reaction.reason)
    worst, most, method = _solve(reaction, view, gap)
    local = epsilon_of(most * MARGIN, delta, reaction.distribution)
    if everybody is None:
        everybody = Cost(local, "every message seen")
    mu = 0.0 if worst is None else worst.mu * MARGIN
    epsilon = epsilon_of(mu, delta, reaction.distribution)
    if everybody.epsilon < epsilon and not isinstance(view, Everybody):
        reason = f"another accountant's bound is smaller: {everybody.accountant}"
        if epsilon < everybody.epsilon * (1 + 1e-6):
            reason = "the worst observer receives whatever a record moves"
        return _fallback(delta, view, everybody, reason)
    proved = _proved(in_words(view), delta, reaction, worst, method, everybody.epsilon)
    return replace(proved, epsilon=min(epsilon, everybody.epsilon))


def partners_cost(
    delta: float, view: EverybodyButPartners, against: Cost, everybody: Cost, *, shared: bool
) -> ViewCost:
    """Return what a run costs against everybody who does not know the secrets of partners.

    Parameters
    ----------
    against
        The cost against the view.
    everybody
        That against all other nodes together.
    shared
        Whether partners share secrets at all.
    """
    if not shared:
        return _fallback(delta, view, everybody, "partners share no secrets in this run")
    return _cost(delta, view, against, everybody)


def costs_by_distance(
    delta: float, reaction: Reaction, view: OneNode, *, gap: float = 1e-3
) -> dict[int, ViewCost]:
    """Return the cost against any one node by its distance from the target, on a static network.

    At distance 1 it is that against everybody: a neighbour receives the very messages.

    Raises
    ------
    ValueError
        If the network changes over time, or an argument does not fit.
    """
    instance("topology", view.topology, "a network that does not change", Static)
    instance("reaction", reaction, "a Reaction", Reaction)
    weights = view.topology.matrix(0).weights
    distances = shortest_path(weights > 0, unweighted=True)  # [v, u]: from v to the u it hears
    pairs = all_pairs(observers_of(view), view.topology.nodes)
    away = distances[pairs[:, 0], pairs[:, 1]]
    costs = {}
    for distance in np.unique(away).astype(int).tolist():
        worst, most, _ = _worst(reaction, view, gap, pairs[away == distance])
        everybody = epsilon_of(most * MARGIN, delta, reaction.distribution)
        who = f"any one node at distance {distance}"
        costs[distance] = _proved(who, delta, reaction, worst, "", everybody)
    return costs


def _proved(
    view: str,
    delta: float,
    reaction: Reaction,
    worst: Certificate | None,
    method: str,
    everybody: float,
) -> ViewCost:
    """Return what a certificate proves; None is that of a view that sees nothing of the data."""
    least, observer, target = (0.0, None, None) if worst is None else worst[1:]
    mu = 0.0 if worst is None else worst.mu * MARGIN
    return ViewCost(
        view=view,
        epsilon=epsilon_of(mu, delta, reaction.distribution),
        delta=delta,
        everybody=everybody,
        accountant=_argument(worst, mu, reaction.distribution, method),
        mu=mu,
        mu_at_least=least,
        observer=observer,
        target=target,
    )


def _solve(reaction: Reaction, view: View, gap: float) -> tuple[Certificate | None, float, str]:
    """Return the worst certificate, the mu against everybody, and how it was found."""
    if isinstance(view, Everybody | EverybodyButPartners):
        most = _against_everybody(reaction)
        return Certificate(most, most, (), 0), most, ""
    if not reaction.is_noisy:
        return Certificate(inf, inf, (), 0), inf, "messages leave without noise"
    return _worst(reaction, view, gap)


def _worst(
    reaction: Reaction, view: OnNetwork, gap: float, pairs: npt.NDArray[np.int64] | None = None
) -> tuple[Certificate | None, float, str]:
    """Return as `_solve`; of these pairs of an observer and a target alone, if they are given."""
    worst = None
    most = 0.0
    method = ""
    nodes = view.topology.nodes
    entries = reaction.rounds * nodes
    observers = [] if isinstance(view, AnyCoalition) else observers_of(view)
    pairs = all_pairs(observers, nodes) if pairs is None else pairs
    for system in systems_of(reaction, view):
        local = max(system.everybody(target) for target in range(nodes))
        most = max(most, local)
        so_far = 0.0 if worst is None else worst.mu
        if not isinstance(view, AnyCoalition):
            worst = worst_pair(system, observers, pairs, entries, gap=gap, at_least=so_far) or worst
            continue
        candidate, method = any_coalition(system, nodes, view.size, entries, gap=gap)
        if candidate.mu > local:
            candidate = candidate._replace(mu=local, mu_at_least=min(candidate.mu_at_least, local))
        if worst is None or candidate.mu > so_far:
            worst = candidate
    return worst, most, method


def _against_everybody(reaction: Reaction) -> float:
    """The mu of all messages, without a network: only the target's own are moved."""
    if not reaction.is_noisy:
        return inf
    moves = reaction.sensitivity.reshape(reaction.rounds, -1)
    state = np.zeros(moves.shape[1])
    squares = []
    added = reaction.rounding * (np.cumsum(moves, axis=0) > 0)
    for t, fresh in enumerate(moves):
        carried = np.broadcast_to(reaction.own_state, (reaction.rounds,))[t - 1] * state
        state = (carried if t else 0) + fresh + added[t]
        noise = reaction.noise[t]
        squares.append(np.divide(state, noise, out=np.zeros_like(state), where=noise > 0) ** 2)
    table = np.array(squares)
    total = table.max() if reaction.one_round else table.sum(axis=0).max()
    return float(np.sqrt(total))


def _fallback(delta: float, view: View, everybody: Cost, reason: str) -> ViewCost:
    if everybody.epsilon != inf:
        number("epsilon", everybody.epsilon)
    return replace(_cost(delta, view, everybody, everybody), reason=reason)


def _cost(delta: float, view: View, against: Cost, everybody: Cost) -> ViewCost:
    return ViewCost(
        view=in_words(view),
        epsilon=against.epsilon,
        delta=delta,
        everybody=everybody.epsilon,
        accountant=against.accountant,
    )


def _argument(worst: Certificate | None, mu: float, distribution: Distribution, method: str) -> str:
    if worst is None:
        return "nothing that is seen depends on the data"
    kind = "Gaussian" if distribution == "gaussian" else "zero-concentrated"
    text = f"{kind} differential privacy by coupling, mu = {rounded_up(mu, 4)}"
    text += f" ({worst.mu_at_least:.4g} at least)"
    if worst.observer:
        who = "observer" if len(worst.observer) == 1 else "observers"
        text += f", {who} {', '.join(map(str, worst.observer))}, target {worst.target}"
    if method:
        return f"{text}; {method}"
    return text
