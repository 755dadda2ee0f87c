"""Gossip by secure sums of neighbours: its twin, what a record moves, costs, refusals."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_round import one_round, watcher_of
from scipy import sparse
from twin_secure_gossip import secure_gossip

import dpmesh as dm
from dpmesh import kernels, topology
from dpmesh._privacy_types import Released
from dpmesh.accounting import gdp_epsilon
from dpmesh.algorithms.secure_gossip import SecureGossipState
from dpmesh.keys import Key, Purpose
from dpmesh.noise.secure import DistributedDiscreteGaussian, NeighborSums
from dpmesh.privacy import Plan

DELTA = 1e-5


def make_problem(
    counts: tuple[int, ...], dim: int, seed: int, *, length: float = 2.0, **options: Any
) -> dm.LinearProblem:
    rng = np.random.default_rng(seed)
    x = length * rng.normal(size=(sum(counts), dim))
    train = dm.Dataset(x, np.where(rng.random(len(x)) < 0.5, -1, 1), "synthetic")
    parts = tuple(np.split(rng.permutation(len(x)), np.cumsum(counts)[:-1]))
    return dm.LinearProblem(train, parts, "logistic", **options)


def gossip(graph: Any, problem: dm.LinearProblem, **changed: Any) -> dm.SecureGossip:
    public = {"dim": problem.dim, "records": int(problem.records.sum()), "noise_multiplier": 4.0}
    return dm.SecureGossip(topology=graph, **(public | changed))


def irregular(weights: Any = "max_degree") -> Any:
    """A ring of six, one of whose diagonals is a link."""
    import networkx

    graph = networkx.cycle_graph(6)
    graph.add_edge(0, 3)
    return topology.from_networkx(graph, weights=weights)


GRAPHS = [
    (topology.complete(4), 1),
    (topology.complete(5), 2),
    (topology.ring(5), 0),
    (topology.ring(4, weights="equal"), 0),
    (irregular(), 0),
    (topology.random_regular(8, 4, key=Key.seeded(0)), 2),
]


@settings(max_examples=25, deadline=None)
@given(
    of=st.sampled_from(GRAPHS),
    dim=st.integers(1, 5),
    rounds=st.integers(1, 4),
    multiplier=st.floats(0.1, 50),
    C=st.floats(0.1, 3),
    decay=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**32),
)
def test_equals_its_twin_with_masks(of, dim, rounds, multiplier, C, decay, seed) -> None:
    graph, colluding = of
    n, rng = graph.nodes, np.random.default_rng(seed)
    counts = tuple(rng.integers(1, 4, n).tolist())
    problem, key = make_problem(counts, dim, seed, regularization=decay), Key.seeded(seed)
    algorithm = gossip(
        graph,
        problem,
        noise_multiplier=2 * multiplier,
        step_size=dm.schedules.InverseSqrt(0.7),
        clipping_norm=C,
        colluding=colluding,
    )
    run = dm.simulate(algorithm, problem, rounds=rounds, key=key, delta=DELTA, metrics=[])

    def gradient_of(record: int):
        features, label = problem.train.features[record], problem.train.labels[record]
        return lambda w: -label * features / (1 + np.exp(label * (features @ w)))

    def noise(t: int, v: int, j: int) -> Any:
        sums, degree = algorithm.sums(t), int(graph.matrix(0).degrees[v])
        share = multiplier * sums.sensitivity / np.sqrt(degree - colluding)
        stream, row = key.stream(Purpose.NOISE, t), np.array([v * n + j], np.uint32)
        return kernels.discrete_gaussian((1, dim), share, stream, nodes=row)[0]

    points, _ = secure_gossip(
        graph.matrix(0).weights.toarray(),
        [[gradient_of(r) for r in part] for part in problem.partition],
        noise,
        rounds=rounds,
        p=np.zeros(dim),
        records=int(problem.records.sum()),
        alpha=algorithm.step_size,
        C=C,
        decay=decay,
        grid=lambda t: algorithm.sums(t).grid,
        masks=Random(seed),
    )
    np.testing.assert_allclose(run.parameters, points, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(run.released, run.parameters)
    assert run.ledger == algorithm.plan(rounds)
    links = int(graph.matrix(0).degrees.sum())
    assert run.traffic == dm.run.Traffic(rounds * links, rounds * links * 64 * dim)


@pytest.mark.parametrize(("graph", "colluding"), GRAPHS)
def test_the_mean_of_all_points_steps_along_the_pooled_gradient(graph, colluding) -> None:
    """Whatever the degrees: at one point, with noise and grid that hardly move it."""
    problem = make_problem(tuple(range(1, graph.nodes + 1)), 3, 5, regularization=0.2)
    algorithm = gossip(
        graph, problem, noise_multiplier=0.04, clipping_norm=0.5, step_size=0.3, colluding=colluding
    )
    start = algorithm.init(problem, Key.seeded(0))
    start = replace(start, p=start.p + np.array([0.5, -1.0, 2.0]))
    after = one_round(algorithm, start, 0, problem, Key.seeded(0)).state.p
    whole = np.array([0, problem.train.records]), np.concatenate(problem.partition)
    g = problem.gradient(start.p[:1], whole, clipping_norm=0.5)
    scale = algorithm.sums(0).sensitivity * algorithm.sums(0).grid
    np.testing.assert_allclose(
        after.mean(axis=0), (start.p[:1] - 0.3 * g)[0], atol=0.1 * scale, rtol=0
    )


@pytest.mark.parametrize(("graph", "colluding"), GRAPHS)
def test_a_record_moves_sums_of_its_neighbours_alone_and_by_no_more_than_stated(
    graph, colluding
) -> None:
    """All of a node's gradient is that of one record, which points the other way."""
    n = graph.nodes
    problem = make_problem((1,) * n, 4, 1, length=100.0)
    algorithm = gossip(graph, problem, clipping_norm=0.1, colluding=colluding)
    matrix, largest = graph.matrix(0), 0.0
    for node in range(n):
        flipped = problem.train.labels.copy()
        flipped[problem.partition[node]] *= -1
        other = replace(problem, train=dm.Dataset(problem.train.features, flipped))
        shown: list[Any] = []
        for data in (problem, other):
            start = algorithm.init(data, Key.seeded(0))
            one_round(algorithm, start, 0, data, Key.seeded(0), watcher=watcher_of(shown))
        moved = shown[1].inside - shown[0].inside
        of_sums = np.linalg.norm(moved) / algorithm.sums(0).grid
        assert of_sums <= algorithm.sums(0).sensitivity
        largest = max(largest, of_sums)
        assert {*np.flatnonzero(moved.any(axis=1))} == {*matrix.neighbours(node).tolist()}
    assert largest > 0.98 * algorithm.sums(0).sensitivity  # the bound is nearly reached


def test_rounding_of_a_node_that_is_many_steps_away_is_covered() -> None:
    """Every coordinate lies on either side of half a step, as far out as numbers are kept."""
    triangle = ((1, 2), (0, 2), (0, 1))
    public: dict[str, Any] = {"dim": 400, "neighbors": triangle, "moves": 1.0, "colluding": 0}
    sums = NeighborSums(noise_to_sensitivity=1.0, **public)
    grid, far, clear = sums.grid, 2.0**39, DistributedDiscreteGaussian(sums).prepared
    one, other = np.zeros((2, 3, 400))
    one[0], other[0] = (far + 0.5 - 2.0**-12) * grid, (far + 0.5 + 2.0**-12) * grid
    moved = np.linalg.norm(clear(one) - clear(other)) / grid
    before = np.sqrt(2) * np.linalg.norm(one - other) / grid
    assert moved > before + 0.99 * np.sqrt(800)
    assert moved <= before + sums.sensitivity - sums.moves / grid
    beyond = np.full((3, 400), 2.0**60 * grid)
    np.testing.assert_array_equal(clear(beyond), np.full((3, 400), 2.0**41 * grid))


def test_it_costs_little_more_than_one_gaussian_and_is_made_for_a_budget() -> None:
    problem = make_problem((20,) * 6, 30, 0)
    graph = topology.complete(6)
    algorithm = gossip(graph, problem, noise_multiplier=20.0)
    exact = gdp_epsilon(delta=DELTA, mu=4 / 10)
    cost = algorithm.plan(16).cost(DELTA)
    assert exact < cost.epsilon < 1.0001 * exact
    assert "sums of discrete Gaussian shares" in cost.accountant
    made = dm.SecureGossip.for_budget(
        epsilon=2.0, delta=DELTA, rounds=16, topology=graph, dim=30, records=120
    )
    assert 1.999 < made.plan(16).cost(DELTA).epsilon <= 2.0


def test_noise_is_what_colluding_neighbours_leave_of_it() -> None:
    """Each sum has the noise of all its neighbours' shares, independent of all other sums."""
    problem, graph = make_problem((1,) * 6, 4_000, 0), topology.complete(6)
    for colluding in (0, 1, 3):
        algorithm = gossip(graph, problem, colluding=colluding)
        shown: list[Any] = []
        start = algorithm.init(problem, Key.seeded(3))
        one_round(algorithm, start, 0, problem, Key.seeded(3), watcher=watcher_of(shown))
        noise = (shown[0].noisy - shown[0].inside) / shown[0].noise_scale
        assert noise.std() == pytest.approx(np.sqrt(5 / (5 - colluding)), rel=0.03)  # 6 deviations
        assert np.abs(np.corrcoef(noise) - np.eye(6)).max() < 0.1


def test_it_trains_float32_and_goes_on_from_a_checkpoint(tmp_path: Any) -> None:
    problem = make_problem((30,) * 5, 6, 0)
    train = dm.Dataset(problem.train.features.astype(np.float32), problem.train.labels)
    problem = replace(problem, train=train)
    algorithm = gossip(topology.complete(5), problem)
    arguments: dict[str, Any] = {"key": Key.seeded(1), "delta": DELTA, "metrics": ["loss"]}
    whole = dm.simulate(algorithm, problem, rounds=6, **arguments)

    def stop(t: int, values: Any) -> None:
        if t == 3:
            raise dm.StopRun

    path = tmp_path / "run"
    metrics = dm.Metrics(["loss"], every=1, callback=stop)
    arguments["checkpoint"] = path
    dm.simulate(algorithm, problem, rounds=6, **(arguments | {"metrics": metrics}))
    again = dm.simulate(
        algorithm, problem, rounds=6, **(arguments | {"metrics": dm.Metrics(["loss"], every=1)})
    )
    assert whole.parameters.dtype == np.float32
    np.testing.assert_array_equal(again.parameters, whole.parameters)
    assert Plan.from_dict(again.ledger.as_dict()) == algorithm.plan(6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"topology": topology.ring(6)}, "topology: wanted at least 3 neighbours .* node with 2"),
        ({"topology": topology.complete(6), "colluding": 4}, "at least 6 neighbours of each node"),
        ({"topology": irregular("metropolis")}, "topology: wanted one weight .*weights='max_degr"),
        ({"topology": topology.edge_dropping(topology.complete(6), 0.5, key=Key.seeded(0))},
         "topology: wanted a static network"),
        ({"noise_multiplier": 1e-6}, "noise_to_sensitivity: wanted shares of noise between 4 and"),
        ({"step_size": lambda t: 0.0}, "step_size: wanted a finite number greater than 0"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(changed: Any, message: str) -> None:
    public = {"topology": topology.complete(6), "dim": 3, "records": 60, "noise_multiplier": 2.0}
    with pytest.raises(ValueError, match=message):
        dm.SecureGossip(**(public | changed))


def test_more_nodes_or_neighbours_than_sums_are_exact_for_are_refused() -> None:
    public: dict[str, Any] = {"dim": 1, "noise_to_sensitivity": 1.0, "moves": 1.0}
    with pytest.raises(ValueError, match="nodes: wanted an integer"):
        NeighborSums(neighbors=((1, 2, 3),) * (2**16 + 1), **public)
    with pytest.raises(ValueError, match="topology: wanted at most 8192 neighbours"):
        NeighborSums(neighbors=(tuple(range(2**13 + 1)),), **public)


def test_links_that_do_not_go_both_ways_are_refused() -> None:
    """A weight too small to matter for a matrix would still enter its sum as a whole vector."""
    public: dict[str, Any] = {"dim": 1, "noise_to_sensitivity": 1.0, "moves": 1.0, "colluding": 0}
    for neighbors in [
        ((1, 2), (0, 2, 3), (0, 1, 3), (1, 0)),  # 3 hears 0, which does not hear 3
        ((0, 1, 2), (0, 2), (0, 1)),  # itself
        ((1, 1, 2), (0, 0, 2), (0, 1)),  # twice
        ((1, 2), (0, 2), (0, 3)),  # nobody
        ((1, 2), (0, 2), (0, -1)),
    ]:
        with pytest.raises(ValueError, match=r"topology: wanted links .* in both directions"):
            NeighborSums(neighbors=neighbors, **public)
    weights = topology.random_regular(40, 4, key=Key.seeded(1)).matrix(0).weights.toarray()
    weights[1:, 0] += 1e-11 * (weights[1:, 0] == 0)
    matrix = topology.Static(topology.MixingMatrix(sparse.csr_array(weights)))
    problem = make_problem((1,) * 40, 1, 0)
    with pytest.raises(ValueError, match="in both directions"):
        gossip(matrix, problem).plan(1)


def test_another_problem_a_network_and_a_topology_are_refused() -> None:
    problem = make_problem((2,) * 5, 3, 0)
    algorithm = gossip(topology.complete(5), problem)
    for other, message in [
        (make_problem((2,) * 4, 3, 0), "topology: wanted 4 nodes, as the problem has, got 5"),
        (make_problem((2,) * 5, 4, 0), r"problem: wanted a model of length 3 \(dim\), got 4"),
        (make_problem((3,) * 5, 3, 0), "problem: wanted at most 10 records of all nodes"),
    ]:
        with pytest.raises(ValueError, match=message):
            algorithm.init(other, Key.seeded(0))
    arguments: dict[str, Any] = {"rounds": 2, "key": Key.seeded(0), "delta": DELTA}
    with pytest.raises(ValueError, match="sends messages by sums and takes no topology"):
        dm.simulate(algorithm, problem, topology.complete(5), **arguments)
    with pytest.raises(ValueError, match="network: wanted None: a sum opens only if"):
        dm.simulate(algorithm, problem, engine=dm.Network(loss=0.1), **arguments)


def test_a_record_moves_sums_by_no_more_than_is_charged_at_any_point() -> None:
    """Whatever totals a lying router and a neighbour make a node believe."""
    algorithm = dm.SecureGossip(
        topology=dm.topology.complete(4), dim=5, records=40, noise_multiplier=18.0, step_size=2.0
    )
    numbers, rng, largest = algorithm.sums(0), np.random.default_rng(0), 0.0
    one = make_problem((10,) * 4, 5, 1)
    labels = np.where(np.arange(40) == 0, -1, 1) * one.train.labels
    other = dm.LinearProblem(dm.Dataset(one.train.features, labels), one.partition, "logistic")
    for size in (0.0, 1.0, 1e3, 2.0**39 * numbers.grid, 2.0**41 * numbers.grid, 1e20, 1e200):
        for _ in range(20):
            p = size * rng.normal(size=(4, 5))
            rounds = (
                algorithm.round(SecureGossipState(Released(p)), 0, each, dm.Key.seeded(0))
                for each in (one, other)
            )
            a, b = (numbers.steps_of(next(each).values) for each in rounds)
            moved = np.linalg.norm(a - b) * np.sqrt(numbers.sites)
            assert moved <= numbers.sensitivity
            largest = max(largest, moved / numbers.sensitivity)
    assert largest > 0.3
