"""Labels of records, read by their public ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dpmesh._validate import fail
from dpmesh.tables.cells import Cells, TableError, shown, usually_missing
from dpmesh.tables.kinds import Category, Flag, Number
from dpmesh.tables.table import Table

REMEDY = "fill it in, or leave such records out (dpmesh fit: --drop-missing-labels)"

MOST_LABELS = 63
"""Most labels of a record, so that their set fits into an int64."""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Several labels of a record, each in a separate column.

    Parameters
    ----------
    names
        Columns of the labels.
    kinds
        Public range of each: a flag, or two categories, of which the second means the label.

    Raises
    ------
    ValueError
        If a column may be missing, or hold something else.
    """

    names: tuple[str, ...]
    kinds: tuple[Flag | Category, ...]

    def __post_init__(self) -> None:
        for name, kind in zip(self.names, self.kinds, strict=True):
            if not _has_two_values(kind):
                expected = '{flag = true}, or {classes = ["no", "yes"]}, as one of several labels'
                form = getattr(kind, "form", kind)
                fail(f"ranges of {name}", expected, f"{{{form}}}")


def _has_two_values(kind: Flag | Category) -> bool:
    """Return True for a range of flags, or of two categories without shares."""
    if isinstance(kind, Category):
        return kind.width == 2 and kind.shares is None
    return kind == Flag()


Label: TypeAlias = Number | Category | Labels
"""Public range of the label of a record, or of several."""


def read_labels(
    name: str, kind: Number | Flag | Category, cells: Cells, *, drop: bool = False
) -> Cells:
    """Return labels as places among the classes, or as numbers, shape (records,).

    Parameters
    ----------
    name
        Name of the label, for errors.
    kind
        Public range of the label.
    cells
        Cells of the column, shape (records,).
    drop
        True to accept missing labels, as -1 or NaN.

    Raises
    ------
    TableError
        If a label cannot be read or is not listed; if one is missing, unless `drop` is true.
    """
    labels: Cells
    if isinstance(kind, Category):
        labels = kind.codes(cells)
        absent = labels < 0
    else:
        labels = kind.numbers(cells)
        absent = np.isnan(labels)
    for record in np.flatnonzero(absent):
        cell = cells[record]
        if not usually_missing(cell):
            problem = _unread_label(kind, cell)
            raise TableError(int(record), f"{name} is {shown(cell)}, {problem}")
        if not drop:
            raise TableError(int(record), f"{name} is missing; {REMEDY}")
    return labels


def _unread_label(kind: Number | Flag | Category, cell: object) -> str:
    """Describe why a cell is no label of this kind."""
    if not isinstance(kind, Category):
        return kind.noun
    classes = ", ".join(map(repr, kind.categories))
    return f"not one of {classes}{kind.hint(cell)}"


def labelled(
    names: Sequence[str], kind: Label | None, table: Table, *, drop: bool
) -> tuple[Cells, Table]:
    """Return the labels of a table, and its records that have them.

    Parameters
    ----------
    names
        The columns of the label, or of several labels.
    kind
        Public range of the label, or of the labels; None for no label, where all are 0.
    table
        The records.
    drop
        True to leave out records without a label.

    Returns
    -------
    The labels as `read_labels` returns them, shape (records,), or 0 and 1 for several labels, shape
    (records, labels); and the records that have them.

    Raises
    ------
    TableError
        As `read_labels`.
    """
    if kind is None:
        return np.zeros(table.records), table
    kinds: tuple[Number | Flag | Category, ...]
    if isinstance(kind, Labels):
        kinds = kind.kinds
    else:
        kinds = (kind,)
    columns = table.select(names).columns
    labels = [
        read_labels(name, column_kind, cells, drop=drop)
        for name, column_kind, cells in zip(names, kinds, columns, strict=True)
    ]
    if isinstance(kind, Labels):
        present = np.all([codes >= 0 for codes in labels], axis=0)
        return np.stack(labels, axis=1)[present].astype(np.int64), table.take(present)
    if isinstance(kind, Number):
        present = ~np.isnan(labels[0])
        return labels[0][present], table.take(present)
    present = labels[0] >= 0
    return labels[0][present], table.take(present)
