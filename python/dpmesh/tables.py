"""Tables of records: pandas, pyarrow, arrays, and files of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmesh._extras import needed_by
from dpmesh._validate import fail, instance, nearest

__all__ = ["Table", "as_table", "read_table", "rows"]

_SUFFIXES = (".parquet", ".csv", ".arrow", ".feather")


class Table(NamedTuple):
    """Columns of equal length.

    Attributes
    ----------
    names
        Their names; None for an array, which has none.
    columns
        The values of each, shape (records,).
    """

    names: tuple[str, ...] | None
    columns: tuple[npt.NDArray[Any], ...]

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.columns[0]) if self.columns else 0

    def select(self, names: Sequence[str]) -> Table:
        """Return these columns, in this order.

        Raises
        ------
        ValueError
            If one is not in the table; of an array, if the number of columns differs.
        """
        if self.names is None:
            if len(self.columns) != len(names):
                fail("X", f"{len(names)} features (columns)", len(self.columns))
            return self
        for name in names:
            if name not in self.names:
                hint = nearest(name, self.names)
                fail("table", f"a column {name!r}", f"the columns {', '.join(self.names)}{hint}")
        at = dict(zip(self.names, self.columns, strict=True))
        return Table(tuple(names), tuple(at[name] for name in names))

    def take(self, records: npt.NDArray[Any]) -> Table:
        """Return the records at these indices, or those that a mask selects."""
        return Table(self.names, tuple(column[records] for column in self.columns))


def as_table(value: Any) -> Table:
    """Return the columns of a pandas or pyarrow table, or of an array of two axes.

    Raises
    ------
    ValueError
        If it is none of them, or names two columns alike.
    """
    if isinstance(value, Table):
        return value
    if hasattr(value, "iloc") and hasattr(value, "columns"):  # pandas
        names = tuple(map(str, value.columns))
        columns = [value.iloc[:, i].to_numpy() for i in range(len(names))]
    elif hasattr(value, "column_names") and hasattr(value, "to_pylist"):  # pyarrow
        names = tuple(value.column_names)
        columns = [_of_arrow(value.column(i)) for i in range(len(names))]
    else:
        array = value if isinstance(value, np.ndarray) else np.array(value, dtype=object)
        if array.ndim != 2:
            got = f"{array.ndim} axes. Reshape your data: X.reshape(-1, 1) makes one column"
            fail("X", "a table or an array of shape (records, columns)", got)
        return Table(None, tuple(array.T))
    if len({*names}) < len(names):
        fail("table", "columns of different names", ", ".join(names))
    return Table(names, tuple(columns))


def read_table(path: str | os.PathLike[str]) -> Any:
    """Read a file into a pandas table: CSV with a header, Parquet, Arrow or Feather.

    Raises
    ------
    ImportError
        If pandas and pyarrow are not installed (extra ``pandas``).
    ValueError
        If the file is none of these.
    OSError
        If it cannot be read.
    """
    instance("path", path, "the path of a file", str, os.PathLike)
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        fail("file", f"one that ends in {', '.join(_SUFFIXES)}", os.fspath(path))
    with needed_by("reading a table"):
        import pandas
        import pyarrow
    readers = {".csv": pandas.read_csv, ".parquet": pandas.read_parquet}
    try:
        return readers.get(suffix, pandas.read_feather)(path)
    except (pyarrow.ArrowException, ValueError) as error:
        raise ValueError(f"{os.fspath(path)} is not a table of this kind: {error}") from error


def rows(table: Any, chosen: npt.NDArray[np.int64]) -> Any:
    """Return some records of a pandas or pyarrow table, or of an array, as the same kind."""
    if hasattr(table, "iloc"):
        return table.iloc[chosen]
    return table.take(chosen) if hasattr(table, "column_names") else np.asarray(table)[chosen]


def _of_arrow(column: Any) -> npt.NDArray[Any]:
    if str(column.type).startswith("dictionary"):
        column = column.cast(column.type.value_type)
    values: npt.NDArray[Any] = column.to_numpy()
    return values
