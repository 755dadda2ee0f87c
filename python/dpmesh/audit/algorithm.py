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
from dpmesh.audit.contrast import contrast_length, observed_numbers
from dpmesh.audit.coupling import Coupling, couple
from dpmesh.audit.one_run import audit_one_run
from dpmesh.audit.result import AuditResult, Observations, tell_apart
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
    """Return a lower confidence bound on the privacy loss of whole runs of an algorithm.

    The algorithm runs many times on two neighbouring datasets. A test by a score of the messages
    distinguishes the runs, and its error rates give the bound. Pilot runs choose the score and its
    threshold, and fresh runs evaluate the test.

    Parameters
    ----------
    algorithm
        The algorithm to audit.
    problem, neighbor
        Two learning problems whose data differ in one unit, as much as possible.
    carrier
        Carrier of the messages, such as `alone`.
    rounds
        Number of rounds of each run. Few are enough if the algorithm uses the differing unit early.
    runs
        Number of evaluated runs on each dataset; the pilot runs are as many again.
    claim
        Claim to test; by default the claim of the algorithm's plan at `delta`, see `claim_of`.
    delta
        Delta of the default claim, in [0, 1).
    confidence
        Confidence level of the bound, in (0, 1).
    score
        Function of a run that is large on `problem` and small on `neighbor`. It may read the
        attributes `sent`, `released` and `received` of the run, and nothing else. By default the
        likelihood ratio of the releases. If units are sampled, a `projection` is better. If pilot
        runs show a violation that the score misses, a linear combination of the observed values
        replaces the score.
    key
        Key of all randomness; by default a new key from the operating system.

    Raises
    ------
    ValueError
        If an argument is out of range, or the plan claims nothing.
    """
    instance("algorithm", algorithm, AN_ALGORITHM, Algorithm)
    integer("rounds", rounds, at_least=1)
    if claim is None:
        claim = claim_of(algorithm.plan(rounds), delta)
    keys = fresh_keys(key)
    measure: Score = score or ReplayedLikelihood(
        algorithm=algorithm,
        problem=problem,
        neighbor=neighbor,
        carrier=carrier,
        rounds=rounds,
        key=next(keys),
    )
    numbers_per_run = contrast_length(runs)

    def observe(positive: bool) -> Observations:
        dataset = problem if positive else neighbor
        scores = []
        numbers = []
        for run_key in islice(keys, runs):
            run = record(algorithm, dataset, carrier, rounds=rounds, key=run_key)
            scores.append(float(measure(run)))
            numbers.append(observed_numbers(run, numbers_per_run))
        return Observations(np.array(scores), np.array(numbers))

    subject = f"{type(algorithm).__name__}, rounds: {rounds}"
    return tell_apart(claim, observe, runs=runs, confidence=confidence, subject=subject)


def audit_layers(
    pair: Pair, crowd: Crowd, *, runs: int = 1_000, confidence: float = 0.95, key: Key | None = None
) -> Iterator[Coupling | AuditResult]:
    """Run `couple`, `audit_algorithm` and `audit_one_run` in turn, and yield each result.

    Parameters
    ----------
    pair
        Algorithm and two neighbouring learning problems, for `couple` and `audit_algorithm`. The
        method `worst_case` of an algorithm returns `pair` and `crowd`.
    crowd
        Algorithm and canaries, for `audit_one_run`.
    runs
        Number of runs of `audit_algorithm` on each dataset.
    confidence
        Confidence level of each of the two bounds, in (0, 1).
    key
        Key of all randomness; by default a new key from the operating system.

    Raises
    ------
    ValueError
        If an argument is out of range, or a plan claims nothing.
    """
    keys = fresh_keys(key)
    for coupled_pair in pair.coupled or (pair,):
        yield couple(
            coupled_pair.algorithm,
            coupled_pair.problem,
            coupled_pair.neighbor,
            _carrier(coupled_pair),
            rounds=coupled_pair.rounds,
            key=next(keys),
        )
    yield audit_algorithm(
        pair.algorithm,
        pair.problem,
        pair.neighbor,
        _carrier(pair),
        rounds=pair.rounds,
        runs=runs,
        delta=pair.delta,
        confidence=confidence,
        score=pair.score,
        key=next(keys),
    )
    yield audit_one_run(
        crowd.algorithm,
        crowd.problem_of,
        _carrier(crowd),
        canaries=crowd.canaries,
        rounds=crowd.rounds,
        delta=crowd.delta,
        confidence=confidence,
        scores=crowd.scores,
        per_release=crowd.per_release,
        key=next(keys),
    )


def _carrier(data: Pair | Crowd) -> Carrier:
    """Return the carrier of zeros if nodes are silent, else that of each node's own message."""
    if data.silent:
        return silence
    return alone


def arguments_of(data: Pair | Crowd) -> dict[str, Any]:
    """Return what an audit takes of these data, by name."""
    names = {field.name for field in fields(data)} - {"silent", "coupled"}
    return {"carrier": _carrier(data), **{name: getattr(data, name) for name in names}}
