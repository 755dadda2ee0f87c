"""All layers of an audit, one after another."""

from __future__ import annotations

from collections.abc import Iterator

from dpmesh.algorithms.worst_case import Crowd, Pair
from dpmesh.audit.algorithm import audit_algorithm
from dpmesh.audit.coupling import Coupling, couple
from dpmesh.audit.one_run import audit_one_run
from dpmesh.audit.result import AuditResult
from dpmesh.audit.transcript import alone, fresh_keys, silence
from dpmesh.keys import Key
from dpmesh.run.carriers import Carrier


def audit_layers(
    pair: Pair, crowd: Crowd, *, runs: int = 1_000, confidence: float = 0.95, key: Key | None = None
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
        datasets = each.algorithm, each.problem, each.neighbor, _carrier(each)
        yield couple(*datasets, rounds=each.rounds, key=next(keys))
    yield audit_pair(pair, runs=runs, confidence=confidence, key=next(keys))
    yield audit_crowd(crowd, confidence=confidence, key=next(keys))


def audit_pair(
    pair: Pair, *, runs: int, confidence: float = 0.95, key: Key | None = None
) -> AuditResult:
    """Distinguish many runs, by `audit_algorithm`: the second layer alone."""
    return audit_algorithm(
        pair.algorithm,
        pair.problem,
        pair.neighbor,
        _carrier(pair),
        rounds=pair.rounds,
        runs=runs,
        delta=pair.delta,
        confidence=confidence,
        score=pair.score,
        key=key,
    )


def audit_crowd(crowd: Crowd, *, confidence: float = 0.95, key: Key | None = None) -> AuditResult:
    """Guess the canaries of one run, by `audit_one_run`: the third layer alone."""
    return audit_one_run(
        crowd.algorithm,
        crowd.problem_of,
        _carrier(crowd),
        canaries=crowd.canaries,
        rounds=crowd.rounds,
        delta=crowd.delta,
        confidence=confidence,
        scores=crowd.scores,
        per_release=crowd.per_release,
        key=key,
    )


def _carrier(data: Pair | Crowd) -> Carrier:
    return silence if data.silent else alone
