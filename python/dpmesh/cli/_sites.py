"""The tables of several sites, as commands read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import typer

from dpmesh._validate import fail, nearest

if TYPE_CHECKING:
    from dpmesh.ranges import Category, Number
    from dpmesh.tables.reader import TextFormat

Separator: TypeAlias = Annotated[
    str | None, typer.Option(help="Between two values of a text file; by default as its header.")
]
Decimal: TypeAlias = Annotated[
    Literal[".", ","] | None,
    typer.Option(help="Before decimals; by default a comma if a semicolon separates values."),
]
Encoding: TypeAlias = Annotated[
    str | None, typer.Option(help="Of text files, such as latin-1; by default as the header.")
]


def text_format(
    separator: str | None, decimal: Literal[".", ","] | None, encoding: str | None
) -> TextFormat:
    """Return how text files are written; a backslash and a t stand for a tab."""
    from dpmesh.tables.reader import TextFormat

    tab = "\t" if separator == "\\t" else separator
    return TextFormat(separator=tab, decimal=decimal, encoding=encoding)


class Sites(NamedTuple):
    """Records of all sites, in the order of the files."""

    table: Any
    labels: Any
    owners: Any
    unused: list[str]


def public_ranges(
    path: Path, label: str, site: str | None
) -> tuple[dict[str, Any], Number | Category]:
    """Return the ranges of the columns to use, and that of the label, from a file.

    Raises
    ------
    ValueError
        If the file has none of the label, or one of the column that names the site.
    """
    from dpmesh.ranges import as_label, read_ranges

    public = read_ranges(path)
    if label not in public:
        given = f'{label} = {{classes = ["no", "yes"]}} or {label} = {{target = [0, 100]}}'
        hint = nearest(label, public)
        raise ValueError(f"{path} has no range of the label. Add a line such as {given}{hint}")
    target = as_label(label, public.pop(label))
    if site in public:
        fail(str(path), f"no range of {site}, which --site names: it is no feature", "one")
    return public, target


def existing(files: Sequence[Path]) -> list[Path]:
    """Return the files, patterns such as ``sites/*.csv`` expanded where the shell did not.

    Raises
    ------
    FileNotFoundError
        If a pattern matches none.
    ValueError
        If two are the same file.
    """
    found: list[Path] = []
    for file in files:
        if file.exists() or "*" not in file.name:
            found.append(file)
            continue
        matches = sorted(file.parent.glob(file.name))
        if not matches:
            raise FileNotFoundError(f"no file matches {file}")
        found += matches
    real = [file.resolve() for file in found]
    if twice := [file for file, own in zip(found, real, strict=True) if real.count(own) > 1]:
        fail("files", "each file once: a record may be at one site alone", f"{twice[0]} twice")
    return found


def read_sites(
    files: Sequence[Path],
    used: Mapping[str, Any],
    label: str,
    target: Number | Category,
    site: str | None,
    written: TextFormat,
    *,
    drop: bool,
) -> Sites:
    """Return the records of all files; what their owner should know goes to the standard error.

    Raises
    ------
    ValueError
        If a file holds what the ranges do not allow; it names file, record, column and value.
    OSError
        If a file cannot be read.
    """
    import numpy as np
    from pandas import DataFrame, concat

    from dpmesh.ranges import Category, Columns
    from dpmesh.tables import as_table, read_table
    from dpmesh.tables.cells import of_file
    from dpmesh.tables.kinds import labelled
    from dpmesh.tables.table import sites_of

    columns, found = Columns.of(used, used), existing(files)
    tables = [read_table(file, written) for file in found]
    _check_names(tables, [*used, label], site)
    kept, labels, owners = [], [], []
    for file, table in zip(found, tables, strict=True):
        if not len(table):
            fail("file", "a table of at least 1 record", f"none in {file}")
        with of_file(file):
            own, held = labelled(label, target, as_table(table), drop=drop)
            read = columns.encode_table(held)
            owners.append(np.full(len(own), str(file)) if site is None else sites_of(held, site))
        for notice in read.notices():
            typer.echo(f"{file}, {notice}", err=True)
        if left := len(table) - len(own):
            what = f"{left} record{'s are' if left > 1 else ' is'} left out: no {label}"
            typer.echo(f"{file}, {what}", err=True)
        absent = dict.fromkeys(read.absent)
        kept.append(
            DataFrame({**dict(zip(held.names or (), held.columns, strict=True)), **absent})[[*used]]
        )
        labels.append(np.array(target.categories)[own] if isinstance(target, Category) else own)
    unused = dict.fromkeys(name for table in tables for name in table)
    return Sites(
        concat(kept, ignore_index=True),
        np.concatenate(labels),
        np.concatenate(owners),
        [name for name in unused if name not in (*used, label, site)],
    )


def _check_names(tables: Sequence[Any], wanted: Sequence[str], site: str | None) -> None:
    """Fail unless each column is in one of the tables."""
    names = [*dict.fromkeys(name for table in tables for name in table)]
    for name in wanted:
        if name not in names:
            columns = f"columns of the tables ({', '.join(names)})"
            fail("ranges", columns, f"{name!r}{nearest(name, names)}")
    if site is not None and site not in names:
        fail("--site", f"a column of the tables ({', '.join(names)})", repr(site))
