"""The only way out of a node: what a round yields is released, recorded and carried by the loop."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_round import ONE, Stage
from problems import contract_problem

import dpmesh as dm
from dpmesh.accounting import gdp_epsilon
from dpmesh.algorithms import Message, Relay
from dpmesh.audit import alone
from dpmesh.keys import Purpose
from dpmesh.noise import Gaussian, Laplace
from dpmesh.privacy import Budget, OverBudget, Plan, PoissonSampling, Release
from dpmesh.run import Gossip
from dpmesh.run.carriers import SentInRound

NODES, DELTA = 4, 1e-5
VALUES = np.arange(NODES * 3.0).reshape(NODES, 3)
NOTHING = replace(ONE, bound=0.0)
NETWORK = dm.topology.ring(NODES)


def five(t: int, **where: Any) -> Release:
    """A release of which one costs 0.7255, ten cost 2.594 and 1,000 cost 46.2."""
    return Release(t, Gaussian(5.0), ONE, **where)


def run(*requests: Any, stage: Stage | None = None) -> Stage:
    """Yield these requests, one after the other, in a round."""

    def script(state: Any, t: int) -> Any:
        for request in requests:  # noqa: UP028  (a tuple takes no answers)
            yield request

    stage = stage or Stage(NODES)
    stage.run(script)
    return stage


# Nothing is sent past the mechanism


@pytest.mark.parametrize(
    "disguise",
    [
        lambda x: x,
        lambda x: x[:],
        lambda x: x.copy(),
        lambda x: x / 2,
        lambda x: np.array(x.tolist()),
    ],
    ids=["itself", "view", "copy", "half", "list"],
)
def test_what_is_sent_has_noise_however_it_was_made(disguise: Any) -> None:
    """Each of these passed a mechanism that the algorithm called itself, with epsilon 6.57."""

    class Leak(dm.GradientDescent):
        def round(self, state, t, problem, key):
            self.mechanism.release(state.x, self.sensitivity(t), key.stream(Purpose.NOISE, t))
            sent.append(disguise(state.x))
            received.append((yield Message(sent[-1], self.release_of(t))))
            return replace(state, x=state.x + 1.0)

    sent, received = [], []
    train = dm.Dataset(np.eye(4), np.array([1, -1, 1, -1]))
    problem = dm.LinearProblem(train, np.split(np.arange(4), NODES), "logistic")
    key = dm.Key.seeded(1)
    result = dm.simulate(
        Leak(records=1, noise_multiplier=2.0), problem, NETWORK, rounds=3, key=key, metrics=[]
    )
    assert result.ledger == Leak(records=1, noise_multiplier=2.0).plan(3)
    for t in (1, 2):
        mixed = NETWORK.matrix(t).weights @ sent[t]
        assert (received[t] != mixed).all()


@pytest.mark.parametrize("request_", [VALUES, (VALUES, five(0)), None, five(0), Message])
def test_a_round_yields_messages_alone(request_: Any) -> None:
    with pytest.raises(ValueError, match="algorithm: wanted rounds that yield Message or Relay"):
        run(request_)


def test_a_round_is_a_generator() -> None:
    wanted = "algorithm: wanted one whose round is a generator, which yields messages, got Scripted"
    with pytest.raises(ValueError, match=wanted):
        Stage(NODES).run(lambda state, t: VALUES)


def test_a_round_returns_the_next_state() -> None:
    @dataclass(frozen=True)
    class Forgetful(dm.GradientDescent):
        def round(self, state, t, problem, key):
            yield Message(state.x, self.release_of(t))

    algorithm = Forgetful(records=12, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="returns the next state, got None from round of Forget"):
        dm.simulate(algorithm, contract_problem(), dm.topology.ring(4), rounds=1, delta=1e-5)


def test_a_plan_names_what_is_no_release() -> None:
    @dataclass(frozen=True)
    class Empty(dm.GradientDescent):
        def release_of(self, t):
            return None

    with pytest.raises(ValueError, match="release_of: wanted a Release, or a tuple of them, got N"):
        Empty(records=12, noise_multiplier=1.0).plan(1)


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ((Message(VALUES[0], five(0)),), r"values: wanted an array of shape \(rows, dim\)"),
        ((Message(VALUES.tolist(), five(0)),), r"values: wanted an array of shape \(rows, dim\)"),
        ((Message(VALUES, five(0), rows=np.arange(3)),), "values: .* as many rows as named"),
        ((Message(VALUES, five(1)),), "release: wanted one of round 0, got one of round 1"),
        ((Message(VALUES, five(0), sender=NODES),), "sender: wanted a node below 4, got 4"),
        ((Message(VALUES, five(0), sender=-1),), "sender: wanted a node below 4, got -1"),
        ((Message(VALUES, five(0, nodes=(1,)), sender=0),), "release: wanted one of node 0"),
        ((Message(VALUES, (five(0), five(0)), sender=0),), "release: wanted one for each message"),
        ((Relay(),), "algorithm: wanted a Message before a Relay"),
    ],
)
def test_a_message_that_does_not_fit_is_named(requests: Any, message: str) -> None:
    stage = Stage(NODES)
    with pytest.raises(ValueError, match=message):
        run(*requests, stage=stage)
    assert not stage.passages


def test_a_relay_carries_nothing_of_an_earlier_round() -> None:
    stage = run(Message(VALUES, five(0)))
    with pytest.raises(ValueError, match="algorithm: wanted a Message before a Relay"):
        run(Relay(), stage=stage)


@pytest.mark.parametrize("whole", [True, False])
def test_a_relay_carries_what_was_released_and_nobody_can_write_to_it(whole: bool) -> None:
    def script(state: Any, t: int) -> Any:
        parts = tuple(five(t, nodes=(node,)) for node in range(NODES))
        released = yield Message(VALUES, five(t) if whole else parts, is_sent=False)
        with pytest.raises(ValueError, match="read-only"):
            released[:] = VALUES
        yield Relay()

    stage = Stage(NODES)
    stage.channel._watcher = None  # which gets copies
    stage.run(script)


# What releases cost


def test_ten_models_released_one_by_one_cost_ten_releases() -> None:
    """One node releases one-vs-all models, each with one model's sensitivity."""
    messages = [
        Message(VALUES[:1], five(0, batch=0), sender=2, rows=np.array([k])) for k in range(10)
    ]
    cost = run(*messages).ledger.plan.cost(DELTA).epsilon
    assert cost == pytest.approx(gdp_epsilon(delta=DELTA, mu=np.sqrt(10) / 5))
    assert cost > 2.59  # as parts of one release they cost 0.7255


def test_a_budget_sees_every_piece_and_senders_exist() -> None:
    def pieces(senders: list[int]) -> None:
        stage = Stage(NODES, budget=Budget(1.1, delta=DELTA), planned=(five(0, batch=0),))
        run(*(Message(VALUES[:1], five(0, batch=0), sender=m) for m in senders), stage=stage)

    pieces([0, 1, 2, 3])  # disjoint nodes are parts of one release
    with pytest.raises(OverBudget):
        pieces([0] * 1000)
    with pytest.raises(ValueError, match="sender: wanted a node below 4"):
        pieces(list(range(NODES, NODES + 1000)))


@pytest.mark.parametrize(
    ("relation", "mechanism", "sampling"),
    [
        ("replace_one", Laplace(2.0), None),
        ("replace_one", Gaussian(2.0), None),
        ("replace_one", Gaussian(2.0, grid=2.0**-10), None),
        ("add_remove", Gaussian(2.0), PoissonSampling(0.5)),
    ],
)
def test_releases_of_all_data_add_to_those_of_a_batch(relation, mechanism, sampling) -> None:
    """A unit of batch 0 is in its own two releases, and in the three of all data."""

    def cost(batches: list[int | None]) -> float:
        releases = (
            Release(t, mechanism, ONE, batch=batch, sampling=sampling)
            for t, batch in enumerate(batches)
        )
        return (
            Plan(releases=tuple(releases), neighboring_relation=relation, unit="record")
            .cost(DELTA)
            .epsilon
        )

    together = cost([None, 0, None, 1, 0, None])
    assert together == pytest.approx(cost([None] * 5), rel=1e-9)
    assert together > 1.2 * max(cost([0, 0]), cost([None] * 3))


def test_a_row_that_sends_twice_has_other_noise_and_two_releases() -> None:
    message = Message(VALUES, five(0))
    stage = run(message, message)
    assert stage.ledger.releases == [five(0), five(0)]
    assert len(np.unique(stage.noise)) == 2 * VALUES.size


def test_nodes_that_send_one_after_another_share_a_release_and_no_noise() -> None:
    stage = run(*(Message(VALUES[:2], five(0), sender=m) for m in range(NODES)))
    assert stage.ledger.releases == [five(0)]
    assert len(np.unique(stage.noise)) == NODES * 2 * 3


def test_noise_of_senders_does_not_depend_on_who_is_in_this_process() -> None:
    """Two processes run the same turns, and each has the values of its own nodes alone."""
    turns = [Message(VALUES[:1], five(0), sender=m) for m in range(NODES)]
    whole = run(*turns).noise
    for here in ((0, 2), (1, 3)):
        own = run(*(m if m.sender in here else m._replace(values=None) for m in turns)).noise
        np.testing.assert_array_equal(own, whole[list(here)])


def test_nodes_of_different_noise_have_their_own() -> None:
    """Each node has the noise that it has where all release alike, times its own scale."""
    releases = (five(0, nodes=(0, 2)), Release(0, Gaussian(10.0), ONE, nodes=(3, 1)))
    stage = run(Message(VALUES, releases))
    assert stage.ledger.releases == list(releases)
    alike = run(Message(VALUES, five(0))).noise
    np.testing.assert_allclose(stage.noise, alike[[0, 2, 1, 3]] * [[1], [1], [2], [2]], rtol=1e-6)


@pytest.mark.parametrize("nodes", [((0, 1), (2,)), ((0, 1), (1, 2, 3)), ((0, 1), (2, 3, 4))])
def test_releases_of_a_message_name_each_node_once(nodes: Any) -> None:
    stage = Stage(NODES)
    releases = tuple(five(0, nodes=some) for some in nodes)
    with pytest.raises(ValueError, match="release: wanted releases that name each node"):
        run(Message(VALUES, releases), stage=stage)
    assert not stage.passages
    assert not stage.ledger.in_round


def test_what_is_over_budget_draws_no_noise_and_nothing_leaves_after_it() -> None:
    reached = []

    def script(state: Any, t: int) -> Any:
        try:
            for number in range(3):
                yield Message(VALUES, five(0))
                reached.append(number)
        except Exception:
            yield Message(VALUES, Release(0, Gaussian(5.0), NOTHING))

    stage = Stage(NODES, budget=Budget(1.1, delta=DELTA))
    with pytest.raises(OverBudget, match=r"would cost epsilon 1\.32"):
        stage.run(script)
    assert (len(stage.passages), reached) == (2, [0, 1])
    assert stage.ledger.in_round == [five(0), five(0)]
    np.testing.assert_array_equal(stage.channel.received, stage.passages[1].values)


# What travels


def test_a_relay_carries_again_without_a_release() -> None:
    stage = Stage(NODES, carrier=Gossip(NETWORK))
    answers = []

    def script(state: Any, t: int) -> Any:
        released = yield Message(VALUES, five(t), is_sent=False)
        once = yield Relay()
        twice = yield Relay()
        answers.extend((released, once, twice))

    step = stage.run(script)
    released, once, twice = answers
    np.testing.assert_array_equal(released, stage.passages[0].values)
    weights = NETWORK.matrix(0).weights
    np.testing.assert_allclose(once, weights @ released)
    np.testing.assert_allclose(twice, weights @ once)
    assert stage.ledger.releases == [five(0)]
    assert step.sent == SentInRound(2 * 3 * 64, 2)
    assert stage.channel.received is twice


def test_what_does_not_travel_is_not_sent() -> None:
    def script(state: Any, t: int) -> Any:
        yield Message(VALUES, five(t), is_sent=False)

    stage = Stage(NODES)
    assert stage.run(script).sent == SentInRound(0, 0)
    assert stage.channel.received is None
    assert stage.ledger.releases == [five(0)]


def test_what_arrived_last_stays_where_a_sender_has_nothing_to_release() -> None:
    turns = [Message(VALUES[:1], five(0), sender=0), Message(None, five(0), sender=1)]
    stage = run(*turns)
    np.testing.assert_array_equal(stage.channel.received, stage.passages[0].values)
    assert stage.ledger.releases == [five(0)]


@pytest.mark.parametrize("is_sent", [True, False])
@pytest.mark.parametrize("sensitivity", [ONE, NOTHING])
@pytest.mark.parametrize("carrier", [alone, Gossip(NETWORK)])
def test_what_arrived_cannot_be_written_to(carrier, sensitivity, is_sent: bool) -> None:
    """A step in place would make private what may be published; one in the state moves nothing."""

    def script(state: Any, t: int) -> Any:
        b = yield Message(state, Release(t, Gaussian(1.0), sensitivity), is_sent=is_sent)
        before = b.copy()
        state += 7.0
        np.testing.assert_array_equal(b, before)
        b += 7.0

    with pytest.raises(ValueError, match="read-only"):
        Stage(NODES, carrier=carrier).run(script, VALUES.copy())


# Any sequence of messages, beside loops

NAMED = [None, (0,), (1, 2), (0, 1, 2, 3)]


@st.composite
def messages(draw: Any) -> tuple[int, Any, tuple[int, ...]]:
    """A kind of release, the nodes that it names or the node that sends, and its rows."""
    kind = draw(st.integers(0, 1)), draw(st.none() | st.integers(0, 1))
    sender = draw(st.none() | st.integers(0, NODES - 1))
    count = NODES if sender is None else draw(st.integers(1, 3))
    rows = draw(st.none() | st.permutations(range(6)).map(lambda order: tuple(order[:count])))
    return kind, sender, count, rows


@pytest.mark.slow
@given(st.lists(st.lists(messages(), max_size=6), max_size=4))
def test_the_ledger_and_the_noise_are_those_of_loops(rounds: Any) -> None:
    stage, expected = Stage(NODES), []
    for t, requests in enumerate(rounds):
        yielded, sent = [], Counter()
        for (strength, batch), sender, count, rows in requests:
            release = Release(t, Gaussian(1.0 + strength), ONE, batch=batch)
            yielded.append(
                Message(
                    np.zeros((count, 2)),
                    release,
                    sender=sender,
                    rows=None if rows is None else np.array(rows),
                )
            )
            recorded = max(sent[release, node] for node in range(NODES))
            for node in range(NODES) if sender is None else [sender]:
                sent[release, node] += 1
            if max(sent[release, node] for node in range(NODES)) > recorded:
                expected.append(release)
        run(*yielded, stage=stage)
    assert stage.ledger.releases == expected
    if stage.passages:
        assert len(np.unique(stage.noise)) == stage.noise.size  # nobody draws another's noise
