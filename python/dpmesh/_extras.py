"""Packages that are imported when first needed, and the extras that install them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS = {
    "cli": ("typer",),
    "data": ("scikit-learn",),
    "plots": ("matplotlib",),
    "progress": ("tqdm",),
    "pandas": ("pandas", "pyarrow"),
    "jax": ("jax",),
    "torch": ("torch",),
    "mpi": ("mpi4py",),
    "flower": ("flwr",),
    "nvflare": ("nvflare",),
    "secure": ("cryptography",),
    "deploy": ("aiohttp",),
    "metrics": ("prometheus_client",),
}
"""Each extra, and the distributions that it installs."""

_IMPORTED_AS = {"scikit-learn": "sklearn"}

EXTRA_OF = {_IMPORTED_AS.get(name, name): extra for extra, of in EXTRAS.items() for name in of}
"""The extra of each package that is imported when first needed."""


@contextmanager
def needed_by(purpose: str) -> Iterator[None]:
    """If an import within the block fails, report what needs the package and how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF or isinstance(error.__cause__, ModuleNotFoundError):
            raise  # another error, or one that says so already
        name = "scikit-learn" if package == "sklearn" else package
        hint = f"{purpose} needs {name}: pip install {' '.join(EXTRAS[EXTRA_OF[package]])}"
        raise ModuleNotFoundError(hint, name=error.name) from error
