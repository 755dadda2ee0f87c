"""The records of several files, read by the same public ranges, and the site of each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, nearest
from dpmesh.tables.cells import TableError, each, key_of, of_file, usually_missing
from dpmesh.tables.columns import Columns, Encoded
from dpmesh.tables.labels import REMEDY, Label, labelled
from dpmesh.tables.reader import TextFormat, read_table
from dpmesh.tables.table import Table, as_table


class Held(NamedTuple):
    """The records of one file.

    Attributes
    ----------
    table
        All columns of the records that have a label.
    labels
        Of each record, as `dpmesh.tables.kinds.labelled` gives them.
    encoded
        Their features.
    sites
        The name of each record's site.
    notices
        What the file's owner should know, in sentences that name the file.
    """

    table: Table
    labels: npt.NDArray[Any]
    encoded: Encoded
    sites: npt.NDArray[Any]
    notices: list[str]


def existing(patterns: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the files of these names, or that match patterns such as ``sites/*.csv``.

    Raises
    ------
    FileNotFoundError
        If a pattern matches none.
    ValueError
        If there is no pattern, or two files are the same.
    """
    if not patterns:
        fail("files", "at least 1 file", "none")
    found: list[str] = []
    for pattern in (os.fspath(one) for one in patterns):
        matches = [pattern] if Path(pattern).exists() else sorted(glob(pattern, recursive=True))  # noqa: PTH207 (a pattern may be absolute)
        if not matches:
            raise FileNotFoundError(f"no file matches {pattern}")
        found += matches
    real = [Path(file).resolve() for file in found]
    if twice := [file for file, own in zip(found, real, strict=True) if real.count(own) > 1]:
        fail("files", "each file once: a record may be at one site alone", f"{twice[0]} twice")
    return found


def open_table(path: str, written: TextFormat) -> Table:
    """Return the columns of a file: what `read_table` reads, or named arrays of an npz file.

    An array X of several columns has X0, X1, and so on.

    Raises
    ------
    ValueError
        As `read_table`, or if arrays are not of as many records.
    OSError
        If it cannot be read.
    """
    if Path(path).suffix.lower() != ".npz":
        return as_table(read_table(path, written))
    named: dict[str, npt.NDArray[Any]] = {}
    with np.load(path) as arrays:
        for name, array in arrays.items():
            if array.ndim == 1:
                named[name] = array
            elif array.ndim == 2:
                named |= {f"{name}{i}": column for i, column in enumerate(array.T)}
            else:
                fail("files", "arrays of 1 or 2 axes", f"{name} of shape {array.shape} in {path}")
    if len({len(column) for column in named.values()}) != 1:
        shapes = {name: len(column) for name, column in named.items()}
        fail("files", "arrays of as many records", f"{shapes} in {path}")
    return Table(tuple(named), tuple(named.values()))


def names_of(paths: Sequence[str]) -> list[str]:
    """Return the names of the sites that files are: without folders, if they differ so."""
    stems = [Path(path).stem for path in paths]
    return stems if len({*stems}) == len(stems) else [*paths]


def sites_of(name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the site of each record as text: 1, 1.0 and "1" are one.

    Raises
    ------
    TableError
        If a record has none.
    """
    sites = []
    for record, cell in enumerate(values.tolist()):
        if usually_missing(cell):
            raise TableError(record, f"{name} (the site) is missing; {REMEDY}")
        key = key_of(cell)
        sites.append(str(int(key)) if isinstance(key, float) and key.is_integer() else str(key))
    return np.array(sites)


def site_of_each(groups: Any, records: int) -> npt.NDArray[Any]:
    """Return the site of each record, shape (records,); zeros if all are at one.

    Raises
    ------
    ValueError
        If `groups` has another length or shape, or misses sites.
    """
    if groups is None:
        return np.zeros(records, dtype=np.int64)
    if isinstance(groups, str):
        fail("groups", "the site of each record, such as table['site']", repr(groups))
    owners: npt.NDArray[Any] = np.asarray(groups)
    if owners.shape not in ((records,), (records, 1)):
        got = len(owners) if owners.ndim == 1 else f"shape {owners.shape}"
        fail("groups", f"the site of each of the {records} records", got)
    owners = owners.ravel()
    return owners if owners.dtype.kind in "iub" else sites_of("groups", owners)


def read_sites(
    paths: Sequence[str],
    tables: Sequence[Table],
    columns: Columns,
    labels: Sequence[str],
    target: Label | None,
    *,
    site: str | None = None,
    drop: bool = False,
) -> list[Held]:
    """Return the records of each file.

    Parameters
    ----------
    paths, tables
        The files, and their tables.
    columns
        What a model reads.
    labels, target
        The columns to predict, and what they may be; None: all labels are 0.
    site
        The column that names the site; by default each file is one.
    drop
        Whether records without a label or a site are left out.

    Raises
    ------
    ValueError
        If a column is in none of the tables, or one holds what the ranges do not allow: the error
        names file, record, column and value.
    """
    names = [*dict.fromkeys(name for table in tables for name in table.names or ())]
    sought = {"label": labels, "site": [site], "ranges": columns.names}
    for argument, wanted in sought.items():
        for name in wanted:
            if name is not None and name not in names:
                got = f"{name!r}{nearest(name, names)}"
                fail(argument, f"a column of the tables ({', '.join(names)})", got)
    held = []
    for path, own, table in zip(paths, names_of(paths), tables, strict=True):
        with of_file(path):
            if not table.records:
                raise TableError(None, "the table has no records")
            kept = table
            if site is not None and drop:
                kept = table.take(~each(usually_missing, table.select([site]).columns[0], bool))
            own_labels, kept = labelled(labels, target, kept, drop=drop)
            encoded = columns.encode_table(kept)
            sites = np.full(kept.records, own)
            if site is not None:
                sites = sites_of(site, kept.select([site]).columns[0])
        notices = encoded.notices()
        if left := table.records - kept.records:
            what = " or no ".join([*labels, *([] if site is None else [site])])
            notices.append(f"{left} record{'s are' if left > 1 else ' is'} left out: no {what}")
        notices = [f"{path}, {notice}" for notice in notices]
        held.append(Held(kept, own_labels, encoded, sites, notices))
    return held
