"""Sums of records' clipped gradients, what every round of a federated table is made of.

NumPy does the same by two matrix products in the type of the features, and once more as their
definition says it: a gradient for each record, which is then clipped.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benches.measure import Case
from dpmesh.kernels import LinearModel

RECORDS, SITES, CLASSES, CLIP = 20_000, 8, 2, 0.5
FEATURES = {"columns": 32, "hats+cosines": 1_213}
AT_ONCE = 256


def slopes(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the derivatives of softmax losses by their scores."""
    scores = x @ w.T
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    scores[np.arange(len(y)), y] -= 1
    return scores


def by_products(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the sum by two matrix products."""
    factors = slopes(x, y, w)
    lengths = np.sqrt(np.einsum("ij,ij->i", x, x) * np.einsum("ij,ij->i", factors, factors))
    factors *= np.minimum(1, CLIP / np.maximum(lengths, 1e-30))[:, np.newaxis]
    return factors.T @ x


def record_by_record(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the sum of gradients that are made and clipped one by one."""
    total = np.zeros_like(w)
    for first in range(0, len(x), AT_ONCE):
        rows = x[first : first + AT_ONCE]
        factors = slopes(rows, y[first : first + AT_ONCE], w)
        each = factors[:, :, np.newaxis] * rows[:, np.newaxis, :]
        lengths = np.sqrt(np.einsum("ijk,ijk->i", each, each))
        each *= np.minimum(1, CLIP / np.maximum(lengths, 1e-30))[:, np.newaxis, np.newaxis]
        total += each.sum(axis=0)
    return total


def case(name: str, dim: int, dtype: type) -> Case:
    """Return a round of all sites."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(RECORDS, dim))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(dtype)
    y = draw.integers(CLASSES, size=RECORDS)
    w = draw.normal(size=(CLASSES, dim)).astype(dtype)
    model = LinearModel(x, y, "softmax", classes=CLASSES)
    ends = np.arange(SITES + 1) * (RECORDS // SITES)
    batches, rows = (ends, np.arange(RECORDS)), np.tile(w.reshape(1, -1), (SITES, 1))
    at_each = RECORDS // SITES
    sites = [slice(first, first + at_each) for first in range(0, RECORDS, at_each)]
    return Case(
        f"{RECORDS:,} x {dim:,} ({name}), {np.dtype(dtype).name}",
        lambda: model.clipped_sums(rows, batches, clipping_norm=CLIP),
        peers={
            "NumPy, matrix products": lambda: [by_products(x[s], y[s], w) for s in sites],
            "NumPy, record by record": lambda: [record_by_record(x[s], y[s], w) for s in sites],
        },
        limits={"reading the features once": x.sum},
        goals={"NumPy, matrix products": 2.0},
        rounds=5,
    )


def cases() -> Iterator[Case]:
    for name, dim in FEATURES.items():
        for dtype in (np.float32, np.float64):
            yield case(name, dim, dtype)
