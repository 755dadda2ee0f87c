"""Files of records: text with a header, Parquet, Arrow or Feather, and numpy's archives."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh._extras import needed_by
from dpmesh._files import read_bytes
from dpmesh._validate import fail, instance
from dpmesh.tables.table import Table, as_table
from dpmesh.tables.text import TextFormat, parse

__all__ = ["TextFormat", "open_table", "read_table"]

_TEXT = (".csv", ".tsv", ".txt")
_BINARY = (".parquet", ".arrow", ".feather")
_PACKED = (".gz", ".bz2")
_INDEX = "__index_level_"
"""How the names of columns begin in which pandas writes its index."""


def read_table(path: str | os.PathLike[str], written: TextFormat | None = None) -> Any:
    """Read a file into a pandas table: text with a header, Parquet, Arrow, Feather or npz.

    Every value of a text file (``.csv``, ``.tsv``, ``.txt``, also with ``.gz`` or ``.bz2``) stays
    the text that it is: public ranges say what it means, see `dpmesh.tables`. A line is a record,
    and is read by itself. What `written` leaves open is taken from the header line alone. Bytes
    that cannot be decoded become U+FFFD, so that their value cannot be read.

    Raises
    ------
    ImportError
        If pandas is not installed, or a file needs pyarrow (extra ``pandas``).
    ValueError
        If the file is none of these, or a line does not fit the header: the message names it.
    OSError
        If it cannot be read.
    """
    with needed_by("reading a table"):
        import pandas
    table = open_table(path, written)
    named = zip(table.names or (), table.columns, strict=True)
    # A column of objects stays one: pandas may else decide on a type by all of its cells.
    columns = {name: pandas.Series(column, dtype=column.dtype) for name, column in named}
    return pandas.DataFrame(columns)


def open_table(path: str | os.PathLike[str], written: TextFormat | None = None) -> Table:
    """Return the columns of a file, as `read_table` reads them.

    An array X of several columns in an npz file has X0, X1, and so on.

    Raises
    ------
    ImportError
        If pyarrow is not installed, which reads Parquet, Arrow and Feather.
    ValueError
        If the file is of no known kind, or is damaged.
    OSError
        If it cannot be read.
    """
    instance("path", path, "the path of a file", str, os.PathLike)
    file = os.fspath(path)
    suffixes = [suffix.lower() for suffix in Path(file).suffixes[-2:]]
    last = suffixes[-1] if suffixes else ""
    if last == ".npz":
        return _of_archive(file)
    if last in _BINARY:
        return _of_arrow(file, last)
    if last in _TEXT or (last in _PACKED and suffixes[0] in _TEXT):
        try:
            content = read_bytes(file)
        except (EOFError, ValueError) as error:
            raise ValueError(f"{file} is damaged: {error}") from error
        return parse(content, written or TextFormat(), file)
    ends = ", ".join((*_TEXT, *_BINARY, ".npz"))
    wanted = f"one that ends in {ends}, or a text file with {' or '.join(_PACKED)}"
    raise ValueError(f"file: wanted {wanted}, got {file}")


def _of_arrow(file: str, kind: str) -> Table:
    """Return the columns of a file that pyarrow reads."""
    with needed_by("reading Parquet, Arrow or Feather"):
        import pyarrow as pa
        from pyarrow import feather, parquet
    try:
        table = (parquet if kind == ".parquet" else feather).read_table(file)
    except (pa.ArrowException, ValueError) as error:
        raise ValueError(f"{file} is not a table of this kind: {error}") from error
    index = [name for name in table.column_names if name.startswith(_INDEX)]
    return as_table(table.drop_columns(index))


def _of_archive(file: str) -> Table:
    """Return the arrays of an npz file as columns."""
    named: dict[str, npt.NDArray[Any]] = {}
    try:
        with np.load(file, allow_pickle=False) as arrays:
            held = dict(arrays)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file} is not a table of this kind: {error}") from error
    for name, array in held.items():
        if array.ndim == 1:
            named[name] = array
        elif array.ndim == 2:
            named |= {f"{name}{place}": column for place, column in enumerate(array.T)}
        else:
            fail("files", "arrays of 1 or 2 axes", f"{name} of shape {array.shape} in {file}")
    if len(named) < sum(1 if array.ndim == 1 else array.shape[1] for array in held.values()):
        fail("files", "arrays whose columns have different names", f"{', '.join(held)} in {file}")
    if len({len(column) for column in named.values()}) != 1:
        sizes = {name: len(column) for name, column in named.items()}
        fail("files", "arrays of as many records", f"{sizes} in {file}")
    return Table(tuple(named), tuple(named.values()))
