"""Audit of an adversary's view by real runs of gossip, scored by the messages that it sees.

A *canary* is the record of the target node whose label differs between the two datasets. The
algorithm runs for real; `linear_run` only provides the weights of the likelihood ratio, from a
linear model of the run.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from dpmesh._validate import fail, instance, integer
from dpmesh.algorithms.gradient_descent import GradientDescent
from dpmesh.audit.claims import GaussianClaim
from dpmesh.audit.linear_run import Floats, LinearRun, Visible, from_scores
from dpmesh.audit.result import AuditResult
from dpmesh.audit.transcript import fresh_keys, record
from dpmesh.data import Dataset
from dpmesh.kernels.views import Certificate, all_pairs, worst_pair
from dpmesh.keys import Key
from dpmesh.privacy.views.observers import Coalition, Node, OneNode, observers_of
from dpmesh.privacy.views.reaction import Reaction
from dpmesh.privacy.views.system import systems_of
from dpmesh.problems import LinearProblem
from dpmesh.run.carriers import Gossip
from dpmesh.topology.topology import Topology

RECORDS = 40
"""Records of each node."""

STEP = 8.0
"""Step size of the audited gradient descent."""

CLIPPING_NORM = 0.5
"""Clipping norm of the audited gradient descent, in L2."""

_SMALLEST_NOISE_SHARE = 1e-3
"""Noise of messages without noise in the linear model, over the largest noise of a message."""


def audit_view(
    view: Node | Coalition | OneNode,
    *,
    rounds: int,
    target: int | None = None,
    noise_multiplier: float = 2.0,
    forgetful: bool = False,
    mu: float | None = None,
    runs: int = 1_000,
    confidence: float = 0.95,
    key: Key | None = None,
) -> AuditResult:
    """Audit the epsilon against a view: an adversary who sees the messages of some nodes only.

    Decentralized gradient descent runs many times on two datasets that differ in the label of one
    record of the target node. Unless `forgetful`, all other records have zero gradients. A test by
    the likelihood ratio of the messages that the observer receives and sends distinguishes the
    runs. The first runs choose its threshold.

    Parameters
    ----------
    view
        The observer, a view of `dpmesh.privacy.views`; for `OneNode` the worst node for the target.
    rounds
        Number of rounds of each run, at least 2.
    target
        Node whose record differs; by default the node with the largest epsilon against the view.
    noise_multiplier
        Noise multiplier of the algorithm: standard deviation over clipping norm.
    forgetful
        True if the steps of other nodes erase the messages that they received, so that the noise in
        these messages hides nothing. Accounting that takes gradients as fixed inputs misses this.
    mu
        Claim to test, a parameter of Gaussian DP; by default the claim of the view for this
        observer and target.
    runs
        Number of runs on each of the two datasets, at least 20.
    confidence
        Confidence level of the bound, in (0, 1). A correct claim is refuted with probability at
        most ``1 - confidence``.
    key
        Key of all randomness; by default a new key from the operating system.

    Raises
    ------
    ValueError
        If an argument does not fit.
    """
    expectation = "any one node, a node or a coalition: Node(..), OneNode(..) or Coalition(..)"
    instance("view", view, expectation, Node, Coalition, OneNode)
    if view.also:
        fail("view", "one without published messages", view)
    integer("rounds", rounds, at_least=2)
    runs = integer("runs", runs, at_least=20)
    algorithm = GradientDescent(
        records=RECORDS,
        noise_multiplier=noise_multiplier,
        step_size=STEP,
        clipping_norm=CLIPPING_NORM,
    )
    topology = view.topology
    example_problem = _canary(topology.nodes, 0, 1.0, forgetful)
    reaction = algorithm.reaction(rounds, example_problem)
    assert isinstance(reaction, Reaction)
    worst = _worst(reaction, view, target)
    visible = _visible_messages(topology, worst.observer, rounds)  # shape (rounds, nodes)
    visible_places = np.flatnonzero(visible.reshape(-1))
    weights = _linear(reaction, topology, worst.target, forgetful).weights(visible)
    keys = fresh_keys(key)
    carrier = Gossip(topology)

    def scores(label: float) -> Floats:
        problem = _canary(topology.nodes, worst.target, label, forgetful)
        messages = []
        for run_key in islice(keys, runs):
            run = record(algorithm, problem, carrier, rounds=rounds, key=run_key)
            all_messages = np.concatenate([values[:, 0] for values in run.released])
            messages.append(all_messages[visible_places])
        return np.array(messages) @ weights

    nodes = ", ".join(map(str, worst.observer))
    observer = f"node {nodes}" if len(worst.observer) == 1 else f"nodes {nodes}"
    return from_scores(
        GaussianClaim(worst.mu if mu is None else mu, delta=1e-5),
        positives=scores(1.0),  # the canary with the label 1 moves the model up
        negatives=scores(-1.0),
        confidence=confidence,
        method=f"record of node {worst.target}, {len(visible_places)} messages in the view of "
        f"{observer}",
    )


def _canary(nodes: int, target: int, label: float, forgetful: bool) -> LinearProblem:
    """Return the problem with this label of the canary, the first record of the target.

    All other features are 0, so that their gradients are 0; if `forgetful`, the features of the
    other nodes are 1 instead.
    """
    features = np.full((nodes, RECORDS), float(forgetful))
    features[target] = 0.0
    features[target, 0] = 1.0
    labels = np.tile([1.0, -1.0], (nodes, RECORDS // 2))
    labels[target, 0] = label
    dataset = Dataset(features.reshape(-1, 1), labels.reshape(-1), "canary")
    partition = np.arange(nodes * RECORDS).reshape(nodes, RECORDS)
    return LinearProblem(dataset, list(partition), "logistic", feature_norm=1.0)


def _worst(reaction: Reaction, view: Node | Coalition | OneNode, target: int | None) -> Certificate:
    """Return the certificate of the pair of observer and target with the largest mu.

    `target` restricts the search to one target; None searches all nodes.
    """
    nodes = view.topology.nodes
    observers = observers_of(view)
    pairs = all_pairs(observers, nodes)
    if target is not None:
        target = integer("target", target, below=nodes)
        pairs = pairs[pairs[:, 1] == target]
        if len(pairs) == 0:
            fail("target", "a node outside the coalition", target)
    (system,) = systems_of(reaction, view)
    worst = worst_pair(system, observers, pairs, reaction.rounds * nodes)
    assert worst is not None
    return worst


def _visible_messages(topology: Topology, observer: tuple[int, ...], rounds: int) -> Visible:
    """Return which messages the observer's members send or receive on this network."""
    visible = np.zeros((rounds, topology.nodes), dtype=bool)
    for t in range(rounds):
        weights = topology.matrix(t).weights.toarray()
        for member in observer:
            visible[t] |= weights[member] > 0
            visible[t, member] = True
    return visible


def _linear(reaction: Reaction, topology: Topology, target: int, forgetful: bool) -> LinearRun:
    """Return a linear model of the run, which is accurate while models are small.

    If `forgetful`, a step of another node multiplies a small model by ``1 - STEP / 8``: clipping
    makes the gradients of half of its records constant, and the other gradients have the slope 1/4
    of the logistic loss at 0. Otherwise steps of other nodes change nothing.
    """
    rounds = reaction.rounds
    contraction = 1.0
    if forgetful:
        contraction = 1 - STEP / 8
    contractions = np.full((rounds, topology.nodes), contraction)
    contractions[:, target] = 1.0
    least_noise = (
        _SMALLEST_NOISE_SHARE * reaction.noise.max()
    )  # so that a covariance has an inverse
    return LinearRun(
        matrices=[topology.matrix(t).weights.toarray() for t in range(rounds)],
        contractions=contractions,
        moves=reaction.sensitivity,
        noise=np.where(reaction.noise > 0, reaction.noise, least_noise),
        target=target,
    )
