"""Reading of several files of records by the same public ranges, with the site of each record.

Each file is a site, or a column names the site of each record. The command line and experiment
files call `find_files`, `read_sites` and then `site_notices`, which warns of site names that may be
the same site and of records that are at two sites. Estimators call `site_of_each` for `groups`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from glob import glob
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpmesh._validate import fail, nearest
from dpmesh.tables.cells import (
    UNDECODED,
    Cells,
    Problems,
    TableError,
    errors_naming_file,
    is_rounded,
    map_cells,
    name_of,
    shown,
    usually_missing,
    value_of,
)
from dpmesh.tables.columns import Columns, Encoded
from dpmesh.tables.copies import describe_copies, fingerprints
from dpmesh.tables.labels import REMEDY, Label, labels_and_records
from dpmesh.tables.table import ColumnLike, Table, array_keeping_types, without_mask


class FileRecords(NamedTuple):
    """The records of one file.

    Attributes
    ----------
    table
        All columns of the records that have a label.
    labels
        Label of each record, as `dpmesh.tables.labels.labels_and_records` returns it.
    encoded
        Features of the records.
    sites
        Name of each record's site, shape (records,).
    notices
        Sentences for the owner of the file, about clipped, unreadable and left out values.
    """

    table: Table
    labels: Cells
    encoded: Encoded
    sites: Cells
    notices: list[str]


def find_files(patterns: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the paths of files, by name or by a pattern such as ``sites/*.csv``.

    Raises
    ------
    FileNotFoundError
        If a name or pattern matches no file.
    ValueError
        If `patterns` is empty, or a file is listed twice.
    """
    if not patterns:
        fail("files", "at least 1 file", "none")
    files: list[str] = []
    for path in patterns:
        pattern = os.fspath(path)
        if Path(pattern).exists():
            files.append(pattern)
            continue
        matches = sorted(glob(pattern, recursive=True))  # noqa: PTH207 (a pattern may be absolute)
        if not matches:
            raise FileNotFoundError(f"no file matches {pattern}")
        files += matches
    resolved = [Path(file).resolve() for file in files]
    for file, real_path in zip(files, resolved, strict=True):
        if resolved.count(real_path) > 1:
            fail("files", "each file once: a record may be at one site alone", f"{file} twice")
    return files


def names_of(paths: Sequence[str]) -> list[str]:
    """Return a site name for each file: its stem, or all paths if two stems are equal."""
    stems = [Path(path).stem for path in paths]
    if len(set(stems)) < len(stems):
        return [*paths]
    return stems


def sites_of(name: str, cells: Cells) -> Cells:
    """Return the name of each record's site, shape (records,).

    Parameters
    ----------
    name
        Name of the column of sites, for errors.
    cells
        Cells of the column, shape (records,), named by `dpmesh.tables.cells.name_of`.

    Raises
    ------
    TableError
        If a record has no site, or its site is a rounded float or an undecodable text.
    """
    sites = []
    for record, cell in enumerate(cells.tolist()):
        if has_no_site(cell):
            raise TableError(record, f"{name} (the site) is missing; {REMEDY}")
        if is_rounded(cell):
            problem = f"{name} is {cell:.0f}, a float, in which sites may have become one"
            raise TableError(record, f"{problem}; read the names of sites as texts or integers")
        site = name_of(cell)
        assert site is not None
        if UNDECODED in site:
            problem = f"{name} is {shown(site)}, whose bytes cannot be decoded"
            raise TableError(record, f"{problem}; state encoding=, such as latin-1 (--encoding)")
        sites.append(site)
    return np.array(sites, dtype=np.str_)


def has_no_site(cell: object) -> bool:
    """Return True if a cell names no site. The text NA, the code of a country, is a name."""
    name = name_of(cell)
    return name is None or not name.strip()


def confusable_names(sites: Iterable[str]) -> list[str]:
    """Describe site names that may be mistakes, in sentences for the owner of the data.

    These are words for missing values, and names that differ in case, blanks or notation alone.
    """
    names = sorted(set(sites))
    notices = [
        f"{shown(name)} is taken as the name of a site" for name in names if usually_missing(name)
    ]
    spellings: dict[str | int | float, list[str]] = {}
    for name in names:
        number = value_of(name.strip())
        key = name.strip().casefold() if number is None else number
        spellings.setdefault(key, []).append(name)
    similar = [", ".join(map(shown, group)) for group in spellings.values() if len(group) > 1]
    return [*notices, *(f"{names_of_group} are different sites" for names_of_group in similar)]


def site_of_each(groups: ColumnLike, records: int) -> Cells:
    """Return the site of each record from the parameter `groups`, shape (records,).

    Sites are integers or texts; all are 0 if `groups` is None.

    Parameters
    ----------
    groups
        The site of each record, as for an estimator's `fit`.
    records
        Number of records.

    Raises
    ------
    ValueError
        If `groups` has another length or shape, or a record has no site.
    """
    if groups is None:
        return np.zeros(records, dtype=np.int64)
    if isinstance(groups, str):
        fail("groups", "the site of each record, such as table['site']", repr(groups))
    owners = array_keeping_types(without_mask(groups))
    if owners.shape not in ((records,), (records, 1)):
        expected = f"the site of each of the {records} records"
        if owners.ndim == 1:
            fail("groups", expected, len(owners))
        fail("groups", expected, f"shape {owners.shape}")
    owners = owners.ravel()
    if owners.dtype.kind in "iub":
        return owners
    return sites_of("groups", owners)


def read_sites(
    paths: Sequence[str],
    tables: Sequence[Table],
    columns: Columns,
    labels: Sequence[str],
    target: Label | None,
    *,
    site: str | None = None,
    drop: bool = False,
    on_file: Callable[[], object] | None = None,
) -> list[FileRecords]:
    """Encode the records of each file.

    Parameters
    ----------
    paths, tables
        The files, and the table of each file.
    columns
        The columns that a model reads.
    labels, target
        Names of the label's columns, and the public range of the label. With a range of None all
        labels are 0.
    site
        Name of the column of sites; by default each file is a site.
    drop
        True to leave out records without a label or a site.
    on_file
        Function without arguments, called after each file, for example to show progress.

    Raises
    ------
    ValueError
        If a column is in none of the tables, or a cell holds a value that its range does not allow.
        The error names file, record, column and value.
    """
    _require_columns("label", labels, tables)
    if site is not None:
        _require_columns("site", [site], tables)
    _require_columns("ranges", columns.names, tables)
    records_of_files = []
    for path, file_site, table in zip(paths, names_of(paths), tables, strict=True):
        with errors_naming_file(path):
            records = _read_file(table, columns, labels, target, file_site, site, drop=drop)
        notices = [f"{path}, {notice}" for notice in records.notices]
        records_of_files.append(records._replace(notices=notices))
        if on_file is not None:
            on_file()
    return records_of_files


def _require_columns(argument: str, names: Iterable[str], tables: Sequence[Table]) -> None:
    """Fail unless each of the columns is in at least one of the tables.

    `argument` is the name of the parameter with the columns, for the error.
    """
    existing_names = [*dict.fromkeys(name for table in tables for name in table.names or ())]
    for name in names:
        if name not in existing_names:
            expected = f"a column of the tables ({', '.join(existing_names)})"
            fail(argument, expected, f"{name!r}{nearest(name, existing_names)}")


def _read_file(
    table: Table,
    columns: Columns,
    label_names: Sequence[str],
    target: Label | None,
    file_site: str,
    site: str | None,
    *,
    drop: bool,
) -> FileRecords:
    """Encode the records of one table; one error reports all columns that do not fit.

    Parameters are as of `read_sites`; `file_site` is the site of all records if `site` is None.

    Raises
    ------
    TableError
        If the table has no records, or a column holds what its range does not allow.
    """
    if not table.records:
        raise TableError(None, "the table has no records")
    records = table
    if site is not None and drop:
        without_site = map_cells(has_no_site, table.select([site]).columns[0], bool)
        records = table.take(~without_site)
    problems = Problems()
    with problems.collected():
        labels, records = labels_and_records(label_names, target, records, drop=drop)
    with problems.collected():
        encoded = columns.encode_table(records)
    sites = np.full(records.records, file_site)
    if site is not None:
        with problems.collected():
            sites = sites_of(site, records.select([site]).columns[0])
    problems.check()
    notices = encoded.notices()
    dropped = table.records - records.records
    if dropped:
        notices.append(_dropped_notice(dropped, [*label_names, *filter(None, [site])]))
    return FileRecords(records, labels, encoded, sites, notices)


def _dropped_notice(dropped: int, names: Sequence[str]) -> str:
    """Describe the number of records left out for a missing value in one of these columns."""
    records = "1 record is" if dropped == 1 else f"{dropped} records are"
    return f"{records} left out: no {' or no '.join(names)}"


def site_notices(files: Sequence[FileRecords], site: str | None) -> list[str]:
    """Describe doubtful sites in sentences: names that may be the same site, and copied records.

    Parameters
    ----------
    files
        Records of each file, as `read_sites` returns them.
    site
        Name of the column of sites; None if each file is a site.
    """
    owners = np.concatenate([file.sites for file in files])
    names, codes = np.unique(owners, return_inverse=True)
    partition = [np.flatnonzero(codes == code) for code in range(len(names))]
    records = np.concatenate([fingerprints(file.table, without=site) for file in files])
    notices = confusable_names(names.tolist())
    copies = describe_copies(records, partition, names)
    if copies is not None:
        notices.append(copies)
    return notices
