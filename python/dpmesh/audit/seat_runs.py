"""Audit of a view by real runs: gossip on canaries, scored by what its observer sees of them."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from dpmesh._validate import fail, instance, integer
from dpmesh.algorithms.gradient_descent import GradientDescent
from dpmesh.audit.claims import GaussianClaim
from dpmesh.audit.result import AuditResult
from dpmesh.audit.seat import Floats, LinearRun, Visible, from_scores
from dpmesh.audit.transcript import fresh_keys, record
from dpmesh.data import Dataset
from dpmesh.kernels.views import all_pairs, worst_pair
from dpmesh.keys import Key
from dpmesh.privacy.views.observers import Coalition, Node, OneNode, observers_of
from dpmesh.privacy.views.reaction import Reaction
from dpmesh.privacy.views.system import systems_of
from dpmesh.problems import LinearProblem
from dpmesh.run.carriers import Gossip
from dpmesh.topology.topology import Topology

RECORDS, STEP = 40, 8.0
STEPS: dict[str, Any] = {"step_size": STEP, "clipping_norm": 0.5}


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
    """Run gradient descent on canaries, and test a view's claim with what its observer sees.

    One record of the target is the canary, with either label; all its other records, and those of
    the other nodes, are silent. The score is the likelihood ratio of the messages that the observer
    receives and sends, for a linear run; the threshold comes from the first of the runs.

    Parameters
    ----------
    view
        Who looks on; of `OneNode` the worst one for the target.
    rounds
        Of each run, at least 2.
    target
        Whose record differs; by default the node that the view protects least.
    noise_multiplier
        Of the algorithm.
    forgetful
        Whether the steps of other nodes wipe out what they received, so that their noise hides
        nothing: accounting with their gradients as fixed inputs misses that.
    mu
        The claim; by default that of the view for this observer and target.
    runs
        On each of the two datasets, at least 20.
    confidence
        In (0, 1): a correct and sharp claim is refuted with at most 1 less this.
    key
        Of all randomness; by default a new one from the operating system.

    Raises
    ------
    ValueError
        If an argument does not fit.
    """
    wanted = "any one node, a node or a coalition: Node(..), OneNode(..) or Coalition(..)"
    instance("view", view, wanted, Node, Coalition, OneNode)
    if view.also:
        fail("view", "one without published messages", view)
    integer("rounds", rounds, at_least=2)
    runs = integer("runs", runs, at_least=20)
    algorithm = GradientDescent(records=RECORDS, noise_multiplier=noise_multiplier, **STEPS)
    problems = [_canary(view.topology.nodes, 0, label, forgetful) for label in (1.0, -1.0)]
    reaction = algorithm.reaction(rounds, problems[0])
    assert isinstance(reaction, Reaction)
    observer, target, proved = _worst(reaction, view, target)
    problems = [_canary(view.topology.nodes, target, y, forgetful) for y in (1.0, -1.0)]
    claim = GaussianClaim(proved if mu is None else mu, delta=1e-5)
    seen = _seen(view.topology, observer, rounds)
    surrogate = _linear(reaction, view.topology, target, forgetful)
    weights, chosen = surrogate.weights(seen), np.flatnonzero(seen.reshape(-1))
    keys, carrier = fresh_keys(key), Gossip(view.topology)

    def scores(problem: LinearProblem) -> Floats:
        found = []
        for own in islice(keys, runs):
            run = record(algorithm, problem, carrier, rounds=rounds, key=own)
            found.append(np.concatenate([values[:, 0] for values in run.released])[chosen])
        return np.array(found) @ weights

    who = ("node " if len(observer) == 1 else "nodes ") + ", ".join(map(str, observer))
    method = f"record of node {target}, {len(chosen)} messages in the view of {who}"
    # The canary with the label 1 moves the model up.
    return from_scores(claim, *map(scores, problems), confidence=confidence, method=method)


def _canary(nodes: int, target: int, label: float, forgetful: bool) -> LinearProblem:
    """Return records of 0, but for the canary and, if they forget, those of the other nodes."""
    features = np.full((nodes, RECORDS), float(forgetful))
    features[target] = 0.0
    features[target, 0] = 1.0
    labels = np.tile([1.0, -1.0], (nodes, RECORDS // 2))
    labels[target, 0] = label
    data = Dataset(features.reshape(-1, 1), labels.reshape(-1), "canary")
    parts = np.arange(nodes * RECORDS).reshape(nodes, RECORDS)
    return LinearProblem(data, list(parts), "logistic", feature_norm=1.0)


def _worst(
    reaction: Reaction, view: Node | Coalition | OneNode, target: int | None
) -> tuple[tuple[int, ...], int, float]:
    """Return the observer and the target of the largest mu, and mu."""
    nodes, observers = view.topology.nodes, observers_of(view)
    pairs = all_pairs(observers, nodes)
    if target is not None:
        pairs = pairs[pairs[:, 1] == integer("target", target, below=nodes)]
        if len(pairs) == 0:
            fail("target", "a node outside the coalition", target)
    (system,) = systems_of(reaction, view)
    found = worst_pair(system, observers, pairs, reaction.rounds * nodes)
    assert found is not None
    return tuple(found.observer), found.target, found.mu


def _seen(topology: Topology, observer: tuple[int, ...], rounds: int) -> Visible:
    """Return which messages its members send and receive, read off the network."""
    seen = np.zeros((rounds, topology.nodes), dtype=bool)
    for t in range(rounds):
        weights = topology.matrix(t).weights.toarray()
        for member in observer:
            seen[t] |= weights[member] > 0
            seen[t, member] = True
    return seen


def _linear(reaction: Reaction, topology: Topology, target: int, forgetful: bool) -> LinearRun:
    """Return the run as it is while models are small, where the logistic slope is straight.

    There the steeper half of the records that forget is clipped, and the others' slope is 1 / 4.
    """
    rounds, nodes = reaction.rounds, topology.nodes
    contractions = np.full((rounds, nodes), 1 - STEP / 8 if forgetful else 1.0)
    contractions[:, target] = 1.0
    noise = np.where(reaction.noise > 0, reaction.noise, 1e-3 * reaction.noise.max())
    return LinearRun(
        matrices=[topology.matrix(t).weights.toarray() for t in range(rounds)],
        contractions=contractions,
        moves=reaction.sensitivity,
        noise=noise,
        target=target,
    )
