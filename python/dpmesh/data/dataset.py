"""Records and their labels, checked once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

import dpmesh.kernels as kernels
from dpmesh._arrays import FloatArray, new, read_only, unmasked, whole
from dpmesh._validate import fail

A_DATASET = "a Dataset, such as Dataset(features, labels)"


@dataclass(frozen=True, eq=False, init=False)
class Dataset:
    """Labelled records: one row of features and one label each.

    The dataset may share memory with the arrays given, as read-only views: do not write to them
    afterwards.

    Parameters
    ----------
    features
        Shape (records, dim), finite: an array (float32 and float64 keep their type, integers
        become float64), a pandas table of numbers, or a scipy sparse matrix, kept
        as a CSR array with sorted, unique column indices and never made dense. Arrays with more
        axes, such as images, become one row for each record.
    labels
        Shape (records,): integers (classes, or -1 and +1) or booleans, kept as int64, or finite
        real targets, kept as float64.
    name
        The name in reports and plots.

    Attributes
    ----------
    feature_norm
        A public bound on the L2 norm of every record, where preprocessing ensured one (`unit_norm`
        makes it 1), else None. Problems take it from their training records.

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
        """Return the records at these indices, in their order, or those that a mask selects.

        Raises
        ------
        IndexError
            If an index is out of range, or the mask has another length than the data.
        """
        unmasked("indices", indices)
        indices = np.arange(self.records)[indices]  # refuses what is out of range
        labels, norm = self.labels[indices], self.feature_norm
        if sparse.issparse(self.features):
            return replace(self, features=self.features[indices], labels=labels)._bounded(norm)
        # In this memory rows of whole cache lines are aligned to them, which makes kernels faster.
        features = new((len(labels), self.dim), self.features.dtype)
        # The mode "raise" would copy twice.
        np.take(self.features, indices, axis=0, out=features, mode="clip")
        return replace(self, features=features, labels=labels)._bounded(norm)

    def relabelled(self, rule: Callable[[Any], npt.ArrayLike]) -> Dataset:
        """Return the same records with the labels ``rule(labels)``; `rule` gets the whole array."""
        found = replace(self, labels=unmasked("rule", rule(self.labels)))
        return found._bounded(self.feature_norm)

    def _bounded(self, feature_norm: float | None) -> Dataset:
        """State, of records just made, a bound on their norms that holds for any data."""
        object.__setattr__(self, "feature_norm", feature_norm)
        return self


def _numbers_of_table(table: Any) -> FloatArray:
    """Return the numbers of a pandas table whose columns are of several types."""
    types = zip(table.columns, table.dtypes, strict=True)
    others = [f"{name!r} of {kind}" for name, kind in types if kind.kind not in "biuf"]
    if others:
        fail("features", "columns of numbers", ", ".join(others))
    numbers: FloatArray = table.to_numpy(np.float64, na_value=np.nan)
    return numbers


def _read_only_features(value: Any) -> FloatArray | sparse.csr_array:
    if not sparse.issparse(value):
        dense = unmasked("features", value)
        if dense.dtype == object and hasattr(value, "iloc"):
            dense = _numbers_of_table(value)
        if dense.ndim > 2:
            dense = dense.reshape(len(dense), -1)
        dense = np.require(_floats(dense), requirements=["C", "A"])
        _two_axes(dense.shape)
        _finite("features", dense, columns=getattr(value, "columns", None))
        return read_only(dense)
    _two_axes(value.shape)
    whole("features", value)
    csr = sparse.csr_array(value)
    if not csr.has_canonical_format:
        csr = csr.copy()  # sum_duplicates works in place, and the arrays are the caller's
        csr.sum_duplicates()
    values = _floats(csr.data)
    _finite("features", values)
    parts = (read_only(values), read_only(csr.indices), read_only(csr.indptr))
    return sparse.csr_array(parts, shape=csr.shape)


def _read_only_labels(
    value: Any, *, records: int
) -> npt.NDArray[np.int64] | npt.NDArray[np.float64]:
    labels = unmasked("labels", value)
    if labels.shape != (records,):
        fail("labels", f"shape ({records},), one label for each record", f"shape {labels.shape}")
    if labels.dtype.kind in "iub":
        return read_only(labels.astype(np.int64, copy=False))
    if labels.dtype.kind != "f":
        fail("labels", "integers or real numbers", f"dtype {labels.dtype}")
    labels = labels.astype(np.float64, copy=False)
    _finite("labels", labels)
    return read_only(labels)


def _floats(array: npt.NDArray[Any]) -> FloatArray:
    if array.dtype.kind in "iub":
        return array.astype(np.float64)
    if array.dtype.type not in (np.float32, np.float64):
        fail("features", "numbers of float32 or float64", f"dtype {array.dtype}")
    return array


def _two_axes(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or 0 in shape:
        fail("features", "shape (records, dim), both at least 1", f"shape {shape}")


def _finite(argument: str, values: FloatArray, columns: Any = None) -> None:
    if values.size and not kernels.all_finite(values):
        position = np.argwhere(~np.isfinite(values))[0].tolist()
        where = "" if columns is None else f", in column {columns[position[1]]!r}"
        fail(argument, "finite numbers", f"{values[tuple(position)]} at {position}{where}")
