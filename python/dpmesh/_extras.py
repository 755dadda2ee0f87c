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
"""Distributions that each extra installs."""

_IMPORTED_AS = {"scikit-learn": "sklearn"}

EXTRA_OF = {
    _IMPORTED_AS.get(name, name): extra
    for extra, distributions in EXTRAS.items()
    for name in distributions
}
"""The extra that installs each package, by the name that is imported."""


@contextmanager
def needed_by(purpose: str) -> Iterator[None]:
    """Report, if an import within the block fails, what needs the package and how to install it.

    Raises
    ------
    ModuleNotFoundError
        With the command that installs the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF or isinstance(error.__cause__, ModuleNotFoundError):
            raise  # another error, or one that says so already
        name = package
        if package == "sklearn":
            name = "scikit-learn"
        distributions = " ".join(EXTRAS[EXTRA_OF[package]])
        hint = f"{purpose} needs {name}: pip install {distributions}"
        raise ModuleNotFoundError(hint, name=error.name) from error
