"""One noisy message, several mixings: the same epsilon, less noise, more traffic."""

from __future__ import annotations

import numpy as np
import pytest
from problems import contract_problem as make_problem

import dpmesh as dm
from dpmesh.algorithms.registry import NODES, RECORDS, ROUNDS
from dpmesh.audit import audit_layers

RING = dm.topology.ring(NODES)


def run(algorithm: dm.GradientDescent) -> dm.Run:
    return dm.simulate(
        algorithm, make_problem(), RING, rounds=ROUNDS, key=dm.Key.seeded(0), delta=1e-5
    )


def test_one_mixing_is_gradient_descent() -> None:
    one, plain = (
        run(dm.GradientDescent(records=RECORDS, noise_multiplier=2.0, mixings=1)),
        run(dm.GradientDescent(records=RECORDS, noise_multiplier=2.0)),
    )
    np.testing.assert_array_equal(one.parameters, plain.parameters)
    assert one.ledger == plain.ledger


def test_it_is_gradient_descent_on_the_power_of_the_network_and_costs_the_same() -> None:
    """Against a loop over nodes that mixes with W^3 at once."""
    mixed = run(dm.GradientDescent(records=RECORDS, noise_multiplier=2.0, mixings=3))
    weights = np.linalg.matrix_power(RING.matrix(0).weights.toarray(), 3)
    power = dm.topology.Static(dm.topology.MixingMatrix(weights))
    at_once = dm.simulate(
        dm.GradientDescent(records=RECORDS, noise_multiplier=2.0),
        make_problem(),
        power,
        rounds=ROUNDS,
        key=dm.Key.seeded(0),
        delta=1e-5,
    )
    np.testing.assert_allclose(mixed.parameters, at_once.parameters, rtol=1e-9)
    assert mixed.ledger == at_once.ledger
    assert mixed.privacy.epsilon == at_once.privacy.epsilon


def test_every_mixing_is_traffic() -> None:
    plain, mixed = (
        run(dm.GradientDescent(records=RECORDS, noise_multiplier=2.0)),
        run(dm.GradientDescent(records=RECORDS, noise_multiplier=2.0, mixings=4)),
    )
    assert mixed.traffic.messages == 4 * plain.traffic.messages
    assert mixed.traffic.bits == 4 * plain.traffic.bits


def test_audits_find_nothing() -> None:
    algorithm = dm.GradientDescent(records=4, noise_multiplier=1.5, mixings=3)
    layers = algorithm.worst_case(canaries=200)
    for result in audit_layers(*layers, runs=300, confidence=0.999, key=dm.Key.seeded(5)):
        assert not result.violated, str(result)


def test_no_mixing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mixings: wanted an integer of at least 1, got 0"):
        dm.GradientDescent(records=RECORDS, noise_multiplier=2.0, mixings=0)
