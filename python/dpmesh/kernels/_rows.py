"""Checks shared by the kernels that draw rows, each row from the stream of its own node."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh._arrays import floats, readable, unmasked
from dpmesh._core import Stream
from dpmesh._validate import fail, integer


def a_stream(stream: Stream, argument: str = "stream") -> Stream:
    """Fail unless `stream` is a Stream."""
    if not isinstance(stream, Stream):
        fail(argument, "a Stream, as key.stream(purpose) gives", type(stream).__name__)
    return stream


def row_shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """`shape` as (dim,) or (rows, dim)."""
    sizes = shape if isinstance(shape, tuple) else (shape,)
    checked = tuple([integer("shape", size, at_least=1) for size in sizes])
    if len(checked) not in (1, 2):
        fail("shape", "shape (dim,) or (rows, dim)", f"shape {checked}")
    return checked


def row_count(shape: tuple[int, ...]) -> int:
    """Number of rows of an array of shape (dim,) or (rows, dim)."""
    return 1 if len(shape) == 1 else shape[0]


def per_row(argument: str, value: npt.ArrayLike, rows: int) -> float | npt.NDArray[np.float64]:
    """`value`, a number or one for each row: as it is, or a float64 array of length 1 or `rows`."""
    if isinstance(value, float):
        return value
    given = np.atleast_1d(unmasked(argument, value))
    values = np.ascontiguousarray(floats(argument, given), dtype=np.float64)
    if values.shape not in ((1,), (rows,)):
        fail(argument, f"a number or one for each of {rows} rows", f"shape {values.shape}")
    return values


def node_ids(nodes: npt.ArrayLike | None, rows: int) -> npt.NDArray[np.uint32] | None:
    """The node of each row, as the kernels take them."""
    if nodes is None:
        return None
    ids: npt.NDArray[Any] = np.atleast_1d(unmasked("nodes", nodes))
    if ids.dtype.kind not in "iu" or ids.shape != (rows,):
        wanted = f"an integer for each of {rows} rows"
        fail("nodes", wanted, f"dtype {ids.dtype} and shape {ids.shape}")
    if ids.dtype != np.uint32 and (ids.min() < 0 or ids.max() >= 2**32):
        outside = ids[(ids < 0) | (ids >= 2**32)][0]
        fail("nodes", "integers of at least 0 and below 2**32", outside)
    return readable(ids, np.uint32)
