"""Checks and conversions of linear models' records, labels, batches and settings."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

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
from dpmesh._validate import fail, integer, non_negative, one_of, positive
from dpmesh.kernels.projection import NORMS, Norm

Loss = Literal["logistic", "hinge", "squared", "softmax"]
LOSSES: tuple[Loss, ...] = ("logistic", "hinge", "squared", "softmax")

Features: TypeAlias = FloatArray | sparse.csr_array | sparse.csr_matrix
"""Shape (records, dim): a dense array or a scipy CSR matrix with sorted, unique column indices."""

Batches: TypeAlias = npt.NDArray[np.int64] | tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Records of each node: an array (nodes, batch_size), or ``(indptr, indices)`` where node ``i`` has
the records ``indices[indptr[i]:indptr[i + 1]]``, possibly none."""

_FeatureParts: TypeAlias = FloatArray | tuple[npt.NDArray[Any], npt.NDArray[Any], FloatArray, int]
_Model: TypeAlias = tuple[_FeatureParts, npt.NDArray[Any], str, int | None]


def model_parts(
    params: npt.ArrayLike,
    features: Features,
    labels: npt.ArrayLike,
    loss: Loss,
    classes: int | None,
    *,
    argument: str = "params",
) -> tuple[FloatArray, _Model]:
    """The parameters as an array, and the model that fits them as the extension module takes it."""
    params = floats(argument, params, ndim=2)
    parts, records, dim = feature_parts(features, params)
    if loss not in LOSSES:
        one_of("loss", loss, LOSSES)
    if classes is not None:
        classes = integer("classes", classes, at_least=2)
    elif loss == "softmax":
        fail("classes", "the number of classes for the loss 'softmax'", None)
    outputs = classes or 1
    if params.shape[1] != outputs * dim:
        wanted = f"shape (nodes, {outputs * dim}), {outputs} x {dim} for each node"
        fail(argument, wanted, f"shape {params.shape}")
    return params, (parts, _labels(labels, records, classes), loss, classes)


def feature_parts(features: Any, params: FloatArray) -> tuple[_FeatureParts, int, int]:
    """What the extension module takes, the number of records and the number of features."""
    parts: _FeatureParts
    if type(features) is np.ndarray or not is_sparse(features):
        features = parts = values = floats("features", features, ndim=2)
    elif features.format == "csr":
        values = np.ascontiguousarray(features.data)
        parts = (*compressed("features", features), values, features.shape[1])
    else:
        fail("features", "an array or a CSR matrix", f"a {features.format.upper()} matrix")
    if values.dtype != params.dtype:
        fail("features", f"{params.dtype}, the type of params", values.dtype)
    records, dim = features.shape
    return parts, records, dim


def _labels(labels: npt.ArrayLike, records: int, classes: int | None) -> npt.NDArray[Any]:
    array = labels if type(labels) is np.ndarray else unmasked("labels", labels)
    kinds, dtype = ("iufb", np.float64) if classes is None else ("iu", np.int64)
    if array.dtype.kind not in kinds:
        wanted = "real numbers" if classes is None else "integers"
        fail("labels", wanted, f"dtype {array.dtype}")
    if array.shape != (records,):
        fail("labels", f"shape ({records},)", f"shape {array.shape}")
    return readable(array, dtype)


def batch_parts(batches: Batches, *, nodes: int) -> Batches:
    """The batches as the extension module takes them, one for each node."""
    if isinstance(batches, tuple):
        indptr, indices = ragged("batches", batches)
        if len(indptr) != nodes + 1:
            fail("batches", f"an indptr of {nodes + 1} elements, nodes + 1", len(indptr))
        return indptr, indices
    indices = integers("batches", batches, ndim=2)
    if len(indices) != nodes:
        fail("batches", f"shape ({nodes}, batch_size)", f"shape {indices.shape}")
    return indices


def step_parts(
    step_size: npt.ArrayLike, radius: float | None, *, nodes: int
) -> tuple[float | npt.NDArray[np.float64], float | None]:
    """One step size for all nodes or one for each, and the radius of the ball."""
    radius = None if radius is None else positive("radius", radius)
    if isinstance(step_size, float):
        return step_size, radius
    steps = unmasked("step_size", step_size)
    if steps.dtype.kind not in "iuf" or steps.shape not in ((), (nodes,)):
        got = f"dtype {steps.dtype} and shape {steps.shape}"
        fail("step_size", f"one number, or one for each of {nodes} nodes", got)
    return readable(steps.reshape(-1), np.float64), radius


def averaging_parts(regularization: float, divide_by: float | None) -> tuple[float, float | None]:
    """Regularization, and the divisor of the sum over a batch."""
    regularization = non_negative("regularization", regularization)
    return regularization, None if divide_by is None else positive("divide_by", divide_by)


def clipping_parts(clipping_norm: float | None, norm: Norm) -> tuple[float, str] | None:
    """Largest norm of a record's gradient, and which norm; None for no clipping."""
    one_of("norm", norm, NORMS)
    return None if clipping_norm is None else (positive("clipping_norm", clipping_norm), norm)
