"""`Dataset`: records with their labels, checked once when it is made.

Problems, partitions and preprocessing work on it. Its arrays are read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

import dpmesh.kernels as kernels
from dpmesh._arrays import FloatArray, check_sparse, new, read_only, unmasked
from dpmesh._rounded import RoundedFeatures
from dpmesh._validate import fail

A_DATASET = "a Dataset, such as Dataset(features, labels)"


@dataclass(frozen=True, eq=False, init=False)
class Dataset:
    """Labelled records: one row of features and one label each.

    The dataset may share memory with the given arrays: do not write to them afterwards.

    Parameters
    ----------
    features
        Finite numbers of shape (records, dim): an array, a pandas table of numbers, or a scipy
        sparse matrix. float32 and float64 keep their type, and integers become float64. A sparse
        matrix is kept as a CSR array with sorted, unique column indices, and is never made dense.
        Arrays with more axes, such as images, are flattened to one row for each record. Estimators
        store the features of large tables in 8 bits; ``numpy.asarray`` converts them.
    labels
        Labels, shape (records,): integers (classes, or -1 and +1) or booleans, stored as int64; or
        finite real targets, stored as float64.
    name
        Name of the dataset in reports and plots.

    Attributes
    ----------
    feature_norm
        Public upper bound on the L2 norm of every record, if preprocessing ensures one (`unit_norm`
        makes it 1); else None. Problems use the bound of their training records.

    Raises
    ------
    ValueError
        If shapes or types do not fit, there is no record or no feature, a number is not finite, or
        an array has a mask.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.Dataset([[1.0, 2.0], [3.0, 4.0]], [-1, 1], "mine")
    Dataset('mine', 2 records of 2 features)
    """

    features: FloatArray | sparse.csr_array
    labels: npt.NDArray[np.int64] | npt.NDArray[np.float64]
    name: str
    feature_norm: float | None = field(default=None, init=False, repr=False, compare=False)

    def __init__(  # takes more types than it keeps
        self,
        features: npt.ArrayLike | sparse.sparray | sparse.spmatrix,
        labels: npt.ArrayLike,
        name: str = "given data",
    ) -> None:
        object.__setattr__(self, "features", _read_only_features(features))
        object.__setattr__(self, "labels", _read_only_labels(labels, records=self.records))
        if not isinstance(name, str) or not name:
            fail("name", "a text that is not empty", repr(name))
        object.__setattr__(self, "name", name)

    def __iter__(self) -> Iterator[Any]:
        """Yield features and labels: ``X, y = dataset``."""
        return iter((self.features, self.labels))

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {self.records} records of {self.dim} features)"

    @property
    def records(self) -> int:
        """Number of records."""
        return int(self.features.shape[0])

    @property
    def dim(self) -> int:
        """Number of features of one record."""
        return int(self.features.shape[1])

    def take(
        self, indices: npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_] | list[int]
    ) -> Dataset:
        """Return the records at these indices, in the order of the indices.

        Parameters
        ----------
        indices
            Indices of records, or a mask of shape (records,).

        Raises
        ------
        IndexError
            If an index is out of range, or the mask has another length than the data.
        """
        unmasked("indices", indices)
        indices = np.arange(self.records)[indices]  # converts a mask; fails out of range
        labels = self.labels[indices]
        if sparse.issparse(self.features):
            sparse_features = self.features[indices]
            subset = replace(self, features=sparse_features, labels=labels)
            return subset._bounded(self.feature_norm)
        stored: Any = self.features
        if isinstance(stored, RoundedFeatures):
            subset = replace(self, features=stored.take(indices), labels=labels)
            return subset._bounded(self.feature_norm)
        # `new` aligns memory to cache lines, which makes kernels faster
        features = new((len(labels), self.dim), self.features.dtype)
        # indices are checked already; the mode "raise" would copy twice
        np.take(self.features, indices, axis=0, out=features, mode="clip")
        subset = replace(self, features=features, labels=labels)
        return subset._bounded(self.feature_norm)

    def relabelled(self, rule: Callable[[Any], npt.ArrayLike]) -> Dataset:
        """Return the same records with other labels.

        Parameters
        ----------
        rule
            Function from the array of all labels to the new labels, both of shape (records,).
        """
        labels = unmasked("rule", rule(self.labels))
        relabelled = replace(self, labels=labels)
        return relabelled._bounded(self.feature_norm)

    def _bounded(self, feature_norm: float | None) -> Dataset:
        """Set `feature_norm` of a new dataset, and return it; the bound must hold for any data."""
        object.__setattr__(self, "feature_norm", feature_norm)
        return self


def _numbers_of_table(table: Any) -> FloatArray:
    """Return the numbers of a pandas table with columns of several types, as float64."""
    not_numbers = []
    for name, dtype in zip(table.columns, table.dtypes, strict=True):
        if dtype.kind not in "biuf":
            not_numbers.append(f"{name!r} of {dtype}")
    if not_numbers:
        fail("features", "columns of numbers", ", ".join(not_numbers))
    numbers: FloatArray = table.to_numpy(np.float64, na_value=np.nan)
    return numbers


def _read_only_features(features: Any) -> Any:
    """Return finite features of shape (records, dim): a dense array, or a canonical CSR array.

    `RoundedFeatures` stay in 8 bits.
    """
    if isinstance(features, RoundedFeatures):
        _check_shape(features.shape)
        _check_finite("features", features.scales)
        return features.read_only()
    if sparse.issparse(features):
        return _read_only_sparse(features)
    return _read_only_dense(features)


def _read_only_dense(features: Any) -> FloatArray:
    """Return a read-only, finite array of shape (records, dim)."""
    dense = unmasked("features", features)
    if dense.dtype == object and hasattr(features, "iloc"):
        dense = _numbers_of_table(features)
    if dense.ndim > 2:
        dense = dense.reshape(len(dense), -1)
    dense = np.require(_floats(dense), requirements=["C", "A"])
    _check_shape(dense.shape)
    _check_finite("features", dense, columns=getattr(features, "columns", None))
    return read_only(dense)


def _read_only_sparse(features: sparse.sparray | sparse.spmatrix) -> sparse.csr_array:
    """Return a read-only, finite CSR array in canonical format."""
    _check_shape(features.shape)
    check_sparse("features", features)
    csr = sparse.csr_array(features)
    if not csr.has_canonical_format:
        csr = csr.copy()  # sum_duplicates works in place, and the arrays are the caller's
        csr.sum_duplicates()
    values = _floats(csr.data)
    _check_finite("features", values)
    parts = (read_only(values), read_only(csr.indices), read_only(csr.indptr))
    return sparse.csr_array(parts, shape=csr.shape)


def _read_only_labels(
    labels: npt.ArrayLike, *, records: int
) -> npt.NDArray[np.int64] | npt.NDArray[np.float64]:
    """Return one label for each record: int64 if they are integers or booleans, else float64."""
    array = unmasked("labels", labels)
    if array.shape != (records,):
        fail("labels", f"shape ({records},), one label for each record", f"shape {array.shape}")
    if array.dtype.kind in "iub":
        return read_only(array.astype(np.int64, copy=False))
    if array.dtype.kind != "f":
        fail("labels", "integers or real numbers", f"dtype {array.dtype}")
    targets = array.astype(np.float64, copy=False)
    _check_finite("labels", targets)
    return read_only(targets)


def _floats(array: npt.NDArray[Any]) -> FloatArray:
    """Return features as float32 or float64; integers and booleans become float64."""
    if array.dtype.kind in "iub":
        return array.astype(np.float64)
    if array.dtype.type not in (np.float32, np.float64):
        fail("features", "numbers of float32 or float64", f"dtype {array.dtype}")
    return array


def _check_shape(shape: tuple[int, ...]) -> None:
    """Fail unless features have two axes, none empty."""
    if len(shape) != 2 or 0 in shape:
        fail("features", "shape (records, dim), both at least 1", f"shape {shape}")


def _check_finite(argument: str, values: FloatArray, columns: Sequence[Any] | None = None) -> None:
    """Fail if a number is not finite; the error names its position, and its column if named."""
    if values.size == 0 or kernels.all_finite(values):
        return
    position = np.argwhere(~np.isfinite(values))[0].tolist()
    place = f"{position}"
    if columns is not None:
        place += f", in column {columns[position[1]]!r}"
    fail(argument, "finite numbers", f"{values[tuple(position)]} at {place}")
