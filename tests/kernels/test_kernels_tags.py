"""Tags of sums, against Python's integers: linear, and other for any other total."""

from __future__ import annotations

import numpy as np
import pytest

from dpmesh.kernels import tag
from dpmesh.kernels.masking import LARGEST, PRIME
from dpmesh.keys import Key, Purpose, Stream


def stream(seed: int = 1) -> Stream:
    return Key.seeded(seed).stream(Purpose.SHARED)


def slow(values: list[int], parties: int = 1) -> int:
    words = np.empty(2 * len(values) + 2, np.uint32)
    stream().words(0, words)
    first, *rest = (int(word) % PRIME for word in words.view(np.uint64))
    return (parties * first + sum(r * v for r, v in zip(rest, values, strict=True))) % PRIME


@pytest.mark.parametrize("dim", [0, 1, 7, 1000])
@pytest.mark.parametrize("largest", [1, 2**31, 2**59, LARGEST - 1])
def test_a_tag_is_that_of_pythons_integers(dim: int, largest: int) -> None:
    values = np.random.default_rng(dim).integers(-largest, largest, size=dim, endpoint=True)
    for each in (values, np.full(dim, largest), np.full(dim, -largest)):
        assert tag(each, stream(), 5) == slow(each.tolist(), 5)


def test_tags_of_parts_add_up_to_that_of_the_total_and_of_no_other() -> None:
    parts = np.random.default_rng(0).integers(-(2**40), 2**40, size=(6, 50))
    total = sum(tag(part, stream()) for part in parts) % PRIME
    right = parts.sum(axis=0)
    assert total == tag(right, stream(), 6)
    for other in (2 * right, right + (np.arange(50) == 3), np.full(50, 10**6)):
        assert tag(other, stream(), 6) != total
    assert tag(right, stream(), 5) != total
    assert tag(right, stream(2), 6) != total


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"integers below 2\*\*60"):
        tag([LARGEST], stream())
