"""Sums of records' clipped gradients, what every round of a federated table is made of.

NumPy does the same by two matrix products in the type of the features, and once more by the
definition: a gradient for each record, which is then clipped.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benches.measure import Case
from benches.softmax import scores_to_probabilities
from dpmesh.kernels import LinearModel

RECORDS = 20_000
SITES = 8
CLASSES = 2
CLIPPING_NORM = 0.5
FEATURES = {"columns": 32, "hats+cosines": 1_213}
"""Numbers of features of a record."""
RECORDS_AT_ONCE = 256
"""Records whose gradients are in memory at once."""


def slopes(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the derivatives of softmax losses by their scores."""
    derivatives = x @ w.T
    scores_to_probabilities(derivatives)
    derivatives[np.arange(len(y)), y] -= 1
    return derivatives


def by_products(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the sum by two matrix products."""
    derivatives = slopes(x, y, w)
    squared_norms = np.einsum("ij,ij->i", x, x)
    squared_norms *= np.einsum("ij,ij->i", derivatives, derivatives)
    derivatives *= clipping_factors(np.sqrt(squared_norms))[:, np.newaxis]
    return derivatives.T @ x


def clipping_factors(norms: np.ndarray) -> np.ndarray:
    """Return the factors that clip gradients of these norms."""
    return np.minimum(1, CLIPPING_NORM / np.maximum(norms, 1e-30))


def record_by_record(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the sum of gradients that are made and clipped one by one."""
    total = np.zeros_like(w)
    for first in range(0, len(x), RECORDS_AT_ONCE):
        rows = x[first : first + RECORDS_AT_ONCE]
        derivatives = slopes(rows, y[first : first + RECORDS_AT_ONCE], w)
        gradients = derivatives[:, :, np.newaxis] * rows[:, np.newaxis, :]
        norms = np.sqrt(np.einsum("ijk,ijk->i", gradients, gradients))
        gradients *= clipping_factors(norms)[:, np.newaxis, np.newaxis]
        total += gradients.sum(axis=0)
    return total


def case(name: str, dim: int, dtype: type) -> Case:
    """Return a round of all sites."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(RECORDS, dim))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(dtype)
    y = draw.integers(CLASSES, size=RECORDS)
    w = draw.normal(size=(CLASSES, dim)).astype(dtype)
    model = LinearModel(x, y, "softmax", classes=CLASSES)
    records_of_site = RECORDS // SITES
    ends = np.arange(SITES + 1) * records_of_site
    batches = (ends, np.arange(RECORDS))
    models = np.tile(w.reshape(1, -1), (SITES, 1))
    sites = [slice(end - records_of_site, end) for end in ends[1:]]
    return Case(
        f"{RECORDS:,} x {dim:,} ({name}), {np.dtype(dtype).name}",
        lambda: model.clipped_sums(models, batches, clipping_norm=CLIPPING_NORM),
        peers={
            "NumPy, matrix products": lambda: [by_products(x[site], y[site], w) for site in sites],
            "NumPy, record by record": lambda: [
                record_by_record(x[site], y[site], w) for site in sites
            ],
        },
        limits={"reading the features once": x.sum},
        goals={"NumPy, matrix products": 2.0},
        rounds=5,
    )


def cases() -> Iterator[Case]:
    for name, dim in FEATURES.items():
        for dtype in (np.float32, np.float64):
            yield case(name, dim, dtype)
