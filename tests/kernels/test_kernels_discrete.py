"""Noise on the integers from Python: the exact laws, the addresses, the errors."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpmesh import kernels
from dpmesh.keys import Key, Purpose, Stream

FALSE_ALARM = 1e-6
"""Of each statistical check, over the choice of the key; the key is fixed."""

LAWS = {
    kernels.discrete_laplace: lambda k, scale: np.exp(-abs(k) / scale),
    kernels.discrete_gaussian: lambda k, scale: np.exp(-((k / scale) ** 2) / 2),
}


def stream(cipher: str = "aes") -> Stream:
    return Key.seeded(1, cipher).stream(Purpose.NOISE)


@pytest.mark.parametrize("draw", LAWS)
@pytest.mark.parametrize("scale", [0.5, 3.0, 40.25])
@pytest.mark.parametrize("cipher", ["aes", "chacha20"])
def test_counts_fit_the_exact_law(
    draw: Callable[..., np.ndarray], scale: float, cipher: str
) -> None:
    samples = draw(200_000, scale, stream(cipher))
    assert samples.dtype == np.int64
    k = np.arange(-int(40 * scale) - 1, int(40 * scale) + 2)

    def fits(scale: float) -> bool:
        expected = LAWS[draw](k, scale)
        expected *= samples.size / expected.sum()
        seen = np.bincount(samples - k[0], minlength=k.size)
        body = expected >= 10
        tail = (seen[~body].sum(), expected[~body].sum())
        cells = [(*pair,) for pair in zip(seen[body], expected[body], strict=True)]
        cells += [tail] if tail[1] >= 10 else []
        statistic = sum((s - e) ** 2 / e for s, e in cells)
        return stats.chi2.sf(statistic, len(cells) - 1) > FALSE_ALARM

    assert fits(scale)
    assert not fits(1.05 * scale)


def by_definition(draw: object, dim: int, scale: float, source: Stream) -> list[int]:
    """Draw from node 5, slowly, in exact arithmetic, where the first random bits decide."""
    gaussian, group = draw is kernels.discrete_gaussian, 1024
    unit_bytes = 16 * (12 if gaussian else 8)
    words = np.empty(-(-dim // group) * 2 * group // 16 * unit_bytes // 4, dtype=np.uint32)
    source.words(5, words)
    units = words.view(np.uint8).reshape(-1, unit_bytes)
    magnitudes = units[:, :128].copy().view(np.uint64).ravel().tolist()
    coins = units[:, 128:].copy().view(np.uint32).ravel().tolist()
    sigma, mode = mpmath.mpf(scale), round(scale)
    shift = mpmath.log((1 + mpmath.exp(-1 / sigma)) / 2)

    def candidate(word: int) -> int:
        uniform = mpmath.mpf(word % 2**63)
        low, high = (
            int(-sigma * (mpmath.log((uniform + step) / 2**63) + shift)) for step in (1, 1e-30)
        )
        assert low == high
        return -low if word >> 63 else low

    def accepted(value: int, coin: int) -> bool:
        gamma = ((abs(value) - sigma) ** 2 - (mode - sigma) ** 2) / (2 * sigma**2)
        low, high = (coin + step < 2**32 * mpmath.exp(-gamma) for step in (0, 1 - 1e-12))
        assert low == high
        return bool(low)

    samples: list[int] = []
    for first in range(0, len(magnitudes), 2 * group):
        kept: list[int] = []
        for number in range(first, first + 2 * group):
            if len(kept) < min(group, dim - len(samples)):
                value = candidate(magnitudes[number])
                if not gaussian or accepted(value, coins[number]):
                    kept.append(value)
        samples += kept
    return samples


@pytest.mark.parametrize("draw", LAWS)
@pytest.mark.parametrize("scale", [0.4, 10.0, 1e6])
@pytest.mark.parametrize("cipher", ["aes", "chacha20"])
def test_values_are_those_of_the_definition(
    draw: Callable[..., np.ndarray], scale: float, cipher: str
) -> None:
    with mpmath.workdps(60):
        expected = by_definition(draw, 1100, scale, stream(cipher))
    for dim in [10, 128, 129, 1100]:
        assert draw(dim, scale, stream(cipher), nodes=5).tolist() == expected[:dim]


@pytest.mark.parametrize("draw", LAWS)
def test_rows_are_those_of_their_nodes(draw: Callable[..., np.ndarray]) -> None:
    nodes = [9, 2, 5]
    rows = draw((3, 200), 4.0, stream(), nodes=nodes)
    for node, row in zip(nodes, rows, strict=True):
        np.testing.assert_array_equal(draw(150, 4.0, stream(), nodes=node), row[:150])
    out = np.zeros_like(rows)
    assert draw((3, 200), 4.0, stream(), nodes=nodes, out=out) is out
    np.testing.assert_array_equal(out, rows)
    assert not draw(10, 0.0, stream()).any()


@pytest.mark.parametrize("draw", LAWS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": -1.0}, "scale: wanted a finite number of at least 0, got -1.0"),
        ({"scale": np.nan}, "scale: wanted a finite number, got nan"),
        ({"scale": np.inf}, "scale: wanted a finite number, got inf"),
        ({"scale": 1e8}, "scale: wanted a number of at least 0 and at most 33554432, got 1"),
        ({"nodes": [1, 1]}, "nodes: wanted distinct nodes, got 1 twice"),
        ({"nodes": [1]}, "nodes: wanted one for each of 2 rows, got 1"),
        ({"shape": (2, 0)}, "shape: wanted an integer of at least 1, got 0"),
        ({"out": np.zeros((2, 3))}, "out: wanted an array of int64 and shape"),
        ({"stream": Key.seeded(1)}, "stream: wanted a Stream, as .*, got Key"),
    ],
)
def test_bad_input_is_named(
    draw: Callable[..., np.ndarray], options: dict[str, object], message: str
) -> None:
    arguments = {"shape": (2, 3), "scale": 1.0, "stream": stream(), **options}
    with pytest.raises(ValueError, match=message):
        draw(**arguments)
