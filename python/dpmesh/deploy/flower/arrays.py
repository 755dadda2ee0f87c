"""Conversion of a model between Flower's named arrays and one row."""

from __future__ import annotations

import numpy as np

from dpmesh._extras import needed_by
from dpmesh._validate import fail
from dpmesh.privacy.types import Floats

with needed_by("the engine 'flower'"):
    from flwr.app import Array, ArrayRecord


def flat(arrays: ArrayRecord) -> Floats:
    """Return all arrays as one row, shape (1, dim), in their order.

    Raises
    ------
    ValueError
        If they are not all float32 or all float64.
    """
    parts = arrays.to_numpy_ndarrays()
    types = {part.dtype for part in parts}
    if types not in ({np.dtype(np.float32)}, {np.dtype(np.float64)}):
        fail("arrays", "arrays all of float32 or all of float64", sorted(map(str, types)))
    return np.concatenate([part.ravel() for part in parts])[np.newaxis]


def unflat(row: Floats, like: ArrayRecord) -> ArrayRecord:
    """Return a row as arrays of the names and shapes of `like`."""
    record, first = ArrayRecord(), 0
    for name, part in zip(like, like.to_numpy_ndarrays(), strict=True):
        record[name] = Array(row[0, first : first + part.size].reshape(part.shape))
        first += part.size
    return record
