"""Controllers: Algorithm 2 against a slow twin, what public means, rates, learning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pytest
from refused import refused
from scipy.stats import binomtest
from slow_qnet import SlowAdam, Transition, Weights, one_network, slow_gradient, slow_values

from dpmesh import kernels
from dpmesh._privacy_types import Released, Sensitive
from dpmesh.algorithms.controllers import (
    AlwaysGlobal,
    AlwaysLocal,
    AnyController,
    Observation,
    Periodic,
    RandomGlobal,
)
from dpmesh.keys import Key, Purpose
from dpmesh_papers.deep_q import DeepQ, DeepQState
from dpmesh_papers.qnet import q_weights

KEY = Key.seeded(11)
PUBLIC = [
    AlwaysGlobal(),
    AlwaysLocal(),
    RandomGlobal(0.3),
    Periodic(3),
    DeepQ(anneal_rounds=20, hidden=16, sees="released"),
]
ALL = [
    *PUBLIC,
    DeepQ(anneal_rounds=20, hidden=16),
    DeepQ(anneal_rounds=20, hidden=16, activation="relu"),
]
FALSE_ALARM = 1e-6  # of each statistical test, by chance of the key


def observations(
    shape: tuple[int, int, int], rounds: int, seed: int = 0, secret: int = 0
) -> Iterator[Observation]:
    """Observations at random: `seed` makes the public part, `secret` the private one."""
    nodes, classifiers, dim = shape
    public, private = np.random.default_rng(seed), np.random.default_rng([secret, 1])
    for _ in range(rounds):
        yield Observation(
            acting=public.random(nodes) < 0.6,
            local_models=Sensitive(private.standard_normal(shape)),
            losses=Sensitive(private.random((nodes, classifiers))),
            last_losses=Sensitive(private.random((nodes, classifiers))),
            released_models=Released(public.standard_normal((classifiers, dim))),
            public_losses=public.random(classifiers),
        )


def run(
    controller: AnyController, observations: Iterator[Observation], shape: tuple[int, int, int]
) -> tuple[np.ndarray, Any]:
    """All decisions, shape (rounds, nodes, classifiers), and the last state."""
    state, decisions = controller.init(shape, KEY), []
    for t, observation in enumerate(observations):
        state = controller.learn(state, observation, t, KEY)
        actions, state = controller.decide(state, observation, t, KEY)
        decisions.append(actions)
    return np.stack(decisions), state


@dataclass
class SlowAgent:
    """Algorithm 2 for one node and one classifier, as it is printed."""

    controller: DeepQ
    network: int
    q: Weights
    target: Weights
    optimizer: SlowAdam
    memory: list[Transition] = field(default_factory=list)
    stored: int = 0
    steps: int = 0
    previous: tuple[np.ndarray, int] | None = None

    def act(self, s: np.ndarray, r: float, t: int) -> int:
        c = self.controller
        coins = kernels.uniform(
            (1, 2 + c.memory_size),
            KEY.stream(Purpose.CONTROLLER, t),
            dtype=np.float32,
            nodes=[self.network],
        )[0]
        if self.previous is not None:
            transition = (self.previous[0], self.previous[1], r, c.discount, s)
            if len(self.memory) < c.memory_size:
                self.memory.append(transition)
            else:
                self.memory[self.stored % c.memory_size] = transition
            self.stored += 1
            if len(self.memory) >= c.batch_size:
                order = np.argsort(coins[2 : 2 + len(self.memory)])
                batch = [self.memory[j] for j in order[: c.batch_size]]
                gradient = slow_gradient(self.q, self.target, batch, c.activation)
                self.optimizer.step(self.q, gradient)
                self.steps += 1
                if self.steps % c.target_update_period == 0:
                    self.target = {name: w.copy() for name, w in self.q.items()}
        if coins[0] < c.exploration(t):
            a = int(coins[1] < 0.5)
        else:
            a = int(np.argmax(slow_values(self.q, s, c.activation)))
        self.previous = s, a
        return a


def slow_run(
    c: DeepQ, observations: Iterator[Observation], shape: tuple[int, int, int]
) -> np.ndarray:
    nodes, classifiers, dim = shape
    start = c.init(shape, KEY).trained.parameters
    weights = q_weights(start, dim + (2 if c.public else 1))
    agents = [
        SlowAgent(
            c,
            i,
            one_network(weights, i),
            one_network(weights, i),
            SlowAdam.at_start(one_network(weights, i)),
        )
        for i in range(nodes * classifiers)
    ]
    decisions = []
    for t, o in enumerate(observations):
        actions = np.zeros((nodes, classifiers), dtype=np.bool_)
        for m in np.flatnonzero(o.acting):
            for k in range(classifiers):
                if c.public:
                    assert o.public_losses is not None
                    loss = o.public_losses[k]
                    s = np.array([*o.released_models[k], loss, t / c.anneal_rounds])
                    r = -loss
                else:
                    s = np.array([*o.local_models[m, k], o.losses[m, k]])
                    r = -o.last_losses[m, k]
                actions[m, k] = agents[m * classifiers + k].act(s, r, t)
        decisions.append(actions)
    return np.stack(decisions)


@pytest.mark.parametrize("activation", ["linear", "relu"])
@pytest.mark.parametrize("sees", ["local", "released"])
def test_deep_q_is_algorithm_2(sees: Any, activation: Any) -> None:
    shape = (4, 2, 5)
    c = DeepQ(
        anneal_rounds=20,
        sees=sees,
        hidden=16,
        activation=activation,
        memory_size=12,
        batch_size=5,
        target_update_period=4,
    )
    assert not next(observations(shape, 1)).acting.all()  # some begin later
    fast, _ = run(c, observations(shape, 60), shape)
    slow = slow_run(c, observations(shape, 60), shape)
    np.testing.assert_array_equal(fast, slow)
    assert 0.2 < fast[20:].mean() < 0.8  # both actions occur, so that equality says something


@pytest.mark.parametrize("controller", ALL, ids=repr)
def test_decisions_are_of_acting_nodes_and_repeat(controller: AnyController) -> None:
    shape = (5, 3, 4)
    decisions, _ = run(controller, observations(shape, 40), shape)
    assert decisions.shape == (40, 5, 3)
    assert decisions.dtype == np.bool_
    acting = np.stack([o.acting for o in observations(shape, 40)])
    assert not decisions[~acting].any()
    np.testing.assert_array_equal(decisions, run(controller, observations(shape, 40), shape)[0])


@pytest.mark.parametrize("controller", [*ALL, RandomGlobal(0.0), RandomGlobal(1.0)], ids=repr)
def test_no_decision_is_global_where_none_may_be(controller: AnyController) -> None:
    shape = (5, 3, 4)
    decisions, _ = run(controller, observations(shape, 40), shape)
    allowed = [controller.may_be_global(t) for t in range(40)]
    np.testing.assert_array_equal(decisions.any(axis=(1, 2)) <= allowed, True)
    if isinstance(controller, Periodic | AlwaysGlobal | AlwaysLocal):
        np.testing.assert_array_equal(decisions.any(axis=(1, 2)), allowed)


@pytest.mark.parametrize("controller", ALL, ids=repr)
def test_public_decisions_do_not_know_private_data(controller: AnyController) -> None:
    shape = (6, 2, 4)
    one, _ = run(controller, observations(shape, 60, secret=1), shape)
    two, _ = run(controller, observations(shape, 60, secret=2), shape)
    assert np.array_equal(one, two) == controller.public


def test_fixed_decisions() -> None:
    shape = (3, 2, 1)
    always = [replace(o, acting=np.ones(3, dtype=np.bool_)) for o in observations(shape, 7)]
    assert run(AlwaysGlobal(), iter(always), shape)[0].all()
    assert not run(AlwaysLocal(), iter(always), shape)[0].any()
    periodic, _ = run(Periodic(3), iter(always), shape)
    assert periodic.all(axis=(1, 2)).tolist() == [t in (2, 5) for t in range(7)]
    assert periodic.any(axis=(1, 2)).tolist() == periodic.all(axis=(1, 2)).tolist()


def test_random_decisions_have_their_rate() -> None:
    shape = (100, 10, 1)
    always = [replace(o, acting=np.ones(100, dtype=np.bool_)) for o in observations(shape, 50)]
    decisions, _ = run(RandomGlobal(0.05), iter(always), shape)
    count = int(decisions.sum())
    assert binomtest(count, decisions.size, 0.05).pvalue > FALSE_ALARM
    assert binomtest(count, decisions.size, 0.06).pvalue < FALSE_ALARM


@pytest.mark.parametrize(("t", "rate"), [(0, 1.0), (10, 0.55), (20, 0.1), (45, 0.1)])
@pytest.mark.parametrize("better", [0, 1])
def test_exploration_falls_to_its_final_rate(t: int, rate: float, better: int) -> None:
    shape = (5_000, 4, 1)
    c = DeepQ(anneal_rounds=20, hidden=16)
    assert c.exploration(t) == pytest.approx(rate)
    state = c.init(shape, KEY)
    state.trained.parameters[:] = 0
    state.trained.parameters[:, -1, better] = 1
    (observation,) = observations(shape, 1)
    observation = replace(observation, acting=np.ones(5_000, dtype=np.bool_))
    actions, _ = c.decide(state, observation, t, KEY)
    count = int((actions != better).sum())
    assert binomtest(count, actions.size, rate / 2).pvalue > FALSE_ALARM
    assert binomtest(count, actions.size, rate / 2 + 0.03).pvalue < FALSE_ALARM


def test_targets_are_copied_every_c_steps() -> None:
    shape = (4, 2, 3)
    c = DeepQ(anneal_rounds=20, hidden=16, target_update_period=3, batch_size=2)
    state = c.init(shape, KEY)
    expected = state.targets.copy()
    for t, observation in enumerate(observations(shape, 30)):
        before = state.trained.steps.copy()
        state = c.learn(state, observation, t, KEY)
        steps = state.trained.steps
        copied = (steps > before) & (steps % 3 == 0)
        expected[copied] = state.trained.parameters[copied]
        np.testing.assert_array_equal(state.targets, expected)
        _, state = c.decide(state, observation, t, KEY)
    assert len(set(steps.tolist())) > 1  # nodes act at times of their own
    assert (steps >= 9).all()
    assert (state.targets != state.trained.parameters).any()


def test_the_threads_do_not_show() -> None:
    shape, c = (30, 2, 50), DeepQ(anneal_rounds=20)
    before, results = kernels.get_threads(), []
    try:
        for threads in (1, 2, 7):
            kernels.set_threads(threads)
            decisions, state = run(c, observations(shape, 30), shape)
            results.append((decisions.tobytes(), state.trained.parameters.tobytes()))
    finally:
        kernels.set_threads(before)
    assert results[0] == results[1] == results[2]


def test_the_state_holds_arrays_and_no_secret() -> None:
    _, state = run(DeepQ(anneal_rounds=20, hidden=16), observations((2, 2, 3), 15), (2, 2, 3))
    assert isinstance(state, DeepQState)
    for part in fields(state):
        value = getattr(state, part.name)
        arrays = [value] if isinstance(value, np.ndarray) else list(value)
        assert all(isinstance(array, np.ndarray) and array.dtype != object for array in arrays)
        assert all(len(array) == 4 for array in arrays)


def bandit(c: DeepQ, rounds: int) -> np.ndarray:
    """Share of right decisions by round: global is right where the first weight is positive."""
    shape = nodes, classifiers, dim = (50, 2, 4)
    rng = np.random.default_rng(5)
    state, wrong, shares = c.init(shape, KEY), np.zeros((nodes, classifiers)), []
    for t in range(rounds):
        observation = Observation(
            acting=np.ones(nodes, dtype=np.bool_),
            local_models=Sensitive(rng.standard_normal(shape)),
            losses=Sensitive(rng.random((nodes, classifiers))),
            last_losses=Sensitive(wrong),
            released_models=Released(np.zeros((classifiers, dim))),
        )
        state = c.learn(state, observation, t, KEY)
        actions, state = c.decide(state, observation, t, KEY)
        wrong = (actions != (observation.local_models[:, :, 0] > 0)).astype(np.float64)
        shares.append(1 - wrong.mean())
    return np.array(shares)


@pytest.mark.parametrize("activation", ["linear", "relu"])
def test_the_better_action_is_learned(activation: Any) -> None:
    c = DeepQ(anneal_rounds=100, activation=activation, discount=0.0)
    shares = bandit(c, 250)
    # By chance 0.5 are right, at best, with exploration at 0.1, 0.95: more than halfway.
    assert shares[150:].mean() > 0.725
    assert bandit(replace(c, learning_rate=1e-9), 250)[150:].mean() < 0.6


def changed(**changes: Any) -> Observation:
    (observation,) = observations((2, 3, 4), 1)
    return replace(observation, **changes)


def learned(observation: Observation, c: DeepQ | None = None) -> object:
    c = c or DeepQ(anneal_rounds=5, hidden=16)
    return c.decide(c.init((2, 3, 4), KEY), observation, 0, KEY)


test_bad_input_is_named = refused(
    (
        lambda: DeepQ(anneal_rounds=5, hidden=100),
        "hidden: wanted a positive multiple of 16, got 100",
    ),
    (
        lambda: DeepQ(anneal_rounds=5).init((2, 0, 3), KEY),
        "shape: wanted an integer of at least 1, got 0",
    ),
    (
        lambda: changed(local_models=np.ones((2, 3))),
        r"local_models: wanted shape \(nodes, classifiers, dim\), got \(2, 3\)",
    ),
    (lambda: changed(acting=np.ones(3, dtype=np.bool_)), r"acting: wanted shape \(2\), got"),
    (lambda: changed(acting=np.ones(2)), "acting: wanted an array of bool, got dtype float64"),
    (lambda: changed(losses=np.ones((2, 1))), r"losses: wanted shape \(2, 3\), got \(2, 1\)"),
    (lambda: changed(last_losses=np.ones(2)), r"last_losses: wanted shape \(2, 3\)"),
    (lambda: changed(released_models=np.ones((2, 4))), r"released_models: wanted shape"),
    (lambda: changed(public_losses=np.ones(2)), r"public_losses: wanted shape \(3\), got \(2,"),
    (
        lambda: learned(
            changed(public_losses=None), DeepQ(anneal_rounds=5, hidden=16, sees="released")
        ),
        "public_losses: wanted losses on public data",
    ),
    (
        lambda: learned(changed(losses=np.full((2, 3), np.nan), acting=np.ones(2, dtype=np.bool_))),
        "observation: wanted finite models and losses of acting nodes",
    ),
    (lambda: learned(next(observations((3, 3, 4), 1))), "states: wanted a positive multiple of 30"),
)
