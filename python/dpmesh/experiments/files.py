"""Records of one's own for an experiment: tables, arrays or LIBSVM files of several sites."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
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
from dpmesh.tables import Columns, Features
from dpmesh.tables.cells import errors_naming_file
from dpmesh.tables.labels import Label, read_labels
from dpmesh.tables.models import Outline
from dpmesh.tables.ranges import as_labels, columns_of, read_ranges
from dpmesh.tables.reader import TextFormat, open_table
from dpmesh.tables.sites import doubts, existing, names_of, read_sites

_LIBSVM = (".libsvm", ".svm", ".svmlight")


class OwnRecords(NamedTuple):
    """Records to train on and to test on, those of each site, and what they stand for."""

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
) -> OwnRecords:
    """Return the records of your own files, and which site holds which.

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
        What is made of each record: columns, hats, cosines, scattering, or a union such as
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
        What stands between two values of a text file; by default as its header shows.
    decimal
        What stands before decimals; by default a comma if a semicolon separates values.
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
    found = existing((files,) if isinstance(files, str) else files)
    probability("test_fraction", test_fraction, zero=False, one=False)
    ends = found if not isinstance(ranges, str) else [*found, ranges]
    dated = tuple((path, Path(path).stat().st_mtime_ns) for path in ends)
    written = TextFormat(
        separator=separator,
        decimal=decimal,
        encoding=encoding,
        header=header,
        escape=escape,
        multiline=multiline,
        skip_empty=skip_empty,
    )
    forms = {"classes": classes, "target": target}
    stated = tuple((form, given) for form, given in forms.items() if given is not None)
    form = columns_of(label), site, columns, ranges, stated, features, intercept, dim
    read = _read(dated, len(found), form, written, drop_missing_labels)
    encoded, labels, owners, outline = read
    codes = np.unique(owners, return_inverse=True)[1]
    tested = _tested(owners, test_fraction, test_sites, generator)
    title = Path(found[0]).stem if len(found) == 1 else f"{len(found)} files"
    everything, left = Dataset(encoded, labels, title), codes[~tested]
    parts = tuple(np.flatnonzero(left == code) for code in np.unique(left))
    train = everything.take(np.flatnonzero(~tested))
    return OwnRecords(train, everything.take(np.flatnonzero(tested)), parts, outline)


def _tested(
    owners: npt.NDArray[np.str_],
    fraction: float,
    sites: tuple[str, ...] | None,
    generator: np.random.Generator,
) -> npt.NDArray[np.bool_]:
    """Return which records are for testing: those of some sites, or a share of every site's."""
    names, codes = np.unique(owners, return_inverse=True)
    tested = np.zeros(len(codes), dtype=bool)
    if sites is not None:
        if strange := [name for name in sites if name not in names]:
            fail("test_sites", f"some of {', '.join(names)}", repr(strange[0]))
        tested = np.isin(owners, sites)
    else:
        for code in range(len(names)):
            own = generator.permutation(np.flatnonzero(codes == code))
            tested[own[: min(max(round(fraction * len(own)), 1), len(own) - 1)]] = True
    if tested.all() or not tested.any():
        fail("test_sites", "records to train on and records to test on", list(names))
    return tested


@lru_cache(maxsize=2)  # the cells of a sweep share it
def _read(
    files: tuple[tuple[str, int], ...],
    count: int,
    form: tuple[Any, ...],
    written: TextFormat,
    drop: bool,
) -> tuple[Any, npt.NDArray[Any], npt.NDArray[np.str_], Outline]:
    """Return features, labels, the name of each record's site, and what they stand for."""
    labels, site, columns, ranges, stated, features, intercept, dim = form
    paths = [path for path, _ in files[:count]]  # then that of the ranges
    kinds = {Path(path).suffix.lower() in _LIBSVM for path in paths}
    if len(kinds) > 1:
        fail("files", "LIBSVM's format for all or none", ", ".join(paths))
    if kinds == {True}:
        names_in = {"site": site, "columns": columns, "ranges": ranges}
        return _of_libsvm(paths, dim, _target(["label"], {}, stated), names_in)
    tables = [open_table(path, written) for path in paths]
    names = [*dict.fromkeys(name for table in tables for name in table.names or ())]
    if ranges is None:
        wanted = "a TOML file of public ranges, or one for all columns such as [-1, 1]"
        fail("ranges", wanted, "none")
    if not labels or not {*labels} <= {*names}:
        got = next((repr(one) for one in labels if one not in names), "none")
        fail("label", f"the column to predict, one of {', '.join(names)}", got)
    public: Any = read_ranges(ranges) if isinstance(ranges, str) else ranges
    by_name = isinstance(public, Mapping)
    listed: Sequence[str] = [*map(str, public)] if by_name else names
    used: Sequence[str] = columns or tuple(name for name in listed if name not in (*labels, site))
    target = _target(labels, public if by_name else {}, stated)
    if by_name:
        public = {name: public[name] for name in used if name in public}
    described = Columns.of(public, used, intercept=intercept, features=features)
    held = read_sites(paths, tables, described, labels, target, site=site, drop=drop)
    for notice in chain(*(one.notices for one in held), doubts(held, site)):
        warnings.warn(notice, UserWarning, stacklevel=2)
    encoded = np.concatenate([one.encoded.features for one in held])
    labelled, outline = np.concatenate([one.labels for one in held]), Outline.of(described, target)
    owners = np.concatenate([one.sites for one in held])
    return encoded, outline.learned(labelled), owners, outline


def _target(
    labels: Sequence[str], public: Mapping[str, Any], stated: tuple[tuple[str, Any], ...]
) -> Label:
    """Return what labels may be, which is public and never read off them."""
    for label in labels:
        given = {**dict(stated), **({"ranges": None} if label in public else {})}
        if len(given) != 1:
            wanted = "classes = [0, 1] or target = [0, 100] in [data], or a range of "
            fail("classes", f"{wanted}{label} in ranges", " and ".join(given) or "none of them")
    return as_labels({label: public.get(label, dict(stated)) for label in labels})


def _of_libsvm(
    paths: Sequence[str], dim: int | None, target: Any, named: Mapping[str, Any]
) -> tuple[Any, npt.NDArray[Any], npt.NDArray[np.str_], Outline]:
    for name, given in named.items():
        if given is not None:
            fail(name, "none for LIBSVM's format, which has no names", given)
    sets = [data.unit_norm(data.read_libsvm(path, dim=dim)) for path in paths]
    if len({one.dim for one in sets}) > 1:
        fail("dim", "the number of features, which differs from file to file", dim)
    labels = []
    for path, one in zip(paths, sets, strict=True):
        with errors_naming_file(path):
            labels.append(read_labels("label", target, one.labels))
    owners = np.repeat(names_of(paths), [one.records for one in sets])
    features = sparse.vstack([one.features for one in sets], "csr")
    outline = Outline.of(Features(dim=sets[0].dim), target)
    return features, outline.learned(np.concatenate(labels)), owners, outline
