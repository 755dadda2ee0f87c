"""Engines that run an algorithm on several machines of one owner, in place of one process.

The machines trust each other. Parties that do not trust each other use `dpmesh.deploy`. `mpi` is
imported when it is first used, since it needs the extra ``mpi``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpmesh.engines import blocks, mpi

__all__ = ["blocks", "mpi"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return import_module(f"dpmesh.engines.{name}")
    raise AttributeError(f"module 'dpmesh.engines' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
