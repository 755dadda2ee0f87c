"""Checks shared by the kernels that draw rows, each row from the stream of its own node."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh._arrays import floats, readable, unmasked
from dpmesh._validate import fail, integer


def row_shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """`shape` as (dim,) or (rows, dim)."""
    sizes = shape if isinstance(shape, tuple) else (shape,)
    checked = tuple([integer("shape", size, at_least=1) for size in sizes])
    if len(checked) not in (1, 2):
        fail("shape", "shape (dim,) or (rows, dim)", f"shape {checked}")
    return checked


def per_row(argument: str, value: npt.ArrayLike) -> float | npt.NDArray[np.float64]:
    """`value`, a number or one for each row, as kernels take it."""
    if isinstance(value, float):
        return value
    given = np.atleast_1d(unmasked(argument, value))
    return np.ascontiguousarray(floats(argument, given), dtype=np.float64)


def node_ids(nodes: npt.ArrayLike | None) -> npt.NDArray[np.uint32] | None:
    """The node of each row, as kernels take them."""
    if nodes is None:
        return None
    ids: npt.NDArray[Any] = np.atleast_1d(unmasked("nodes", nodes))
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        fail("nodes", "an integer for each row", f"dtype {ids.dtype} and shape {ids.shape}")
    if ids.dtype != np.uint32 and ids.size and (ids.min() < 0 or ids.max() >= 2**32):
        outside = ids[(ids < 0) | (ids >= 2**32)][0]
        fail("nodes", "integers of at least 0 and below 2**32", outside)
    return readable(ids, np.uint32)
