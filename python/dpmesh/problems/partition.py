"""Records and their partition among nodes, checked and concatenated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from types import NoneType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._arrays import FloatArray, integers, unmasked
from dpmesh._ragged import Indices, Ragged, rows
from dpmesh._validate import as_python_numbers, fail, instance, integer, non_negative
from dpmesh.data import Dataset
from dpmesh.data.dataset import A_DATASET

IndexArrays: TypeAlias = Sequence[npt.NDArray[np.integer[Any]]]
"""A partition as users give it: one array of record indices for each node."""


def flat_partition(partition: IndexArrays, records: int) -> Ragged:
    """Return ``(starts, indices)``: node ``i`` has ``indices[starts[i]:starts[i + 1]]``.

    Raises
    ------
    ValueError
        If there is no node, or one without records, or an index is out of range or occurs twice.
    """
    if not np.iterable(partition):
        fail("partition", "an array of indices for each node", repr(partition))
    parts = [unmasked("partition", part) for part in partition]
    if not parts:
        fail("partition", "at least 1 node", "none")
    for node, part in enumerate(parts):
        if part.ndim != 1 or part.dtype.kind not in "iu" or not part.size:
            wanted = "integer indices of at least 1 record for each node"
            if not part.ndim:
                wanted += ", such as data.by_user makes of a column of owners"
            fail("partition", wanted, f"{part.dtype} of shape {part.shape} for node {node}")
    order = np.concatenate(parts).astype(np.int64)
    outside = order[(order < 0) | (order >= records)]
    if outside.size:
        fail("partition", f"indices from 0 to {records - 1}", outside[0])
    counts = np.bincount(order, minlength=records)
    if counts.max() > 1:
        fail("partition", "each record at one node", f"record {counts.argmax()} more than once")
    starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    order.flags.writeable = starts.flags.writeable = False
    return starts, order


def shares_of(partition: IndexArrays, nodes: npt.ArrayLike) -> IndexArrays:
    """Return what these nodes hold, in this order.

    Raises
    ------
    ValueError
        If there is no node, or one does not exist.
    """
    chosen = integers("nodes", nodes, ndim=1)
    if not chosen.size or chosen.min() < 0 or chosen.max() >= len(partition):
        fail("nodes", f"at least 1 node, all from 0 to {len(partition) - 1}", chosen)
    return tuple(partition[node] for node in chosen)


class DenseProblem(ABC):
    """Common base of problems of any model: dense records of one shape, divided among nodes."""

    train: Dataset
    partition: IndexArrays
    test: Dataset | None
    record_shape: tuple[int, ...] | None
    regularization: float
    nodes_at_once: int
    _records: Ragged

    def __post_init__(self) -> None:
        as_python_numbers(self)
        non_negative("regularization", self.regularization)
        integer("nodes_at_once", self.nodes_at_once, at_least=1)
        instance("train", self.train, A_DATASET, Dataset)
        instance("test", self.test, f"{A_DATASET}, or None", Dataset, NoneType)
        object.__setattr__(self, "_records", flat_partition(self.partition, self.train.records))
        for name, dataset in (("train", self.train), ("test", self.test)):
            if dataset is None:
                continue
            if not isinstance(dataset.features, np.ndarray):
                fail(name, "dense features", "sparse ones")
            if dataset.dim != prod(self._shape):
                fail(name, f"records of shape {self._shape}", f"{dataset.dim} features")

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.partition)

    @property
    @abstractmethod
    def blocks(self) -> tuple[int, ...]:
        """Sizes of the model's tensors in a row, for smoothing each on its own."""

    @property
    def dim(self) -> int:
        """Length of the parameters of a node."""
        return sum(self.blocks)

    def records_of(self, nodes: Indices) -> Ragged:
        """Return the records of these nodes, as batches ``(indptr, indices)``."""
        return rows(self._records, nodes)

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.train.dim,) if self.record_shape is None else self.record_shape

    def _shaped(self, dataset: Dataset) -> FloatArray:
        return np.asarray(dataset.features, np.float32).reshape(-1, *self._shape)

    def _to_test(self) -> Dataset:
        if self.test is None:
            fail("test", "records to measure the accuracy on", None)
        return self.test
