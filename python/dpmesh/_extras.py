"""Optional packages, which are imported when they are needed, and the extras that install them."""

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
"""Import names of distributions, where they differ from the distribution's name."""

EXTRA_OF = {
    _IMPORTED_AS.get(name, name): extra
    for extra, distributions in EXTRAS.items()
    for name in distributions
}
"""Name of the extra that installs a package, by the package's import name."""


@contextmanager
def needed_by(purpose: str) -> Iterator[None]:
    """Add the purpose and a command for installation to the error of a failed import in the block.

    Parameters
    ----------
    purpose
        Feature that needs the package, such as ``"a model in JAX"``.

    Raises
    ------
    ModuleNotFoundError
        If an optional package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF or isinstance(error.__cause__, ModuleNotFoundError):
            raise  # no optional package, or the error has its command already
        name = package
        if package == "sklearn":
            name = "scikit-learn"
        distributions = " ".join(EXTRAS[EXTRA_OF[package]])
        hint = f"{purpose} needs {name}: pip install {distributions}"
        raise ModuleNotFoundError(hint, name=error.name) from error
