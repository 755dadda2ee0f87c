"""Audits of federated learning, right and with planted faults.

Confidence and power are those of test_audit_online.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from audit_power import Curve, gaussian_curve, power
from faulty_federated import (
    ByCoordinate,
    HalvedNoise,
    MissingFactor2,
    NoNoiseDrawn,
    RealisedBatch,
    with_fault,
)
from federated_parts import changed
from scipy import stats

from dpmesh.algorithms import AdaptiveClipping, ClientUpdates, FederatedLearning, TrustedServer
from dpmesh.audit import (
    AuditResult,
    EpsilonClaim,
    GaussianClaim,
    alone,
    audit_algorithm,
    audit_one_run,
    couple,
)
from dpmesh.audit.algorithm import arguments_of
from dpmesh.keys import Key
from dpmesh.problems.canaries import PullingClients

SURE = 1 - 1e-3
DELTA = 0.03  # of what samples hide: the larger, the fewer runs


def federated(
    kind=FederatedLearning, *, clients=12, sampling="poisson", rate=0.5, z=1.0, arrival_rate=1.0
):
    """Return an algorithm whose noise is z times the sensitivity."""
    norms_moved = {"poisson": 1, "uniform": 2}[sampling]
    return with_fault(
        kind,
        FederatedLearning(
            ClientUpdates(clients=clients, sampling_rate=rate, sampling=sampling, steps=1),
            noise_multiplier=z * norms_moved,
            combination=TrustedServer(arrival_rate=arrival_rate),
        ),
    )


def coupled(algorithm):
    pair, _ = algorithm.worst_case(rounds=20)
    datasets = pair.problem, pair.neighbor
    return couple(algorithm, *datasets, alone, rounds=20, key=Key.seeded(1))


def many_runs(algorithm, *, runs: int, score=None) -> AuditResult:
    pair, _ = algorithm.worst_case()
    asked = arguments_of(pair) | {"score": score or pair.score}
    return audit_algorithm(**asked, runs=runs, confidence=SURE, key=Key.seeded(2))


@pytest.mark.parametrize("arrival_rate", [1.0, 0.5])
@pytest.mark.parametrize("sampling", ["poisson", "uniform"])
def test_federated_learning_couples(sampling: str, arrival_rate: float) -> None:
    coupling = coupled(federated(sampling=sampling, arrival_rate=arrival_rate))
    assert not coupling.violated, str(coupling)
    moved = [m.distance / m.allowed for m in coupling.movements]
    assert max(moved) == pytest.approx(1.0)  # where the client takes part
    assert min(moved) == 0.0


@pytest.mark.parametrize("z", [0.3, 6.0])
@pytest.mark.parametrize("sampling", ["poisson", "uniform"])
def test_a_bit_of_adaptive_clipping_is_covered(sampling: str, z: float) -> None:
    """Also beside the same client without records, which must not send the other bit."""
    clipping = AdaptiveClipping(noise_std=2 * z)
    algorithm = changed(federated(sampling=sampling, z=z), adaptive_clipping=clipping)
    pair, _ = algorithm.worst_case(rounds=20)
    emptied = replace(pair.problem, present=np.arange(12) > 0)
    coupling = couple(algorithm, pair.problem, emptied, alone, rounds=20, key=Key.seeded(1))
    assert not coupling.violated, str(coupling)
    moved = max(m.distance / m.allowed for m in coupling.movements)
    assert moved == pytest.approx(1.0 if sampling == "poisson" else 0.5)


@pytest.mark.parametrize(
    ("fault", "sampling", "message"),
    [
        (MissingFactor2, "uniform", "moved by 2, allowed is 1 "),
        (ByCoordinate, "poisson", "moved by 1.73205, allowed is 1 "),
        (NoNoiseDrawn, "poisson", "released without its noise"),
        (RealisedBatch, "poisson", "published depends on data beyond its releases"),
    ],
)
def test_coupling_flags_faults_of_federated_learning(fault, sampling: str, message: str) -> None:
    coupling = coupled(federated(fault, sampling=sampling))
    assert coupling.violated
    assert message in str(coupling)


@pytest.mark.slow
def test_many_runs_without_sampling_measure_mu() -> None:
    assert power(GaussianClaim(1.0), gaussian_curve(2.0), 400, SURE) > SURE
    assert power(GaussianClaim(0.25), gaussian_curve(1.0), 400, SURE) > SURE

    def model(run):  # what everybody sees, after the division
        return run.received[0][0, 0]

    for sampling in ("poisson", "uniform"):
        result = many_runs(federated(sampling=sampling, rate=1.0), runs=400)
        assert isinstance(result.claim, GaussianClaim)
        assert 0.25 < result.lower_bound <= result.claim.level == 1.0
    for fault, sampling, score in (
        (MissingFactor2, "uniform", None),
        (HalvedNoise, "poisson", None),
        (RealisedBatch, "poisson", model),
        (RealisedBatch, "poisson", None),
    ):
        result = many_runs(federated(fault, sampling=sampling, rate=1.0), runs=400, score=score)
        assert result.violated, str(result)
        # The sum over the average is the number of clients: no run is mistaken.
        assert result.lower_bound <= 2.0 or fault is RealisedBatch


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["poisson", "uniform"])
def test_many_runs_give_sampling_its_due(sampling: str) -> None:
    """Half of the noise is found in spite of it. No other client's coin blurs the sum here."""
    clients = {"poisson": 1, "uniform": 2}[sampling]
    right, wrong = (
        federated(kind, clients=clients, sampling=sampling)
        for kind in (FederatedLearning, HalvedNoise)
    )
    claim = EpsilonClaim(right.plan(1).cost(DELTA).epsilon, delta=DELTA)
    at = np.linspace(-1, 6, 141)
    sampled = Curve((stats.norm.sf(at) + stats.norm.sf(at - 2)) / 2, stats.norm.sf(at))
    assert power(claim, sampled, 1_500, SURE) > SURE

    assert not many_runs(right, runs=1_500).violated
    assert many_runs(wrong, runs=1_500).violated


def test_one_run_with_orthogonal_clients_sees_gross_faults() -> None:
    """A halved noise would stay unseen: one run with many dimensions is a smoke test."""
    for kind, violated in ((FederatedLearning, False), (NoNoiseDrawn, True)):
        _, crowd = federated(kind, rate=0.95, z=3.0).worst_case(canaries=500)
        asked = arguments_of(crowd) | {"guesses": 300}
        result = audit_one_run(**asked, confidence=SURE, key=Key.seeded(3))
        assert result.violated == violated, str(result)


def test_clients_without_a_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"pulls: wanted .* got pulls \(2, 1\), present \(3,\)"):
        PullingClients(pulls=np.ones((2, 1)), present=np.ones(3, dtype=bool))


def test_the_canary_is_absent_where_clients_are_added_or_removed() -> None:
    for sampling, missing in (("poisson", 1), ("uniform", 0)):
        pair, _ = federated(clients=3, sampling=sampling).worst_case()
        assert pair.problem.present.sum() - pair.neighbor.present.sum() == missing
