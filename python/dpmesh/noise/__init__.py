"""Mechanisms, correlated noise, sums under masks, grids and compression.

`correlated` is imported when it is first used: it holds optimisers that few runs need.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from dpmesh.noise.compression import Compressor, Levels, Quantizer, RandomSparsifier
from dpmesh.noise.mechanisms import Gaussian, Laplace, Mechanism, NoNoise
from dpmesh.noise.sensitivity import Sensitivity

if TYPE_CHECKING:
    from dpmesh.noise import correlated

__all__ = [
    "Compressor",
    "Gaussian",
    "Laplace",
    "Levels",
    "Mechanism",
    "NoNoise",
    "Quantizer",
    "RandomSparsifier",
    "Sensitivity",
    "correlated",
]


def __getattr__(name: str) -> object:
    if name == "correlated":
        return import_module(f"dpmesh.noise.{name}")
    raise AttributeError(f"module 'dpmesh.noise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
