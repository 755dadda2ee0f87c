"""Static graphs and networks that change over time."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from dpmesh import Key, topology
from dpmesh.topology import (
    MixingMatrix,
    Static,
    Topology,
    best_schedule,
    meetings,
    one_peer_exponential,
    ring,
)

KEY, OTHER = Key.seeded(1), Key.seeded(2)
SIGMAS = 5.5  # of a statistical check: false alarm 4e-8 for a count, below 2e-6 for a test


def degrees(network: Topology, round: int = 0) -> list[int]:
    return sorted(network.matrix(round).degrees.tolist())


def dense(network: Topology, round: int = 0) -> np.ndarray:
    return network.matrix(round).weights.toarray()


@given(st.integers(1, 30), st.sampled_from(["metropolis", "max_degree"]))
def test_common_graphs(nodes: int, weights: topology.Weights) -> None:
    ring = topology.ring(nodes, weights=weights)
    assert degrees(ring) == [min(2, nodes - 1)] * nodes
    complete = topology.complete(nodes, weights=weights)
    np.testing.assert_allclose(dense(complete), np.full((nodes, nodes), 1 / nodes), rtol=1e-12)
    star = topology.star(nodes, weights=weights)
    assert degrees(star) == ([1] * (nodes - 1) + [nodes - 1] if nodes > 1 else [0])
    for network in (ring, complete, star):
        assert network.nodes == nodes
        assert network.matrix(0) is network.matrix(7)


def test_a_torus_links_each_node_to_the_four_beside_it() -> None:
    network = topology.torus(3, 5)
    assert network.nodes == 15
    np.testing.assert_array_equal(network.matrix(0).neighbours(0), [1, 4, 5, 10])
    np.testing.assert_array_equal(network.matrix(0).neighbours(7), [2, 6, 8, 12])
    assert degrees(topology.torus(1, 4)) == [2] * 4


@pytest.mark.parametrize(("nodes", "degree"), [(1, 0), (2, 1), (16, 4), (9, 8), (50, 3), (7, 2)])
def test_random_regular_graphs(nodes: int, degree: int) -> None:
    network = topology.random_regular(nodes, degree, key=KEY)
    assert degrees(network) == [degree] * nodes
    np.testing.assert_array_equal(
        dense(network), dense(topology.random_regular(nodes, degree, key=KEY))
    )


def test_random_graphs_follow_their_key() -> None:
    def draw(key: Key) -> list[np.ndarray]:
        return [
            dense(topology.random_regular(20, 4, key=key)),
            dense(topology.erdos_renyi(20, 0.4, key=key)),
        ]

    for one, same, other in zip(draw(KEY), draw(KEY), draw(OTHER), strict=True):
        np.testing.assert_array_equal(one, same)
        assert (one != other).any()


def test_erdos_renyi_has_the_expected_number_of_edges() -> None:
    nodes, p = 120, 0.3
    pairs = nodes * (nodes - 1) // 2
    edges = len(topology.erdos_renyi(nodes, p, key=KEY).matrix(0).edges)
    assert abs(edges - p * pairs) < SIGMAS * math.sqrt(p * (1 - p) * pairs)


def test_nodes_of_a_networkx_graph_come_in_the_order_asked_for() -> None:
    graph = nx.Graph([("north", "west"), ("south", "west")])
    network = topology.from_networkx(graph, nodelist=sorted(graph))
    np.testing.assert_array_equal(network.matrix(0).neighbours(2), [0, 1])
    backwards = topology.from_networkx(nx.path_graph(3), nodelist=np.array([2, 0, 1]))
    np.testing.assert_array_equal(backwards.matrix(0).neighbours(0), [2])


@pytest.mark.parametrize("nodelist", [[0, 1], [0, 1, 2, 2], [0, 1, 3], [0, 1, 2, 3], [[], 1, 2]])
def test_an_order_names_each_node_once(nodelist: list[int]) -> None:
    wanted = "nodelist: wanted each of the 3 nodes of the graph once, got"
    with pytest.raises(ValueError, match=wanted):
        topology.from_networkx(nx.path_graph(3), nodelist=nodelist)


def test_a_networkx_graph_keeps_its_order_of_nodes() -> None:
    graph = nx.Graph([("c", "a"), ("a", "b")])
    graph.add_edge("a", "a", weight=9)
    network = topology.from_networkx(graph, description="a path")
    np.testing.assert_array_equal(network.matrix(0).neighbours(1), [0, 2])  # "a" is the second
    assert str(network) == "a path (3 nodes)"
    parallel = nx.MultiGraph([(0, 1)] * 300)
    np.testing.assert_array_equal(dense(topology.from_networkx(parallel)), np.full((2, 2), 0.5))


SEQUENCES = {
    "matchings": lambda key: topology.random_matchings(9, key=key),
    "dropping": lambda key: topology.edge_dropping(topology.torus(3, 4), 0.5, key=key),
    "shuffled": lambda key: topology.shuffled(topology.ring(11), key=key),
    "nested": lambda key: topology.edge_dropping(
        topology.random_matchings(20, key=key), 0.7, key=key
    ),
}


@pytest.mark.parametrize("make", SEQUENCES.values(), ids=SEQUENCES.keys())
def test_a_round_depends_on_the_key_and_the_round_alone(make: object) -> None:
    network = make(KEY)  # type: ignore[operator]
    backwards = [dense(network, t) for t in reversed(range(20))][::-1]
    again = make(KEY)  # type: ignore[operator]
    for t, expected in enumerate(backwards):
        np.testing.assert_array_equal(dense(again, t), expected)
    assert any((dense(network, t) != backwards[0]).any() for t in range(1, 20))
    assert any((dense(make(OTHER), t) != backwards[t]).any() for t in range(20))  # type: ignore[operator]


@given(st.integers(2, 15), st.integers(0, 10**6))
def test_matchings_pair_the_nodes(nodes: int, round: int) -> None:
    matrix = topology.random_matchings(nodes, key=KEY).matrix(round)
    assert sorted(matrix.degrees.tolist()) == [0] * (nodes % 2) + [1] * (nodes - nodes % 2)
    twice = matrix.weights @ matrix.weights
    np.testing.assert_array_equal(twice.toarray(), matrix.weights.toarray())


def test_all_pairs_are_matched_equally_often() -> None:
    nodes, rounds = 6, 1000
    network = topology.random_matchings(nodes, key=KEY)
    met = sum((dense(network, t) > 0).astype(int) for t in range(rounds)) - rounds * np.eye(nodes)
    p = 1 / (nodes - 1)
    error = SIGMAS * math.sqrt(rounds * p * (1 - p))
    assert np.abs(met[np.triu_indices(nodes, 1)] - rounds * p).max() < error


def test_edges_are_kept_with_the_given_probability() -> None:
    rounds, keep = 500, 0.3
    base = topology.torus(3, 3)
    network = topology.edge_dropping(base, keep, key=KEY)
    up = sum((dense(network, t) > 0).astype(int) for t in range(rounds))[dense(base) > 0]
    up = up[up < rounds]  # without the diagonal
    assert len(up) == base.matrix(0).messages
    assert np.abs(up - rounds * keep).max() < SIGMAS * math.sqrt(rounds * keep * (1 - keep))
    np.testing.assert_array_equal(dense(topology.edge_dropping(base, 1.0, key=KEY), 5), dense(base))


def test_shuffling_keeps_the_graph_and_moves_the_nodes() -> None:
    base = topology.star(7)
    network = topology.shuffled(base, key=KEY)
    centres = [int(network.matrix(t).degrees.argmax()) for t in range(200)]
    assert set(centres) == set(range(7))
    spectra = [np.linalg.eigvalsh(dense(topology.shuffled(base, key=KEY), t)) for t in range(3)]
    for spectrum in spectra:
        np.testing.assert_allclose(spectrum, np.linalg.eigvalsh(dense(base)), atol=1e-12)


def test_a_cycle_repeats_its_matrices() -> None:
    a, b = topology.ring(4).matrix(0), MixingMatrix(np.eye(4))
    network = topology.cycle([a, b])
    assert [network.matrix(t) for t in range(4)] == [a, b, a, b]
    assert str(network) == "cycle of 2 graphs (4 nodes)"


@pytest.mark.parametrize("make", SEQUENCES.values(), ids=SEQUENCES.keys())
def test_gossip_reaches_the_mean(make: object) -> None:
    network = make(KEY)  # type: ignore[operator]
    x = np.arange(network.nodes, dtype=float)
    for t in range(400):
        x = network.matrix(t).weights @ x
    np.testing.assert_allclose(x, (network.nodes - 1) / 2, rtol=1e-6)


def test_descriptions_say_what_the_network_is() -> None:
    network = topology.edge_dropping(topology.random_regular(16, 4, key=KEY), 0.5, key=KEY)
    assert str(network) == ("random 4-regular graph (16 nodes), each link up with probability 0.5")
    assert str(topology.random_matchings(5, key=KEY)) == "random matchings of 5 nodes"
    assert repr(topology.random_matchings(5, key=KEY)) == (
        "Varying(nodes=5, description='random matchings of 5 nodes')"
    )
    assert str(topology.shuffled(topology.torus(2, 3), key=KEY)) == (
        "torus of 2 x 3 (6 nodes), shuffled each round"
    )


test_bad_input_is_named = refused(
    (lambda: topology.star(4, weights="equal"), "weights: .* got 'equal' for degrees from 1 to 3"),
    (lambda: topology.random_regular(5, 3, key=KEY), "degree: wanted an even number for 5 nodes"),
    (lambda: topology.random_regular(8, 1, key=KEY), "degree: .* connected graph .*, got 1"),
    (lambda: topology.erdos_renyi(99, 0.001, key=KEY), "edge_probability: .* got 0.001"),
    (lambda: topology.from_networkx(nx.DiGraph([(0, 1)])), "graph: .* undirected .* DiGraph"),
    (lambda: topology.from_networkx([(0, 1)]), "graph: wanted an undirected .* got list"),
    (lambda: topology.from_networkx(nx.Graph()), "graph: wanted at least 1 node, got none"),
    (
        lambda: topology.from_networkx(nx.empty_graph(3)),
        "graph: wanted a connected one, got Graph with 3 nodes and 0 edges in several",
    ),
    (lambda: Static(MixingMatrix(np.eye(2))), "mixing_matrix: wanted a connected graph"),
    (lambda: topology.edge_dropping(topology.ring(3), 0.0, key=KEY), r"keep: .* \(0, 1\], got 0"),
    (lambda: Static(np.eye(1)), "mixing_matrix: wanted a MixingMatrix, .*, got array"),
    (lambda: topology.edge_dropping("ring", 0.5, key=KEY), "base: wanted a network, .* 'ring'"),
    (lambda: topology.shuffled(np.eye(2), key=KEY), "base: wanted a network, .*, got array"),
    (
        lambda: topology.from_networkx(nx.path_graph(3), nodelist=3),
        "nodelist: wanted an order of the graph's nodes, .* got 3",
    ),
    (lambda: topology.Varying(np.nan, print, "x"), "nodes: wanted an integer .* 1, got nan"),
    (lambda: topology.Varying(4, np.eye(4), "x"), "draw: wanted a function of the round, got"),
    (lambda: topology.cycle([np.eye(2)]), "matrices: wanted mixing matrices, got array"),
    (lambda: topology.cycle([]), "matrices: wanted at least 1 mixing matrix, got none"),
    (
        lambda: topology.cycle([MixingMatrix(np.eye(2)), MixingMatrix(np.eye(3))]),
        r"matrices: wanted mixing matrices of the same number of nodes, got \[2, 3\]",
    ),
)


SCHEDULES = Key.seeded(7)


@pytest.mark.parametrize("nodes", [2, 3, 6, 9, 16])
def test_each_pair_meets_once_in_a_cycle(nodes: int) -> None:
    length = nodes - 1 + nodes % 2
    schedule = meetings(nodes, key=SCHEDULES)
    for first in (0, length):
        met = sum(schedule.matrix(first + t).weights.toarray() > 0 for t in range(length))
        off_diagonal = ~np.eye(nodes, dtype=bool)
        np.testing.assert_array_equal(np.asarray(met)[off_diagonal], 1)


def test_each_round_pairs_all_nodes_or_all_but_one() -> None:
    for nodes in (6, 7):
        for t in range(20):
            matrix = meetings(nodes, key=SCHEDULES).matrix(t)
            assert (matrix.degrees == 0).sum() == nodes % 2
            assert matrix.degrees.max() == 1
            assert matrix.is_symmetric


def test_the_order_depends_on_key_order_and_cycle_alone() -> None:
    def order(schedule: object, start: int) -> list[bytes]:
        return [
            schedule.matrix(t).weights.toarray().tobytes()  # type: ignore[attr-defined]
            for t in range(start, start + 15)
        ]

    first = order(meetings(16, key=SCHEDULES), 0)
    assert first == order(meetings(16, key=Key.seeded(7)), 0)
    others = [
        order(meetings(16, key=SCHEDULES), 15),
        order(meetings(16, key=SCHEDULES, order=1), 0),
        order(meetings(16, key=Key.seeded(8)), 0),
    ]
    for other in others:
        assert other != first
        assert sorted(other) == sorted(first)


def test_one_peer_exponential_graphs_reach_the_mean() -> None:
    schedule, product = one_peer_exponential(8), np.eye(8)
    for t in range(3):
        product = schedule.matrix(t).weights @ product
    np.testing.assert_allclose(product, 1 / 8)
    assert schedule.matrix(0).neighbours(7).tolist() == [0]
    assert (one_peer_exponential(6).matrix(2).degrees == 1).all()


def test_the_best_schedule_is_the_one_whose_worst_pair_learns_least() -> None:
    orders = [meetings(8, key=SCHEDULES, order=k) for k in range(3)]
    each = [best_schedule([schedule], 12).share for schedule in orders]
    best = best_schedule([*orders, ring(8)], 12)
    assert best.share == min(each)
    assert best.schedule is orders[int(np.argmin(each))]
    assert best_schedule([ring(8)], 12).share == pytest.approx(1.0)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="nodes"):
        meetings(1, key=SCHEDULES)
    with pytest.raises(ValueError, match="key"):
        meetings(4, key=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="schedules"):
        best_schedule([], 10)
    with pytest.raises(ValueError, match="rounds"):
        best_schedule([ring(4)], 1)
