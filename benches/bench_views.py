"""The search for the least certificate of a view: one pair of nodes, and the worst of all pairs."""

from __future__ import annotations

from collections.abc import Iterator

import networkx
import numpy as np

import dpmesh as dm
from benches.measure import THREADS, Case
from dpmesh._core import ViewSystem
from dpmesh.kernels import views

KEY = dm.Key.seeded(1)


def system_of(topology: dm.topology.Topology, rounds: int) -> ViewSystem:
    """A record that moves each state but the first by the noise's standard deviation."""
    mixings = [views.Mixing(t, t, topology.matrix(t).weights) for t in range(rounds)]
    moves = np.ones(rounds)
    moves[0] = 0
    return views.view_system(mixings, noise=np.ones(rounds), fresh=moves, nodes=topology.nodes)


def one_pair(name: str, topology: dm.topology.Topology, rounds: int, most: float) -> Case:
    system, nodes = system_of(topology, rounds), topology.nodes
    distances = networkx.single_source_shortest_path_length(
        networkx.from_scipy_sparse_array(topology.matrix(0).weights), 0
    )
    target = next((node for node, steps in distances.items() if steps == 2), nodes // 2)
    return Case(
        f"one pair, {name}, n = {nodes}, T = {rounds}, gap 1%",
        lambda: views.solve_pair(system, [0], target, gap=0.01),
        most=most,
        rounds=3,
    )


def worst(nodes: int, rounds: int, most: float) -> Case:
    system = system_of(dm.topology.meetings(nodes, key=KEY), rounds)
    observers = [(node,) for node in range(nodes)]
    pairs = views.all_pairs(observers, nodes)
    return Case(
        f"worst pair, meetings, n = {nodes}, T = {rounds}, gap 1%",
        lambda: views.worst_pair(system, observers, pairs, nodes * rounds, gap=0.01),
        most=most,
        rounds=1,
    )


def cases() -> Iterator[Case]:
    regular = dm.topology.random_regular(nodes=1000, degree=4, key=KEY)
    yield one_pair("4-regular", regular, 1000, 10.0)
    yield one_pair("meetings", dm.topology.meetings(64, key=KEY), 100, 0.1)
    yield worst(64, 100, 3.0)
    if THREADS > 1:
        yield worst(256, 200, 60.0)
