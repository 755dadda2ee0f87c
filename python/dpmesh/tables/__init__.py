"""Tables of records: pandas, pyarrow, arrays, and files of them."""

from __future__ import annotations

from dpmesh.tables.reader import read_table
from dpmesh.tables.table import Table, as_table, rows

__all__ = ["Table", "as_table", "read_table", "rows"]
