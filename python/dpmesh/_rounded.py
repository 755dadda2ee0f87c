"""Features in 8 bits, for tables whose features in float32 would not fit into memory.

A record's features are stored as integers from -127 to 127, its *codes*, with one scale for every
`SHARED` of them: feature j is ``codes[j] * scales[j // SHARED]``, rounded to float32. The rounded
record is a function of the record alone, so that learning from it has the guarantee of learning
from the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from dpmesh._ragged import Numbers

FloatT = TypeVar("FloatT", np.float32, np.float64)

SHARED = 64
"""Number of features of a record that share a scale, as in the kernels."""

BLOCK = 1 << 10
"""Number of records that are rounded or read at once."""

_MOST = 127
"""Largest code."""

_WITHIN = 1 - 2.0**-20
"""Norm to which records whose rounding made them longer than 1 are shortened; the difference to 1
leaves room for the rounding of their scales."""

_LONGEST = 1 - 2.0**-22
"""Largest computed square of the norm of a record of norm at most 1: leaves room for the rounding
of its sum, and of the products of codes and scales."""

Selection: TypeAlias = slice | npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_] | list[int]
"""Records by a slice, by their indices, or by a mask."""


@dataclass(frozen=True, eq=False)
class RoundedFeatures:
    """A matrix of features in 8 bits, shape (records, dim), with numbers of float64.

    Reading some records, ``features[records]``, returns their features as an array of float64.

    Parameters
    ----------
    codes
        Codes, int8, shape (records, stride) with a stride of at least `dim`. Codes beyond `dim` are
        not read: they are room for more features.
    scales
        Scales, float32, shape (records, stride / `SHARED`, rounded up).
    dim
        Number of features of a record.
    """

    codes: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    dim: int

    ndim = 2
    dtype = np.dtype(np.float64)

    @classmethod
    def empty(cls, records: int, dim: int, *, room: int = 0) -> RoundedFeatures:
        """Return a matrix of 0 for `store`, with room for more features of each record."""
        stride = dim + room
        return cls(
            np.zeros((records, stride), np.int8),
            np.zeros((records, -(-stride // SHARED)), np.float32),
            dim,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Number of records, and of features of a record."""
        return len(self.codes), self.dim

    @property
    def size(self) -> int:
        """Number of features of all records."""
        return len(self.codes) * self.dim

    @property
    def has_room(self) -> bool:
        """True if there is memory for one more feature of each record."""
        return bool(self.codes.shape[1] > self.dim)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, records: Selection) -> Numbers:
        """Return the features of some records, float64, shape (records, dim)."""
        return self.rows(records, np.float64)

    def rows(self, records: Selection, dtype: type[FloatT]) -> npt.NDArray[FloatT]:
        """Return the features of some records in float64 or float32, which has the same numbers."""
        features = self.codes[records, : self.dim].astype(np.float32)
        scales = self.scales[records]
        for group, first in enumerate(range(0, self.dim, SHARED)):
            features[:, first : first + SHARED] *= scales[:, group, np.newaxis]
        return features.astype(dtype, copy=False)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Return all features as an array, which takes eight times the memory."""
        return self[:].astype(dtype or self.dtype, copy=False)

    def take(self, records: Selection) -> RoundedFeatures:
        """Return a matrix of some records, in their order."""
        return RoundedFeatures(
            np.ascontiguousarray(self.codes[records]),
            np.ascontiguousarray(self.scales[records]),
            self.dim,
        )

    def widened(self, dim: int) -> RoundedFeatures:
        """Return a view of the same memory with more features of each record.

        Its records must be stored anew, in blocks: the codes of the features beyond this matrix's
        are 0 until then.
        """
        return RoundedFeatures(self.codes, self.scales, dim)

    def read_only(self) -> RoundedFeatures:
        """Return a view of the same memory that cannot be written to."""
        codes, scales = self.codes[...], self.scales[...]
        codes.setflags(write=False)
        scales.setflags(write=False)
        return RoundedFeatures(codes, scales, self.dim)

    def store(self, first: int, records: Numbers) -> None:
        """Round records of norm at most 1, and store them as the records from `first` on.

        The exact norm of a rounded record is at most 1. Each rounded record is a function of the
        record alone.

        Parameters
        ----------
        first
            Index of the first record.
        records
            Features, shape (records, dim).
        """
        codes = self.codes[first : first + len(records)]
        scales = self.scales[first : first + len(records)]
        squared_norms = np.zeros(len(records))
        for group, start in enumerate(range(0, self.dim, SHARED)):
            numbers = records[:, start : min(start + SHARED, self.dim)]
            largest = np.abs(numbers).max(axis=1)
            scale = (largest / _MOST).astype(np.float32).astype(np.float64)
            multiples = numbers / np.where(scale > 0, scale, np.inf)[:, np.newaxis]
            np.rint(multiples, out=multiples)
            np.clip(multiples, -_MOST, _MOST, out=multiples)
            codes[:, start : start + numbers.shape[1]] = multiples
            scales[:, group] = scale
            squared_norms += scale**2 * np.einsum("ij,ij->i", multiples, multiples)
        longer = np.flatnonzero(squared_norms > _LONGEST)
        while len(longer):
            factors = _WITHIN / np.sqrt(squared_norms[longer])
            scales[longer] = scales[longer] * factors[:, np.newaxis]
            squared_norms = self._squared_norms(slice(first, first + len(records)))
            longer = np.flatnonzero(squared_norms > _LONGEST)

    def _squared_norms(self, records: slice) -> Numbers:
        """Return the squared norms of some records, up to 2^-22 of them, shape (records,)."""
        scales = self.scales[records].astype(np.float64)
        total = np.zeros(len(scales))
        for group, start in enumerate(range(0, self.dim, SHARED)):
            codes = self.codes[records, start : min(start + SHARED, self.dim)].astype(np.float64)
            total += scales[:, group] ** 2 * np.einsum("ij,ij->i", codes, codes)
        return total

    def norms(self) -> Numbers:
        """Return the norm of each record, up to 2^-23 of it, shape (records,)."""
        blocks = [
            self._squared_norms(slice(first, first + BLOCK)) for first in range(0, len(self), BLOCK)
        ]
        return np.sqrt(np.concatenate(blocks))
