"""Clipping of rows that others sent, or that training made: any finite numbers."""

from __future__ import annotations

import numpy as np

import dpmesh.kernels as kernels
from dpmesh.privacy.types import Floats


def clipped(rows: Floats, clipping_norm: float) -> Floats:
    """Clip finite rows, also where the square of an entry is beyond the type's range."""
    if not len(rows):
        return rows
    largest = np.abs(rows).max(axis=1, keepdims=True)
    shorter = rows * (2 * clipping_norm / np.maximum(largest, 2 * clipping_norm)).astype(rows.dtype)
    return kernels.clip_rows(shorter, clipping_norm, out=shorter)
