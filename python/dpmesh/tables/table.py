"""Tables of records: pandas, pyarrow, dictionaries of columns, arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
    """Return the columns of a pandas or pyarrow table, a dictionary, or an array.

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
    elif isinstance(value, Mapping):
        names = tuple(map(str, value))
        columns = [_cells(column) for column in value.values()]
        if len({len(column) for column in columns}) > 1:
            fail("table", "columns of equal length", [len(column) for column in columns])
    else:
        array = _cells(value)
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
    """Return some records of a pandas or pyarrow table, or of an array, as the same kind."""
    if hasattr(table, "iloc"):
        return table.iloc[chosen]
    return table.take(chosen) if hasattr(table, "column_names") else np.asarray(table)[chosen]


def _cells(values: Any) -> npt.NDArray[Any]:
    """Return an array; a list keeps each of its cells as it is."""
    return values if isinstance(values, np.ndarray) else np.array(values, dtype=object)


def _of_arrow(column: Any) -> npt.NDArray[Any]:
    if str(column.type).startswith("dictionary"):
        column = column.cast(column.type.value_type)
    values: npt.NDArray[Any] = column.to_numpy()
    return values
