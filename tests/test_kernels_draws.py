"""Uniform, Bernoulli and Rademacher draws from Python: their laws, addresses and errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from dpmesh import kernels
from dpmesh.keys import Key, Purpose, Stream

FALSE_ALARM = 1e-6
"""Of each statistical check, over the choice of the key; the key is fixed."""


def stream() -> Stream:
    return Key.seeded(1).stream(Purpose.SAMPLE)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_uniform(dtype: type) -> None:
    draws = kernels.uniform(100_000, stream(), dtype=dtype)
    assert draws.dtype == dtype
    assert stats.kstest(draws, stats.uniform.cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("p", [0.0, 0.001, 0.3, 0.5])
def test_bernoulli_and_rademacher(p: float) -> None:
    n = 100_000
    signs = kernels.rademacher(n, p, stream())
    assert signs.dtype == np.int8
    for count in [kernels.bernoulli(n, p, stream()).sum(), (signs == 1).sum(), (signs == -1).sum()]:
        assert stats.binomtest(int(count), n, p).pvalue > FALSE_ALARM
    assert kernels.bernoulli(1000, 1.0, stream()).all()


@pytest.mark.parametrize(
    "draw",
    [
        lambda shape, **options: kernels.uniform(shape, stream(), **options),
        lambda shape, **options: kernels.bernoulli(shape, 0.5, stream(), **options),
        lambda shape, **options: kernels.rademacher(shape, 0.3, stream(), **options),
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.bernoulli(3, 1.1, stream()), r"p: wanted a number in \[0, 1\], got 1.1"),
        (lambda: kernels.bernoulli(3, np.nan, stream()), "p: wanted a finite number, got nan"),
        (lambda: kernels.rademacher(3, 0.6, stream()), r"p: wanted a number in \[0, 0.5\], got"),
        (lambda: kernels.rademacher(3, -0.1, stream()), r"p: wanted a number in \[0, 1\], got"),
        (lambda: kernels.uniform(3, stream(), dtype=int), "dtype: wanted float32 or float64"),
        (lambda: kernels.uniform(3, Key.seeded(1)), "stream: wanted a Stream"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
