"""Preprocessing that costs no privacy: each record is changed by itself, with public numbers.

Two datasets that differ in one record still differ in one record afterwards, so every guarantee for
the result is one for the original.

Standardization, PCA, feature selection and vocabularies that are fitted to the data are not of this
kind. One record moves the mean and the principal axes, and with them all other records: the result
differs in many records. Fit such maps to public data of the same kind, or release them by a private
mechanism and count its epsilon.
"""

from __future__ import annotations

from dataclasses import replace
from math import hypot
from typing import cast

import numpy as np
import numpy.typing as npt
from scipy import sparse

import dpmesh.kernels as kernels
from dpmesh._arrays import FloatArray, new
from dpmesh._validate import fail, instance, integer, number
from dpmesh.data.dataset import A_DATASET, Dataset


def scaled(dataset: Dataset, divisor: npt.ArrayLike) -> Dataset:
    """Divide every feature by a public number, such as pixels by 255.

    Parameters
    ----------
    dataset
        The records.
    divisor
        One number, or shape (dim,): one for each feature. Finite and positive, and known without
        looking at the data, such as the range that a format or a published description gives.

    Raises
    ------
    ValueError
        If a divisor is not finite and positive, or the number of divisors does not fit.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.data.scaled(dm.Dataset([[127.5], [255.0]], [0, 1]), 255).features
    array([[0.5],
           [1. ]])
    """
    instance("dataset", dataset, A_DATASET, Dataset)
    features = dataset.features
    divisors = _checked_divisors(divisor, dataset.dim).astype(features.dtype)
    if isinstance(features, sparse.csr_array):
        return _with_values(dataset, features, features.data / divisors[features.indices])
    quotients = new(features.shape, features.dtype)
    np.divide(features, divisors, out=quotients)
    return replace(dataset, features=quotients)


def _checked_divisors(divisor: npt.ArrayLike, dim: int) -> npt.NDArray[np.float64]:
    """Return a divisor for each feature, shape (dim,); fail unless all are finite and positive."""
    divisors = np.asarray(divisor)
    if divisors.dtype.kind not in "iuf":
        divisors = np.asarray(number("divisor", cast("float", divisor)))
    divisors = divisors.astype(np.float64)
    if divisors.shape not in ((), (dim,)):
        fail("divisor", f"one number or shape ({dim},)", f"shape {divisors.shape}")
    is_valid = np.isfinite(divisors) & (divisors > 0)
    if not is_valid.all():
        fail("divisor", "finite numbers greater than 0", divisor)
    return np.broadcast_to(divisors, dim)


def unit_norm(dataset: Dataset) -> Dataset:
    """Divide each record by its L2 norm; a record of zeros stays.

    The result has a `Dataset.feature_norm` of 1. The gradient of a linear model's loss is the slope
    of the loss times the record: its norm is then at most 1 for hinge and logistic losses.

    Raises
    ------
    ValueError
        If `dataset` is not a Dataset.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.data.unit_norm(dm.Dataset([[3.0, 4.0]], [1])).features
    array([[0.6, 0.8]])
    """
    instance("dataset", dataset, A_DATASET, Dataset)
    features = dataset.features
    if isinstance(features, sparse.csr_array):
        row_of_value = np.repeat(np.arange(dataset.records), np.diff(features.indptr))
        squares = np.square(features.data, dtype=np.float64)
        norms = np.sqrt(np.bincount(row_of_value, squares, dataset.records))
        divisors = _positive_norms(norms, features.dtype)
        normalized = _with_values(dataset, features, features.data / divisors[row_of_value])
        return normalized._bounded(1.0)
    divisors = _positive_norms(kernels.row_norms(features), features.dtype)
    quotients = new(features.shape, features.dtype)
    np.divide(features, divisors[:, None], out=quotients)
    return replace(dataset, features=quotients)._bounded(1.0)


def with_constant(dataset: Dataset, value: float = 1.0) -> Dataset:
    """Append a feature that is `value` in every record: the intercept of a linear model.

    A bound b on the norm of records becomes ``sqrt(b^2 + value^2)``.

    Raises
    ------
    ValueError
        If `value` is not finite.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.data.with_constant(dm.Dataset([[3.0, 4.0]], [1])).features
    array([[3., 4., 1.]])
    """
    instance("dataset", dataset, A_DATASET, Dataset)
    column = np.full((dataset.records, 1), number("value", value), dtype=dataset.features.dtype)
    if isinstance(dataset.features, sparse.csr_array):
        features = sparse.hstack([dataset.features, column], format="csr")
    else:
        features = np.hstack([dataset.features, column])
    extended = replace(dataset, features=features)
    if dataset.feature_norm is None:
        return extended
    return extended._bounded(hypot(dataset.feature_norm, value))


def random_projection(dataset: Dataset, dim: int, generator: np.random.Generator) -> Dataset:
    """Project every record onto `dim` random directions, drawn without looking at the data.

    The matrix has independent normal entries of mean 0 and variance ``1 / dim``. It keeps squared
    norms on average (Johnson and Lindenstrauss 1984), and may be published. The result has no bound
    on norms.

    Parameters
    ----------
    dataset
        The records, dense or sparse; the result is dense.
    dim
        Number of directions, at least 1.
    generator
        Source of the directions. Two generators in the same state, such as two made from the same
        key, project two datasets alike.

    Raises
    ------
    ValueError
        If `dim` is not an integer of at least 1.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> draw = np.random.default_rng(1)
    >>> dm.data.random_projection(dm.data.digits(), 16, draw).dim
    16
    """
    instance("dataset", dataset, A_DATASET, Dataset)
    dim = integer("dim", dim, at_least=1)
    directions = generator.standard_normal((dataset.dim, dim)) / np.sqrt(dim)
    projected = dataset.features @ directions.astype(dataset.features.dtype)
    return replace(dataset, features=projected)


def _positive_norms(norms: npt.NDArray[np.float64], dtype: npt.DTypeLike) -> FloatArray:
    """Return the norms in the type of the features, 1 in place of 0."""
    return np.where(norms > 0, norms, 1).astype(dtype)


def _with_values(dataset: Dataset, features: sparse.csr_array, values: FloatArray) -> Dataset:
    """Replace the stored values of the dataset's sparse features."""
    parts = (values, features.indices, features.indptr)
    return replace(dataset, features=sparse.csr_array(parts, shape=features.shape))
