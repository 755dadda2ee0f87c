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

DropMissingLabels: TypeAlias = Annotated[
    bool, typer.Option("--drop-missing-labels", help="Leave out records without a label or a site.")
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


def read_sites(
    files: Sequence[Path],
    used: Mapping[str, Any],
    label: str | None,
    target: Number | Category | None,
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
    from dpmesh.tables import sites

    columns, paths = Columns.of(used, used), sites.existing(files)
    tables = [sites.open_table(path, written) for path in paths]
    read = sites.read_sites(paths, tables, columns, label, target, site=site, drop=drop)
    kept = []
    for one in read:
        for notice in one.notices:
            typer.echo(notice, err=True)
        whole = one.table.with_missing(one.encoded.absent).select([*used])
        kept.append(DataFrame(dict(zip(used, whole.columns, strict=True))))
    labels = np.concatenate([one.labels for one in read])
    if isinstance(target, Category):
        labels = np.array(target.categories)[labels]
    unused = dict.fromkeys(name for table in tables for name in table.names or ())
    return Sites(
        concat(kept, ignore_index=True),
        labels,
        np.concatenate([one.sites for one in read]),
        [name for name in unused if name not in (*used, label, site)],
    )
