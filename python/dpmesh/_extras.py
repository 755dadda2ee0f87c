"""Packages that are imported when they are first needed, and the extras that bring them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXTRA_OF = {
    "flwr": "flower",
    "jax": "jax",
    "matplotlib": "plots",
    "mpi4py": "mpi",
    "pandas": "pandas",
    "sklearn": "data",
    "torch": "torch",
    "tqdm": "progress",
}


@contextmanager
def needed_by(purpose: str) -> Iterator[None]:
    """Say what needs the package that an import within the block misses, and how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF or isinstance(error.__cause__, ModuleNotFoundError):
            raise  # as something else, or told already
        name = "scikit-learn" if package == "sklearn" else package
        hint = f'{purpose} needs {name}: pip install "dpmesh[{EXTRA_OF[package]}]"'
        raise ModuleNotFoundError(hint, name=error.name) from error
