"""Preprocessing that needs no epsilon: each record is mapped by itself, with public numbers.

Two datasets that differ in one record still differ in one record afterwards. So a guarantee for the
preprocessed records is a guarantee for the original records.

Standardization, PCA, feature selection and vocabularies that are fitted to the data do not belong
here: another value of one record changes the fitted map, and with it all preprocessed records. Fit
such maps to public data of the same kind, or release them by a private mechanism and count its
epsilon.
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
    """Divide the features by public numbers, such as pixels by 255.

    Parameters
    ----------
    dataset
        The records.
    divisor
        One divisor for all features, or one for each feature, shape (dim,). Divisors are finite,
        positive and public, such as a range from a published description; never computed from the
        data.

    Returns
    -------
    The records with divided features. Labels and name do not change; `feature_norm` is None.

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
    if divisors.dtype.kind not in "iuf":  # such as a Fraction, or not a number, which fails
        divisors = np.asarray(number("divisor", cast("float", divisor)))
    divisors = divisors.astype(np.float64)
    if divisors.shape not in ((), (dim,)):
        fail("divisor", f"one number or shape ({dim},)", f"shape {divisors.shape}")
    is_valid = np.isfinite(divisors) & (divisors > 0)
    if not is_valid.all():
        fail("divisor", "finite numbers greater than 0", divisor)
    return np.broadcast_to(divisors, dim)


def unit_norm(dataset: Dataset) -> Dataset:
    """Divide each record by its L2 norm; a record of zeros does not change.

    The gradient of a linear model's loss is the derivative of the loss by the score, times the
    record. For hinge and logistic losses its L2 norm is then at most 1.

    Parameters
    ----------
    dataset
        The records, dense or sparse.

    Returns
    -------
    The records with L2 norm 1 (or 0), and a `Dataset.feature_norm` of 1.

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
    """Append a constant feature to every record, for the intercept of a linear model.

    Parameters
    ----------
    dataset
        The records, dense or sparse.
    value
        Value of the constant feature, finite.

    Returns
    -------
    The records with one more feature, the last one. A `Dataset.feature_norm` of b becomes
    ``sqrt(b^2 + value^2)``.

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
    """Project every record onto random directions that do not depend on the data.

    The matrix of the projection has independent normal entries of mean 0 and variance ``1 / dim``.
    It preserves squared norms on average (Johnson and Lindenstrauss 1984), and may be published.

    Parameters
    ----------
    dataset
        The records, dense or sparse.
    dim
        Number of directions, at least 1.
    generator
        Random generator of the directions. Two generators in the same state give the same
        projection, for example of training and test records.

    Returns
    -------
    Dense records with `dim` features. `feature_norm` is None, since norms are unbounded.

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
    """Return norms as divisors in the type of the features: 1 instead of 0."""
    return np.where(norms > 0, norms, 1).astype(dtype)


def _with_values(dataset: Dataset, features: sparse.csr_array, values: FloatArray) -> Dataset:
    """Return the dataset with other stored values of its sparse features, at the same positions."""
    parts = (values, features.indices, features.indptr)
    return replace(dataset, features=sparse.csr_array(parts, shape=features.shape))
