"""Epsilon under weaker adversaries, each described by a view of the messages.

`Plan.cost` calls `view_cost` if a view is given. The steps are: a `Reaction` (public numbers of the
run) and a view give the systems that the solver bounds; the solver returns a `Certificate` with a
bound on mu; `epsilon_of` converts mu to epsilon.

- *mu* is the parameter of Gaussian DP. For discrete Gaussian and Laplace noise the bound is
  mu^2 / 2 zero-concentrated DP instead.
- *full view* in names is the view of an adversary who sees every message.
- An *observer* is a set of nodes that pool their views; a *target* is the node of the record.
"""

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
    mean_is_published,
    observers_of,
)
from dpmesh.privacy.views.reaction import Distribution, NotProved, Reaction
from dpmesh.privacy.views.system import systems_of
from dpmesh.topology.topology import Static

MARGIN = 1 + 1e-9
"""Factor of mu that covers the rounding of the solver's sums."""

_EQUAL = 1 + 1e-6
"""Epsilons within this factor count as equal where a reason is chosen."""


@dataclass(frozen=True, kw_only=True)
class ViewCost(InNotebooks):
    """Epsilon of a run under a view, and epsilon against an adversary who sees every message.

    Attributes
    ----------
    view
        The adversary's view, in words.
    epsilon
        Upper bound on epsilon under the view; equal to `full_view_epsilon` if no smaller bound
        is proved.
    delta
        Delta of `epsilon` and of `full_view_epsilon`.
    full_view_epsilon
        Upper bound on epsilon against an adversary who sees every message.
    mu
        The messages of the view are mu-Gaussian-DP; for discrete Gaussian and Laplace noise,
        mu^2 / 2 zero-concentrated DP. None if the epsilon has another proof.
    mu_at_least
        Lower bound on every mu that this proof can give; None where `mu` is None.
    observer
        Nodes of the worst observer, or the nodes whose bounds were added up; empty for an adversary
        without members, such as `Everybody`. None if nothing that is seen depends on the data, or
        `mu` is None.
    target
        Node whose record the bound is for, 0 for `Everybody`; None where `observer` is None.
    accountant
        Method that proves `epsilon`, in words.
    reason
        Reason why no epsilon below `full_view_epsilon` is proved; empty otherwise.
    """

    view: str
    epsilon: float
    delta: float
    full_view_epsilon: float
    accountant: str
    mu: float | None = None
    mu_at_least: float | None = None
    observer: Observer | None = None
    target: int | None = None
    reason: str = ""

    def __str__(self) -> str:
        full_view = rounded_up(self.full_view_epsilon, 4)
        lines = [
            f"privacy    epsilon = {full_view}, delta = {self.delta:g}, "
            "against an adversary who sees every message"
        ]
        if self.reason:
            lines.append(f"view       not proved against {self.view}: {self.reason}")
        else:
            lines.append(f"view       epsilon = {rounded_up(self.epsilon, 4)} against {self.view}")
            lines.append(f"accountant {self.accountant}")
        return "\n".join(lines)


def epsilon_of(mu: float, delta: float, distribution: Distribution = "gaussian") -> float:
    """Convert the mu of a view to epsilon at `delta`.

    With Gaussian noise, the messages of the view are mu-Gaussian-DP, and the conversion is exact.
    With discrete Gaussian and Laplace noise they are mu^2 / 2 zero-concentrated DP, and epsilon is
    an upper bound by the Rényi curve.

    Parameters
    ----------
    mu
        At least 0; infinite if messages have no noise.
    delta
        In [0, 1). At 0 every positive mu has an infinite epsilon.
    distribution
        Distribution of the noise.

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
    full_view: Cost | None = None,
    gap: float = 1e-3,
) -> ViewCost:
    """Return the epsilon of a run under a view, with the epsilon if every message is seen.

    Parameters
    ----------
    delta
        In [0, 1).
    reaction
        Public numbers of the run, or the reason why there is no proof for this run.
    view
        The adversary's view, one of the classes of `dpmesh.privacy.views`.
    full_view
        Cost against an adversary who sees every message, at the same delta, such as
        ``plan.cost(delta)``. None computes this cost from `reaction` by the same proof. The epsilon
        under the view never exceeds it.
    gap
        Relative gap between the bounds on mu at which the search may stop; positive.

    Raises
    ------
    ValueError
        If an argument has the wrong type or is out of its range, or `full_view` is None where
        `reaction` has no proof.
    """
    instance("reaction", reaction, "a Reaction, or NotProved", Reaction, NotProved)
    expected = "one of dpmesh.privacy.views, such as OneNode(topology=..)"
    instance("view", view, expected, *get_args(View))
    positive("gap", gap)
    if isinstance(reaction, NotProved):
        if full_view is None:
            expected = "the cost against an adversary who sees every message, as no view is proved"
            fail("full_view", expected, None)
        return _fallback(delta, view, full_view, reaction.reason)
    worst, full_view_mu, method = _solve(reaction, view, gap)
    if full_view is None:
        full_view_epsilon = epsilon_of(full_view_mu * MARGIN, delta, reaction.distribution)
        full_view = Cost(full_view_epsilon, "every message seen")
    epsilon = epsilon_of(_mu_of(worst), delta, reaction.distribution)
    if full_view.epsilon < epsilon and not isinstance(view, Everybody):
        reason = f"another accountant's bound is smaller: {full_view.accountant}"
        if epsilon < full_view.epsilon * _EQUAL:
            reason = "the worst observer receives whatever a record moves"
        return _fallback(delta, view, full_view, reason)
    proved = _proved(in_words(view), delta, reaction, worst, method, full_view.epsilon)
    return replace(proved, epsilon=min(epsilon, full_view.epsilon))


def partners_cost(
    delta: float, view: EverybodyButPartners, against: Cost, full_view: Cost, *, shared: bool
) -> ViewCost:
    """Return the epsilon under the view of all parties except link partners.

    Parameters
    ----------
    delta
        Delta of both costs.
    view
        The adversary's view.
    against
        Cost under the view.
    full_view
        Cost if all other nodes collude, who know every shared secret.
    shared
        True if partners share secrets in this run; else `full_view` is the result.
    """
    if not shared:
        return _fallback(delta, view, full_view, "partners share no secrets in this run")
    return _without_mu(delta, view, against, full_view)


def costs_by_distance(
    delta: float, reaction: Reaction, view: OneNode, *, gap: float = 1e-3
) -> dict[int, ViewCost]:
    """Return the cost against a single node for each distance from the target.

    At distance 1 the epsilon is the same as against an adversary who sees every message, since a
    neighbour receives the target's messages.

    Parameters
    ----------
    delta
        In [0, 1).
    reaction
        Public numbers of the run.
    view
        View of one node on a network that does not change.
    gap
        As for `view_cost`.

    Returns
    -------
    Costs by the length of the shortest path from target to observer.

    Raises
    ------
    ValueError
        If the network changes over time, or an argument has the wrong type.
    """
    instance("topology", view.topology, "a network that does not change", Static)
    instance("reaction", reaction, "a Reaction", Reaction)
    weights = view.topology.matrix(0).weights
    # weights[receiver, sender] > 0 where a message is mixed: distances[observer, target]
    distances = shortest_path(weights > 0, unweighted=True)
    pairs = all_pairs(observers_of(view), view.topology.nodes)
    pair_distances = distances[pairs[:, 0], pairs[:, 1]]
    costs = {}
    for distance in np.unique(pair_distances).astype(int).tolist():
        worst, full_view_mu, _ = _worst(reaction, view, gap, pairs[pair_distances == distance])
        full_view_epsilon = epsilon_of(full_view_mu * MARGIN, delta, reaction.distribution)
        observer = f"any one node at distance {distance}"
        costs[distance] = _proved(observer, delta, reaction, worst, "", full_view_epsilon)
    return costs


def _proved(
    view: str,
    delta: float,
    reaction: Reaction,
    worst: Certificate | None,
    method: str,
    full_view_epsilon: float,
) -> ViewCost:
    """Return the epsilon that a certificate proves.

    Parameters
    ----------
    view
        The view, in words.
    delta, reaction
        As for `view_cost`.
    worst
        Certificate with the largest mu; None if nothing that is seen depends on the data.
    method
        Method of a search over coalitions, in words; else empty.
    full_view_epsilon
        Epsilon against an adversary who sees every message.
    """
    mu = _mu_of(worst)
    mu_at_least = 0.0
    observer = None
    target = None
    if worst is not None:
        mu_at_least = worst.mu_at_least
        observer = worst.observer
        target = worst.target
    return ViewCost(
        view=view,
        epsilon=epsilon_of(mu, delta, reaction.distribution),
        delta=delta,
        full_view_epsilon=full_view_epsilon,
        accountant=_argument(worst, mu, reaction.distribution, method),
        mu=mu,
        mu_at_least=mu_at_least,
        observer=observer,
        target=target,
    )


def _mu_of(worst: Certificate | None) -> float:
    """Return the mu of a certificate, raised by its rounding; 0 without a certificate."""
    if worst is None:
        return 0.0
    return worst.mu * MARGIN


def _solve(reaction: Reaction, view: View, gap: float) -> tuple[Certificate | None, float, str]:
    """Return the certificate with the largest mu under a view.

    Returns
    -------
    The certificate (None if nothing that is seen depends on the data), the mu if every message is
    seen, and the method of a search over coalitions in words.
    """
    if isinstance(view, Everybody | EverybodyButPartners):
        full_view_mu = _full_view_mu(reaction)
        return Certificate(full_view_mu, full_view_mu, (), 0), full_view_mu, ""
    if not reaction.is_noisy:
        return Certificate(inf, inf, (), 0), inf, "messages leave without noise"
    return _worst(reaction, view, gap)


def _worst(
    reaction: Reaction, view: OnNetwork, gap: float, pairs: npt.NDArray[np.int64] | None = None
) -> tuple[Certificate | None, float, str]:
    """Return as `_solve`, for a view on a network.

    Parameters
    ----------
    reaction, view, gap
        As for `view_cost`.
    pairs
        Number of an observer and target, shape (pairs, 2), to search; None for all pairs.
    """
    worst = None
    full_view_mu = 0.0
    method = ""
    nodes = view.topology.nodes
    entries = reaction.rounds * nodes
    observers = [] if isinstance(view, AnyCoalition) else observers_of(view)
    pairs = all_pairs(observers, nodes) if pairs is None else pairs
    for system in systems_of(reaction, view):
        system_mu = max(system.everybody(target) for target in range(nodes))
        full_view_mu = max(full_view_mu, system_mu)
        largest_mu = 0.0 if worst is None else worst.mu
        if not isinstance(view, AnyCoalition):
            larger = worst_pair(system, observers, pairs, entries, gap=gap, at_least=largest_mu)
            worst = larger or worst
            continue
        candidate, method = any_coalition(
            system, nodes, view.size, entries, gap=gap, mean_is_published=mean_is_published(view)
        )
        if candidate.mu > system_mu:  # no coalition learns more than all messages reveal
            mu_at_least = min(candidate.mu_at_least, system_mu)
            candidate = candidate._replace(mu=system_mu, mu_at_least=mu_at_least)
        if worst is None or candidate.mu > largest_mu:
            worst = candidate
    return worst, full_view_mu, method


def _full_view_mu(reaction: Reaction) -> float:
    """Return the mu of all messages, which needs no network.

    Given all messages, a record moves the messages of its own node alone. With ``own_state`` L and
    sensitivity s, it moves the state of round t by ``z_t = L_(t-1) z_(t-1) + s_t``, plus the
    rounding of a grid once it moves a state at all.
    """
    if not reaction.is_noisy:
        return inf
    sensitivity = reaction.sensitivity.reshape(reaction.rounds, -1)
    own_state = np.broadcast_to(reaction.own_state, (reaction.rounds,))
    rounding = reaction.rounding * (np.cumsum(sensitivity, axis=0) > 0)
    state = np.zeros(sensitivity.shape[1])
    squares = []
    for t in range(reaction.rounds):
        carried = own_state[t - 1] * state if t else 0
        state = carried + sensitivity[t] + rounding[t]
        noise = reaction.noise[t]
        ratio = np.divide(state, noise, out=np.zeros_like(state), where=noise > 0)
        squares.append(ratio**2)
    mu_squares = np.array(squares)
    if reaction.one_round:
        largest = mu_squares.max()
    else:
        largest = mu_squares.sum(axis=0).max()
    return float(np.sqrt(largest))


def _fallback(delta: float, view: View, full_view: Cost, reason: str) -> ViewCost:
    """Return the cost if every message is seen, with the reason why nothing less is proved."""
    if full_view.epsilon != inf:
        number("epsilon", full_view.epsilon)
    return replace(_without_mu(delta, view, full_view, full_view), reason=reason)


def _without_mu(delta: float, view: View, against: Cost, full_view: Cost) -> ViewCost:
    """Return the cost `against` the view, whose proof is not by a mu of the view."""
    return ViewCost(
        view=in_words(view),
        epsilon=against.epsilon,
        delta=delta,
        full_view_epsilon=full_view.epsilon,
        accountant=against.accountant,
    )


def _argument(worst: Certificate | None, mu: float, distribution: Distribution, method: str) -> str:
    """Return the proof of a certificate in words, with the worst observer and target."""
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
