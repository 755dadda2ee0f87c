"""Public tables as tasks use them: ranges of their columns, and sites of their records."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpmesh.data import Dataset

Columns: TypeAlias = npt.NDArray[Any]
"""Values of a table, shape (records, columns)."""

Sites: TypeAlias = npt.NDArray[np.int64]
"""Number of each record's site, shape (records,)."""

COVERTYPE_NUMBERS: tuple[tuple[int, int], ...] = (
    (1859, 3858),
    (0, 360),
    (0, 66),
    (0, 1397),
    (-173, 601),
    (0, 7117),
    (0, 254),
    (0, 254),
    (0, 254),
    (0, 7173),
)
"""Published ranges of the ten columns of Covertype that are numbers; they come first."""

COVERTYPE_AREAS = 4
"""Number of wilderness areas: the flags of the columns after the numbers."""
COVERTYPE_SOILS = 40
"""Number of types of soil: the flags of the last columns."""

COVERTYPE_RANGES: tuple[Any, ...] = (
    *COVERTYPE_NUMBERS,
    *(COVERTYPE_AREAS + COVERTYPE_SOILS) * [{"flag": True}],
)
"""Published ranges of all columns of Covertype, as `dpmesh.tables.Columns` accepts them."""


def wilderness_areas(covertype_columns: Columns) -> Sites:
    """Return the wilderness area of each record of Covertype, from 0 to 3."""
    first_area = len(COVERTYPE_NUMBERS)
    first_soil = first_area + COVERTYPE_AREAS
    return np.asarray(covertype_columns[:, first_area:first_soil].argmax(axis=1))


def extremes(columns: Columns) -> list[tuple[float, float]]:
    """Return the smallest and largest value of each column, as if they were its public range."""
    smallest = columns.min(axis=0).tolist()
    largest = columns.max(axis=0).tolist()
    return list(zip(smallest, largest, strict=True))


def dense(records: Dataset) -> Columns:
    """Return the columns of records as a dense array."""
    columns: Any = records.features
    if sparse.issparse(columns):
        columns = columns.toarray()
    return np.asarray(columns)


def varying_columns(records: Dataset) -> Columns:
    """Return the columns that have more than one value, as a dense array."""
    columns = dense(records)
    is_varying = columns.min(axis=0) < columns.max(axis=0)
    return np.asarray(columns[:, is_varying])


def two_classes_per_site(labels: npt.NDArray[Any]) -> Sites:
    """Return sites for labels 0 to 9: half of class c is at site c, half at site c + 1 mod 10."""
    coins = np.random.default_rng(0).integers(2, size=len(labels))
    return np.asarray((labels + coins) % 10)


def evenly_spread(records: int, sites: int) -> Sites:
    """Return sites at random; their sizes differ by one record at most."""
    return np.random.default_rng(0).permutation(np.arange(records) % sites)
