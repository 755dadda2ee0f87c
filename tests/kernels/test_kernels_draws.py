"""Uniform and Bernoulli draws, samples and orders: their laws, addresses and errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from refused import refused
from scipy import stats

from dpmesh import kernels
from dpmesh.keys import Key, Purpose, Stream

FALSE_ALARM = 1e-6
"""Of each statistical check, over the choice of the key; the key is fixed."""


def stream() -> Stream:
    return Key.seeded(1).stream(Purpose.SAMPLE)


def shuffled(indptr: list[float], lengths: object, **options: object) -> np.ndarray:
    return kernels.shuffle((np.array(indptr), np.array([5, 6])), lengths, stream(), **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_uniform(dtype: type) -> None:
    draws = kernels.uniform(100_000, stream(), dtype=dtype)
    assert draws.dtype == dtype
    assert stats.kstest(draws, stats.uniform.cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("p", [0.0, 0.001, 0.3, 0.5])
def test_bernoulli(p: float) -> None:
    count = int(kernels.bernoulli(100_000, p, stream()).sum())
    assert stats.binomtest(count, 100_000, p).pvalue > FALSE_ALARM
    assert kernels.bernoulli(1000, 1.0, stream()).all()


@pytest.mark.parametrize(
    "draw",
    [
        lambda shape, **options: kernels.uniform(shape, stream(), **options),
        lambda shape, **options: kernels.bernoulli(shape, 0.5, stream(), **options),
    ],
)
def test_rows_are_those_of_their_nodes(draw: Callable[..., np.ndarray]) -> None:
    nodes = [9, 2, 5]
    rows = draw((3, 600), nodes=nodes)
    for node, row in zip(nodes, rows, strict=True):
        np.testing.assert_array_equal(draw(600, nodes=node), row)
    out = np.zeros_like(rows)
    assert draw((3, 600), nodes=nodes, out=out) is out
    np.testing.assert_array_equal(out, rows)
    with pytest.raises(ValueError, match="nodes: wanted distinct nodes, got 1 twice"):
        draw((2, 3), nodes=[1, 1])
    with pytest.raises(ValueError, match="shape: wanted an integer of at least 1, got 0"):
        draw((2, 0))
    with pytest.raises(ValueError, match="out: wanted an array of"):
        draw((2, 3), out=np.zeros((2, 2)))


def test_what_is_given_to_fill_says_the_type() -> None:
    out = np.zeros(9, np.float32)
    assert kernels.uniform(9, stream(), out=out) is out
    np.testing.assert_array_equal(out, kernels.uniform(9, stream(), dtype=np.float32))


@pytest.mark.parametrize("size", [1, 2, 40, 500])
def test_samples_are_the_places_of_the_smallest_uniform_numbers(size: int) -> None:
    counts, nodes = np.array([500, 513, 1500, 700, 501]), [4, 0, 2, 9, 7]
    found = kernels.sample(counts, size, stream(), nodes=nodes)
    for row, count, node in zip(found, counts, nodes, strict=True):
        coins = kernels.uniform(count, stream(), nodes=node)
        np.testing.assert_array_equal(row, np.sort(np.argsort(coins)[:size]))
    default = kernels.sample(counts, size, stream())
    np.testing.assert_array_equal(default, kernels.sample(counts, size, stream(), nodes=range(5)))


@pytest.mark.slow
def test_samples_of_very_many_numbers_are_found_in_little_memory() -> None:
    count = 2**20 + 5
    smallest = np.argsort(kernels.uniform(count, stream()), kind="stable")[:3]
    np.testing.assert_array_equal(kernels.sample([count], 3, stream())[0], np.sort(smallest))
    little = """
import resource
from dpmesh import kernels, keys

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, used + 2**29))
stream = keys.Key.seeded(1).stream(keys.Purpose.SAMPLE)
assert kernels.sample([2**27], 1, stream).item() < 2**27  # all of them would take 1 GiB
"""
    if sys.platform == "linux":
        subprocess.run([sys.executable, "-c", little], check=True)


def test_all_sets_are_equally_likely() -> None:
    rows = 20_000
    drawn = kernels.sample(np.full(rows, 5), 2, stream())
    assert (drawn[:, 0] < drawn[:, 1]).all()
    counts = np.unique(5 * drawn[:, 0] + drawn[:, 1], return_counts=True)[1]
    assert len(counts) == 10
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
    assert stats.chisquare(counts, rows / 10 * np.r_[1.1, 0.9, np.ones(8)]).pvalue < FALSE_ALARM


def test_orders_are_those_of_the_uniform_numbers_pass_by_pass() -> None:
    sizes, lengths, nodes = [7, 0, 1, 300, 5], [20, 0, 3, 700, 0], [4, 0, 2, 9, 7]
    indptr = np.concatenate(([0], np.cumsum(sizes)))
    values = 10 * np.arange(indptr[-1])
    expected = []
    for i in (0, 2, 3):
        coins = kernels.uniform(-(-lengths[i] // sizes[i]) * sizes[i], stream(), nodes=nodes[i])
        orders = coins.reshape(-1, sizes[i]).argsort(axis=1)
        expected.append(values[indptr[i] + orders].ravel()[: lengths[i]])
    found = kernels.shuffle((indptr, values), lengths, stream(), nodes=nodes)
    np.testing.assert_array_equal(found, np.concatenate(expected))
    default = kernels.shuffle((indptr, values), lengths, stream())
    same = kernels.shuffle((indptr, values), lengths, stream(), nodes=range(5))
    np.testing.assert_array_equal(default, same)


def test_all_orders_are_equally_likely() -> None:
    rows = 200_000
    indptr, values = 4 * np.arange(rows + 1), np.tile(np.arange(4), rows)
    passes = kernels.shuffle((indptr, values), np.full(rows, 8), stream()).reshape(-1, 2, 4)
    for orders in (passes[:, 0], passes[:, 1], passes[:, ::-1, ::2].reshape(-1, 4)[:, :2]):
        codes, counts = np.unique(orders @ 4 ** np.arange(orders.shape[1]), return_counts=True)
        assert len(codes) == (24 if orders.shape[1] == 4 else 12)
        assert stats.chisquare(counts).pvalue > FALSE_ALARM
        wrong = np.r_[1.1, 0.9, np.ones(len(codes) - 2)]
        assert stats.chisquare(counts, counts.mean() * wrong).pvalue < FALSE_ALARM


def test_integers_are_remainders_without_bias() -> None:
    counts, nodes = [3, 0, 700, 5000], [9, 2, 5, 4]
    drawn = kernels.integers(counts, 7, stream(), nodes=nodes)
    rows = np.split(drawn, np.cumsum(counts)[:-1])
    for node, count, row in zip(nodes, counts, rows, strict=True):
        if count:
            bits = (kernels.uniform((1, count), stream(), nodes=[node])[0] * 2**53).astype(int)
            np.testing.assert_array_equal(row, bits % 7)
    assert stats.chisquare(np.bincount(rows[3], minlength=7)).pvalue > FALSE_ALARM

    below, count = 2**52 + 1, 600  # nearly every other number is drawn again
    bits = (kernels.uniform(count * 40, stream()) * 2**53).astype(int).reshape(40, count)
    first = (bits < below).argmax(axis=0)
    assert first.max() > 4
    expected = bits[first, np.arange(count)]
    np.testing.assert_array_equal(kernels.integers([count], below, stream()), expected)
    assert not kernels.integers([50], 1, stream()).any()


def test_batches_end_with_their_pass() -> None:
    sizes, batches, batch_size = [7, 0, 1, 4, 6], [5, 0, 2, 1, 3], 3
    expected = [0]
    for size, count in zip(sizes, batches, strict=True):
        in_pass = [min(batch_size, size - first) for first in range(0, size, batch_size)]
        expected += (in_pass * count)[:count]
    found = kernels.batch_ends(sizes, batches, batch_size)
    np.testing.assert_array_equal(found, np.cumsum(expected))
    np.testing.assert_array_equal(kernels.batch_ends([5], [3], 2**63 - 1), [0, 5, 10, 15])
    empty = np.empty(0, np.int64)
    np.testing.assert_array_equal(kernels.batch_ends(empty, empty, 1), [0])


test_bad_input_is_named = refused(
    (lambda: kernels.uniform(3, stream(), dtype=int), "dtype: wanted float32 or float64"),
    (lambda: kernels.uniform(3, stream(), dtype="x"), "dtype: wanted a type of numpy's, got 'x'"),
    (lambda: kernels.sample([3, 2], 3, stream()), "counts: wanted at least 3, the size of a"),
    (lambda: kernels.sample([-1], 1, stream()), "counts: wanted at least 1, the size .* -1"),
    (lambda: kernels.sample([[3]], 1, stream()), "counts: wanted 1 axes, got shape"),
    (lambda: kernels.sample([3.0], 1, stream()), "counts: wanted an array of int8"),
    (lambda: kernels.integers([-1], 3, stream()), "counts: wanted integers of at least 0"),
    (lambda: kernels.integers([1, 2], 3, stream(), nodes=[1]), "nodes: wanted 2 nodes, one"),
    (lambda: shuffled([0, 2], [[1]]), "lengths: wanted integers with 1 axes"),
    (lambda: shuffled([0, 2], [1, 1]), "lengths: wanted 1 elements, got 2"),
    (lambda: shuffled([0, 2], [-1]), "lengths: wanted as many values as .* got -1"),
    (lambda: shuffled([0, 0, 2], [1, 0]), "lengths: .* none of an empty row, got 1"),
    (lambda: shuffled([0, 3], [1]), "rows: wanted an indptr that rises from 0 to 2"),
    (lambda: shuffled([0, 2, 1, 2], [1, 1, 1]), "rows: wanted an indptr that rises"),
    (lambda: shuffled([0.0, 2.0], [1]), "rows: wanted integers with 1 axes, got dtype float"),
    (lambda: shuffled([0, 1, 2], [1, 1], nodes=[3, 3]), "nodes: wanted distinct nodes"),
    (lambda: kernels.batch_ends([2], [[1]], 1), "batches: wanted integers with 1 axes"),
    (lambda: kernels.batch_ends([2.0], [1], 1), "sizes: wanted integers with 1 axes"),
    (lambda: kernels.shuffle(3, [1], stream()), r"rows: wanted \(indptr, indices\), got int"),
    (lambda: kernels.batch_ends([2, 2], [1], 1), "batches: wanted 2 elements, got 1"),
    (lambda: kernels.batch_ends([2, 2], [0, -1], 1), "batches: wanted as many .* got -1"),
    (lambda: kernels.batch_ends([2, 0], [1, 1], 1), "batches: .* none of an empty row, got 1"),
    (
        lambda: kernels.batch_ends([2**62, 5], [2, 1], 2**62),
        r"sizes: wanted less than 2\^63 values in all batches",
    ),
)
