"""Tables of records: pandas, pyarrow, dictionaries of columns, arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmesh._extras import needed_by
from dpmesh._validate import fail, nearest
from dpmesh.tables.cells import TableError


class Table(NamedTuple):
    """Columns of equal length.

    Attributes
    ----------
    names
        Their names; None for an array, which has none.
    columns
        The values of each, shape (records,).

    Examples
    --------
    >>> import dpmesh as dm
    >>> table = dm.tables.as_table({"age": [50, 60], "ill": [True, False]})
    >>> table.names
    ('age', 'ill')
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
                got = f"the columns {', '.join(self.names)}{hint}"
                raise TableError(None, f"wanted a column {name!r}, got {got}")
        at = dict(zip(self.names, self.columns, strict=True))
        return Table(tuple(names), tuple(at[name] for name in names))

    def with_missing(self, names: Sequence[str]) -> Table:
        """Return the table with columns of these names, which hold no value."""
        none = np.full(self.records, None, dtype=object)
        return Table((*(self.names or ()), *names), (*self.columns, *[none] * len(names)))

    def take(self, records: npt.NDArray[Any]) -> Table:
        """Return the records at these indices, or those that a mask selects."""
        return Table(self.names, tuple(column[records] for column in self.columns))


def as_table(value: Any) -> Table:
    """Return the columns of a table, a dictionary of columns, or an array.

    Parameters
    ----------
    value
        A pandas, polars or pyarrow table, or any other with Arrow's interface
        (``__arrow_c_stream__``); a pyarrow record batch; a mapping of names to columns; an array of
        shape (records, columns), or a structured one, whose fields are columns.

    Raises
    ------
    ImportError
        If pyarrow is not installed, which reads polars' and other tables.
    ValueError
        If it is none of them, or names two columns alike.
    """
    if isinstance(value, Table):
        return value
    if hasattr(value, "iloc") and hasattr(value, "columns"):  # pandas
        names = tuple(map(str, value.columns))
        columns = [_of_pandas(value.iloc[:, i]) for i in range(len(names))]
    elif hasattr(value, "collect") and not hasattr(value, "__arrow_c_stream__"):
        fail("X", "a table in memory: call .collect() first", type(value).__name__)
    elif is_arrow(value):
        table = _as_arrow(value)
        names = tuple(table.column_names)
        columns = [_of_arrow(table.column(i)) for i in range(len(names))]
    elif isinstance(value, Mapping):
        names = tuple(map(str, value))
        columns = [_column(str(name), column) for name, column in value.items()]
        if len({len(column) for column in columns}) > 1:
            fail("table", "columns of equal length", [len(column) for column in columns])
    else:
        array = cells_of(value)
        if array.dtype.names is not None and array.ndim == 1:
            return Table(array.dtype.names, tuple(array[name] for name in array.dtype.names))
        if array.ndim > 2:
            array = array.reshape(len(array), -1)  # images: one row for each
        if array.ndim != 2:
            got = f"{array.ndim} axes. Reshape your data: X.reshape(-1, 1) makes one column"
            fail("X", "a table or an array of shape (records, columns)", got)
        return Table(None, tuple(array.T))
    if len({*names}) < len(names):
        fail("table", "columns of different names", ", ".join(names))
    return Table(names, tuple(columns))


def rows(table: Any, chosen: npt.NDArray[np.int64]) -> Any:
    """Return some records of a table or of an array, as the same kind."""
    if hasattr(table, "iloc"):
        return table.iloc[chosen]
    if isinstance(table, Table):
        return table.take(chosen)
    if is_arrow(table):
        return _as_arrow(table).take(chosen)
    return np.asarray(table)[chosen]


def is_arrow(value: Any) -> bool:
    """Return whether a value has Arrow's interface for tables, as those of polars and pyarrow."""
    if isinstance(value, np.ndarray) or not hasattr(value, "columns"):
        return hasattr(value, "column_names") and hasattr(value, "to_pylist")
    return hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")


def cells_of(values: Any) -> npt.NDArray[Any]:
    """Return an array; a list keeps each of its cells as it is, and masked ones are missing."""
    if isinstance(values, np.ndarray):
        return np.asarray(without_mask(values))
    return np.array(values, dtype=object)


def own_types(values: Any) -> npt.NDArray[Any]:
    """Return an array; cells of a list keep their types if these differ."""
    array: npt.NDArray[Any] = np.asarray(values)
    mixed = isinstance(values, (list, tuple)) and array.ndim == 1 and len({*map(type, values)}) > 1
    return cells_of(values) if mixed else array


def without_mask(values: Any) -> Any:
    """Return an array with missing values (NaN, or None) in the place of masked ones."""
    mask = np.ma.getmaskarray(values) if np.ma.isMaskedArray(values) else None
    if mask is None or not mask.any():
        return values
    plain = np.asarray(np.ma.getdata(values))
    if plain.dtype.kind == "f":
        return np.where(mask, np.nan, plain)
    cells = plain.astype(object)  # integers keep all their digits
    cells[mask] = None
    return cells


def array_of(values: Sequence[Any]) -> npt.NDArray[Any]:
    """Return values of public knowledge, such as classes, as one array that keeps each exactly."""
    found = np.array(values)
    exact = found.dtype.kind != "f" or found.tolist() == [*values]
    return found if exact else cells_of(values)


def joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return parts of a column as one; the type of one part does not change cells of another."""
    if len({part.dtype for part in parts}) > 1:
        parts = [part.astype(object) for part in parts]
    return np.concatenate(parts)


def _column(name: str, values: Any) -> npt.NDArray[Any]:
    """Return a column of a mapping."""
    if not hasattr(values, "iloc") and hasattr(values, "__arrow_c_stream__"):
        import pyarrow as pa

        values = _of_arrow(pa.chunked_array(values))
    column = cells_of(values)
    if column.ndim != 1:
        fail(name, "a column, shape (records,)", f"shape {column.shape}")
    return column


def _of_pandas(column: Any) -> npt.NDArray[Any]:
    """Return the cells of a column; a missing one does not change the type of others."""
    numpy_has_it = isinstance(column.dtype, np.dtype)
    cells: npt.NDArray[Any] = column.to_numpy() if numpy_has_it else column.to_numpy(dtype=object)
    return cells


def _as_arrow(value: Any) -> Any:
    """Return a pyarrow table."""
    with needed_by("reading tables of Arrow, such as those of polars"):
        import pyarrow as pa
    if isinstance(value, pa.Table):
        return value
    return pa.Table.from_batches([value]) if isinstance(value, pa.RecordBatch) else pa.table(value)


def _of_arrow(column: Any) -> npt.NDArray[Any]:
    """Return the cells of a column; a missing one does not change the type of others."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return cells_of(column.to_pylist())
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # As datetimes: numpy's have no time zone.
        column = column.cast(pa.timestamp("us", kind.tz), safe=False)
        return cells_of(column.to_pylist())
    if column.null_count and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return cells_of(column.to_pylist())  # numpy's integers have no missing value
    values: npt.NDArray[Any] = column.to_numpy()
    return values
