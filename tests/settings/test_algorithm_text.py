"""An algorithm's text in a report makes it again, whatever its noise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import pytest

import dpmesh as dm
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.algorithms.registry import REGISTRY
from dpmesh.noise import Gaussian, Independent, Laplace
from dpmesh.noise.correlated import BetweenPartners
from dpmesh.settings.parts import algorithm_of_repr

MECHANISMS: tuple[Any, ...] = (
    Gaussian,
    Laplace,
    Independent(Gaussian, (("grid", 2.0**-10),)),
    Independent(Laplace, (("grid", 2.0**-10),)),
)


def with_each_mechanism(algorithm: AnyAlgorithm) -> Iterator[AnyAlgorithm]:
    """Yield an algorithm, and it with each mechanism that it does not refuse."""
    yield algorithm
    changeable: Any = algorithm
    if "noise" not in [field.name for field in fields(changeable)]:
        return
    for noise in MECHANISMS:
        with suppress(ValueError):  # without a proof for this noise
            yield replace(changeable, noise=noise)


CASES = [
    algorithm
    for entry in REGISTRY
    if entry.name != "secure-gossip"  # whose text does not state its network
    for example in (entry.example, entry.audited)
    for algorithm in with_each_mechanism(example)
]


def test_most_algorithms_accept_another_mechanism() -> None:
    assert len({type(algorithm) for algorithm in CASES if "Laplace" in repr(algorithm)}) >= 6


@pytest.mark.parametrize("algorithm", CASES, ids=lambda algorithm: type(algorithm).__name__)
def test_a_text_makes_the_same_algorithm(algorithm: AnyAlgorithm) -> None:
    assert algorithm_of_repr(repr(algorithm)) == algorithm


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Nothing(records=3)", "Nothing is no part of this package"),
        ("GradientDescent(records=3, noise_multiplier=1.0, noise=Mine)", "Mine is no part"),
        ("GradientDescent(records=3, noise_multiplier=-1.0)", "noise_multiplier: wanted"),
        ("GradientDescent(records=3, gird=1)", "it takes by name"),
        ("__import__('os').system('true')", "malformed node"),
    ],
)
def test_a_text_of_something_else_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"^algorithm: cannot be made again.*{reason}"):
        algorithm_of_repr(text)


def test_a_text_does_not_state_a_network() -> None:
    noise = BetweenPartners(topology=dm.topology.ring(4), rounds=4)
    algorithm = dm.GradientDescent(records=12, noise_multiplier=4.0, noise=noise)
    with pytest.raises(ValueError, match="a network, whose text does not state all of it"):
        algorithm_of_repr(repr(algorithm))
