"""A released model as a pipeline of scikit-learn alone; imported when it is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)

from dpmesh._validate import fail
from dpmesh.ranges import Category, Columns, Dates, Features, Flag, Number
from dpmesh.tables.features import CONSTANT
from dpmesh.tables.kinds import Count


def pipeline(
    columns: Columns | Features,
    linear: Any,
    *,
    named: bool,
    centre: npt.NDArray[np.float64] | None = None,
) -> Pipeline:
    """Return a fitted pipeline that encodes columns and predicts as a linear model of scikit-learn.

    All its steps are fitted to the public ranges, whose ends are two records. Those of a model with
    a centre take it off, and its last weight is the intercept.
    """
    order = [*range(columns.dim)] if isinstance(columns, Features) else _order(columns)
    left: list[tuple[str, Any]] = []
    if centre is not None:
        longer = np.hypot(1, CONSTANT)
        linear.intercept_ = linear.intercept_ + linear.coef_[..., -1] * (CONSTANT / longer)
        linear.coef_ = linear.coef_[..., :-1] / longer
        linear.n_features_in_ -= 1
        scaler = StandardScaler(with_std=False).fit(centre[np.newaxis, order])
        left = [("centre", scaler), ("unit_norm_again", Normalizer())]
    linear.coef_ = linear.coef_[..., order]
    if isinstance(columns, Features):
        return Pipeline([*left, ("model", linear)])
    if any(isinstance(kind, Dates) for kind in columns.kinds):
        fail("model", "a model without dates, which scikit-learn alone does not read", "dates")
    ends = _ends(columns, named=named)
    places = columns.names if hasattr(ends, "columns") else range(len(columns.names))
    each = [
        (name, _encoder(kind), [place])
        for name, kind, place in zip(columns.names, columns.kinds, places, strict=True)
    ]
    steps: list[tuple[str, Any]] = [("columns", ColumnTransformer(each))]
    if columns.intercept:
        steps.append(("intercept", PolynomialFeatures(degree=1)))
    steps.append(("unit_norm", Normalizer()))
    Pipeline(steps).fit(ends)
    return Pipeline([*steps, *left, ("model", linear)])


def _ends(columns: Columns, *, named: bool) -> Any:
    """Return two records that hold the ends of the ranges: a table, if the columns have names."""
    ends = {
        name: np.array([kind.categories[0]] * 2 if isinstance(kind, Category) else kind.ends)
        for name, kind in zip(columns.names, columns.kinds, strict=True)
    }
    if named:
        from pandas import DataFrame

        return DataFrame(ends)
    kinds = {values.dtype.kind for values in ends.values()}
    common = object if kinds & {"U", "O"} else np.float64
    return np.stack([values.astype(common) for values in ends.values()], axis=1)


def _order(columns: Columns) -> list[int]:
    """Return the places of the features as `_encoder` puts them: categories as `_categories`."""
    places = [0] if columns.intercept else []
    for kind in columns.kinds:
        own = [*range(kind.width)]
        if isinstance(kind, Category):
            own = [kind.categories.index(category) for category in _categories(kind)]
        places += [len(places) + place for place in own]
    return places


def _categories(kind: Category) -> list[Any]:
    """Return categories in an order that scikit-learn takes: numbers ascending."""
    texts = any(isinstance(category, str) for category in kind.categories)
    return [*kind.categories] if texts else sorted(kind.categories)


def _encoder(kind: Number | Flag | Dates | Category) -> Any:
    if isinstance(kind, Category):
        return OneHotEncoder(categories=[_categories(kind)], handle_unknown="ignore")
    scaled = MinMaxScaler((kind.start, 1), clip=True)
    if not kind.missing:
        return scaled
    middle = SimpleImputer(strategy="constant", fill_value=0.0, keep_empty_features=True)
    scaled = Pipeline([("scale", scaled), ("fill", middle)])
    return FeatureUnion([("value", scaled), ("missing", MissingIndicator(features="all"))])


def regression(weights: npt.NDArray[np.float64], target: Number | None) -> Any:
    """Return the regression with these weights, shape (dim,), for a target's range or counts.

    That of counts does not end at their bound.
    """
    if isinstance(target, Count):
        linear: Any = PoissonRegressor(fit_intercept=False)
        linear._base_loss = linear._get_loss()
        return _with_weights(linear, weights, np.log(target.high))
    low, high = (target.low, target.high) if target else (-1.0, 1.0)
    half = (high - low) / 2
    return _with_weights(LinearRegression(fit_intercept=False), weights * half, low + half)


def _with_weights(linear: Any, weights: npt.NDArray[np.float64], intercept: Any) -> Any:
    linear.coef_, linear.intercept_ = weights, intercept
    linear.n_features_in_ = weights.shape[-1]
    return linear


def classifier(rows: npt.NDArray[np.float64], classes: npt.NDArray[Any]) -> Any:
    """Return the linear classifier with a row of weights for each class."""
    linear: Any = LogisticRegression(fit_intercept=False)
    if len(rows) == 2:  # scikit-learn keeps the difference of two classes
        rows = rows[1:] - rows[:1]
    linear.classes_ = classes
    return _with_weights(linear, rows, np.zeros(len(rows)))
