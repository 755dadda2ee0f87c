"""Checks of options before any file of records is read, and counts in words."""

from __future__ import annotations

from collections.abc import Iterable

from dpmesh._validate import positive, probability


def check_budget(epsilons: Iterable[float], delta: float) -> None:
    """Refuse an invalid privacy budget.

    Raises
    ------
    ValueError
        If an epsilon is not a finite positive number, or delta is not in [0, 1).
    """
    for epsilon in epsilons:
        positive("epsilon", epsilon)
    probability("delta", delta, one=False)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 site`` or ``3 sites``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}s"
