"""Released two-way tables of all pairs of columns: noisy counts, and the values of their cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from math import pi, sqrt
from typing import Any

import numpy as np

from dpmesh._table import Table
from dpmesh._validate import fail
from dpmesh.statistics.bins import Floats, edges_of
from dpmesh.statistics.geometry import cells
from dpmesh.tables.kinds import Category, Dates, Flag, Kind

NO_DATA = (
    "Drawn rows are made from the released tables. They hold no new information. Standard errors, "
    "p-values and intervals computed from drawn rows as if they were records are wrong: ask the "
    "question itself."
)
"""Caution that must accompany synthetic records."""


@dataclass(frozen=True, kw_only=True)
class BinnedColumn:
    """The cells (categories or bins) of a column, with their values.

    Parameters
    ----------
    name
        Name of the column.
    cells
        Names of the cells; ``missing`` is the last if a value may be missing.
    values
        Value of each cell of a category or flag; empty for numbers and dates.
    edges
        Edges of the bins of a number or date, one more than bins; empty for categories and flags.
    is_date
        True if the edges are days.
    may_be_missing
        True if the last cell is for missing values.
    """

    name: str
    cells: tuple[str, ...]
    values: tuple[Any, ...] = ()
    edges: tuple[float, ...] = ()
    is_date: bool = False
    may_be_missing: bool = False

    @classmethod
    def of(cls, name: str, kind: Kind, bins: int) -> BinnedColumn:
        """Return the cells of a column with a public range; numbers and dates have `bins` bins."""
        names = tuple(cells(kind, bins))
        missing = kind.may_be_missing
        if isinstance(kind, Category):
            return cls(name=name, cells=names, values=kind.categories, may_be_missing=missing)
        if isinstance(kind, Flag):
            return cls(name=name, cells=names, values=(0, 1), may_be_missing=missing)
        return cls(
            name=name,
            cells=names,
            edges=tuple(edges_of(kind, bins).tolist()),
            is_date=isinstance(kind, Dates),
            may_be_missing=missing,
        )

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> BinnedColumn:
        """Return the column from a dictionary in ``PairTables.as_dict()["columns"]``."""
        return cls(
            name=saved["name"],
            cells=tuple(saved["cells"]),
            values=tuple(saved["values"]),
            edges=tuple(saved["edges"]),
            is_date=bool(saved["is_date"]),
            may_be_missing=bool(saved["may_be_missing"]),
        )


@dataclass(frozen=True, kw_only=True)
class PairTables:
    """Released two-way tables of all pairs of columns.

    Parameters
    ----------
    columns
        The columns.
    counts
        Noisy counts of all tables, concatenated in the order of `itertools.combinations`; each
        table row by row.
    noise
        Standard deviation of the noise in each count.
    records
        Public number of records.
    """

    columns: tuple[BinnedColumn, ...]
    counts: tuple[float, ...]
    noise: float
    records: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of cells of each column."""
        return tuple(len(column.cells) for column in self.columns)

    @property
    def tables(self) -> dict[tuple[int, int], Floats]:
        """Noisy counts of each pair, shape (cells, cells), by the indices (a, b) of its columns."""
        sizes = self.sizes
        tables: dict[tuple[int, int], Floats] = {}
        counts = np.array(self.counts)
        first = 0
        for a, b in combinations(range(len(sizes)), 2):
            last = first + sizes[a] * sizes[b]
            tables[a, b] = counts[first:last].reshape(sizes[a], sizes[b])
            first = last
        return tables

    def table(self) -> Table:
        """Return the size of each pair's table and the expected total variation of its noise.

        Total variation is half the sum over cells of the absolute noise in a share of the records.
        The absolute value of Gaussian noise is ``noise sqrt(2 / pi)`` on average.
        """
        rows = []
        for (a, b), counts in self.tables.items():
            variation = counts.size * self.noise * sqrt(2 / pi) / 2 / self.records
            name = f"{self.columns[a].name} and {self.columns[b].name}"
            shape = f"{counts.shape[0]} x {counts.shape[1]}"
            rows.append([name, shape, f"{100 * variation:.1f}%"])
        return Table(["pairs", "cells", "noise, total variation"], rows)

    def as_dict(self) -> dict[str, Any]:
        """Return the tables in plain types that JSON can hold."""
        return {
            "columns": [asdict(column) for column in self.columns],
            "counts": list(self.counts),
            "noise": self.noise,
            "records": self.records,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> PairTables:
        """Return the tables from a dictionary that `as_dict` returned.

        Raises
        ------
        ValueError
            If `saved` lacks an entry or has one of another type.
        """
        try:
            return cls(
                columns=tuple(map(BinnedColumn.from_dict, saved["columns"])),
                counts=tuple(map(float, saved["counts"])),
                noise=float(saved["noise"]),
                records=int(saved["records"]),
            )
        except (KeyError, TypeError, ValueError):
            fail("answers", "a file that dpmesh stats --pairs wrote", "another")
