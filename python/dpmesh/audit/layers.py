"""All layers of an audit, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.audit.algorithm import Score, audit_algorithm
from dpmesh.audit.coupling import Coupling, couple
from dpmesh.audit.one_run import Coins, Scores, audit_one_run
from dpmesh.audit.result import AuditResult
from dpmesh.audit.transcript import alone, fresh_keys
from dpmesh.keys import Key
from dpmesh.run.carriers import Carrier


@dataclass(frozen=True, kw_only=True)
class Pair:
    """An algorithm, and two neighbouring problems that should be hard to distinguish.

    See `couple` and `audit_algorithm` for the fields. `coupled` are the pairs for the coupled runs,
    by default this one.
    """

    algorithm: AnyAlgorithm
    problem: Any
    neighbor: Any
    rounds: int
    carrier: Carrier = alone
    delta: float = 0.0
    score: Score | None = None
    coupled: tuple[Pair, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """An algorithm, and problems with many canaries, each in one of two forms.

    See `audit_one_run` for the fields.
    """

    algorithm: AnyAlgorithm
    problem_of: Callable[[Coins], Any]
    canaries: int
    rounds: int
    carrier: Carrier = alone
    delta: float = 0.0
    scores: Scores | None = None


def audit_layers(
    pair: Pair,
    crowd: Crowd,
    *,
    runs: int = 1_000,
    confidence: float = 0.95,
    key: Key | None = None,
) -> Iterator[Coupling | AuditResult]:
    """Couple pairs of runs, distinguish many, guess the canaries of one; yield each result in turn.

    Parameters
    ----------
    pair
        What the first two layers run.
    crowd
        What the third layer runs.
    runs
        Number of runs of the second layer, see `audit_algorithm`.
    confidence
        Confidence of the second and of the third layer, each, in (0, 1).
    key
        Of all randomness; by default a new one from the operating system.

    Raises
    ------
    ValueError
        If an argument is out of range, or a plan claims nothing.
    """
    keys = fresh_keys(key)
    for each in pair.coupled or (pair,):
        datasets = each.algorithm, each.problem, each.neighbor, each.carrier
        yield couple(*datasets, rounds=each.rounds, key=next(keys))
    yield audit_algorithm(
        pair.algorithm,
        pair.problem,
        pair.neighbor,
        pair.carrier,
        rounds=pair.rounds,
        runs=runs,
        delta=pair.delta,
        confidence=confidence,
        score=pair.score,
        key=next(keys),
    )
    yield audit_crowd(crowd, confidence=confidence, key=next(keys))


def audit_crowd(crowd: Crowd, *, confidence: float = 0.95, key: Key | None = None) -> AuditResult:
    """Guess the canaries of one run, by `audit_one_run`: the third layer alone."""
    return audit_one_run(
        crowd.algorithm,
        crowd.problem_of,
        crowd.carrier,
        canaries=crowd.canaries,
        rounds=crowd.rounds,
        delta=crowd.delta,
        confidence=confidence,
        scores=crowd.scores,
        key=key,
    )
