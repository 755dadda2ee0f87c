"""Problems for audits: two neighbouring problems, and problems with many canaries.

`Algorithm.worst_case` returns both. They know nothing of how an audit runs them. The data on which
several algorithms leak as much as their plans allow are here, too.
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
"""Delta of a crowd's claim.

An audit in one run adds up to 2 * canaries * delta to its p-value, which must stay far below
1 - confidence: see `dpmesh.audit.one_run`.
"""

FAR = 1e6
"""A label or a pull so large that it is always clipped."""

Coins: TypeAlias = Flags
Score: TypeAlias = Callable[[Any], SupportsFloat]
Scores: TypeAlias = Callable[[Any], Numbers]


@dataclass(frozen=True, kw_only=True)
class AuditSize:
    """Size of an audit's runs; None stands for the least that the algorithm needs.

    Parameters
    ----------
    rounds
        Number of rounds of each run.
    dim
        Length of the model.
    delta
        Delta of the pair's claim.
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
    """An algorithm, and two neighbouring problems that should be hard to distinguish.

    See `dpmesh.audit.audit_algorithm` for the fields.

    Parameters
    ----------
    silent
        True if nodes receive zeros, as if their neighbours' messages cancelled; else each receives
        its own message.
    coupled
        Pairs for the coupled runs; empty for this one.
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
    """An algorithm, and problems with many canaries, each in one of two forms.

    See `dpmesh.audit.audit_one_run` for the fields, and `Pair`.
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
    """Return a score: the sum of all released rows, projected onto a canary's direction.

    Unlike the likelihood ratio it needs no replay, and it sees a canary however it was sampled.

    Parameters
    ----------
    directions
        Shape (dim,) for one score, as for `audit_algorithm`, or (canaries, dim) for one per canary,
        as for `audit_one_run`.
    """
    along = floats("directions", directions)

    def score(run: Any) -> Numbers:
        total = sum(values.reshape(-1, values.shape[-1]).sum(axis=0) for values in run.released)
        return np.asarray(along @ total)

    return score


def opposed_clients(algorithm: Any, size: AuditSize) -> tuple[Pair, Crowd]:
    """Return clients that pull against one canary, and as many orthogonal canaries as clients.

    Where clients are added or removed the canary is absent in one dataset; where they are replaced
    it pulls with the others. By default runs have one round, and the claim a large delta, which
    needs fewer runs where sampling hides the canary; coupled runs have 20 rounds.

    Parameters
    ----------
    algorithm
        A `FederatedLearning`, whose contribution has the clients of the pair.
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
    sized: Callable[..., Any], size: AuditSize, *, records: int, nodes: int, sign: float
) -> tuple[Pair, Crowd]:
    """Return nodes whose first record is a canary in a sum of clipped gradients, and many of them.

    Each node has two records: noise and sensitivity do not depend on how many there are. Where
    records are added or removed the canary is absent in one dataset, else it pulls with the other
    one. All gradients are clipped, so that each sum moves as far as it may, and the same way in all
    rounds. The canaries of the crowd are records of the first node, with a direction each.

    Parameters
    ----------
    sized
        Function that returns the algorithm for models of length `dim` and a number of `records`,
        both given by name.
    size
        Size of the runs, by default of 1 round.
    records
        Number of records that the algorithm is made for.
    nodes
        Number of nodes.
    sign
        1 if releases move towards what a record pulls to, -1 if they are its gradients.
    """
    dim = size.dim or 3
    canaries = size.canaries
    rounds = size.rounds or 1
    algorithm = sized(dim=dim, records=records)
    absent = algorithm.neighboring_relation == "add_remove"

    def one_canary(coin: bool) -> LinearProblem:
        coins = np.zeros(nodes, np.bool_)
        coins[0] = coin
        problem = canary_records(coins, records=2, dim=dim)
        if not absent:
            return problem
        parts = [part[::-1] for part in problem.partition]  # canary last: others keep their coins
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
        algorithm=sized(dim=canaries, records=max(records, canaries + nodes)),
        problem_of=partial(_canaries_of_one_node, nodes=nodes, absent=absent),
        canaries=canaries,
        rounds=rounds,
        delta=CROWD_DELTA,
        scores=projection(sign * np.eye(canaries)),
    )
    return pair, crowd


def _canaries_of_one_node(coins: Coins, *, nodes: int, absent: bool) -> LinearProblem:
    """Return canaries that are records of node 0, each along one axis; other records are zeros.

    If `absent`, canaries whose coin is False are not there; else they pull the opposite way.
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
    """Return one node whose records oppose canaries: a single one, or one per release.

    Parameters
    ----------
    algorithm
        A `WithoutReplacement` of one model. Its steps must be so small that a local model moves
        less than its radius, far beyond which the targets lie.
    size
        Size of the runs. Those of the pair have 2 rounds by default, and need enough for a first
        release. Those of the crowd have a round for each canary, in which every update is global.
    """
    far = 100 * algorithm.radius
    batch_size = algorithm.batch_size
    rounds = size.rounds or 2

    def problem_of(coins: Coins) -> LinearProblem:
        """Return batches of records that pull down, but for the first if its coin is True."""
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
    """Return one node, whose gradients stay within their bound only as its model is projected.

    Short records pull its local model out in all steps but the last two. Then a long one pulls it
    back, or is absent. The last step releases. Features are nearly as long as Lemma 4 of Jin, He
    and Dai allows, which wants steps of at most 1 / (2 smoothness).
    """
    rounds = 12
    largest_step = max(at(algorithm.step_size, t + 1) for t in range(rounds))
    long_record = sqrt(0.45 / largest_step)  # its norm, whose square is the smoothness
    pull = 100 * long_record * algorithm.radius

    def problem_of(present: bool) -> LinearProblem:
        lengths = np.zeros((rounds, algorithm.batch_size))
        labels = np.zeros((rounds, algorithm.batch_size))
        lengths[:-2] = long_record / 2
        labels[:-2] = pull
        if present:
            lengths[-2, 0] = long_record
        labels[-2, 0] = -pull
        features = lengths.reshape(-1, 1) * diagonal(3)
        train = Dataset(features, labels.ravel(), "canaries")
        part = (np.arange(labels.size),)
        return LinearProblem(train, part, "squared", feature_norm=long_record, label_bound=pull)

    return Pair(
        algorithm=replace(algorithm, controller=Periodic(rounds)),
        problem=problem_of(True),
        neighbor=problem_of(False),
        rounds=rounds,
    )
