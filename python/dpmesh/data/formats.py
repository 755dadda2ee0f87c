"""Readers of standard file formats: IDX, MATLAB and LIBSVM, also compressed (.gz, .bz2)."""

from __future__ import annotations

import math
import os
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpmesh._extras import needed_by
from dpmesh._files import read_bytes
from dpmesh._validate import fail, instance, integer
from dpmesh.data.dataset import Dataset

StrPath: TypeAlias = str | os.PathLike[str]

IDX_MAGIC = b"\0\0"
"""First two bytes of an IDX file."""

IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
"""Numpy's types of an IDX file's numbers, which are big-endian, by the third byte of the file."""


def read_idx(path: StrPath) -> npt.NDArray[Any]:
    """Read the array of an IDX file, the format of MNIST.

    Parameters
    ----------
    path
        Path of the file, also compressed (``.gz``, ``.bz2``).

    Returns
    -------
    The array, in the shape and type of the file. It is read-only if its elements are bytes.

    Raises
    ------
    ValueError
        If the file is not IDX, or its length does not fit its header.
    """
    _check_path(path)
    content = read_bytes(path)
    if len(content) < 4 or content[:2] != IDX_MAGIC or content[2] not in IDX_TYPES:
        fail("path", "an IDX file", f"{os.fspath(path)}, which starts with {content[:4].hex()}")
    dtype = np.dtype(IDX_TYPES[content[2]])
    axes = content[3]
    header_bytes = 4 + 4 * axes
    shape = tuple(np.frombuffer(content[4:header_bytes], dtype=">u4").tolist())
    file_bytes = header_bytes + math.prod(shape) * dtype.itemsize
    if len(content) != file_bytes:
        got = f"{len(content)} in {os.fspath(path)}"
        fail("path", f"an IDX file of {file_bytes} bytes, as in its header", got)
    numbers = np.frombuffer(content, dtype, offset=header_bytes).reshape(shape)
    return numbers.astype(dtype.newbyteorder("="), copy=False)


def read_mat(path: StrPath, *names: str) -> tuple[npt.NDArray[Any], ...]:
    """Read arrays by name from a MATLAB file (of versions 4 to 7).

    Parameters
    ----------
    path
        Path of the file.
    names
        Names of the arrays.

    Returns
    -------
    The arrays, in the order of `names`.

    Raises
    ------
    ValueError
        If the file is not a MATLAB file, or lacks one of the arrays.
    """
    from scipy.io import loadmat

    _check_path(path)
    try:
        content = loadmat(path, variable_names=names)
    except FileNotFoundError:
        raise
    except (ValueError, TypeError, NotImplementedError, OSError) as error:
        raise ValueError(f"path: wanted a MATLAB file, got {os.fspath(path)}") from error
    missing = [name for name in names if name not in content]
    if missing:
        fail("path", f"arrays {', '.join(names)}", f"none {missing[0]} in {os.fspath(path)}")
    return tuple(content[name] for name in names)


def read_libsvm(path: StrPath, *, dim: int | None = None) -> Dataset:
    """Read a LIBSVM (SVMlight) text file: in each line a label, then ``index:value`` pairs.

    Indices start at 1. scikit-learn parses the file.

    Parameters
    ----------
    path
        Path of the file.
    dim
        Number of features, from public knowledge. None takes the largest index in the file: two
        files of one data set may then differ, and a single record may determine the length of the
        released model, which no DP guarantee covers.

    Returns
    -------
    Records with sparse float64 features. Labels are integers if all labels are whole numbers.

    Raises
    ------
    ImportError
        If scikit-learn is not installed.
    ValueError
        If the file has another format, or an index above `dim`.
    """
    _check_path(path)
    with needed_by("reading LIBSVM files"):
        datasets = import_module("sklearn.datasets")
    expectation = "a LIBSVM file"
    if dim is not None:
        integer("dim", dim, at_least=1)
        expectation += f" of {dim} features"
    try:
        features, labels = datasets.load_svmlight_file(
            os.fspath(path), n_features=dim, zero_based=False
        )
    except ValueError as error:
        fail("path", expectation, f"{path}: {error}")
    _narrow_indices(features)
    return Dataset(features, _whole_labels(labels), _stem(path))


def _check_path(path: object) -> None:
    """Fail unless `path` is a path: a number would be read as a file descriptor."""
    instance("path", path, "the path of a file, as a text or pathlib.Path", str, os.PathLike)


def _whole_labels(labels: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """Return labels as integers if all are whole numbers that float64 holds exactly."""
    is_whole = (labels == np.trunc(labels)) & (np.abs(labels) < 2**53)
    if is_whole.all():
        return labels.astype(np.int64)
    return labels


def _narrow_indices(features: sparse.csr_matrix) -> None:
    """Convert sparse indices to 32 bits in place if they fit, as most solvers expect."""
    if max(features.nnz, features.shape[1]) < 2**31:
        features.indices = features.indices.astype(np.int32)
        features.indptr = features.indptr.astype(np.int32)


def _stem(path: StrPath) -> str:
    """Return the file's name up to its first dot."""
    return Path(path).name.split(".")[0] or Path(path).name
