"""Made-up problems for audits: a `Pair` of neighbouring problems, and a `Crowd` of canaries.

A *canary* is a made-up record or client whose presence, or form, an audit tries to detect. Its
*coin* is True or False, and decides between its two forms. `Algorithm.worst_case` returns a pair
and a crowd, and `dpmesh.audit` runs them. This module also has the data for several algorithms.

A *coupled* run is a run on both problems of a pair with equal noise, in which an audit measures how
far messages move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any, SupportsFloat, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._arrays import floats
from dpmesh._ragged import Flags, Numbers
from dpmesh.algorithms.controllers import AlwaysGlobal, Periodic
from dpmesh.data import Dataset
from dpmesh.problems import LinearProblem
from dpmesh.problems.canaries import PullingClients, canary_records, diagonal
from dpmesh.schedules import at

CROWD_DELTA = 1e-9
"""Delta of the guarantee that a crowd tests.

An audit in one run adds up to 2 * canaries * delta to its p-value, which must stay far below
1 - confidence: see `dpmesh.audit.one_run`.
"""

FAR = 1e6
"""Label, or length of an update, that is so large that gradients or updates are always clipped."""

Coins: TypeAlias = Flags
"""Coins of canaries, an array of bool, shape (canaries,)."""
Score: TypeAlias = Callable[[Any], SupportsFloat]
"""Score of a run: a number that is larger if the canary is present."""
Scores: TypeAlias = Callable[[Any], Numbers]
"""Scores of a run: a number for each canary, shape (canaries,), larger if its coin is True."""


@dataclass(frozen=True, kw_only=True)
class AuditSize:
    """Size of an audit's runs; None for the smallest size that the algorithm needs.

    Parameters
    ----------
    rounds
        Number of rounds of each run.
    dim
        Length of the model.
    delta
        Delta of the guarantee that the pair tests.
    canaries
        Number of canaries of the crowd.
    """

    rounds: int | None = None
    dim: int | None = None
    delta: float | None = None
    canaries: int = 1_000

    def delta_or(self, default: float) -> float:
        """Return delta, or `default` if it is None; a delta of 0 is kept."""
        if self.delta is None:
            return default
        return self.delta


@dataclass(frozen=True, kw_only=True)
class Pair:
    """An algorithm with two neighbouring problems that its guarantee makes hard to distinguish.

    Fields but for `silent` and `coupled` are parameters of `dpmesh.audit.audit_algorithm`.

    Parameters
    ----------
    algorithm
        The algorithm that is audited.
    problem, neighbor
        Two problems that differ in one canary: a record or a client.
    rounds
        Number of rounds of a run.
    silent
        True if nodes receive zeros, as if their neighbours' messages cancelled. False if each node
        receives its own message.
    delta
        Delta of the guarantee that is tested.
    score
        Score of a run; None for the log-likelihood ratio.
    coupled
        Pairs for the coupled runs; empty to use this pair.
    """

    algorithm: Any
    problem: Any
    neighbor: Any
    rounds: int
    silent: bool = False
    delta: float = 0.0
    score: Score | None = None
    coupled: tuple[Pair, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """An algorithm with a problem of many canaries, whose coins an audit guesses in one run.

    Fields but for `silent` are parameters of `dpmesh.audit.audit_one_run`.

    Parameters
    ----------
    algorithm
        The algorithm that is audited.
    problem_of
        Function that returns the problem for the coins of all canaries.
    canaries
        Number of canaries.
    rounds
        Number of rounds of the run.
    silent, delta
        As in `Pair`.
    scores
        Scores of a run; None for log-likelihood ratios.
    per_release
        True if each release has one canary; False if each node has one.
    """

    algorithm: Any
    problem_of: Callable[[Coins], Any]
    canaries: int
    rounds: int
    silent: bool = False
    delta: float = 0.0
    scores: Scores | None = None
    per_release: bool = False


def projection(directions: npt.ArrayLike) -> Scores:
    """Return a function that scores a run by the projection of all released rows' sum.

    Unlike the log-likelihood ratio, this score needs no second run with the same noise, and does
    not depend on which round sampled the canary.

    Parameters
    ----------
    directions
        Direction of a canary, shape (dim,), for `audit_algorithm`; or a direction for each canary,
        shape (canaries, dim), for `audit_one_run`.
    """
    along = floats("directions", directions)

    def score(run: Any) -> Numbers:
        total = sum(values.reshape(-1, values.shape[-1]).sum(axis=0) for values in run.released)
        return np.asarray(along @ total)

    return score


def opposed_clients(algorithm: Any, size: AuditSize) -> tuple[Pair, Crowd]:
    """Return problems for audits of user-level privacy, whose units are clients.

    All updates are so long that they are clipped. In the pair client 0 is the canary, and all other
    clients pull in the opposite direction. The two problems differ in the canary alone: under
    add-remove it is absent in the second one; under replace-one it pulls like the others there. The
    clients of the crowd are all canaries, with orthogonal directions.

    By default a run has one round, and a coupled run 20. The pair tests a guarantee at a delta of
    0.03 by default. At so large a delta few runs refute a false claim, also if the canary is
    sampled in few of them.

    Parameters
    ----------
    algorithm
        A `FederatedLearning`. The pair has as many clients as its contribution.
    size
        Size of the runs.
    """
    contribution = algorithm.contribution
    absent = algorithm.neighboring_relation == "add_remove"
    diagonal_direction = diagonal(size.dim or 3)
    canaries, rounds = size.canaries, size.rounds

    def clients(coins: Coins, directions: Numbers) -> PullingClients:
        if absent:
            return PullingClients(pulls=directions, present=coins)
        signs = np.where(coins, 1, -1)[:, np.newaxis]
        return PullingClients(pulls=signs * directions, present=np.ones_like(coins))

    def one_canary(coin: bool) -> PullingClients:
        coins = np.ones(contribution.clients, np.bool_)
        coins[0] = coin
        signs = np.full((contribution.clients, 1), -1.0)
        signs[0] = 1.0  # client 0 is the canary, against which all others pull
        return clients(coins, signs * diagonal_direction)

    pair = Pair(
        algorithm=algorithm,
        problem=one_canary(True),
        neighbor=one_canary(False),
        rounds=rounds or 1,
        delta=size.delta_or(0.03),
        score=projection(diagonal_direction),
    )
    crowd = Crowd(
        algorithm=replace(algorithm, contribution=replace(contribution, clients=canaries)),
        problem_of=lambda coins: clients(coins, np.eye(canaries)),
        canaries=canaries,
        rounds=rounds or 1,
        delta=CROWD_DELTA,
        scores=projection(np.eye(canaries)),
    )
    return replace(pair, coupled=(replace(pair, rounds=rounds or 20),)), crowd


def opposed_records(
    algorithm_for: Callable[..., Any], size: AuditSize, *, records: int, nodes: int, sign: float
) -> tuple[Pair, Crowd]:
    """Return problems for algorithms that release sums of clipped record gradients.

    In the pair each node has two records, one of which is the canary at the first node; noise and
    sensitivity do not depend on the number of records. Under add-remove the canary is absent in one
    of the problems; under replace-one its gradient there has the direction of the other record's.
    All gradients are clipped, so that each sum moves by its whole sensitivity, in the same
    direction in all rounds. The canaries of the crowd are records of the first node, with
    orthogonal directions.

    Parameters
    ----------
    algorithm_for
        Function that returns the algorithm for models of length `dim` and a number of `records`,
        both given by name.
    size
        Size of the runs, by default of 1 round.
    records
        Number of records that the algorithm is made for.
    nodes
        Number of nodes.
    sign
        1 if a release moves against a record's gradient (models), -1 if it moves along (sums of
        gradients).
    """
    dim = size.dim or 3
    canaries = size.canaries
    rounds = size.rounds or 1
    algorithm = algorithm_for(dim=dim, records=records)
    absent = algorithm.neighboring_relation == "add_remove"

    def one_canary(coin: bool) -> LinearProblem:
        coins = np.zeros(nodes, np.bool_)
        coins[0] = coin
        problem = canary_records(coins, records=2, dim=dim)
        if not absent:
            return problem
        # The canary goes last: without it, the other records keep their places and sampling coins.
        parts = [part[::-1] for part in problem.partition]
        if not coin:
            parts[0] = parts[0][:-1]
        return LinearProblem(problem.train, tuple(parts), "squared", label_bound=FAR)

    pair = Pair(
        algorithm=algorithm,
        problem=one_canary(True),
        neighbor=one_canary(False),
        rounds=rounds,
        delta=size.delta_or(1e-5),
        score=projection(sign * diagonal(dim)),
    )
    crowd = Crowd(
        algorithm=algorithm_for(dim=canaries, records=max(records, canaries + nodes)),
        problem_of=partial(_canaries_of_one_node, nodes=nodes, absent=absent),
        canaries=canaries,
        rounds=rounds,
        delta=CROWD_DELTA,
        scores=projection(sign * np.eye(canaries)),
    )
    return pair, crowd


def _canaries_of_one_node(coins: Coins, *, nodes: int, absent: bool) -> LinearProblem:
    """Return a problem whose canaries are records of node 0, each along another axis.

    Every other node has one record with features of 0. Canaries with a coin of False are absent if
    `absent` is True; otherwise their gradient has the opposite sign.
    """
    canaries = np.arange(len(coins))
    other_records = len(coins) + np.arange(nodes - 1)  # one at each other node
    features = np.eye(len(coins) + len(other_records), len(coins))
    labels = np.append(np.where(coins, FAR, -FAR), np.zeros(len(other_records)))
    if absent:
        canaries = canaries[coins]
    parts = (canaries, *other_records[:, np.newaxis])
    return LinearProblem(Dataset(features, labels, "canaries"), parts, "squared", label_bound=FAR)


def opposed_batches(algorithm: Any, size: AuditSize) -> tuple[Pair, Crowd]:
    """Return problems with one node whose records oppose one canary, or one canary per release.

    Parameters
    ----------
    algorithm
        A `WithoutReplacement` of one model with a radius. Its learning rate must be so small that
        the local model stays within the radius; the records' targets lie far outside.
    size
        Size of the runs. Runs of the pair have 2 rounds by default, and must reach a first release.
        A run of the crowd has one round for each canary, and all of its updates are global.
    """
    far = 100 * algorithm.radius
    batch_size = algorithm.batch_size
    rounds = size.rounds or 2

    def problem_of(coins: Coins) -> LinearProblem:
        """Return a problem with one batch for each coin.

        The targets of all records are negative, except for the first record of a batch whose coin
        is True.
        """
        labels = np.full((len(coins), batch_size), -far)
        labels[coins, 0] = far
        train = Dataset(np.tile(diagonal(3), (labels.size, 1)), labels.ravel(), "canaries")
        part = np.arange(labels.size)
        return LinearProblem(train, (part,), "squared", feature_norm=1.0, label_bound=far)

    pair = Pair(
        algorithm=algorithm,
        problem=problem_of(np.arange(rounds) == 0),
        neighbor=problem_of(np.zeros(rounds, np.bool_)),
        rounds=rounds,
        delta=size.delta_or(1e-5),
    )
    crowd = Crowd(
        algorithm=replace(algorithm, controller=AlwaysGlobal()),
        problem_of=problem_of,
        canaries=size.canaries,
        rounds=size.canaries,
        delta=CROWD_DELTA,
        per_release=True,
    )
    return replace(pair, coupled=(pair, _beyond_the_radius(algorithm))), crowd


def _beyond_the_radius(algorithm: Any) -> Pair:
    """Return a pair with one node, whose gradients are bounded only if its model is projected.

    In all steps but the last two, short records drive the local model to the boundary of the ball.
    Then comes a batch with one long record whose gradient has the opposite sign, or without this
    record. The last step makes a release. Lemma 4 of Jin, He and Dai needs a step size of at most
    1 / (2 smoothness): the long record has 0.9 of the smoothness that this allows.
    """
    rounds = 12
    largest_step = max(at(algorithm.step_size, t + 1) for t in range(rounds))
    long_norm = sqrt(0.45 / largest_step)  # the smoothness is the squared norm of a record
    pull = 100 * long_norm * algorithm.radius

    def problem_of(present: bool) -> LinearProblem:
        norms = np.zeros((rounds, algorithm.batch_size))
        labels = np.zeros((rounds, algorithm.batch_size))
        norms[:-2] = long_norm / 2
        labels[:-2] = pull
        if present:
            norms[-2, 0] = long_norm
        labels[-2, 0] = -pull
        features = norms.reshape(-1, 1) * diagonal(3)
        train = Dataset(features, labels.ravel(), "canaries")
        part = (np.arange(labels.size),)
        return LinearProblem(train, part, "squared", feature_norm=long_norm, label_bound=pull)

    return Pair(
        algorithm=replace(algorithm, controller=Periodic(rounds)),
        problem=problem_of(True),
        neighbor=problem_of(False),
        rounds=rounds,
    )
