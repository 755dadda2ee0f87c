"""Audits of SGD without replacement, right and with planted faults.

Confidence and power are those of test_audit_online.py.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from audit_power import gaussian_curve, power
from faulty_without_replacement import (
    ExpandingSteps,
    HalvedNoise,
    MissingFactor2,
    NoNoiseDrawn,
    NoProjection,
    PublishesALocalModel,
    Telltale,
)

from dpmesh.accounting import gdp_epsilon
from dpmesh.algorithms import WithoutReplacement
from dpmesh.algorithms.controllers import AlwaysGlobal, Periodic
from dpmesh.audit import GaussianClaim, alone, audit_algorithm, audit_layers, audit_one_run, couple
from dpmesh.audit.algorithm import arguments_of
from dpmesh.data import Dataset
from dpmesh.keys import Key
from dpmesh.problems import LinearProblem
from dpmesh.schedules import Constant, InverseTime
from dpmesh_papers.bounds.without_replacement import theorem_4_steps

SURE = 1 - 1e-3
DELTA = 1e-5
LAMBDA, A = 1e-4, 0.5
"""The paper's strongly convex objective, and how often a node must act."""


def nodes(kind=WithoutReplacement, *, mu=1.0, controller=None, **others) -> WithoutReplacement:
    """An algorithm that claims this mu."""
    settings = {"batch_size": 2, "step_size": Constant(0.001), "radius": 1.0} | others
    epsilon = gdp_epsilon(delta=DELTA, mu=mu)
    decides = controller or AlwaysGlobal()
    return kind(epsilon=epsilon, delta=DELTA, controller=decides, **settings)


def coupled(algorithm, *, rounds: int = 6):
    pair, _ = algorithm.worst_case(rounds=rounds)
    return couple(algorithm, pair.problem, pair.neighbor, alone, rounds=rounds, key=Key.seeded(1))


def drifting() -> tuple[LinearProblem, LinearProblem]:
    """Two data sets whose models two steps of 1 / (a lambda t) tear apart; a third releases.

    The first batch cancels but for its last record, which pulls up or down by 1 / 50; the model
    goes so far that all records of the second batch pull it up, or none of them.
    """
    y = np.concatenate((np.ones(24), -np.ones(24), [1.0, 1.0], np.ones(100)))
    x = np.ones((150, 1))
    x[48] = 0.0
    part = (np.arange(150),)
    datasets = []
    for canary in (1.0, -1.0):
        labels = y.copy()
        labels[49] = canary
        data = Dataset(x, labels, "drifting")
        datasets.append(
            LinearProblem(data, part, "logistic", regularization=LAMBDA, feature_norm=1.0)
        )
    return datasets[0], datasets[1]


@pytest.mark.parametrize("controller", [AlwaysGlobal(), Periodic(2), Periodic(3)])
def test_without_replacement_couples(controller) -> None:
    coupling = coupled(nodes(controller=controller))
    assert not coupling.violated, str(coupling)
    moved = [m.distance / m.allowed for m in coupling.movements]
    assert moved[0] == pytest.approx(1.0, rel=0.02)  # the rest is for models as far as the radius
    assert not any(moved[1:])


@pytest.mark.parametrize(
    ("fault", "controller", "message"),
    [
        (MissingFactor2, AlwaysGlobal(), "round 0: moved by 1.9802, allowed is 1 "),
        (MissingFactor2, Periodic(2), "round 1: moved by 1.9802, allowed is 1 "),
        (NoNoiseDrawn, AlwaysGlobal(), "round 0: released without its noise"),
        (PublishesALocalModel, Periodic(2), "published depends on data beyond its releases"),
    ],
)
def test_coupling_flags_faults_of_without_replacement(fault, controller, message: str) -> None:
    coupling = coupled(nodes(fault, controller=controller))
    assert coupling.violated
    assert message in str(coupling)


@pytest.mark.parametrize("batch_size", [1, 50])
@pytest.mark.parametrize(
    ("kind", "step_size", "violated"),
    [
        (WithoutReplacement, Constant(0.001), False),
        (WithoutReplacement, InverseTime(scale=0.001), False),
        (NoProjection, Constant(0.001), True),
        (NoProjection, Constant(0.1), True),
    ],
)
def test_coupling_flags_a_missing_projection(batch_size, kind, step_size, violated: bool) -> None:
    """The model ends near 1.84 times the labels, where it would be kept at a hundredth of them."""
    case = nodes(kind, batch_size=batch_size, step_size=step_size).worst_case()
    first, beyond = islice(audit_layers(*case, key=Key.seeded(1)), 2)
    assert not first.violated
    assert beyond.violated == violated, str(beyond)
    if violated:
        (movement,) = beyond.movements
        assert movement.distance / movement.allowed == pytest.approx((1.84 + 1) / 2.02, rel=0.01)


def test_coupling_flags_decisions_that_depend_on_data() -> None:
    coupling = coupled(nodes(controller=Telltale(), batch_size=1))
    assert "the number of messages depends on data" in str(coupling)


def test_coupling_flags_steps_that_expand() -> None:
    """The paper's steps 1 / (a lambda t), and the same schedule as late as Lemma 4 wants it."""
    problem, neighbor = drifting()
    steps = {"batch_size": 50, "controller": Periodic(3), "radius": None}
    late = nodes(step_size=theorem_4_steps(problem, A), **steps)
    right = couple(late, problem, neighbor, alone, rounds=3, key=Key.seeded(1))
    assert not right.violated, str(right)
    early = nodes(ExpandingSteps, step_size=InverseTime(scale=1 / (A * LAMBDA)), **steps)
    wrong = couple(early, problem, neighbor, alone, rounds=3, key=Key.seeded(1))
    assert wrong.violated
    (movement,) = wrong.movements
    assert movement.distance == pytest.approx(13.0, rel=1e-6)  # 6.5 times the paper's, whose L is 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "controller", "violated"),
    [
        (WithoutReplacement, Periodic(2), False),
        (MissingFactor2, Periodic(2), True),
        (HalvedNoise, AlwaysGlobal(), True),
    ],
)
def test_many_runs_tell_right_from_wrong(kind, controller, violated: bool) -> None:
    assert power(GaussianClaim(1.0), gaussian_curve(1.98), 400, SURE) > SURE
    algorithm = nodes(kind, controller=controller)
    rounds = controller.period if isinstance(controller, Periodic) else 1
    pair, _ = algorithm.worst_case(rounds=rounds)
    result = many_runs(algorithm, pair.problem, pair.neighbor, rounds=rounds, runs=400)
    assert result.claim.level == pytest.approx(1.0)
    assert result.violated == violated, str(result)
    assert result.lower_bound <= 2.0


@pytest.mark.slow
def test_many_runs_flag_steps_that_expand() -> None:
    """At 13 times the claimed mu no run is mistaken: 100 of 100 prove mu = 2.9."""
    steps = {"batch_size": 50, "controller": Periodic(3), "radius": None}
    early = nodes(ExpandingSteps, step_size=InverseTime(scale=1 / (A * LAMBDA)), **steps)
    result = many_runs(early, *drifting(), rounds=3, runs=100)
    assert result.lower_bound > 2.5


def many_runs(algorithm, problem, neighbor, *, rounds: int, runs: int):
    return audit_algorithm(
        algorithm,
        problem,
        neighbor,
        alone,
        rounds=rounds,
        runs=runs,
        delta=DELTA,
        confidence=SURE,
        key=Key.seeded(2),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "violated"), [(WithoutReplacement, False), (NoNoiseDrawn, True)])
def test_one_run_sees_gross_faults(kind, violated: bool) -> None:
    _, crowd = nodes(kind, mu=0.5).worst_case()
    result = audit_one_run(**arguments_of(crowd), confidence=SURE, key=Key.seeded(3))
    assert result.violated == violated, str(result)


def test_a_worst_case_needs_a_radius() -> None:
    with pytest.raises(ValueError, match="algorithm: wanted one with a radius, got None"):
        nodes(radius=None).worst_case()
