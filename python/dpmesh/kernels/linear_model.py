"""Checks and conversions of linear models' records, labels and batches, for the kernels."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpmesh._arrays import (
    FloatArray,
    csr_int32,
    floats,
    integers,
    is_sparse,
    ragged,
    readable,
    unmasked,
)
from dpmesh._ragged import Flags, Indices
from dpmesh._rounded import RoundedFeatures
from dpmesh._validate import fail, integer, one_of

Loss = Literal[
    "logistic", "hinge", "squared", "absolute", "huber", "poisson", "softmax", "multilabel"
]
LOSSES: tuple[Loss, ...] = get_args(Loss)
"""All losses, which `dpmesh.kernels.linear` defines."""
REGRESSION: tuple[Loss, ...] = ("squared", "absolute", "huber", "poisson")
"""Losses of one model with real targets."""
KINKED: tuple[Loss, ...] = ("hinge", "absolute")
"""Losses with a kink: convex, but not smooth."""
MOST_LABELS = 63
"""Largest number of labels of a record's set of labels, which is one integer."""

Features: TypeAlias = FloatArray | sparse.csr_array | sparse.csr_matrix | RoundedFeatures
"""Shape (records, dim): a dense array or a scipy CSR matrix with sorted, unique column indices."""

Batches: TypeAlias = Indices | tuple[Indices, Indices]
"""Records of each node: an array (nodes, batch_size), or ``(indptr, indices)`` where node ``i`` has
the records ``indices[indptr[i]:indptr[i + 1]]``, possibly none."""

_FeatureParts: TypeAlias = (
    FloatArray
    | tuple[npt.NDArray[Any], npt.NDArray[Any], FloatArray, int]
    | tuple[npt.NDArray[np.int8], npt.NDArray[np.float32], int]
)


def check_loss(loss: Loss, classes: int | None) -> None:
    """Raise a ValueError unless the loss exists and supports this number of classes, or None."""
    one_of("loss", loss, LOSSES)
    if classes is None:
        if loss in ("softmax", "multilabel"):
            fail("classes", f"the number of classes for the loss {loss!r}", None)
        return
    if loss == "multilabel":
        integer("classes", classes, at_least=2, below=MOST_LABELS + 1)
    else:
        integer("classes", classes, at_least=2)
    if loss == "poisson":
        fail("classes", "None for the loss 'poisson', of counts", classes)


def feature_parts(features: Any) -> tuple[_FeatureParts, int]:
    """Return features in the form of the extension module, and the number of records."""
    if isinstance(features, RoundedFeatures):
        codes = readable(features.codes, np.int8)
        scales = readable(features.scales, np.float32)
        return (codes, scales, features.dim), len(features)
    if not is_sparse(features):
        dense = floats("features", features, ndim=2)
        return dense, len(dense)
    if features.format != "csr":
        fail("features", "an array or a CSR matrix", f"a {features.format.upper()} matrix")
    records, dim = features.shape
    indptr, indices = csr_int32("features", features)
    entries = np.ascontiguousarray(features.data)
    return (indptr, indices, entries, dim), records


def label_array(labels: npt.ArrayLike, records: int, classes: int | None) -> npt.NDArray[Any]:
    """Return labels in the form of the extension module: float64, or int64 for `classes`."""
    array = unmasked("labels", labels)
    if classes is None:
        dtype: npt.DTypeLike = np.float64
        if array.dtype.kind not in "iufb":
            fail("labels", "real numbers", f"dtype {array.dtype}")
    else:
        dtype = np.int64
        if array.dtype.kind not in "iu":
            fail("labels", "integers", f"dtype {array.dtype}")
    if array.shape != (records,):
        fail("labels", f"shape ({records},)", f"shape {array.shape}")
    return readable(array, dtype)


def as_sets(labels: npt.NDArray[Any]) -> Indices:
    """Return each record's set of labels as one integer, bit j for label j.

    `labels` has the shape (records, labels) and holds 0 and 1.
    """
    bit_values = 1 << np.arange(labels.shape[1], dtype=np.int64)
    return np.asarray(labels, np.int64) @ bit_values


def members(sets: npt.NDArray[Any], labels: int) -> Flags:
    """Return True for each label in each record's set, shape (records, labels).

    A set is an integer of `as_sets`, with bit j for label j.
    """
    bits = sets[:, np.newaxis] >> np.arange(labels) & 1
    is_member: Flags = bits == 1
    return is_member


def batch_arrays(batches: Batches) -> Batches:
    """Return batches as int64 arrays for the kernels: two for ``(indptr, indices)``, else one."""
    if isinstance(batches, tuple):
        return ragged("batches", batches)
    return integers("batches", batches, ndim=2)
