"""Audits of sums over neighbours: what the code releases, given equal sums; planted mistakes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import dpmesh as dm
from dpmesh import kernels, topology
from dpmesh._privacy_types import Released, Sensitive
from dpmesh.algorithms.secure_gossip import SecureGossipState
from dpmesh.audit import alone, couple
from dpmesh.audit.claims import GaussianClaim
from dpmesh.audit.statistics import best_threshold, count, lower_bound
from dpmesh.keys import Key
from dpmesh.noise.secure import DistributedDiscreteGaussian, NeighborSums
from dpmesh.privacy import Release

GRAPHS = [(topology.complete(5), 1), (topology.ring(5), 0), (topology.complete(4), 0)]
STEEP = 1e4


def neighbours(graph: Any, *, dim: int = 64) -> tuple[dm.LinearProblem, dm.LinearProblem]:
    """Two problems that differ in the label of the first record of node 0.

    All others balance each other at the start, where their losses have a kink: at a point that one
    record moved, only half of them have a gradient, and at one that it moved the other way only the
    other half.
    """
    n, records = graph.nodes, 41
    features = np.zeros((n, records, dim))
    features[:, :, 0] = STEEP
    features[1:, 0] = 0
    labels = np.ones((n, records))
    labels[:, 1:] = np.where(np.arange(records - 1) % 2, -1.0, 1.0)
    data = []
    for label in (1.0, -1.0):
        labels[0, 0] = label
        train = dm.Dataset(features.reshape(-1, dim).copy(), labels.ravel().copy())
        parts = tuple(np.arange(n * records).reshape(n, records))
        data.append(dm.LinearProblem(train, parts, "logistic"))
    return data[0], data[1]


def gossip(kind: Any, graph: Any, colluding: int, problem: dm.LinearProblem) -> Any:
    return kind(
        topology=graph,
        dim=problem.dim,
        records=int(problem.records.sum()),
        noise_multiplier=0.2,
        step_size=4.0,
        colluding=colluding,
    )


@pytest.mark.parametrize(("graph", "colluding"), GRAPHS)
def test_no_violation_is_found_over_two_rounds(graph: Any, colluding: int) -> None:
    problem, neighbor = neighbours(graph)
    algorithm = gossip(dm.SecureGossip, graph, colluding, problem)
    found = couple(algorithm, problem, neighbor, alone, rounds=2, key=Key.seeded(1))
    assert not found.violated, str(found)
    distances = [movement.distance / movement.allowed for movement in found.movements]
    assert distances[0] > 0.98  # the audit sees nearly all that is allowed
    assert distances[1] > 0.49  # and half of it where the loss is flat on one side


@dataclass(frozen=True)
class WithOwn:
    """The points, and what nodes computed by themselves, which has no noise."""

    p: Released
    x: Sensitive


class CarriesItsOwn(dm.SecureGossip):
    """Planted (table 0, row 11): a node mixes what it computed itself, as gossip does."""

    def init(self, problem: Any, key: Key) -> Any:
        start = super().init(problem, key)
        return WithOwn(start.p, Sensitive(start.p))

    def round(self, state: Any, t: int, problem: Any, key: Key) -> Any:
        request = super().round(SecureGossipState(state.p), t, problem, key)
        message = next(request)
        sums = yield message
        weight = self.topology.mixing_matrix.edge_weights[0]
        own = self.topology.mixing_matrix.weights.diagonal()[:, np.newaxis]
        x = Sensitive(message.values / weight)
        return WithOwn(Released(sums + own * x), x)


@pytest.mark.parametrize(("graph", "colluding"), GRAPHS)
def test_a_nodes_own_part_that_is_carried_along_is_caught(graph: Any, colluding: int) -> None:
    """The second round moves further than its noise covers, given equal sums; one round does not.

    What may be published, the points, depends on data beyond sums, too.
    """
    problem, neighbor = neighbours(graph)
    algorithm = gossip(CarriesItsOwn, graph, colluding, problem)
    found = couple(algorithm, problem, neighbor, alone, rounds=2, key=Key.seeded(1))
    first, second = (movement.distance / movement.allowed for movement in found.movements)
    assert first <= 1 < 10 < second
    assert any(fault.startswith("round 1: moved by") for fault in found.faults)
    assert any("all releases together" in fault for fault in found.faults)
    assert "what round 0 published depends on data beyond its releases" in found.faults


class OneForAll(NeighborSums):
    """Planted: neighbour j adds the same share to all sums that it is part of."""

    def noise(self, receiver: int, senders: Any, stream: Any) -> Any:
        shape, nodes = (len(senders), self.dim), senders.astype(np.uint32)
        return kernels.discrete_gaussian(shape, self.smallest_share, stream, nodes=nodes)


class WithOneForAll(dm.SecureGossip):
    def release_of(self, t: int) -> Release:
        sums = super().sums(t)
        public = {name: getattr(sums, name) for name in sums.__dataclass_fields__}
        return Release(t, DistributedDiscreteGaussian(OneForAll(**public)), self.sensitivity(t))


@pytest.mark.parametrize(("graph", "colluding"), GRAPHS)
def test_one_noise_for_all_receivers_is_caught(graph: Any, colluding: int) -> None:
    problem, neighbor = neighbours(graph)
    algorithm = gossip(WithOneForAll, graph, colluding, problem)
    found = couple(algorithm, problem, neighbor, alone, rounds=2, key=Key.seeded(1))
    assert [fault for fault in found.faults if "correlated" in fault]


def summed(sums: NeighborSums, values: Sensitive, stream: Any) -> Any:
    """The totals of all nodes, in steps of the grid."""
    mechanism = DistributedDiscreteGaussian(sums)
    return mechanism.part(values, np.arange(len(values)), stream).totals()


RUNS = 20_000


def seen(sums: NeighborSums, seed: int, moved: bool) -> np.ndarray:
    """Score `RUNS` independent runs, one in each coordinate, from the seat of the coalition.

    It sees all sums of a complete graph, and subtracts the shares of the first `colluding`
    nodes other than the target, node 0; the target's integer moves by an equal part of Delta.
    """
    n, stream = len(sums.neighbors), Key.seeded(seed).stream(dm.keys.Purpose.NOISE, 0)
    noisy = summed(sums, Sensitive(np.zeros((n, sums.dim))), stream)
    move = sums.sensitivity / np.sqrt(n - 1)  # in each of the n - 1 sums
    score = np.zeros(sums.dim)
    for v in range(1, n):
        known = [j for j in range(n) if j not in (0, v)][: sums.colluding]
        rows = np.array([v * n + j for j in known], np.uint32)
        shape = len(known), sums.dim
        shares = kernels.discrete_gaussian(shape, sums.share(n - 1), stream, nodes=rows)
        score += noisy[v] - shares.sum(axis=0) + moved * move
    return score


class ForgetsThoseWhoCollude(NeighborSums):
    """Planted: shares as if nobody colluded."""

    def share(self, neighbors: int) -> float:
        return super().share(neighbors) * np.sqrt((neighbors - self.colluding) / neighbors)


@pytest.mark.parametrize(
    ("kind", "caught"), [(NeighborSums, False), (ForgetsThoseWhoCollude, True)]
)
def test_from_the_seat_of_a_coalition_that_sees_all_sums(kind: Any, caught: bool) -> None:
    """Four of six neighbours collude: true mu is sqrt(3) times the claim, if they are forgotten."""
    complete = tuple(tuple(j for j in range(7) if j != v) for v in range(7))
    sums = kind(dim=RUNS, neighbors=complete, noise_to_sensitivity=1.0, moves=1.0, colluding=4)
    claim = GaussianClaim(1.0)
    pilot, fresh = ([seen(sums, seed, moved) for moved in (True, False)] for seed in (1, 2))
    threshold = best_threshold(claim, *pilot)
    found = lower_bound(claim, count(threshold, *fresh))
    assert (found > claim.mu) == caught, found
    assert found > (1.5 if caught else 0.9)


def test_what_one_noise_for_all_receivers_opens() -> None:
    """On a complete graph the difference of two sums has the noise of two shares alone."""
    graph = topology.complete(12)
    problem, _ = neighbours(graph, dim=4_000)
    honest = gossip(dm.SecureGossip, graph, 1, problem).sums(0)
    public = {name: getattr(honest, name) for name in honest.__dataclass_fields__}
    zeros = Sensitive(np.zeros((12, 4_000)))
    stream = Key.seeded(0).stream(dm.keys.Purpose.NOISE, 0)
    spreads = []
    for sums in (honest, OneForAll(**public)):
        noise = summed(sums, zeros, stream)
        spreads.append(np.std(noise[0] - noise[1]) / honest.smallest_share)
    assert spreads[0] == pytest.approx(np.sqrt(22), rel=0.05)
    assert spreads[1] == pytest.approx(np.sqrt(2), rel=0.05)
