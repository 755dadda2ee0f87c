"""Q-networks against a slow oracle: networks one by one, textbook Adam, checked gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import refused
from slow_qnet import (
    SlowAdam,
    Transition,
    Weights,
    one_network,
    slow_gradient,
    slow_loss,
    slow_values,
)

from dpmesh.keys import Key, Purpose
from dpmesh_papers.qnet import QReplay, QTrained, q_init, q_learn, q_values, q_weights

STREAM = Key.seeded(7).stream(Purpose.CONTROLLER)
ADAM = {"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}


def memory(networks: int, capacity: int, inputs: int, rng: np.random.Generator) -> QReplay:
    return QReplay(
        states=rng.standard_normal((networks, capacity, 2, inputs)).astype(np.float32),
        actions=rng.integers(0, 2, (networks, capacity)).astype(np.uint8),
        rewards=rng.standard_normal((networks, capacity)).astype(np.float32),
        discounts=rng.choice([0.0, 0.9], (networks, capacity)).astype(np.float32),
    )


def transitions(replay: QReplay, i: int, picks: np.ndarray) -> list[Transition]:
    return [
        (
            replay.states[i, j, 0].astype(np.float64),
            int(replay.actions[i, j]),
            float(replay.rewards[i, j]),
            float(replay.discounts[i, j]),
            replay.states[i, j, 1].astype(np.float64),
        )
        for j in picks[i]
    ]


def fresh(parameters: np.ndarray) -> QTrained:
    zeros = np.zeros_like(parameters)
    return QTrained(
        parameters.copy(), zeros, zeros.copy(), np.zeros(len(parameters), dtype=np.uint32)
    )


def distance(a: Weights, b: Weights) -> float:
    """|a - b| / |b| over all weights."""
    difference = sum(float(np.sum((a[name] - b[name]) ** 2)) for name in b)
    return float(np.sqrt(difference / sum(float(np.sum(b[name] ** 2)) for name in b)))


@pytest.mark.parametrize("activation", ["linear", "relu"])
def test_the_oracle_has_the_gradient_of_its_loss(activation: str) -> None:
    rng = np.random.default_rng(3)
    parameters = q_init(2, 5, STREAM, hidden=16)
    weights, target = (one_network(q_weights(parameters, 5), i) for i in range(2))
    batch = transitions(memory(1, 4, 5, rng), 0, np.arange(4)[None])
    gradient = slow_gradient(weights, target, batch, activation)
    for name, array in weights.items():
        for place in np.ndindex(array.shape):
            losses = []
            for change in (1e-6, -1e-6):
                moved = {**weights, name: array.copy()}
                moved[name][place] += change
                losses.append(slow_loss(moved, target, batch, activation))
            slope = (losses[0] - losses[1]) / 2e-6
            assert slope == pytest.approx(gradient[name][place], rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("activation", ["linear", "relu"])
@pytest.mark.parametrize(("inputs", "hidden", "batch"), [(52, 128, 10), (7, 32, 3), (1, 16, 17)])
def test_twenty_steps_equal_the_oracle(
    inputs: int, hidden: int, batch: int, activation: Any
) -> None:
    networks, capacity, rng = 3, 20, np.random.default_rng(inputs)
    parameters = q_init(2 * networks, inputs, STREAM, hidden=hidden)
    trained, targets = fresh(parameters[:networks]), parameters[networks:].copy()
    replay = memory(networks, capacity, inputs, rng)
    slow = [one_network(q_weights(trained.parameters, inputs), i) for i in range(networks)]
    slow_targets = [one_network(q_weights(targets, inputs), i) for i in range(networks)]
    optimizers = [SlowAdam.at_start(weights) for weights in slow]
    for step in range(1, 21):
        picks = rng.integers(0, capacity, (networks, batch))
        losses = q_learn(trained, targets, replay, picks, activation=activation, **ADAM)
        for i in range(networks):
            own = transitions(replay, i, picks)
            expected = slow_loss(slow[i], slow_targets[i], own, activation)
            assert losses[i] == pytest.approx(expected, rel=1e-4)
            optimizers[i].step(slow[i], slow_gradient(slow[i], slow_targets[i], own, activation))
        assert trained.steps.tolist() == [step] * networks
    after = q_weights(trained.parameters, inputs)
    for i in range(networks):
        assert distance(one_network(after, i), slow[i]) <= 1e-5


@pytest.mark.slow
@given(
    st.integers(1, 60),
    st.sampled_from([16, 48, 128]),
    st.sampled_from([(), (1,), (9,)]),
    st.sampled_from(["linear", "relu"]),
)
def test_values_equal_the_oracle(
    inputs: int, hidden: int, samples: tuple[int, ...], activation: Any
) -> None:
    parameters = q_init(3, inputs, STREAM, hidden=hidden)
    states = np.random.default_rng(inputs).standard_normal((3, *samples, inputs))
    values = q_values(parameters, states, activation=activation)
    assert values.shape == (3, *samples, 2)
    weights = q_weights(parameters, inputs)
    for i in range(3):
        for x, found in zip(states[i].reshape(-1, inputs), values[i].reshape(-1, 2), strict=True):
            expected = slow_values(one_network(weights, i), x, activation)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_xavier_weights_are_uniform_in_their_range() -> None:
    networks, inputs, hidden = 40, 52, 128
    weights = q_weights(q_init(networks, inputs, STREAM), inputs)
    assert weights.hidden_weights.shape == (networks, hidden, inputs)
    assert weights.value_weights.shape == (networks, 2, hidden)
    assert not weights.hidden_biases.any()
    assert not weights.value_biases.any()
    for array, fans in ((weights.hidden_weights, 180), (weights.value_weights, 130)):
        limit = np.sqrt(6 / fans)
        assert np.abs(array).max() <= limit * (1 + 1e-6)
        # Six standard errors of mean and mean square: each fails by chance once in 5e8 keys.
        n = array.size
        assert abs(array.mean()) <= 6 * limit / np.sqrt(3 * n)
        assert abs(np.mean((array / limit) ** 2) - 1 / 3) <= 6 * np.sqrt(4 / 45 / n)
    again = q_init(3, inputs, STREAM)
    np.testing.assert_array_equal(q_init(5, inputs, STREAM)[:3], again)


def test_only_those_that_learn_change() -> None:
    parameters = q_init(3, 4, STREAM, hidden=16)
    trained, replay = fresh(parameters), memory(3, 5, 4, np.random.default_rng(0))
    learns = np.array([True, False, True])
    losses = q_learn(trained, parameters, replay, [[0], [1], [2]], learns=learns)
    assert trained.steps.tolist() == [1, 0, 1]
    assert np.isnan(losses).tolist() == [False, True, False]
    assert (trained.parameters != parameters).any(axis=(1, 2)).tolist() == [True, False, True]


def test_nan_is_passed_on() -> None:
    parameters = q_init(2, 3, STREAM, hidden=16)
    states = np.array([[np.nan, 0, 0], [1, 2, 3]])
    values = q_values(parameters, states, activation="relu")
    assert np.isnan(values).all(axis=1).tolist() == [True, False]


PARAMETERS = q_init(2, 3, STREAM, hidden=16)
REPLAY = memory(2, 4, 3, np.random.default_rng(0))


def learn(**changes: Any) -> object:
    arguments: dict[str, Any] = {
        "trained": fresh(PARAMETERS),
        "targets": PARAMETERS,
        "replay": REPLAY,
        "picks": [[0, 3], [1, 2]],
    }
    return q_learn(**(arguments | changes))


test_bad_input_is_named = refused(
    (lambda: q_init(1, 1, STREAM, hidden=24), "hidden: wanted a positive multiple of"),
    (lambda: q_weights(PARAMETERS, 4), "parameters: wanted 1 more than a positive"),
    (lambda: q_values(PARAMETERS, np.ones((3, 3))), "states: wanted a positive multiple of 6"),
    (
        lambda: q_values(PARAMETERS, np.ones((2, 3)), activation="tanh"),
        "activation: wanted one of 'linear', 'relu', got 'tanh'",
    ),
    (lambda: learn(picks=[[0, 4], [1, 2]]), "picks: wanted places below the cap"),
    (lambda: learn(targets=PARAMETERS[:1]), "targets: wanted"),
    (lambda: learn(learns=np.ones(3, bool)), "learns: wanted"),
    (lambda: learn(beta1=1.0), r"beta1: wanted a number in \[0, 1\), got 1"),
    (
        lambda: learn(replay=REPLAY._replace(actions=REPLAY.actions + np.uint8(1))),
        "actions: wanted 0 or 1, got 2",
    ),
    (lambda: learn(replay=REPLAY._replace(rewards=REPLAY.rewards[:, :3])), "rewards: wanted"),
    (lambda: learn(trained=fresh(PARAMETERS)._replace(steps=np.zeros(2))), "steps: wanted dt"),
)
