"""Records of one's own for an experiment: tables, arrays or LIBSVM files of several sites."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from glob import glob
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse

import dpmesh.data as data
from dpmesh._validate import fail, nearest, probability
from dpmesh.data import Dataset
from dpmesh.data.partition import Partition
from dpmesh.models import Outline
from dpmesh.ranges import Category, Columns, Encoded, Features, as_label, read_ranges
from dpmesh.tables import Table, as_table, read_table
from dpmesh.tables.cells import key_of, of_file, usually_missing
from dpmesh.tables.kinds import labelled
from dpmesh.tables.reader import TextFormat
from dpmesh.tables.table import sites_of

_LIBSVM = (".libsvm", ".svm", ".svmlight")

_CLASSES = 100
"""A label with more values needs a range: it is a number, or a mistake."""


class OwnRecords(NamedTuple):
    """Records to train on and to test on, those of each site, and what they stand for."""

    train: Dataset
    test: Dataset
    sites: Partition
    outline: Outline


def load_files(
    files: str | tuple[str, ...],
    label: str | None = None,
    site: str | None = None,
    columns: tuple[str, ...] | None = None,
    ranges: str | tuple[float, ...] | None = None,
    intercept: bool = True,
    dim: int | None = None,
    test_fraction: float = 0.2,
    test_sites: tuple[str, ...] | None = None,
    separator: str | None = None,
    decimal: Literal[".", ","] | None = None,
    encoding: str | None = None,
    drop_missing_labels: bool = False,
    *,
    generator: np.random.Generator,
) -> OwnRecords:
    """Return the records of your own files, and which site holds which.

    Parameters
    ----------
    files
        A file, a pattern such as "sites/*.parquet", or a list of them: CSV with a header, Parquet,
        Arrow, Feather, NumPy's npz, or LIBSVM's format (.libsvm, .svm, .svmlight).
    label
        Column to predict; an array of an npz file. LIBSVM's format has one.
    site
        Column that names the site of each record; by default each file is a site, named after it.
    columns
        Columns to use; by default those that have a range, or all where one range is for all. An
        array X of an npz file with several columns has X0, X1, and so on.
    ranges
        TOML file with the public ranges of the columns and the label, as for dpmesh fit, or one
        range for all columns, such as [0, 16]; by default [-1, 1].
    intercept
        Whether each record gets a constant 1.
    dim
        Number of features of LIBSVM's format, from public knowledge.
    test_fraction
        Share of each site's records that is set aside for testing, in (0, 1).
    test_sites
        Sites of which all records are for testing, instead of a share of every site.
    separator
        What stands between two values of a text file; by default as its header shows.
    decimal
        What stands before decimals; by default a comma if a semicolon separates values.
    encoding
        Encoding of text files, such as "latin-1"; by default as the header shows.
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
    patterns = (files,) if isinstance(files, str) else files
    if not patterns:
        fail("files", "at least 1 file", "none")
    found = _existing(patterns)
    probability("test_fraction", test_fraction, zero=False, one=False)
    ends = found if not isinstance(ranges, str) else [*found, ranges]
    dated = tuple((path, Path(path).stat().st_mtime_ns) for path in ends)
    written = TextFormat(separator=separator, decimal=decimal, encoding=encoding)
    features, labels, owners, outline = _read(
        dated,
        len(found),
        label,
        site,
        columns,
        ranges,
        intercept,
        dim,
        written,
        drop_missing_labels,
    )
    names, codes = np.unique(owners, return_inverse=True)
    tested = np.zeros(len(codes), dtype=bool)
    if test_sites is not None:
        if strange := [name for name in test_sites if name not in names]:
            fail("test_sites", f"some of {', '.join(names)}", repr(strange[0]))
        tested = np.isin(owners, test_sites)
    else:
        for code in range(len(names)):
            own = generator.permutation(np.flatnonzero(codes == code))
            tested[own[: min(max(round(test_fraction * len(own)), 1), len(own) - 1)]] = True
    if tested.all() or not tested.any():
        fail("test_sites", "records to train on and records to test on", list(names))
    title = Path(found[0]).stem if len(found) == 1 else f"{len(found)} files"
    everything, left = Dataset(features, labels, title), codes[~tested]
    parts = tuple(np.flatnonzero(left == code) for code in np.unique(left))
    train = everything.take(np.flatnonzero(~tested))
    return OwnRecords(train, everything.take(np.flatnonzero(tested)), parts, outline)


def _existing(patterns: Sequence[str]) -> list[str]:
    found: list[str] = []
    for pattern in patterns:
        matches = sorted(glob(pattern, recursive=True))  # noqa: PTH207 (a pattern may be absolute)
        if not matches:
            raise FileNotFoundError(f"no file matches {pattern}")
        found += matches
    return found


@lru_cache(maxsize=2)  # the cells of a sweep share it
def _read(
    files: tuple[tuple[str, int], ...],
    count: int,
    label: str | None,
    site: str | None,
    columns: tuple[str, ...] | None,
    ranges: Any,
    intercept: bool,
    dim: int | None,
    written: TextFormat,
    drop: bool,
) -> tuple[Any, npt.NDArray[Any], npt.NDArray[np.str_], Outline]:
    """Return features, labels, the name of each record's site, and what they stand for."""
    paths = [path for path, _ in files[:count]]  # then that of the ranges
    kinds = {Path(path).suffix.lower() in _LIBSVM for path in paths}
    if len(kinds) > 1:
        fail("files", "LIBSVM's format for all or none", ", ".join(paths))
    named = [Path(path).stem for path in paths]
    if len({*named}) < len(named):
        named = paths
    if kinds == {True}:
        for name, given in {"site": site, "columns": columns, "ranges": ranges}.items():
            if given is not None:
                fail(name, "none for LIBSVM's format, which has no names", given)
        return _of_libsvm(paths, named, dim)
    tables = [_table(path, written) for path in paths]
    names = [*dict.fromkeys(name for table in tables for name in table.names or ())]
    if label is None or label not in names:
        got = "none" if label is None else repr(label)
        fail("label", f"the column to predict, one of {', '.join(names)}", got)
    public: Any = read_ranges(ranges) if isinstance(ranges, str) else ranges
    by_name = isinstance(public, Mapping)
    listed: Sequence[str] = [*map(str, public)] if by_name else names
    used: Sequence[str] = columns or tuple(name for name in listed if name not in (label, site))
    for name in used:
        if name not in names:
            wanted = f"columns of the tables ({', '.join(names)})"
            fail("columns", wanted, f"{name!r}{nearest(name, names)}")
    target = as_label(label, public[label]) if by_name and label in public else None
    if by_name:
        public = {name: public[name] for name in used if name in public}
    described = Columns.of(public, used, intercept=intercept)
    if target is None:
        target = _classes(label, tables)
    read, labels, owners = [], [], []
    for path, name, table in zip(paths, named, tables, strict=True):
        with of_file(path):
            own, kept = labelled(label, target, table, drop=drop)
            labels.append(own)
            read.append(described.encode_table(kept))
            owners.append(np.full(kept.records, name) if site is None else sites_of(kept, site))
    _notice(paths, read, stated=ranges is not None)
    features = np.concatenate([one.features for one in read])
    together, owned = np.concatenate(labels), np.concatenate(owners)
    if isinstance(target, Category):
        outline = Outline(columns=described, classes=np.array(target.categories))
        return features, together, owned, outline
    scaled = target.encode(label, together).features[:, 0]
    return features, scaled, owned, Outline(columns=described, target=target)


def _notice(paths: Sequence[str], read: Sequence[Encoded], *, stated: bool) -> None:
    """Warn of what was clipped or could not be read; fail where a range is no column's."""
    records = sum(len(one.features) for one in read)
    clipped = Counter[str]()
    for one in read:
        clipped.update(one.outside)
    (worst, count), *_ = [*clipped.most_common(1), ("", 0)]
    if count > records / 2:
        wanted = "public ranges that hold all values, or nearly all"
        if not stated:
            wanted = "the public range of each column, since [-1, 1] is not"
        fail("ranges", wanted, f"{count} of {records} values outside in {worst}")
    for path, one in zip(paths, read, strict=True):
        for notice in one.notices():
            warnings.warn(f"{path}, {notice}", UserWarning, stacklevel=2)


def _classes(label: str, tables: Sequence[Table]) -> Category:
    """Return the classes of a label without a range, which then count as public."""
    columns = [table.select([label]).columns[0].tolist() for table in tables]
    keys = {key_of(value) for values in columns for value in values if not usually_missing(value)}
    if len(keys) > _CLASSES:
        fail("ranges", f"the range of {label}, which has {len(keys)} values", "none")
    numbers = sorted(key for key in keys if isinstance(key, float))
    texts = sorted(key for key in keys if isinstance(key, str))
    whole = (int(number) if number.is_integer() else number for number in numbers)
    return Category(categories=(*whole, *texts))


def _table(path: str, written: TextFormat) -> Table:
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


def _of_libsvm(
    paths: Sequence[str], named: Sequence[str], dim: int | None
) -> tuple[Any, npt.NDArray[Any], npt.NDArray[np.str_], Outline]:
    sets = [data.unit_norm(data.read_libsvm(path, dim=dim)) for path in paths]
    if len({one.dim for one in sets}) > 1:
        fail("dim", "the number of features, which differs from file to file", dim)
    labels = np.concatenate([one.labels for one in sets])
    known = None
    if labels.dtype.kind == "i":
        known, labels = np.unique(labels, return_inverse=True)
    owners = np.repeat(named, [one.records for one in sets])
    outline = Outline(columns=Features(dim=sets[0].dim), classes=known)
    return sparse.vstack([one.features for one in sets], "csr"), labels, owners, outline
