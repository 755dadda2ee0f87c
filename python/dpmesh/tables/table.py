"""Conversion of tables of other libraries to a `Table`: pandas, polars, pyarrow, dicts, arrays.

A cell keeps its type: a missing cell in a column of integers does not turn the others into floats.
So no record changes how another record is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._extras import needed_by
from dpmesh._validate import fail, nearest
from dpmesh.tables.cells import Cells, TableError

TableLike: TypeAlias = Any
"""A table of another library, a mapping of columns or an array: what `as_table` accepts."""

ColumnLike: TypeAlias = Any
"""A column of such a table."""


class Table(NamedTuple):
    """A table: columns of equal length, with or without names.

    Attributes
    ----------
    names
        Names of the columns; None for the columns of an array.
    columns
        Cells of each column, shape (records,).

    Examples
    --------
    >>> import dpmesh as dm
    >>> table = dm.tables.as_table({"age": [50, 60], "ill": [True, False]})
    >>> table.names
    ('age', 'ill')
    """

    names: tuple[str, ...] | None
    columns: tuple[Cells, ...]

    @property
    def records(self) -> int:
        """Number of records."""
        if self.columns:
            return len(self.columns[0])
        return 0

    def select(self, names: Sequence[str]) -> Table:
        """Return the named columns, in this order; all columns of a table without names.

        Raises
        ------
        ValueError
            If the table lacks a column. Without names: if the number of columns differs.
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
        columns = dict(zip(self.names, self.columns, strict=True))
        return Table(tuple(names), tuple(columns[name] for name in names))

    def with_missing(self, names: Sequence[str]) -> Table:
        """Return the table with additional columns of these names, whose cells are all None."""
        missing = np.full(self.records, None, dtype=object)
        all_names = (*(self.names or ()), *names)
        return Table(all_names, (*self.columns, *[missing] * len(names)))

    def take(self, records: Cells) -> Table:
        """Return a table of the records at these indices, or selected by a mask."""
        return Table(self.names, tuple(column[records] for column in self.columns))


def as_table(value: TableLike) -> Table:
    """Convert a table, a dictionary of columns, or an array to a `Table`.

    Parameters
    ----------
    value
        A pandas, polars or pyarrow table, or any other table with Arrow's interface
        (``__arrow_c_stream__``); a pyarrow record batch; a mapping from names to columns; an array
        of shape (records, columns); or a structured array, whose fields are columns.

    Raises
    ------
    ImportError
        If the table needs pyarrow, as those of polars do, and pyarrow is not installed.
    ValueError
        If `value` is none of these, two columns have the same name, or lengths differ.
    """
    if isinstance(value, Table):
        return value
    if hasattr(value, "iloc") and hasattr(value, "columns"):  # pandas
        names = tuple(map(str, value.columns))
        columns = [_cells_of_pandas(value.iloc[:, place]) for place in range(len(names))]
    elif hasattr(value, "collect") and not hasattr(value, "__arrow_c_stream__"):
        fail("X", "a table in memory: call .collect() first", type(value).__name__)
    elif is_arrow(value):
        arrow_table = _as_arrow(value)
        names = tuple(arrow_table.column_names)
        columns = [_cells_of_arrow(arrow_table.column(place)) for place in range(len(names))]
    elif isinstance(value, Mapping):
        names = tuple(map(str, value))
        columns = [_cells_of_mapping(str(name), column) for name, column in value.items()]
        lengths = [len(column) for column in columns]
        if len(set(lengths)) > 1:
            fail("table", "columns of equal length", lengths)
    else:
        return _table_of_array(cells_of(value))
    if len(set(names)) < len(names):
        fail("table", "columns of different names", ", ".join(names))
    return Table(names, tuple(columns))


def _table_of_array(array: Cells) -> Table:
    """Return the columns of an array, or the fields of a structured one."""
    fields = array.dtype.names
    if fields is not None and array.ndim == 1:
        return Table(fields, tuple(array[name] for name in fields))
    if array.ndim > 2:
        array = array.reshape(len(array), -1)  # images: one row for each
    if array.ndim != 2:
        shape = f"{array.ndim} axes. Reshape your data: X.reshape(-1, 1) makes one column"
        fail("X", "a table or an array of shape (records, columns)", shape)
    return Table(None, tuple(array.T))


def rows(table: TableLike, chosen: npt.NDArray[np.int64]) -> TableLike:
    """Return some records of a table or of an array, by index, in the same type.

    Parameters
    ----------
    table
        A pandas, polars or pyarrow table, a `Table`, or an array. A table of polars or pyarrow is
        returned as a pyarrow table.
    chosen
        Indices of the records, in the order of the result.
    """
    if hasattr(table, "iloc"):
        return table.iloc[chosen]
    if isinstance(table, Table):
        return table.take(chosen)
    if is_arrow(table):
        return _as_arrow(table).take(chosen)
    return np.asarray(table)[chosen]


def is_arrow(value: TableLike) -> bool:
    """Return True for a table or record batch of pyarrow, or a table with Arrow's interface."""
    if isinstance(value, np.ndarray) or not hasattr(value, "columns"):
        return hasattr(value, "column_names") and hasattr(value, "to_pylist")
    return hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")


def cells_of(values: ColumnLike) -> Cells:
    """Convert values to an array of cells: a list becomes an array of objects, unconverted.

    Masked elements of a numpy array become missing values.
    """
    if isinstance(values, np.ndarray):
        return np.asarray(without_mask(values))
    return np.array(values, dtype=object)


def array_keeping_types(values: ColumnLike) -> Cells:
    """Convert values to an array; the cells of a list of several types stay objects, unconverted.

    `numpy.asarray` would convert the list ``[1, "a"]`` to texts.
    """
    array: Cells = np.asarray(values)
    if not isinstance(values, (list, tuple)) or array.ndim != 1:
        return array
    types = {*map(type, values)}
    if len(types) > 1:
        return cells_of(values)
    return array


def without_mask(values: ColumnLike) -> ColumnLike:
    """Replace the masked elements of an array by NaN or None; return other values unchanged."""
    if not np.ma.isMaskedArray(values):
        return values
    mask = np.ma.getmaskarray(values)
    if not mask.any():
        return values
    plain = np.asarray(np.ma.getdata(values))
    if plain.dtype.kind == "f":
        return np.where(mask, np.nan, plain)
    cells = plain.astype(object)  # integers keep all their digits
    cells[mask] = None
    return cells


def array_of(values: Sequence[object]) -> Cells:
    """Convert public values, such as classes, to an array; objects if floats would round them."""
    array = np.array(values)
    if array.dtype.kind == "f" and array.tolist() != [*values]:
        return cells_of(values)
    return array


def concatenate_cells(parts: Sequence[Cells]) -> Cells:
    """Concatenate parts of a column; parts of different types become objects, unconverted."""
    if len({part.dtype for part in parts}) > 1:
        parts = [part.astype(object) for part in parts]
    return np.concatenate(parts)


def _cells_of_mapping(name: str, values: ColumnLike) -> Cells:
    """Return the cells of a column of a mapping."""
    if not hasattr(values, "iloc") and hasattr(values, "__arrow_c_stream__"):
        import pyarrow as pa

        values = _cells_of_arrow(pa.chunked_array(values))
    column = cells_of(values)
    if column.ndim != 1:
        fail(name, "a column, shape (records,)", f"shape {column.shape}")
    return column


def _cells_of_pandas(column: ColumnLike) -> Cells:
    """Return the cells of a pandas column; with missing cells, the others keep their type."""
    cells: Cells
    if isinstance(column.dtype, np.dtype):
        cells = column.to_numpy()
    else:
        cells = column.to_numpy(dtype=object)
    return cells


def _as_arrow(value: TableLike) -> Any:
    """Return a pyarrow table."""
    with needed_by("reading tables of Arrow, such as those of polars"):
        import pyarrow as pa
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    return pa.table(value)


def _cells_of_arrow(column: ColumnLike) -> Cells:
    """Return the cells of an Arrow column; with missing cells, the others keep their type."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return cells_of(column.to_pylist())
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # converted to objects of datetime, since numpy's times have no time zone
        column = column.cast(pa.timestamp("us", kind.tz), safe=False)
        return cells_of(column.to_pylist())
    if column.null_count and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return cells_of(column.to_pylist())  # numpy's integers have no missing value
    cells: Cells = column.to_numpy()
    return cells
