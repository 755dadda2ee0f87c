"""Mechanisms, correlated noise, sums under masks, grids and compression.

`correlated` and `secure` are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from dpmesh.noise.compression import Compressor, Levels, Quantizer, RandomSparsifier
from dpmesh.noise.independent import Independent
from dpmesh.noise.mechanisms import Gaussian, Laplace, Mechanism, NoNoise
from dpmesh.noise.sensitivity import Sensitivity

if TYPE_CHECKING:
    from dpmesh.noise import correlated, secure

__all__ = [
    "Compressor",
    "Gaussian",
    "Independent",
    "Laplace",
    "Levels",
    "Mechanism",
    "NoNoise",
    "Quantizer",
    "RandomSparsifier",
    "Sensitivity",
    "correlated",
    "secure",
]


def __getattr__(name: str) -> object:
    if name in ("correlated", "secure"):  # optimisers that few runs need, and sums
        return import_module(f"dpmesh.noise.{name}")
    raise AttributeError(f"module 'dpmesh.noise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
