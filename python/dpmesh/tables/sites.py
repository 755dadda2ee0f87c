"""The records of several files, read by the same public ranges, and the site of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, nearest
from dpmesh.tables.cells import (
    UNDECODED,
    Problems,
    TableError,
    each,
    is_rounded,
    name_of,
    of_file,
    shown,
    usually_missing,
    value_of,
)
from dpmesh.tables.columns import Columns, Encoded
from dpmesh.tables.copies import copied, fingerprints
from dpmesh.tables.labels import REMEDY, Label, labelled
from dpmesh.tables.table import Table, own_types, without_mask


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


def names_of(paths: Sequence[str]) -> list[str]:
    """Return the names of the sites that files are: without folders, if they differ so."""
    stems = [Path(path).stem for path in paths]
    return stems if len({*stems}) == len(stems) else [*paths]


def sites_of(name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the name of each record's site, see `dpmesh.tables.cells.name_of`.

    Raises
    ------
    TableError
        If a record has none, or one that is not exact.
    """
    sites = []
    for record, cell in enumerate(values.tolist()):
        if has_no_site(cell):
            raise TableError(record, f"{name} (the site) is missing; {REMEDY}")
        if is_rounded(cell):
            said = f"{name} is {cell:.0f}, a float, in which sites may have become one"
            raise TableError(record, f"{said}; read the names of sites as texts or integers")
        site = name_of(cell)
        assert site is not None
        if UNDECODED in site:
            said = f"{name} is {shown(site)}, whose bytes cannot be decoded"
            raise TableError(record, f"{said}; state encoding=, such as latin-1 (--encoding)")
        sites.append(site)
    return np.array(sites, dtype=np.str_)


def has_no_site(cell: object) -> bool:
    """Return whether a cell names no site. NA, the code of a country, is a name."""
    name = name_of(cell)
    return name is None or not name.strip()


def alike(sites: Iterable[str]) -> list[str]:
    """Return in sentences which names of sites may be meant to be one, or none."""
    names = sorted({*sites})
    words = [name for name in names if usually_missing(name)]
    said = [f"{shown(word)} is taken as the name of a site" for word in words]
    written: dict[Any, list[str]] = {}
    for name in names:
        key = value_of(name.strip())
        written.setdefault(name.strip().casefold() if key is None else key, []).append(name)
    groups = [group for group in written.values() if len(group) > 1]
    return [*said, *(f"{', '.join(map(shown, group))} are different sites" for group in groups)]


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
    owners = own_types(without_mask(groups))
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
                kept = table.take(~each(has_no_site, table.select([site]).columns[0], bool))
            problems = Problems()
            with problems.collected():
                own_labels, kept = labelled(labels, target, kept, drop=drop)
            with problems.collected():
                encoded = columns.encode_table(kept)
            sites = np.full(kept.records, own)
            if site is not None:
                with problems.collected():
                    sites = sites_of(site, kept.select([site]).columns[0])
            problems.check()
        notices = encoded.notices()
        if left := table.records - kept.records:
            what = " or no ".join([*labels, *([] if site is None else [site])])
            notices.append(f"{left} record{'s are' if left > 1 else ' is'} left out: no {what}")
        notices = [f"{path}, {notice}" for notice in notices]
        held.append(Held(kept, own_labels, encoded, sites, notices))
    return held


def doubts(held: Sequence[Held], site: str | None) -> list[str]:
    """Return in sentences what is doubtful about the sites: names that are alike, and copies.

    Parameters
    ----------
    held
        What `read_sites` returned.
    site
        The column that names the site, if there is one.
    """
    owners = np.concatenate([one.sites for one in held])
    names, codes = np.unique(owners, return_inverse=True)
    partition = [np.flatnonzero(codes == code) for code in range(len(names))]
    records = np.concatenate([fingerprints(one.table, without=site) for one in held])
    said = copied(records, partition, names)
    return alike(names.tolist()) + ([] if said is None else [said])
