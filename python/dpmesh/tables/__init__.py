"""Tables of records, public ranges of their columns, and the numbers that a model makes of them.

Tables are pandas, pyarrow, arrays, and files of them.

What a column may hold is public knowledge, stated by the user and never read off the data: the
smallest and largest number or date, a flag, or the list of categories. Each cell is then read by
itself, with public numbers alone, which costs no privacy:

- a number or a date is clipped to its range and mapped linearly onto [-1, 1];
- a flag is 0 or 1;
- a category becomes one 0 or 1 for each category; one that is missing or not listed, only zeros;
- a missing number, date or flag becomes 0, and a 1 in a column of its own;
- of these numbers others are made, if `features` says so, see `dpmesh.tables.features`;
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
