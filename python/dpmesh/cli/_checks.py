"""Checks of options that come before any file of records is read."""

from __future__ import annotations

from collections.abc import Iterable

from dpmesh._validate import positive, probability


def check_budget(epsilons: Iterable[float], delta: float) -> None:
    """Refuse a privacy budget that no release can have.

    Raises
    ------
    ValueError
        If an epsilon is not a finite positive number, or delta is not in [0, 1).
    """
    for epsilon in epsilons:
        positive("epsilon", epsilon)
    probability("delta", delta, one=False)
