"""The labels of records, read by their public kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail
from dpmesh.tables.cells import TableError, shown, usually_missing
from dpmesh.tables.kinds import Category, Flag, Number
from dpmesh.tables.table import Table

REMEDY = "fill it in, or leave such records out (dpmesh fit: --drop-missing-labels)"

MOST_LABELS = 63
"""Labels of a record, whose set is an int64."""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Several labels of a record, each in a column of its own.

    Parameters
    ----------
    names
        The columns.
    kinds
        What each holds: a flag, or two categories, of which the second one is the label.

    Raises
    ------
    ValueError
        If a column may be missing, or hold something else.
    """

    names: tuple[str, ...]
    kinds: tuple[Flag | Category, ...]

    def __post_init__(self) -> None:
        for name, kind in zip(self.names, self.kinds, strict=True):
            pair = isinstance(kind, Category) and kind.width == 2 and kind.shares is None
            if not pair and kind != Flag():
                wanted = '{flag = true}, or {classes = ["no", "yes"]}, as one of several labels'
                fail(f"ranges of {name}", wanted, f"{{{getattr(kind, 'form', kind)}}}")


Label: TypeAlias = Number | Category | Labels
"""What a model learns of a record."""


def read_labels(
    name: str, kind: Number | Flag | Category, values: npt.NDArray[Any], *, drop: bool = False
) -> npt.NDArray[Any]:
    """Return labels as places among the classes, or as numbers, shape (records,).

    Parameters
    ----------
    name
        Of the label.
    kind
        What a label may be.
    values
        The labels.
    drop
        Whether a label may be missing: it is then -1, or NaN.

    Raises
    ------
    TableError
        If a label cannot be read or is not listed; if one is missing, unless `drop` is true.
    """
    if isinstance(kind, Category):
        found: npt.NDArray[Any] = kind.codes(values)
        absent = found < 0
    else:
        found = kind.numbers(values)
        absent = np.isnan(found)
    for record in np.flatnonzero(absent):
        value = values[record]
        if not usually_missing(value):
            if not isinstance(kind, Category):
                wrong = kind.noun
            else:
                wrong = f"not one of {', '.join(map(repr, kind.categories))}{kind.hint(value)}"
            raise TableError(int(record), f"{name} is {shown(value)}, {wrong}")
        if not drop:
            raise TableError(int(record), f"{name} is missing; {REMEDY}")
    return found


def labelled(
    names: Sequence[str], kind: Label | None, table: Table, *, drop: bool
) -> tuple[npt.NDArray[Any], Table]:
    """Return labels as `read_labels` does, and their records; `drop` leaves out those without.

    Several labels are 0 and 1, shape (records, labels). Without names all labels are 0.
    """
    if kind is None:
        return np.zeros(table.records), table
    kinds = kind.kinds if isinstance(kind, Labels) else (kind,)
    columns = zip(names, kinds, table.select(names).columns, strict=True)
    each = [read_labels(name, own, values, drop=drop) for name, own, values in columns]
    there = np.all([found >= 0 for found in each], axis=0)
    if isinstance(kind, Number):
        there = ~np.isnan(each[0])
    if isinstance(kind, Labels):
        return np.stack(each, axis=1)[there].astype(np.int64), table.take(there)
    return each[0][there], table.take(there)
