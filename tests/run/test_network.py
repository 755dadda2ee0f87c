"""Networks that fail and take their time, in virtual seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import stream_problem as make_problem
from test_checkpoint import assert_same

import dpmesh as dm
from dpmesh import topology
from dpmesh._privacy_types import Released
from dpmesh.algorithms import WithoutReplacement
from dpmesh.run import Exponential, LogNormal, Network, Uniform
from dpmesh.run.carriers import Packet, SentInRound
from dpmesh.run.failing import FailingGossip, TimedServer, TimedToken
from dpmesh.run.network import Conditions

KEY = dm.Key.seeded(5)
BITS = 320  # of a message of make_problem: 5 numbers


def run(network: Network | None, rounds: int = 6, **options: Any) -> dm.Run:
    measured = dm.Metrics(every=1, callback=options.pop("callback", None))
    options = {"rounds": rounds, "key": KEY, "metrics": measured, **options}
    algorithm = options.pop("algorithm", dm.OnlineLearning(epsilon=2.0))
    ring = options.pop("topology", topology.ring(4))
    problem = replace(make_problem(4, rounds), feature_norm=10.0)
    return dm.simulate(algorithm, problem, ring, engine=network, **options)


def gossip(network: Network, base: Any) -> FailingGossip:
    return FailingGossip(base, Conditions(network, base.nodes, KEY))


def carried(carrier: FailingGossip, t: int, values: Any) -> Released:
    return carrier.carry(t, Packet(Released(values)))


failures = st.builds(
    Network,
    loss=st.sampled_from([0.0, 0.1, 0.6]),
    attempts=st.integers(1, 3),
    offline=st.sampled_from([0.0, 0.3]),
    outage_rounds=st.integers(1, 7),
    late_fraction=st.sampled_from([0.0, 0.5]),
    late_rounds=st.integers(1, 20),
)


@given(failures, st.integers(0, 40))
def test_what_arrives_is_doubly_stochastic_and_symmetric(network: Network, round: int) -> None:
    weights = gossip(network, topology.torus(3, 4)).links(round).matrix.weights.toarray()
    np.testing.assert_allclose(weights.sum(axis=0), 1, atol=1e-12)
    np.testing.assert_allclose(weights, weights.T, atol=1e-12)
    assert (weights >= 0).all()


@pytest.mark.parametrize(
    "network",
    [
        Network(loss=0.4),
        Network(offline=0.3, outage_rounds=5),
        Network(late_fraction=0.5, late_rounds=20),
        Network(latency=0.1, loss=0.3, attempts=2, offline=0.1, late_fraction=0.3, late_rounds=9),
    ],
)
def test_consensus_still_reaches_the_mean(network: Network) -> None:
    x = np.random.default_rng(0).normal(size=(12, 3))
    carrier, now = gossip(network, topology.torus(3, 4)), Released(x)
    for t in range(250):
        now = carried(carrier, t, now)
    np.testing.assert_allclose(now, np.broadcast_to(x.mean(axis=0), x.shape), atol=1e-6)


def test_late_messages_lead_to_consensus_among_the_values_that_were_there() -> None:
    x = np.random.default_rng(0).normal(size=(12, 3))
    carrier, now = gossip(Network(max_delay=3), topology.torus(3, 4)), Released(x)
    for t in range(200):
        now = carried(carrier, t, now)
    assert np.ptp(now, axis=0).max() < 1e-9
    assert (now >= x.min(axis=0)).all()
    assert (now <= x.max(axis=0)).all()


@pytest.mark.parametrize(
    "network", [Network(max_delay=2, loss=0.2), Network(min_delay=2, max_delay=2)]
)
def test_late_messages_are_the_old_values(network: Network) -> None:
    """A round-by-round loop that keeps all messages is the oracle."""
    rng, carrier, sent = np.random.default_rng(1), gossip(network, topology.ring(5)), []
    for t in range(12):
        sent.append(rng.normal(size=(5, 2)))
        got = carried(carrier, t, sent[t])
        links = carrier.links(t)
        weights = links.matrix.weights.toarray()
        expected = np.diag(weights)[:, None] * sent[t]
        for j, i, used, late in zip(
            links.senders, links.receivers, links.carried, links.delays, strict=True
        ):
            assert min(network.min_delay, t) <= late <= min(2, t)
            if used:
                expected[i] += weights[i, j] * sent[t - late][j]
        np.testing.assert_allclose(got, expected, atol=1e-12)


@pytest.mark.parametrize("every", [1, 3])
def test_late_messages_are_of_their_own_kind(every: int) -> None:
    """An algorithm may send twice in a round, and not in each: ones stay ones, twos twos."""
    carrier = gossip(Network(max_delay=2), topology.ring(5))
    ones, twos = (Released(np.full((5, dim), float(dim))) for dim in (1, 2))
    for t in range(every, 12, every):
        np.testing.assert_allclose(carried(carrier, t, ones), ones)
        np.testing.assert_allclose(carried(carrier, t, twos), twos)


def test_the_ledger_and_the_report_do_not_depend_on_the_network() -> None:
    network = Network(loss=0.4, offline=0.2, late_fraction=0.5, late_rounds=3, max_delay=2)
    failing, ideal = run(network), run(None)
    assert failing.ledger == ideal.ledger == dm.OnlineLearning(epsilon=2.0).plan(6)
    assert failing.privacy == ideal.privacy
    assert failing.parameters.tobytes() != ideal.parameters.tobytes()


def test_what_is_sent_again_is_the_same_value() -> None:
    """With enough attempts all messages arrive: the bits of a run without loss, at more cost."""
    again, ideal = run(Network(loss=0.5, attempts=1000)), run(None)
    assert again.parameters.tobytes() == ideal.parameters.tobytes()
    assert again.ledger == ideal.ledger
    assert again.traffic.messages > 1.3 * ideal.traffic.messages
    assert again.traffic.bits == again.traffic.messages * BITS


def test_loss_is_as_frequent_as_said() -> None:
    """False alarm below 1e-6 (5 standard deviations); a loss of 0.35 in place of 0.3 is noticed."""
    rounds, base = 200, topology.torus(10, 10)
    carrier = gossip(Network(loss=0.3), base)
    used = np.concatenate([carrier.links(t).carried[:200] for t in range(rounds)])
    deviation = 5 * np.sqrt(0.49 * 0.51 / used.size)
    assert abs(used.mean() - 0.7**2) < deviation
    assert abs(0.65**2 - 0.7**2) > 2 * deviation


def test_nodes_are_away_in_stretches_and_come_back() -> None:
    nodes, rounds, length = 300, 240, 8
    network = Network(offline=0.25, outage_rounds=length, late_fraction=0.5, late_rounds=40)
    conditions = Conditions(network, nodes, KEY)
    present = np.array([conditions.present(t) for t in range(rounds)])
    joined = present.argmax(axis=0)
    assert (present[0] <= (conditions._joins == 0)).all()
    assert joined.max() + length > 40
    later = present[60:]
    deviation = 5 * np.sqrt(0.25 * 0.75 / (nodes * len(later) / length))
    assert abs(1 - later.mean() - 0.25) < deviation  # false alarm below 1e-6
    changes = (later[1:] != later[:-1]).mean()
    assert abs(changes - 2 * 0.25 * 0.75 / length) < deviation
    phases = {tuple(np.flatnonzero(column[1:] != column[:-1]) % length) for column in later.T}
    assert len(phases) > length  # not all at once


def test_a_node_alone_keeps_its_own_value() -> None:
    network = Network(late_fraction=1.0, late_rounds=1)  # all join in round 1
    x = Released(np.random.default_rng(0).normal(size=(4, 2)))
    carrier = gossip(network, topology.ring(4))
    assert carried(carrier, 0, x).tobytes() == x.tobytes()
    assert carrier.traffic(0, SentInRound(BITS, 1)).messages == 0
    assert carried(carrier, 1, x).tobytes() != x.tobytes()


def test_nobody_waits_for_others_in_a_round_in_which_nothing_travels() -> None:
    carrier = gossip(Network(latency=1.0, compute=2.0), topology.ring(5))
    for t in range(6):
        sent = SentInRound(bits=64, messages=1) if t % 3 == 0 else SentInRound()
        traffic = carrier.traffic(t, sent)
        assert (traffic.messages > 0) == (t % 3 == 0)
    assert carrier.seconds == pytest.approx(6 * 2.0 + 2 * 1.0)


def test_time_passes_node_by_node() -> None:
    """On a path one slow node delays its neighbours first, and others a round later."""
    path = topology.from_networkx(nx.path_graph(4))
    carrier = gossip(Network(latency=1.0, bandwidth=100.0, compute=2.0), path)
    carrier._conditions._slowness[0] = 10.0
    clock = np.zeros(4)
    for t in range(5):
        carried(carrier, t, np.zeros((4, 1)))
        carrier.traffic(t, SentInRound(np.array([100, 100, 100, 300]), 1))
        ready = clock + np.array([20, 2, 2, 2])
        transfer = [2.0, 2.0, 2.0, 4.0]
        clock = np.array(
            [
                max(ready[j] + (transfer[j] if i != j else 0) for j in range(4) if abs(i - j) < 2)
                for i in range(4)
            ]
        )
        np.testing.assert_allclose(carrier._clock, clock)
    assert carrier.seconds == clock.max()


def test_a_message_that_is_sent_again_takes_as_long_again() -> None:
    carrier = gossip(Network(latency=1.0, loss=0.5, attempts=3), topology.complete(2))
    carried(carrier, 0, np.zeros((2, 1)))
    links = carrier.links(0)
    carrier.traffic(0, SentInRound(BITS, 1))
    arrived = links.tries[links.carried]
    assert carrier.seconds == (arrived.max() if len(arrived) else 0)


def test_who_is_away_sends_nothing_and_hears_nothing() -> None:
    carrier = gossip(Network(offline=0.5, attempts=3), topology.complete(8))
    present = carrier._conditions.present(0)
    assert 0 < present.sum() < 8
    links = carrier.links(0)
    sends, hears = present[links.senders], present[links.receivers]
    np.testing.assert_array_equal(links.tries, np.where(sends, np.where(hears, 1, 3), 0))
    np.testing.assert_array_equal(links.carried, sends & hears)


def test_time_to_accuracy_is_in_the_history() -> None:
    result = run(Network(latency=0.1, bandwidth=1000.0, compute=Exponential(0.5)))
    seconds = result.history["seconds"]
    assert (np.diff(seconds) > 0.1 + BITS / 1000).all()
    assert result.history.first("accuracy", 0.0, of="seconds") == seconds[0]
    assert "seconds" not in run(None).history.metrics
    assert run(None).parameters.tobytes() == result.parameters.tobytes()


def test_a_server_waits_for_its_slowest_client() -> None:
    network = Network(latency=1.0, bandwidth=100.0, compute=3.0)
    carrier = TimedServer(Conditions(network, 10, KEY))
    assert carrier.traffic(0, SentInRound(8 * 200, 8)).messages == 8
    assert carrier.seconds == 3.0 + 2 * (1.0 + 2.0)
    carrier._conditions._slowness[:] = 10.0
    carrier.traffic(1, SentInRound(8 * 200, 8))
    assert carrier.seconds == 9.0 + 30.0 + 6.0
    assert carrier.traffic(2, SentInRound()) == dm.run.Traffic(0, 0)


def test_a_token_travels_while_all_compute() -> None:
    """A loop over the holders is the oracle."""
    network = Network(latency=Exponential(1.0), bandwidth=100.0, compute=Exponential(3.0), loss=0.2)
    conditions = Conditions(network, 10, KEY)
    carrier = TimedToken(conditions)
    token, clock = 0.0, np.zeros(10)
    for t, sent in enumerate([4, 0, 10, 1, 7]):
        traffic = carrier.traffic(t, SentInRound(200 * sent, sent))
        holders, tries = conditions.some_nodes(t, sent), conditions.attempts(t, sent)
        times = tries * conditions.transfer(t, holders, 200)
        clock = clock + conditions.compute(t)
        for holder, time in zip(holders, times, strict=True):
            token = clock[holder] = max(token, clock[holder]) + time
        assert traffic == dm.run.Traffic(tries.sum(), 200 * tries.sum())
        np.testing.assert_allclose(carrier._clock, clock)
        assert carrier.seconds == pytest.approx(max(token, clock.max()))
    carrier.traffic(5, SentInRound(25 * 200, 25))  # more messages than nodes


def test_a_server_sends_again_until_it_arrives() -> None:
    algorithm = dm.FederatedLearning(
        dm.ClientUpdates(clients=4, sampling_rate=0.5, clipping_norm=1.0, epochs=1),
        noise_multiplier=1.0,
    )
    options: dict[str, Any] = {"algorithm": algorithm, "topology": None, "rounds": 20}
    failing = run(Network(loss=0.5, latency=LogNormal(median=0.1, sigma=1.0)), **options)
    ideal = run(None, **options)
    assert failing.parameters.tobytes() == ideal.parameters.tobytes()
    assert failing.ledger == ideal.ledger
    assert failing.traffic.messages > 1.3 * ideal.traffic.messages
    for refused, reported in (
        (Network(offline=0.1), "got offline=0.1"),
        (Network(late_fraction=0.2, max_delay=1), "got late_fraction=0.2, max_delay=1"),
    ):
        with pytest.raises(ValueError, match=f"a server waits for all nodes, {reported}$"):
            run(refused, **options)


@given(least=st.integers(0, 3), more=st.integers(0, 3), round=st.integers(0, 20))
def test_delays_keep_to_their_bounds(least: int, more: int, round: int) -> None:
    network = Network(min_delay=least, max_delay=least + more)
    delays = Conditions(network, 4, KEY).delays(round, 500)
    assert delays.max() <= least + more
    assert delays.max() <= round
    assert delays.min() == min(least, round)  # missed by chance with (3/4)^500


@pytest.mark.parametrize("communication", ["server", "token"])
def test_time_goes_on_where_it_stopped(communication: str, tmp_path) -> None:
    algorithm: Any = dm.FederatedLearning(
        dm.ClientUpdates(clients=4, sampling_rate=0.5, clipping_norm=1.0, epochs=1),
        noise_multiplier=1.0,
    )
    if communication == "token":
        algorithm = WithoutReplacement(epsilon=None, batch_size=1)
    options: dict[str, Any] = {"algorithm": algorithm, "topology": None, "rounds": 6}
    network, path = Network(latency=Exponential(0.1), compute=0.2, loss=0.1), tmp_path / "run"

    def stop(t: int, values: Any) -> None:
        if t == 4:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(network, checkpoint=dm.Checkpoint(path, every=1), callback=stop, **options)
    assert_same(run(network, checkpoint=path, **options), run(network, **options))


@pytest.mark.parametrize("max_delay", [0, 3])
def test_a_failing_run_resumes_to_the_same_bits(max_delay: int, tmp_path) -> None:
    network = Network(
        latency=0.1,
        bandwidth=1e3,
        compute=Uniform(low=0.1, high=0.2),
        loss=0.3,
        offline=0.3,
        max_delay=max_delay,
    )
    path = tmp_path / "run"

    def stop(t: int, values: Any) -> None:
        if t == 4:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(network, 9, checkpoint=dm.Checkpoint(path, every=1), callback=stop)
    assert_same(run(network, 9, checkpoint=path), run(network, 9))
    with pytest.raises(ValueError, match="network: wanted Network"):
        run(None, 9, checkpoint=path)


@pytest.mark.parametrize(
    ("law", "mean", "deviation"),
    [
        (Exponential(2.0), 2.0, 2.0),
        (Uniform(low=1.0, high=3.0), 2.0, 12**-0.5 * 2),
        (
            LogNormal(median=2.0, sigma=0.5),
            2 * np.exp(0.125),
            2 * np.exp(0.125) * np.sqrt(np.exp(0.25) - 1),
        ),
    ],
)
def test_draws_have_their_mean(law: Any, mean: float, deviation: float) -> None:
    """False alarm below 1e-6; a mean that is off by 5 percent is noticed."""
    conditions = Conditions(Network(compute=law), 100_000, KEY)
    error = 5 * deviation / np.sqrt(100_000)
    assert abs(conditions.compute(3).mean() - mean) < error < 0.02 * mean
    assert (conditions.compute(3) == conditions.compute(3)).all()
    assert (conditions.compute(3) != conditions.compute(4)).all()


def test_stragglers_are_the_same_in_every_round() -> None:
    network = Network(compute=1.0, straggler_fraction=0.3, straggler_slowdown=4.0)
    conditions = Conditions(network, 1000, KEY)
    assert set(conditions.compute(0)) == {1.0, 4.0}
    np.testing.assert_array_equal(conditions.compute(0), conditions.compute(7))
    assert abs((conditions.compute(0) > 1).mean() - 0.3) < 5 * np.sqrt(0.21 / 1000)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Network(straggler_slowdown=0.5), "straggler_slowdown: wanted at least 1, got 0.5"),
        (lambda: Uniform(low=2.0, high=1.0), r"high: wanted at least low = 2\.0, got 1\.0"),
    ],
)
def test_bad_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_matrix_that_is_not_symmetric_cannot_lose_links() -> None:
    turn = topology.cycle([dm.topology.MixingMatrix(np.roll(np.eye(4), 1, axis=0))])
    with pytest.raises(ValueError, match="weights: wanted a symmetric matrix"):
        run(Network(loss=0.1), topology=turn)
