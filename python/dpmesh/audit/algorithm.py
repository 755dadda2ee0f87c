"""Audits of an algorithm: by many short runs on two neighbouring datasets, and in all layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import islice
from typing import Any

import numpy as np

from dpmesh._validate import instance, integer
from dpmesh.algorithms.base import AN_ALGORITHM, Algorithm, AnyAlgorithm
from dpmesh.algorithms.worst_case import Crowd, Pair, Score
from dpmesh.audit.claims import Claim, claim_of
from dpmesh.audit.contrast import numbers_for, seen_in
from dpmesh.audit.coupling import Coupling, couple
from dpmesh.audit.one_run import audit_one_run
from dpmesh.audit.result import AuditResult, Seen, tell_apart
from dpmesh.audit.scores import ReplayedLikelihood
from dpmesh.audit.transcript import Audited, alone, fresh_keys, record, silence
from dpmesh.keys import Key
from dpmesh.run.carriers import Carrier


def audit_algorithm(
    algorithm: AnyAlgorithm,
    problem: Audited,
    neighbor: Audited,
    carrier: Carrier,
    *,
    rounds: int,
    runs: int = 1_000,
    claim: Claim | None = None,
    delta: float = 0.0,
    confidence: float = 0.95,
    score: Score | None = None,
    key: Key | None = None,
) -> AuditResult:
    """Return a lower confidence bound on the privacy loss of whole runs.

    Parameters
    ----------
    algorithm
        What is audited.
    problem, neighbor
        Two problems that differ in one unit, as much as possible.
    carrier
        How messages travel.
    rounds
        Rounds of each run; few are enough for a canary that is used early.
    runs
        Runs on each dataset, and as many again for the pilot.
    claim
        By default that of the algorithm's plan at `delta`.
    delta
        In [0, 1).
    confidence
        In (0, 1).
    score
        Large for runs on `problem`, small for runs on `neighbor`; it may use what the run `sent`,
        `released` and `received`, and no more. By default `ReplayedLikelihood`; where units are
        sampled, better a `projection`. A contrast of all three takes its place where pilot runs
        show a fault that it misses.
    key
        Of all randomness; by default a new one from the operating system.

    Raises
    ------
    ValueError
        If an argument is out of range, or the plan claims nothing.
    """
    instance("algorithm", algorithm, AN_ALGORITHM, Algorithm)
    integer("rounds", rounds, at_least=1)
    claim = claim_of(algorithm.plan(rounds), delta) if claim is None else claim
    keys = fresh_keys(key)
    measure: Score = score or ReplayedLikelihood(
        algorithm=algorithm,
        problem=problem,
        neighbor=neighbor,
        carrier=carrier,
        rounds=rounds,
        key=next(keys),
    )

    def look(positive: bool) -> Seen:
        data = problem if positive else neighbor
        scores, numbers = [], []
        for own in islice(keys, runs):
            run = record(algorithm, data, carrier, rounds=rounds, key=own)
            scores.append(float(measure(run)))
            numbers.append(seen_in(run, numbers_for(runs)))
        return Seen(np.array(scores), np.array(numbers))

    what = f"{type(algorithm).__name__}, rounds: {rounds}"
    return tell_apart(claim, look, runs=runs, confidence=confidence, what=what)


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
    yield audit_algorithm(**arguments_of(pair), runs=runs, confidence=confidence, key=next(keys))
    yield audit_one_run(**arguments_of(crowd), confidence=confidence, key=next(keys))


def _carrier(data: Pair | Crowd) -> Carrier:
    return silence if data.silent else alone


def arguments_of(data: Pair | Crowd) -> dict[str, Any]:
    """Return what an audit takes of these data, by name."""
    names = {each.name for each in fields(data)} - {"silent", "coupled"}
    return {"carrier": _carrier(data), **{name: getattr(data, name) for name in names}}
