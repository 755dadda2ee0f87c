"""Tables of records, public ranges of their columns, and their encoding as features.

A table is a pandas, polars or pyarrow table, an array, or a file.

The user states the values that each column may have, from public knowledge and never from the data:
the smallest and largest number or date, a flag, or the list of categories. Each record is then
encoded by itself, from these public ranges alone. So two datasets that differ in one record still
differ in one record once encoded, and the encoding needs no epsilon:

- a number or a date is clipped to its range and mapped linearly onto [-1, 1];
- a flag is 0 or 1;
- a category becomes one 0 or 1 for each listed category, all 0 if it is missing or not listed;
- a missing number, date or flag becomes 0, with a 1 in a separate column;
- `features` may map these numbers to others, see `dpmesh.tables.features`;
- a constant 1 is the intercept;
- the record is divided by its L2 norm, so that no record weighs more than another.
"""

from __future__ import annotations

from dpmesh.tables.columns import Columns, Encoded, Features, Ranges
from dpmesh.tables.kinds import Category, Dates, Flag, Number
from dpmesh.tables.ranges import read_ranges
from dpmesh.tables.reader import read_table
from dpmesh.tables.table import Table, as_table, rows

__all__ = [
    "Category",
    "Columns",
    "Dates",
    "Encoded",
    "Features",
    "Flag",
    "Number",
    "Ranges",
    "Table",
    "as_table",
    "read_ranges",
    "read_table",
    "rows",
]
