"""The study of coverage: what it computes faster is what the questions release."""

from __future__ import annotations

import numpy as np
import pytest

from dpmesh.algorithms.adaptive_sums import NoisyTotal
from dpmesh.statistics import Regression
from dpmesh.statistics.ask import questions_about, read_columns
from dpmesh.statistics.regression import Newton
from dpmesh.tables import as_table
from dpmesh_papers.studies.regression_coverage import SETTINGS, NewtonSums, Setting

NEWTON = [
    next(setting for setting in SETTINGS if setting.name == name)
    for name in ("logistic", "logistic, flag and levels", "Poisson, often at the bound")
]


@pytest.mark.parametrize("setting", NEWTON, ids=lambda setting: setting.name)
def test_sums_by_products_of_matrices_are_those_of_the_vectors(setting: Setting) -> None:
    assert isinstance(setting.question, Regression)
    draw = np.random.default_rng(0)
    about = questions_about([setting.question], setting.ranges)
    fitted = setting.question._method(about.kinds)
    assert isinstance(fitted, Newton)
    columns, _ = read_columns(about, as_table(setting.sample(500, draw)))
    sums = NewtonSums.start(about, fitted, columns)
    totals: list[NoisyTotal] = []
    for t, length in enumerate(about.lengths):
        expected = np.asarray(about.vectors(columns, t, totals).sum(axis=0))
        # 500 terms of at most 1, rounded in another order
        np.testing.assert_allclose(sums.sum_in_round(t, totals), expected, atol=1e-9)
        totals.append(NoisyTotal(expected + 0.1 * draw.standard_normal(length), 0.1))
