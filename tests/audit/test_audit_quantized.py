"""Audits of quantized gossip, right and with planted faults.

Confidence and power are those of test_audit_online.py.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest
from audit_power import gaussian_curve, power
from faulty_quantized import (
    HalvedNoise,
    MissingFactor2,
    MissingLipschitzTerm,
    NoClipping,
    NoNoiseDrawn,
    PublishesItsState,
)

from dpmesh.algorithms import QuantizedGossip
from dpmesh.audit import GaussianClaim, alone, audit_algorithm, audit_one_run, couple
from dpmesh.audit.algorithm import arguments_of
from dpmesh.audit.transcript import silence
from dpmesh.keys import Key
from dpmesh.noise.compression import Quantizer
from dpmesh.problems.canaries import HillProblem
from dpmesh.schedules import Constant, SampleSize

SURE = 1 - 1e-3
ROUNDS = 6


def quantized(
    kind=QuantizedGossip, *, mu=1.0, mode="safe", smoothness=1.0, records=10
) -> QuantizedGossip:
    """An algorithm that claims this mu."""
    algorithm = kind(
        step_size=Constant(0.5),
        consensus_step_size=Constant(0.2),
        sample_size=SampleSize(scale=records, exponent=0, rounds=ROUNDS),
        noise_std=Constant(1.0),
        compressor=Quantizer(2.0**-10, bits=16),
        mode=mode,
        smoothness=smoothness,
    )
    std = np.linalg.norm(algorithm.sensitivities(ROUNDS)) / mu
    return replace(algorithm, noise_std=Constant(std))


def coupled(algorithm, carrier=None):
    pair, _ = algorithm.worst_case(rounds=ROUNDS)
    datasets = pair.problem, pair.neighbor
    return couple(algorithm, *datasets, carrier or silence, rounds=ROUNDS, key=Key.seeded(1))


@pytest.mark.parametrize(
    ("mode", "smoothness"),
    [
        *product(["safe", "public_point", "paper"], [0.3, 1.0]),
        *product(["safe", "public_point"], [inf]),  # the paper's mode needs a smoothness
    ],
)
def test_quantized_gossip_couples(mode: str, smoothness: float) -> None:
    algorithm = quantized(mode=mode, smoothness=smoothness)
    for carrier in (None, alone):
        coupling = coupled(algorithm, carrier)
        assert not coupling.violated, str(coupling)
    moved = [m.distance / m.allowed for m in coupled(algorithm).movements[1:]]
    assert min(moved) > 0.85  # of 10 records, the 9 common ones follow the state
    assert max(moved) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (MissingFactor2, "moved by 0.1, allowed is 0.05"),
        (NoClipping, "moved by 100000, allowed is 0.1"),
        (NoNoiseDrawn, "released without its noise"),
        (MissingLipschitzTerm, "all releases together: mu = 2.003, planned is 1"),
        (PublishesItsState, "what round 0 published depends on data beyond its releases"),
    ],
)
def test_coupling_flags_faults_of_quantized_gossip(fault, message: str) -> None:
    coupling = coupled(quantized(fault))
    assert coupling.violated
    assert message in str(coupling)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "truth", "violated"),
    [
        (QuantizedGossip, 0.923, False),
        (MissingFactor2, 1.846, True),
        (MissingLipschitzTerm, 2.003, True),
        (HalvedNoise, 1.846, True),
    ],
)
def test_many_runs_tell_right_from_wrong(kind, truth: float, violated: bool) -> None:
    assert power(GaussianClaim(1.0), gaussian_curve(1.8), 500, SURE) > SURE
    pair, _ = quantized(kind).worst_case(rounds=ROUNDS)
    result = audit_algorithm(**arguments_of(pair), runs=500, confidence=SURE, key=Key.seeded(2))
    assert result.claim.level == pytest.approx(1.0)
    assert result.violated == violated, str(result)
    assert result.lower_bound <= truth


@pytest.mark.parametrize(
    ("kind", "violated"),
    [(QuantizedGossip, False), (NoNoiseDrawn, True), (HalvedNoise, True), (MissingFactor2, True)],
)
def test_one_run_tells_right_from_wrong(kind, violated: bool) -> None:
    """Where all of the sensitivity is the canary's, 20,000 of them show twice a mu of 1.

    Of 300 simulated audits with 99% confidence the lowest bound was 1.11, the deviation 0.04.
    """
    algorithm = quantized(kind, records=1)
    _, crowd = algorithm.worst_case(rounds=ROUNDS, canaries=20_000)
    result = audit_one_run(**arguments_of(crowd), confidence=0.99, key=Key.seeded(3))
    assert result.violated == violated, str(result)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"coins": np.ones(0, bool)}, r"coins: wanted shape \(nodes,\), not 0, got shape \(0,\)"),
        ({"records": 0}, "records: wanted an integer of at least 1, got 0"),
        ({"pull": 0.0}, "pull: wanted a finite number greater than 0, got 0"),
        ({"curvature": -1.0}, "curvature: wanted a finite number of at least 0, got -1"),
    ],
)
def test_a_hill_that_is_none_is_refused(arguments: dict, message: str) -> None:
    right = {"coins": np.ones(1, bool), "records": 1, "pull": 1.0, "curvature": 1.0}
    with pytest.raises(ValueError, match=message):
        HillProblem(**(right | arguments))
