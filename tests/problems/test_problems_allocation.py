"""The draw of each record's round: its distribution, its key, and that it stays secret."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from scipy import stats
from without_replacement_problems import make_problem

from dpmesh.algorithms.registry import REGISTRY
from dpmesh.deploy.exchange import RoundCoins
from dpmesh.keys import Key, Purpose

FALSE_ALARM = 1e-6
"""Of each statistical check, over the choice of the key; the key is fixed."""


def test_each_record_has_one_round_by_itself_and_all_rounds_the_same_chance() -> None:
    sizes = np.random.default_rng(0).integers(1, 90, size=400)
    problem, key, rounds = make_problem(sizes, 2), Key.seeded(5), 7
    batches = [problem.allocated(t, key, rounds=rounds) for t in range(rounds)]
    everything = np.concatenate([records for _, records in batches])
    np.testing.assert_array_equal(np.sort(everything), np.arange(sizes.sum()))
    owner = np.empty(sizes.sum(), np.int64)
    for node, part in enumerate(problem.partition):
        owner[part] = node
    for indptr, records in batches:
        np.testing.assert_array_equal(owner[records], np.repeat(np.arange(400), np.diff(indptr)))
    counts = np.array([np.diff(indptr) for indptr, _ in batches])
    expected = sizes / rounds
    chi = ((counts - expected) ** 2 / expected).sum()  # sizes of batches are multinomial
    assert FALSE_ALARM < stats.chi2.sf(chi, 6 * 400) < 1 - FALSE_ALARM
    assert stats.chisquare(counts.sum(axis=1)).pvalue > FALSE_ALARM
    time = np.empty(sizes.sum(), np.int64)
    for t, (_, records) in enumerate(batches):
        time[records] = t
    table = np.zeros((rounds, rounds))
    for part in problem.partition:  # neighbours in a node's order
        np.add.at(table, (time[part[:-1]], time[part[1:]]), 1)
    assert stats.chi2_contingency(table).pvalue > FALSE_ALARM


def test_the_draw_is_the_same_for_any_part_of_the_nodes_and_in_no_pickle() -> None:
    problem, key = make_problem([9, 20, 4, 13], 2), Key.seeded(1)
    whole = problem.allocated(2, key, rounds=5)
    part, own = problem.for_nodes([3, 1]), key.for_nodes(np.array([3, 1], np.uint32))
    indptr, records = part.allocated(2, own, rounds=5)
    for row, node in enumerate([3, 1]):
        first, last = whole[0][node : node + 2]
        np.testing.assert_array_equal(records[indptr[row] : indptr[row + 1]], whole[1][first:last])
    before = pickle.dumps(problem)
    other = problem.allocated(2, Key.seeded(2), rounds=5)
    assert pickle.dumps(problem) == before
    assert len(other[1]) != len(whole[1]) or (other[1] != whole[1]).any()
    np.testing.assert_array_equal(problem.allocated(2, key, rounds=5)[1], whole[1])
    with pytest.raises(ValueError, match=r"round: wanted an integer .* below 5, got 5"):
        problem.allocated(5, key, rounds=5)


def test_no_algorithm_shares_the_coins_of_the_draw() -> None:
    """Planted: an engine that draws rounds from its public key, or anew in every round."""
    assert not any(Purpose.ALLOCATION in entry.example.public_coins for entry in REGISTRY)
    problem, lasting, public = make_problem([40], 2), Key.seeded(1), Key.seeded(2)

    def drawn(own: Key, shared: frozenset[Purpose] = frozenset()) -> list[int]:
        coins: Any = RoundCoins(own, lasting, public, shared)
        return problem.allocated(0, coins, rounds=4)[1].tolist()

    secret = problem.allocated(0, lasting, rounds=4)[1].tolist()
    assert drawn(Key.seeded(3)) == drawn(Key.seeded(4), frozenset({*Purpose})) == secret
