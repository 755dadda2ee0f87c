"""Checks and conversions of linear models' records, labels and batches."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpmesh._arrays import (
    FloatArray,
    compressed,
    floats,
    integers,
    is_sparse,
    ragged,
    readable,
    unmasked,
)
from dpmesh._ragged import Flags, Indices
from dpmesh._validate import fail, integer, one_of

Loss = Literal[
    "logistic", "hinge", "squared", "absolute", "huber", "poisson", "softmax", "multilabel"
]
LOSSES: tuple[Loss, ...] = get_args(Loss)
REGRESSION: tuple[Loss, ...] = ("squared", "absolute", "huber", "poisson")
"""Losses of one model with real targets."""
KINKED: tuple[Loss, ...] = ("hinge", "absolute")
"""Losses that are convex, but not smooth."""
MOST_LABELS = 63
"""Of a record's set of labels, which is one integer."""

Features: TypeAlias = FloatArray | sparse.csr_array | sparse.csr_matrix
"""Shape (records, dim): a dense array or a scipy CSR matrix with sorted, unique column indices."""

Batches: TypeAlias = Indices | tuple[Indices, Indices]
"""Records of each node: an array (nodes, batch_size), or ``(indptr, indices)`` where node ``i`` has
the records ``indices[indptr[i]:indptr[i + 1]]``, possibly none."""

_FeatureParts: TypeAlias = FloatArray | tuple[npt.NDArray[Any], npt.NDArray[Any], FloatArray, int]


def check_loss(loss: Loss, classes: int | None) -> None:
    """Fail unless there is such a loss, and it goes with a number of classes, or with None."""
    one_of("loss", loss, LOSSES)
    if classes is not None:
        most = {"below": MOST_LABELS + 1} if loss == "multilabel" else {}
        integer("classes", classes, at_least=2, **most)
        if loss == "poisson":
            fail("classes", "None for the loss 'poisson', of counts", classes)
    elif loss in ("softmax", "multilabel"):
        fail("classes", f"the number of classes for the loss {loss!r}", None)


def feature_parts(features: Any) -> tuple[_FeatureParts, int]:
    """What the extension module takes, and the number of records."""
    if not is_sparse(features):
        dense = floats("features", features, ndim=2)
        return dense, len(dense)
    if features.format != "csr":
        fail("features", "an array or a CSR matrix", f"a {features.format.upper()} matrix")
    records, dim = features.shape
    return (*compressed("features", features), np.ascontiguousarray(features.data), dim), records


def label_array(labels: npt.ArrayLike, records: int, classes: int | None) -> npt.NDArray[Any]:
    """The labels as the extension module takes them: real numbers, or integers with `classes`."""
    array = unmasked("labels", labels)
    kinds, dtype = ("iufb", np.float64) if classes is None else ("iu", np.int64)
    if array.dtype.kind not in kinds:
        wanted = "real numbers" if classes is None else "integers"
        fail("labels", wanted, f"dtype {array.dtype}")
    if array.shape != (records,):
        fail("labels", f"shape ({records},)", f"shape {array.shape}")
    return readable(array, dtype)


def as_sets(labels: npt.NDArray[Any]) -> Indices:
    """Return the set of labels that each record has, of an array (records, labels) of 0 and 1."""
    return np.asarray(labels, np.int64) @ (1 << np.arange(labels.shape[1], dtype=np.int64))


def members(sets: npt.NDArray[Any], labels: int) -> Flags:
    """Return which labels are in each set, shape (records, labels)."""
    found: Flags = sets[:, np.newaxis] >> np.arange(labels) & 1 == 1
    return found


def batch_parts(batches: Batches) -> Batches:
    """The batches as the extension module takes them."""
    if isinstance(batches, tuple):
        return ragged("batches", batches)
    return integers("batches", batches, ndim=2)
