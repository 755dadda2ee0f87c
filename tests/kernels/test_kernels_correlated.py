"""Kernels of correlated noise, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmesh import kernels
from dpmesh.keys import Key, Stream


def stream(round: int = 0) -> Stream:
    return Key.seeded(5).stream(1, round)


@given(
    st.integers(1, 5),
    st.integers(1, 600),
    st.lists(st.floats(-2, 2), max_size=3),
    st.sampled_from([np.float32, np.float64]),
)
def test_fresh_noise_and_weighted_rows(
    rows: int, dim: int, weights: list[float], dtype: type
) -> None:
    shape, nodes = (rows, dim), np.arange(3, rows + 3)
    earlier = [
        kernels.gaussian(shape, 1.0, stream(k + 1), dtype=dtype) for k in range(len(weights))
    ]
    got = kernels.correlated_gaussian(
        shape, 0.7, earlier, weights, stream(), dtype=dtype, nodes=nodes
    )
    wanted = kernels.gaussian(shape, 0.7, stream(), dtype=dtype, nodes=nodes).astype(float)
    for weight, array in zip(weights, earlier, strict=True):
        wanted += weight * array
    np.testing.assert_allclose(got, wanted, atol=1e-5 if dtype == np.float32 else 1e-13)


def test_what_one_end_adds_the_other_subtracts() -> None:
    x = np.zeros((3, 50))
    kernels.add_pair_gaussian(x, [4, 9, 11], [[0, 1], [1, 2], [-1, 2]], 2.0, stream())
    first, second, third = kernels.gaussian((3, 50), 2.0, stream(), nodes=[4, 9, 11])
    np.testing.assert_allclose(x, [first, second - first, -second - third], atol=1e-14)


def test_arguments_that_do_not_fit_are_refused() -> None:
    shape, row = (2, 3), np.zeros((2, 3))
    with pytest.raises(ValueError, match="weights: wanted one for each of 1"):
        kernels.correlated_gaussian(shape, 1.0, [row], [], stream())
    with pytest.raises(ValueError, match="earlier: wanted arrays of float64 and shape"):
        kernels.correlated_gaussian(shape, 1.0, [row[:1]], [1.0], stream())
    with pytest.raises(ValueError, match="ends: wanted rows from 0 to 1"):
        kernels.add_pair_gaussian(row, [0], [[0, 2]], 1.0, stream())
    with pytest.raises(ValueError, match="nodes: wanted distinct"):
        kernels.add_pair_gaussian(row, [0, 0], [[0, 1], [1, 0]], 1.0, stream())
    with pytest.raises(ValueError, match="ends: wanted two different rows"):
        kernels.add_pair_gaussian(row, [0], [[1, 1]], 1.0, stream())
    some = Key.seeded(5).for_nodes(np.array([0, 1], dtype=np.uint32)).stream(1)
    with pytest.raises(ValueError, match="stream: wanted a stream of a key for all nodes"):
        kernels.add_pair_gaussian(row, [0], [[0, 1]], 1.0, some)
