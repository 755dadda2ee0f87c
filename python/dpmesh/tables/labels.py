"""Reading of the labels (targets) of records by their public ranges.

A label is a class, a number, or for multi-label learning 0 or 1 in each of several columns. Missing
labels are an error, or their records are left out (`drop`).
"""

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
"""Remedy of a missing label or site, for error messages."""

MOST_LABELS = 63
"""Largest number of labels of a record: an int64 holds them as bits."""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Labels of multi-label learning, each in a separate column of binary values.

    Parameters
    ----------
    names
        Names of the columns.
    kinds
        Public range of each column: a flag, or two categories, the second for a record that has the
        label.

    Raises
    ------
    ValueError
        If a column has another range, or may have missing values.
    """

    names: tuple[str, ...]
    kinds: tuple[Flag | Category, ...]

    def __post_init__(self) -> None:
        for name, kind in zip(self.names, self.kinds, strict=True):
            if not _has_two_values(kind):
                expected = '{flag = true}, or {classes = ["no", "yes"]}, as one of several labels'
                form = getattr(kind, "toml", kind)
                fail(f"ranges of {name}", expected, f"{{{form}}}")


def _has_two_values(kind: Flag | Category) -> bool:
    """Return True for a range of flags, or of two categories without shares."""
    if isinstance(kind, Category):
        return kind.width == 2 and kind.shares is None
    return kind == Flag()


Label: TypeAlias = Number | Category | Labels
"""Public range of a label: numbers, classes, or several binary labels."""


def read_labels(
    name: str, kind: Number | Flag | Category, cells: Cells, *, drop: bool = False
) -> Cells:
    """Return labels as indices of classes, or as numbers, shape (records,).

    Parameters
    ----------
    name
        Name of the label, for errors.
    kind
        Public range of the label.
    cells
        Cells of the column, shape (records,).
    drop
        True to return a missing label as -1 (a class) or NaN (a number).

    Raises
    ------
    TableError
        If a label cannot be read or is not listed, or if a label is missing and `drop` is False.
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
    """Describe why a cell is not a label of this range."""
    if not isinstance(kind, Category):
        return kind.noun
    classes = ", ".join(map(repr, kind.categories))
    return f"not one of {classes}{kind.hint(cell)}"


def labels_and_records(
    names: Sequence[str], kind: Label | None, table: Table, *, drop: bool
) -> tuple[Cells, Table]:
    """Return the labels of a table, and the records that have a label.

    Parameters
    ----------
    names
        Name of the label's column, or names of the columns of several labels.
    kind
        Public range of the label or labels. None for a table without labels, where all labels are
        0.
    table
        The records.
    drop
        True to leave out records without a label.

    Returns
    -------
    The labels: as of `read_labels`, shape (records,), or for several labels 0 and 1, shape
    (records, labels). And the table of the records that have a label.

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
