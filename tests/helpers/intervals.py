"""Distances of noisy estimates from the truth, for tests that must not fail by accident."""

from __future__ import annotations

from dpmesh.statistics.answers import Row


def distance(row: Row, truth: float) -> float:
    """Return how far an estimate lies from the truth, in half-widths of its 95% interval.

    A right estimate with fresh noise is beyond three of them once in 240 million runs.
    """
    half_width = (row.high - row.low) / 2.0
    return abs(row.estimate - truth) / half_width
