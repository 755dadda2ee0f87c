"""The user's records for an experiment: tables, arrays or LIBSVM files of several sites.

`load_files` is the loader of a table ``[data]`` with a key ``files``. Its docstring is also the
help of these keys.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse

import dpmesh.data as data
from dpmesh._validate import fail, probability
from dpmesh.data import Dataset
from dpmesh.data.partition import Partition
from dpmesh.tables import Columns, Features, Ranges
from dpmesh.tables.cells import Cells, errors_naming_file
from dpmesh.tables.labels import Label, read_labels
from dpmesh.tables.models import Outline
from dpmesh.tables.ranges import as_labels, columns_of, read_ranges
from dpmesh.tables.reader import TextFormat, open_table
from dpmesh.tables.sites import find_files, names_of, read_sites, site_notices

_LIBSVM = (".libsvm", ".svm", ".svmlight")


class SiteRecords(NamedTuple):
    """Records of the user's files, split into training and test records.

    Attributes
    ----------
    train, test
        Encoded training records and test records.
    sites
        Indices of each site's training records.
    outline
        Columns and classes or target range, for a model of these records.
    """

    train: Dataset
    test: Dataset
    sites: Partition
    outline: Outline


def load_files(
    files: str | tuple[str, ...],
    label: str | tuple[str, ...] | None = None,
    site: str | None = None,
    columns: tuple[str, ...] | None = None,
    ranges: str | tuple[float, ...] | None = None,
    classes: tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | None = None,
    target: tuple[float, ...] | None = None,
    features: str = "columns",
    intercept: bool = True,
    dim: int | None = None,
    test_fraction: float = 0.2,
    test_sites: tuple[str, ...] | None = None,
    separator: str | None = None,
    decimal: Literal[".", ","] | None = None,
    encoding: str | None = None,
    header: bool | None = None,
    escape: str | None = None,
    multiline: bool = False,
    skip_empty: bool = False,
    drop_missing_labels: bool = False,
    *,
    generator: np.random.Generator,
) -> SiteRecords:
    """Load the records of the user's files, with the site of each.

    Parameters
    ----------
    files
        A file, a pattern such as "sites/*.parquet", or a list of them: CSV with a header, Parquet,
        Arrow, Feather, NumPy's npz, or LIBSVM's format (.libsvm, .svm, .svmlight).
    label
        Column to predict; an array of an npz file. LIBSVM's format has one. A list of columns:
        several labels of a record, each a flag or two classes.
    site
        Column that names the site of each record; by default each file is a site, named after it.
    columns
        Columns to use; by default those that have a range, or all where one range is for all. An
        array X of an npz file with several columns has X0, X1, and so on.
    ranges
        TOML file with the public ranges of the columns and the label, as for dpmesh fit, or one
        range for all columns, such as [0, 16].
    classes
        All classes of the label, if no file of ranges states them.
    target
        The range [low, high] of the label of a regression, if no file of ranges states it.
    features
        Features of each record: columns, hats, cosines, scattering, or a union such as
        "hats+cosines".
    intercept
        Whether each record gets a constant 1.
    dim
        Number of features of LIBSVM's format, from public knowledge.
    test_fraction
        Share of each site's records that is set aside for testing, in (0, 1).
    test_sites
        Sites of which all records are for testing, instead of a share of every site.
    separator
        Character between two values of a text file; by default as its header shows.
    decimal
        Decimal mark; by default a comma if a semicolon separates values.
    encoding
        Encoding of text files, such as "latin-1"; by default as the header shows.
    header, escape, multiline, skip_empty
        Further facts about text files: see `dpmesh.tables.reader.TextFormat`.
    drop_missing_labels
        Whether records without a label are left out; else they are an error.
    generator
        Source of the order, from which the share is cut.

    Raises
    ------
    ValueError
        If an argument does not fit the files.
    OSError
        If a file cannot be read, or there is none.
    """
    paths = find_files((files,) if isinstance(files, str) else files)
    probability("test_fraction", test_fraction, zero=False, one=False)
    text_format = TextFormat(
        separator=separator,
        decimal=decimal,
        encoding=encoding,
        header=header,
        escape=escape,
        multiline=multiline,
        skip_empty=skip_empty,
    )
    range_files = [ranges] if isinstance(ranges, str) else []
    request = _ReadRequest(
        files=tuple(map(_File.of, paths)),
        range_files=tuple(map(_File.of, range_files)),
        labels=columns_of(label),
        site=site,
        columns=columns,
        ranges=ranges,
        classes=classes,
        target=target,
        features=features,
        intercept=intercept,
        dim=dim,
        text_format=text_format,
        drop_missing_labels=drop_missing_labels,
    )
    records = _read(request)
    codes = np.unique(records.sites, return_inverse=True)[1]
    is_tested = _tested(records.sites, test_fraction, test_sites, generator)
    title = Path(paths[0]).stem if len(paths) == 1 else f"{len(paths)} files"
    dataset = Dataset(records.features, records.labels, title)
    training_codes = codes[~is_tested]
    return SiteRecords(
        train=dataset.take(np.flatnonzero(~is_tested)),
        test=dataset.take(np.flatnonzero(is_tested)),
        sites=tuple(np.flatnonzero(training_codes == code) for code in np.unique(training_codes)),
        outline=records.outline,
    )


def _tested(
    owners: npt.NDArray[np.str_],
    fraction: float,
    sites: tuple[str, ...] | None,
    generator: np.random.Generator,
) -> npt.NDArray[np.bool_]:
    """Return a mask of the test records: all records of some sites, or a share of every site's.

    Parameters
    ----------
    owners
        Site of each record, shape (records,).
    fraction
        Share of each site's records, if `sites` is None.
    sites
        Sites whose records are all test records; None for a share of every site.
    generator
        Random generator.
    """
    names, codes = np.unique(owners, return_inverse=True)
    if sites is None:
        tested = np.zeros(len(codes), dtype=bool)
        for code in range(len(names)):
            records = generator.permutation(np.flatnonzero(codes == code))
            count = max(round(fraction * len(records)), 1)
            tested[records[: min(count, len(records) - 1)]] = True
    else:
        unknown = [name for name in sites if name not in names]
        if unknown:
            fail("test_sites", f"some of {', '.join(names)}", repr(unknown[0]))
        tested = np.isin(owners, sites)
    if tested.all() or not tested.any():
        fail("test_sites", "records to train on and records to test on", list(names))
    return tested


class _File(NamedTuple):
    """A file at a time: part of the key of a cache, so that a changed file is read again.

    Attributes
    ----------
    path
        Path of the file.
    modified
        Time of the last change, in nanoseconds.
    """

    path: str
    modified: int

    @classmethod
    def of(cls, path: str) -> _File:
        """Return a file with the present time of its last change."""
        return cls(path, Path(path).stat().st_mtime_ns)


@dataclass(frozen=True, kw_only=True)
class _ReadRequest:
    """Arguments of `load_files` that determine the records, but not their split: a cache key."""

    files: tuple[_File, ...]
    range_files: tuple[_File, ...]
    labels: tuple[str, ...]
    site: str | None
    columns: tuple[str, ...] | None
    ranges: str | tuple[float, ...] | None
    classes: tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | None
    target: tuple[float, ...] | None
    features: str
    intercept: bool
    dim: int | None
    text_format: TextFormat
    drop_missing_labels: bool

    @property
    def label_range(self) -> dict[str, Any]:
        """Range of the label by the arguments `classes` or `target`, which may be empty."""
        stated: dict[str, Any] = {}
        if self.classes is not None:
            stated["classes"] = self.classes
        if self.target is not None:
            stated["target"] = self.target
        return stated


class _ReadRecords(NamedTuple):
    """Encoded records of all files, before the split.

    Attributes
    ----------
    features
        Features, shape (records, dim): an array or a sparse matrix.
    labels
        Labels, encoded by `Outline.encode_labels`, shape (records,).
    sites
        Name of each record's site, shape (records,).
    outline
        Columns and classes or target range, for a model of these records.
    """

    features: Any
    labels: Cells
    sites: Cells
    outline: Outline


@lru_cache(maxsize=2)  # shared by the runs of a sweep
def _read(request: _ReadRequest) -> _ReadRecords:
    """Read the records of files."""
    paths = [file.path for file in request.files]
    is_libsvm = {Path(path).suffix.lower() in _LIBSVM for path in paths}
    if len(is_libsvm) > 1:
        fail("files", "LIBSVM's format for all or none", ", ".join(paths))
    if is_libsvm == {True}:
        return _read_libsvm(paths, request)
    return _read_tables(paths, request)


def _read_tables(paths: Sequence[str], request: _ReadRequest) -> _ReadRecords:
    """Read the records of tables by their public ranges."""
    labels = request.labels
    tables = [open_table(path, request.text_format) for path in paths]
    names = [*dict.fromkeys(name for table in tables for name in table.names or ())]
    if request.ranges is None:
        expected = "a TOML file of public ranges, or one for all columns such as [-1, 1]"
        fail("ranges", expected, "none")
    unknown = [name for name in labels if name not in names]
    if not labels or unknown:
        got = repr(unknown[0]) if unknown else "none"
        fail("label", f"the column to predict, one of {', '.join(names)}", got)
    by_column: Mapping[str, Any] = {}
    if isinstance(request.ranges, str):
        by_column = read_ranges(request.ranges)
        listed = [*map(str, by_column)]
    else:
        listed = names
    not_features = {*labels, request.site}
    column_names = request.columns or tuple(name for name in listed if name not in not_features)
    target = _target(labels, by_column, request.label_range)
    ranges: Ranges = request.ranges
    if isinstance(request.ranges, str):
        ranges = {name: by_column[name] for name in column_names if name in by_column}
    features = request.features
    columns = Columns.of(ranges, column_names, intercept=request.intercept, features=features)
    files = read_sites(
        paths, tables, columns, labels, target, site=request.site, drop=request.drop_missing_labels
    )
    for notice in chain(*(file.notices for file in files), site_notices(files, request.site)):
        warnings.warn(notice, UserWarning, stacklevel=2)
    outline = Outline.of(columns, target)
    return _ReadRecords(
        features=np.concatenate([file.encoded.features for file in files]),
        labels=outline.encode_labels(np.concatenate([file.labels for file in files])),
        sites=np.concatenate([file.sites for file in files]),
        outline=outline,
    )


def _target(
    labels: Sequence[str], by_column: Mapping[str, Any], label_range: Mapping[str, Any]
) -> Label:
    """Return the public range of the label, or of several labels; never computed from the data.

    Parameters
    ----------
    labels
        Names of the label's columns.
    by_column
        Ranges of a file of ranges, by column.
    label_range
        See `_ReadRequest.label_range`. Exactly one of both must state the range of each label.
    """
    for label in labels:
        sources = [*label_range]
        if label in by_column:
            sources.append("ranges")
        if len(sources) != 1:
            expected = f"classes = [0, 1] or target = [0, 100] in [data], or a range of {label}"
            fail("classes", f"{expected} in ranges", " and ".join(sources) or "none of them")
    return as_labels({label: by_column.get(label, dict(label_range)) for label in labels})


def _read_libsvm(paths: Sequence[str], request: _ReadRequest) -> _ReadRecords:
    """Read the records of files in LIBSVM's format; each file is a site."""
    target: Any = _target(["label"], {}, request.label_range)
    arguments_with_names = {
        "site": request.site,
        "columns": request.columns,
        "ranges": request.ranges,
    }
    for argument, value in arguments_with_names.items():
        if value is not None:
            fail(argument, "none for LIBSVM's format, which has no names", value)
    datasets = [data.unit_norm(data.read_libsvm(path, dim=request.dim)) for path in paths]
    if len({dataset.dim for dataset in datasets}) > 1:
        fail("dim", "the number of features, which differs from file to file", request.dim)
    labels = []
    for path, dataset in zip(paths, datasets, strict=True):
        with errors_naming_file(path):
            labels.append(read_labels("label", target, dataset.labels))
    outline = Outline.of(Features(dim=datasets[0].dim), target)
    return _ReadRecords(
        features=sparse.vstack([dataset.features for dataset in datasets], "csr"),
        labels=outline.encode_labels(np.concatenate(labels)),
        sites=np.repeat(names_of(paths), [dataset.records for dataset in datasets]),
        outline=outline,
    )
