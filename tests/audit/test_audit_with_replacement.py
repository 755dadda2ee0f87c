"""Audits of SGD with replacement, right and with planted faults.

Confidence and power are those of test_audit_online.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from audit_power import Curve, power
from faulty_mechanisms import HalvedGaussian, SilentGaussian
from scipy import stats

from dpmesh.algorithms import WithReplacement
from dpmesh.audit import EpsilonClaim, alone, audit_algorithm, audit_one_run, couple
from dpmesh.audit.algorithm import arguments_of
from dpmesh.keys import Key

SURE = 1 - 1e-3
DELTA = 0.03  # of what samples hide: the larger, the fewer runs
RUNS = 3_000


class MissingFactor2(WithReplacement):
    """Takes the bound on one gradient for that on the difference of two."""

    def sensitivity(self, t):
        right = super().sensitivity(t)
        return replace(right, bound=right.bound / 2)


class HalvedNoise(WithReplacement):
    """Adds half of the noise."""

    @property
    def mechanism(self):
        return HalvedGaussian(super().mechanism.noise_to_sensitivity)


class NoNoiseDrawn(WithReplacement):
    """Releases the models by a mechanism that adds nothing."""

    @property
    def mechanism(self):
        return SilentGaussian(super().mechanism.noise_to_sensitivity)


class AlwaysTheSame(WithReplacement):
    """Takes the first records of a node in place of a secret sample."""

    def sample(self, m, t, problem, key):
        return problem.partition[m][np.newaxis, : self.batch_size]


def node(kind=WithReplacement, noise_to_sensitivity: float = 1.0) -> WithReplacement:
    return kind(
        nodes=1, records=4, noise_multiplier=2 * noise_to_sensitivity, batch_size=1, step_size=0.01
    )


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (WithReplacement, None),
        (MissingFactor2, "moved by 1, allowed is 0.5 "),
        (NoNoiseDrawn, "released without its noise"),
    ],
)
def test_a_record_moves_as_far_as_it_may_when_it_is_drawn(kind, fault: str | None) -> None:
    pair, _ = node(kind).worst_case()
    (every_turn,) = pair.coupled
    datasets = pair.problem, pair.neighbor, alone
    coupling = couple(pair.algorithm, *datasets, rounds=every_turn.rounds, key=Key.seeded(1))
    assert coupling.violated == (fault is not None), str(coupling)
    assert fault is None or fault in str(coupling)
    moved = [movement.distance for movement in coupling.movements]
    assert len(moved) == 20
    assert max(moved) == pytest.approx(1.0)
    assert min(moved) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "violated"), [(WithReplacement, False), (HalvedNoise, True), (AlwaysTheSame, True)]
)
def test_many_runs_give_sampling_its_due(kind, violated: bool) -> None:
    """Half of the noise is found in spite of it, and a sample that is none."""
    claim = EpsilonClaim(node().plan(1).cost(DELTA).epsilon, delta=DELTA)
    at = np.linspace(-1, 6, 141)
    halved = Curve((3 * stats.norm.sf(at) + stats.norm.sf(at - 2)) / 4, stats.norm.sf(at))
    same = Curve(stats.norm.sf(at - 1), stats.norm.sf(at))
    assert min(power(claim, curve, RUNS, SURE) for curve in (halved, same)) > SURE
    pair, _ = node(kind).worst_case()
    datasets = pair.problem, pair.neighbor, alone
    settings = {"rounds": 1, "delta": DELTA, "score": pair.score, "key": Key.seeded(2)}
    result = audit_algorithm(pair.algorithm, *datasets, runs=RUNS, confidence=SURE, **settings)
    assert result.violated == violated, str(result)


@pytest.mark.parametrize(("kind", "violated"), [(WithReplacement, False), (NoNoiseDrawn, True)])
def test_one_run_sees_gross_faults(kind, violated: bool) -> None:
    """As of federated learning, one run with many dimensions is a smoke test."""
    _, crowd = node(kind, 3.0).worst_case(canaries=500)
    result = audit_one_run(**arguments_of(crowd), confidence=SURE, key=Key.seeded(3))
    assert result.violated == violated, str(result)


@pytest.mark.parametrize("wrong", [{"nodes": 2}, {"models": 3}])
def test_a_worst_case_is_one_model_of_one_node(wrong: dict) -> None:
    with pytest.raises(ValueError, match="algorithm: wanted one of one node and one model, got"):
        replace(node(), **wrong).worst_case()
