"""Noise from Python: the laws, the addressing by node, the forms, the errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpmesh import kernels
from dpmesh.keys import Key, Purpose, Stream

FALSE_ALARM = 1e-6
"""Of each statistical check, over the choice of the key; the keys are fixed."""

LAWS = [
    (kernels.gaussian, partial(kernels.add_noise, "gaussian"), stats.norm),
    (kernels.laplace, partial(kernels.add_noise, "laplace"), stats.laplace),
]


def stream(seed: int = 1, cipher: str = "aes") -> Stream:
    return Key.seeded(seed, cipher).stream(Purpose.NOISE)


@pytest.mark.parametrize(("fill", "add", "law"), LAWS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cipher", ["aes", "chacha20"])
def test_the_law_and_its_scale(
    fill: Callable[..., np.ndarray],
    add: Callable[..., np.ndarray],
    law: stats.rv_continuous,
    dtype: type,
    cipher: str,
) -> None:
    z = fill(200_000, 2.5, stream(cipher=cipher), dtype=dtype)
    assert z.dtype == dtype
    assert stats.kstest(z, law(scale=2.5).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(z, law(scale=2.6).cdf).pvalue < FALSE_ALARM
    x = np.linspace(-1, 1, 200_000, dtype=dtype)
    np.testing.assert_allclose(add(x, 2.5, stream(cipher=cipher)), x + z, rtol=1e-6, atol=1e-6)


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=8, unique=True),
    st.integers(1, 700),
    st.sampled_from(LAWS),
)
def test_a_row_is_its_nodes_alone(
    nodes: list[int], dim: int, law: tuple[Callable[..., np.ndarray], ...]
) -> None:
    fill, add, _ = law
    scales = np.arange(len(nodes), dtype=float)
    together = fill((len(nodes), dim), scales, stream(), nodes=nodes)
    for node, scale, row in zip(nodes, scales, together, strict=True):
        np.testing.assert_array_equal(fill(dim, scale, stream(), nodes=node), row)
    x = np.ones((len(nodes), dim))
    noised = add(x, scales, stream(), nodes=nodes)
    out = np.full_like(x, np.nan)
    assert add(x, scales, stream(), nodes=nodes, out=out) is out
    np.testing.assert_array_equal(out, noised)
    assert add(x, scales, stream(), nodes=nodes, out=x) is x
    np.testing.assert_array_equal(x, noised)
    np.testing.assert_array_equal(noised[0], 1.0)  # scale 0 is no noise


def test_the_default_nodes_count_from_0() -> None:
    np.testing.assert_array_equal(
        kernels.gaussian((3, 5), 1.0, stream()),
        kernels.gaussian((3, 5), 1.0, stream(), nodes=range(3)),
    )


X = np.zeros((2, 3))


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X * np.nan, 1.0), "x: wanted finite values, got NaN or infinity"),
        ((X + np.inf, 0.0), "x: wanted finite values, got NaN or infinity"),
        ((X, -1.0), "scale: wanted finite numbers of at least 0.*, got -1"),
        ((X, np.nan), "scale: wanted finite numbers of at least 0.*, got NaN"),
        ((X, np.inf), "scale: wanted finite numbers of at least 0.*, got inf"),
        ((X.astype(np.float32), 1e-50), "scale: wanted finite numbers .* type of the samples"),
        ((X, [1.0, 2.0, 3.0]), "scale: wanted a number or one for each of 2 rows, got shape"),
        ((X, "a"), "scale: wanted an array of float32 or float64"),
        ((np.zeros((1, 2, 3)), 1.0), r"x: wanted shape \(dim,\) or \(rows, dim\), got shape"),
        ((np.zeros((0, 3)), 1.0), "x: wanted at least 1 element"),
        ((["a"], 1.0), "x: wanted an array of float32 or float64"),
        (([[1.0], [1.0, 2.0]], 1.0), r"x: wanted an array, got \[\[1.0\], \[1.0, 2.0\]\]: "),
        ((X, [[1.0], [1.0, 2.0]]), "scale: wanted an array, got"),
    ],
)
def test_bad_input_is_named(
    law: Literal["gaussian", "laplace"], arguments: tuple[Any, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kernels.add_noise(law, *arguments, stream())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": [1]}, "nodes: wanted one for each of 2 rows, got 1"),
        ({"nodes": [1, 1]}, "nodes: wanted distinct nodes, got 1 twice"),
        ({"nodes": [0, -1]}, "nodes: wanted integers of at least 0 .*, got -1"),
        ({"nodes": [0, 2**32]}, "nodes: wanted integers of .* below .*, got 4294967296"),
        ({"nodes": [0.0, 1.0]}, "nodes: wanted an integer for each row, got dtype float64"),
        ({"out": np.zeros((2, 2))}, "out: wanted an array of float64 and shape"),
        ({"out": np.zeros((2, 3), int)}, "out: wanted float32 or float64, got int64"),
        ({"dtype": np.int32}, "dtype: wanted float32 or float64, got int32"),
        ({"shape": (2, 0)}, "shape: wanted an integer of at least 1, got 0"),
        ({"shape": (1, 2, 3)}, r"shape: wanted shape \(dim,\) or \(rows, dim\), got"),
        ({"stream": Key.seeded(1)}, "stream: wanted a Stream, as .*, got Key"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    arguments = {"shape": (2, 3), "scale": 1.0, "stream": stream(), **options}
    with pytest.raises(ValueError, match=message):
        kernels.gaussian(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("draw", [kernels.gaussian, kernels.laplace])
def test_what_is_given_to_fill_says_the_type(draw: Callable[..., np.ndarray]) -> None:
    out = np.zeros((2, 3), np.float32)
    assert draw((2, 3), 1.0, stream(), out=out) is out
    np.testing.assert_array_equal(out, draw((2, 3), 1.0, stream(), dtype=np.float32))


def of_round(round: int = 0) -> Stream:
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
        kernels.gaussian(shape, 1.0, of_round(k + 1), dtype=dtype) for k in range(len(weights))
    ]
    got = kernels.correlated_gaussian(
        shape, 0.7, earlier, weights, of_round(), dtype=dtype, nodes=nodes
    )
    wanted = kernels.gaussian(shape, 0.7, of_round(), dtype=dtype, nodes=nodes).astype(float)
    for weight, array in zip(weights, earlier, strict=True):
        wanted += weight * array
    np.testing.assert_allclose(got, wanted, atol=1e-5 if dtype == np.float32 else 1e-13)


def test_what_one_end_adds_the_other_subtracts() -> None:
    x = np.zeros((3, 50))
    kernels.add_pair_gaussian(x, [4, 9, 11], [[0, 1], [1, 2], [-1, 2]], 2.0, of_round())
    first, second, third = kernels.gaussian((3, 50), 2.0, of_round(), nodes=[4, 9, 11])
    np.testing.assert_allclose(x, [first, second - first, -second - third], atol=1e-14)


def test_arguments_that_do_not_fit_are_refused() -> None:
    shape, row = (2, 3), np.zeros((2, 3))
    with pytest.raises(ValueError, match="weights: wanted one for each of 1"):
        kernels.correlated_gaussian(shape, 1.0, [row], [], of_round())
    with pytest.raises(ValueError, match="earlier: wanted arrays of float64 and shape"):
        kernels.correlated_gaussian(shape, 1.0, [row[:1]], [1.0], of_round())
    with pytest.raises(ValueError, match="ends: wanted rows from 0 to 1"):
        kernels.add_pair_gaussian(row, [0], [[0, 2]], 1.0, of_round())
    with pytest.raises(ValueError, match="nodes: wanted distinct"):
        kernels.add_pair_gaussian(row, [0, 0], [[0, 1], [1, 0]], 1.0, of_round())
    with pytest.raises(ValueError, match="ends: wanted two different rows"):
        kernels.add_pair_gaussian(row, [0], [[1, 1]], 1.0, of_round())
    some = Key.seeded(5).for_nodes(np.array([0, 1], dtype=np.uint32)).stream(1)
    with pytest.raises(ValueError, match="stream: wanted a stream of a key for all nodes"):
        kernels.add_pair_gaussian(row, [0], [[0, 1]], 1.0, some)
