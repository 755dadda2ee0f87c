"""Base class of problems with any model: sums of clipped gradients of dense records.

`JaxProblem` and `TorchProblem` are such problems. Gradients are taken in *microbatches*, groups of
a few records of one row, to bound the memory. A *row* is one model with its batch of records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from math import prod
from types import NoneType
from typing import NamedTuple

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._arrays import FloatArray
from dpmesh._privacy_types import Sensitive
from dpmesh._ragged import Flags, Indices, Numbers, Ragged
from dpmesh._validate import every, fail, instance, integer, non_negative, one_of, positive
from dpmesh.data import Dataset
from dpmesh.data.dataset import A_DATASET
from dpmesh.kernels.linear_model import Batches
from dpmesh.kernels.projection import NORMS, Norm
from dpmesh.problems.partition import IndexArrays, PartitionedProblem, flat_partition

_ROUNDING = 2.0**-16
"""Bound on the relative error of float32 in the norm of a clipped gradient."""


@dataclass(frozen=True, eq=False)
class DenseProblem(PartitionedProblem, ABC):
    """Base class of problems with any model, on dense records of one shape, divided among nodes.

    A subclass implements `blocks`, `objective` and `_clipped_sums`. Algorithms train the model by
    `gradient_sum`, the sum of its records' clipped gradients.
    """

    models = 1
    """Number of one-vs-all models of a node: 1, see `LinearProblem.models`."""

    train: Dataset
    partition: IndexArrays = field(repr=False)
    _: KW_ONLY
    test: Dataset | None = None
    record_shape: tuple[int, ...] | None = None
    regularization: float = 0.0
    nodes_at_once: int = 32
    records_at_once: int = 16
    _records: Ragged = field(init=False, repr=False)

    def __post_init__(self) -> None:
        every(self, integer, "nodes_at_once", "records_at_once", at_least=1)
        non_negative("regularization", self.regularization)
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
    @abstractmethod
    def blocks(self) -> tuple[int, ...]:
        """Numbers of elements of the model's tensors, in the order in which they are flattened.

        As `blocks` of `LaplacianSmoothing`, they make it smooth each tensor separately.
        """

    @property
    def dim(self) -> int:
        """Length of the parameters of a node."""
        return sum(self.blocks)

    @abstractmethod
    def objective(self, params: FloatArray, batches: Batches) -> Numbers:
        """Return the objective of each row's model on its batch, shape (rows,)."""

    def class_objectives(self, params: FloatArray, batches: Batches) -> Numbers:
        """Return the objective of each row's model on its batch, shape (rows, 1)."""
        return self.objective(params, batches)[:, np.newaxis]

    def gradient_sum(
        self,
        params: FloatArray,
        batches: Batches,
        *,
        clipping_norm: float | None,
        norm: Norm = "l2",
    ) -> Numbers:
        """Return the sum of each row's clipped record gradients, without weight decay.

        A record whose gradient is NaN or infinite adds 0. The norm of a record's summand is at most
        `clipping_norm`, and it depends on no other record, up to the rounding of float64.

        Parameters
        ----------
        params
            Parameters of each row's model, shape (rows, dim).
        batches
            Record indices of each row: an array of shape (rows, batch size), or ``(indptr,
            indices)``, where a row may have no records.
        clipping_norm
            Largest norm of the gradient of a record's loss; None for no clipping.
        norm
            Norm that is clipped: ``"l2"`` or ``"l1"``.

        Returns
        -------
        Shape (rows, dim), float64. Removing a record moves it by its summand, up to a relative
        rounding of about 1e-12.

        Raises
        ------
        ValueError
            If `clipping_norm` is not positive.
        """
        bound = np.inf if clipping_norm is None else positive("clipping_norm", clipping_norm)
        one_of("norm", norm, NORMS)
        bound_before_rounding = bound * (1 - _ROUNDING)  # float32 may exceed it by as much
        params = np.asarray(params, np.float32)
        sums = np.zeros((len(params), self.dim))
        for micro in microbatches(
            as_ragged(batches), size=self.records_at_once, at_once=self.nodes_at_once
        ):
            micro_sums = self._clipped_sums(params, micro, bound_before_rounding, norm)
            # Owners ascend: the microbatches of a row follow each other, and are summed here.
            first_of_owner = np.flatnonzero(np.diff(micro.owners, prepend=-1))
            owners = micro.owners[first_of_owner]
            sums[owners] += np.add.reduceat(micro_sums, first_of_owner, axis=0)
        return sums

    def clipped_sums(self, params: FloatArray, batches: Batches, clipping_norm: float) -> Sensitive:
        """Return each node's sum of record gradients, each clipped to the L2 norm `clipping_norm`.

        Parameters and result are as in `gradient_sum`.
        """
        return Sensitive(self.gradient_sum(params, batches, clipping_norm=clipping_norm))

    @abstractmethod
    def _clipped_sums(
        self, params: FloatArray, micro: Microbatches, bound: float, norm: Norm
    ) -> Numbers:
        """Return the sum of each microbatch's clipped gradients, shape (microbatches, dim).

        Gradients are float32, and are summed with the accuracy of float64.
        """

    def gradient(
        self,
        params: FloatArray,
        batches: Batches,
        *,
        clipping_norm: float | None = None,
        norm: Norm = "l2",
    ) -> FloatArray:
        """Return the gradient of each row's objective on its batch: mean plus weight decay.

        The mean is `gradient_sum` over the number of records of the row, or 0 without records. The
        parameters are those of `gradient_sum`.

        Returns
        -------
        Shape (rows, dim), float32.
        """
        return np.asarray(self._gradient(params, batches, clipping_norm, norm), np.float32)

    def step(
        self,
        params: FloatArray,
        step_size: float,
        batches: Batches,
        *,
        clipping_norm: float | None = None,
        norm: Norm = "l2",
        radius: float | None = None,
    ) -> FloatArray:
        """Return each row's parameters after a step against `gradient`.

        With a `radius`, they are projected onto the L2 ball of this radius around 0.

        Returns
        -------
        Shape (rows, dim), float32.
        """
        gradient = self._gradient(params, batches, clipping_norm, norm)
        stepped = np.asarray(params - step_size * gradient, np.float32)
        if radius is None:
            return stepped
        return kernels.clip_rows(stepped, radius)

    def _gradient(
        self, params: FloatArray, batches: Batches, clipping_norm: float | None, norm: Norm
    ) -> Numbers:
        """Return `gradient` in float64."""
        sums = self.gradient_sum(params, batches, clipping_norm=clipping_norm, norm=norm)
        indptr, _ = as_ragged(batches)
        divisors = np.maximum(np.diff(indptr), 1)  # 1 for a row without records
        sums /= divisors[:, np.newaxis]
        sums += self.regularization * np.asarray(params, np.float64)
        return sums

    @property
    def _shape(self) -> tuple[int, ...]:
        """Shape of a record's features for the model."""
        if self.record_shape is None:
            return (self.train.dim,)
        return self.record_shape

    def _shaped(self, dataset: Dataset) -> FloatArray:
        """Return the features of a dataset, shape (records, *record_shape), float32."""
        return np.asarray(dataset.features, np.float32).reshape(-1, *self._shape)

    def _required_test(self) -> Dataset:
        """Return the test records; raise a ValueError if there are none."""
        if self.test is None:
            fail("test", "records to measure the accuracy on", None)
        return self.test


class Microbatches(NamedTuple):
    """Microbatches: parts of rows' batches, all padded to one size.

    Attributes
    ----------
    owners
        Row of each microbatch, ascending, shape (microbatches,).
    indices
        Record indices of each microbatch, shape (microbatches, size). Padding repeats its first
        record.
    used
        True for records, False for padding, shape (microbatches, size).
    """

    owners: Indices
    indices: Indices
    used: Flags


def microbatches(batches: Ragged, *, size: int, at_once: int) -> Iterator[Microbatches]:
    """Yield the batches of all rows as microbatches of at most `size` records.

    A row with fewer records has one microbatch, padded to a power of 2, so that only a few shapes
    are compiled. The grouping of a row's records depends on no other row. Rows without records have
    no microbatch.

    Parameters
    ----------
    batches
        Records of each row, as ``(indptr, indices)``.
    size
        Largest number of records of a microbatch.
    at_once
        Largest number of microbatches that are yielded together.
    """
    indptr, records = batches
    lengths = np.diff(indptr)
    next_powers = 1 << np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64)
    widths = np.minimum(size, next_powers)
    for width in np.unique(widths[lengths > 0]).tolist():
        rows_of_width = np.flatnonzero((widths == width) & (lengths > 0))
        counts = -(-lengths[rows_of_width] // width)  # microbatches of each row
        ends = np.cumsum(counts)
        number_in_row = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        owners = np.repeat(rows_of_width, counts)
        first_record = indptr[owners] + width * number_in_row
        records_left = indptr[owners + 1] - first_record
        columns = np.arange(width)
        is_used = columns < records_left[:, np.newaxis]
        indices = records[first_record[:, np.newaxis] + np.where(is_used, columns, 0)]
        for i in range(0, len(owners), at_once):
            chunk = slice(i, i + at_once)
            yield Microbatches(owners[chunk], indices[chunk], is_used[chunk])


def as_ragged(batches: Batches) -> Ragged:
    """Return batches in the form ``(indptr, indices)``."""
    if isinstance(batches, tuple):
        return batches
    return np.arange(len(batches) + 1) * batches.shape[1], batches.reshape(-1)
