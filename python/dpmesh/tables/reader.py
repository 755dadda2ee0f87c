"""Files of records: text with a header, Parquet, Arrow or Feather, and numpy's archives.

`open_table` reads a file into a `Table` of this package; `read_table` reads it into pandas.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from dpmesh._extras import needed_by
from dpmesh._files import read_bytes
from dpmesh._validate import fail, instance
from dpmesh.tables.cells import Cells
from dpmesh.tables.table import Table, TableLike, as_table
from dpmesh.tables.text import TextFormat, parse

__all__ = ["TextFormat", "open_table", "read_table"]

_TEXT = (".csv", ".tsv", ".txt", ".dat", ".data")
_BINARY = (".parquet", ".arrow", ".feather")
_PACKED = (".gz", ".bz2")
_INDEX = "__index_level_"
"""Prefix of the names of the columns to which pandas writes its index."""


def read_table(path: str | os.PathLike[str], text_format: TextFormat | None = None) -> TableLike:
    """Read a file into a pandas table: text with a header, Parquet, Arrow, Feather or npz.

    Values of a text file (``.csv``, ``.tsv``, ``.txt``, ``.dat``, ``.data``, also with ``.gz`` or
    ``.bz2``) stay texts: their public ranges decide on their type, see `dpmesh.tables`. Each line
    is a record, read by itself. Settings that `text_format` does not state follow from the header
    line alone. Bytes that cannot be decoded become U+FFFD, so that their value cannot be read.

    Parameters
    ----------
    path
        Path of the file.
    text_format
        Format of a text file; None for the defaults of `TextFormat`.

    Raises
    ------
    ImportError
        If pandas is not installed, or a file needs pyarrow (extra ``pandas``).
    ValueError
        If the file is of another kind, or a line does not fit the header. The message names the
        line.
    OSError
        If the file cannot be read.
    """
    with needed_by("reading a table"):
        import pandas
    table = open_table(path, text_format)
    columns = {
        # a stated dtype keeps pandas from inferring a type from all cells of a column
        name: pandas.Series(column, dtype=column.dtype)
        for name, column in zip(table.names or (), table.columns, strict=True)
    }
    return pandas.DataFrame(columns)


def open_table(path: str | os.PathLike[str], text_format: TextFormat | None = None) -> Table:
    """Read a file into a `Table`, as `read_table` does into pandas.

    The columns of a two-dimensional array X in an npz file are named X0, X1, and so on.

    Parameters
    ----------
    path, text_format
        As for `read_table`.

    Raises
    ------
    ImportError
        If the file is Parquet, Arrow or Feather, and pyarrow is not installed.
    ValueError
        If the file is of an unknown kind, is damaged, or a line does not fit the header.
    OSError
        If the file cannot be read.
    """
    instance("path", path, "the path of a file", str, os.PathLike)
    file = os.fspath(path)
    suffixes = [suffix.lower() for suffix in Path(file).suffixes[-2:]]
    suffix = suffixes[-1] if suffixes else ""
    if suffix == ".npz":
        return _read_archive(file)
    if suffix in _BINARY:
        return _read_arrow(file, suffix)
    is_packed_text = suffix in _PACKED and suffixes[0] in _TEXT
    if suffix in _TEXT or is_packed_text:
        try:
            content = read_bytes(file)
        except (EOFError, ValueError) as error:
            raise ValueError(f"{file} is damaged: {error}") from error
        return parse(content, text_format or TextFormat(), file)
    ends = ", ".join((*_TEXT, *_BINARY, ".npz"))
    expected = f"one that ends in {ends}, or a text file with {' or '.join(_PACKED)}"
    raise ValueError(f"file: wanted {expected}, got {file}")


def _read_arrow(file: str, suffix: str) -> Table:
    """Return the columns of a Parquet, Arrow or Feather file, without an index of pandas."""
    with needed_by("reading Parquet, Arrow or Feather"):
        import pyarrow as pa
        from pyarrow import feather, parquet
    reader = parquet if suffix == ".parquet" else feather
    try:
        table = reader.read_table(file)
    except (pa.ArrowException, ValueError) as error:
        raise ValueError(f"{file} is not a table of this kind: {error}") from error
    index_columns = [name for name in table.column_names if name.startswith(_INDEX)]
    return as_table(table.drop_columns(index_columns))


def _read_archive(file: str) -> Table:
    """Return the arrays of an npz file as columns."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = dict(archive)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file} is not a table of this kind: {error}") from error
    columns: dict[str, Cells] = {}
    for array_name, array in arrays.items():
        for name, column in _columns_of_array(file, array_name, array).items():
            if name in columns:
                expected = "arrays whose columns have different names"
                fail("files", expected, f"{', '.join(arrays)} in {file}")
            columns[name] = column
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) != 1:
        fail("files", "arrays of as many records", f"{sizes} in {file}")
    return Table(tuple(columns), tuple(columns.values()))


def _columns_of_array(file: str, name: str, array: Cells) -> dict[str, Cells]:
    """Return the columns that one array of an npz file holds, by name."""
    if array.ndim == 1:
        return {name: array}
    if array.ndim == 2:
        return {f"{name}{place}": column for place, column in enumerate(array.T)}
    return fail("files", "arrays of 1 or 2 axes", f"{name} of shape {array.shape} in {file}")
