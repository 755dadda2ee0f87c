"""Packages that are imported when first needed, and the extras that install them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXTRA_OF = {
    "cryptography": "secure",
    "flwr": "flower",
    "jax": "jax",
    "matplotlib": "plots",
    "mpi4py": "mpi",
    "pandas": "pandas",
    "pyarrow": "pandas",
    "sklearn": "data",
    "torch": "torch",
    "tqdm": "progress",
}


@contextmanager
def needed_by(purpose: str) -> Iterator[None]:
    """If an import within the block fails, say what needs the package and how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF or isinstance(error.__cause__, ModuleNotFoundError):
            raise  # another error, or one that says so already
        name = "scikit-learn" if package == "sklearn" else package
        hint = f'{purpose} needs {name}: pip install "dpmesh[{EXTRA_OF[package]}]"'
        raise ModuleNotFoundError(hint, name=error.name) from error
