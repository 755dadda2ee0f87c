"""Existing distributed engines for the same algorithms, in place of the exchange in process.

Each is imported when it is first used, since each needs its extra: `mpi`, `flower`, and
`secure` for `mesh`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpmesh.engines import blocks, flower, mesh, mpi

__all__ = ["blocks", "flower", "mesh", "mpi"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return import_module(f"dpmesh.engines.{name}")
    raise AttributeError(f"module 'dpmesh.engines' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
