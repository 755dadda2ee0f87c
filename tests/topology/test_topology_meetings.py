"""Round-robin meetings, one-peer exponential graphs, and the search for the best schedule."""

from __future__ import annotations

import numpy as np
import pytest

from dpmesh import Key
from dpmesh.topology import best_schedule, meetings, one_peer_exponential, ring

KEY = Key.seeded(7)


@pytest.mark.parametrize("nodes", [2, 3, 6, 9, 16])
def test_each_pair_meets_once_in_a_cycle(nodes: int) -> None:
    length = nodes - 1 + nodes % 2
    schedule = meetings(nodes, key=KEY)
    for first in (0, length):
        met = sum(schedule.matrix(first + t).weights.toarray() > 0 for t in range(length))
        off_diagonal = ~np.eye(nodes, dtype=bool)
        np.testing.assert_array_equal(np.asarray(met)[off_diagonal], 1)


def test_each_round_pairs_all_nodes_or_all_but_one() -> None:
    for nodes in (6, 7):
        for t in range(20):
            matrix = meetings(nodes, key=KEY).matrix(t)
            assert (matrix.degrees == 0).sum() == nodes % 2
            assert matrix.degrees.max() == 1
            assert matrix.is_symmetric


def test_the_order_depends_on_key_order_and_cycle_alone() -> None:
    def order(schedule: object, start: int) -> list[bytes]:
        return [
            schedule.matrix(t).weights.toarray().tobytes()  # type: ignore[attr-defined]
            for t in range(start, start + 15)
        ]

    first = order(meetings(16, key=KEY), 0)
    assert first == order(meetings(16, key=Key.seeded(7)), 0)
    others = [
        order(meetings(16, key=KEY), 15),
        order(meetings(16, key=KEY, order=1), 0),
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
    orders = [meetings(8, key=KEY, order=k) for k in range(3)]
    each = [best_schedule([schedule], 12).share for schedule in orders]
    best = best_schedule([*orders, ring(8)], 12)
    assert best.share == min(each)
    assert best.schedule is orders[int(np.argmin(each))]
    assert best_schedule([ring(8)], 12).share == pytest.approx(1.0)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="nodes"):
        meetings(1, key=KEY)
    with pytest.raises(ValueError, match="key"):
        meetings(4, key=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="schedules"):
        best_schedule([], 10)
    with pytest.raises(ValueError, match="rounds"):
        best_schedule([ring(4)], 1)
