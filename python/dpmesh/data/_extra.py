"""The optional package behind readers and embedded data sets."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def scikit_learn(module: str, purpose: str) -> ModuleType:
    """Return a module of scikit-learn, or say how to get it."""
    try:
        return import_module(f"sklearn.{module}")
    except ModuleNotFoundError as error:
        hint = f'{purpose} needs scikit-learn: pip install "dpmesh[data]"'
        raise ModuleNotFoundError(hint, name="sklearn") from error
