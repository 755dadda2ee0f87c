"""A record's vectors are functions of it and of public numbers: changing one changes one row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from dpmesh.algorithms.adaptive_sums import NoisyTotal
from dpmesh.statistics import (
    Correlation,
    Histogram,
    Mean,
    Pairs,
    Quantiles,
    Question,
    Regression,
    Survival,
    TwoWay,
)
from dpmesh.statistics.ask import Questions, questions_about, read_columns
from dpmesh.statistics.bounds import Bounds
from dpmesh.statistics.records import decoded, encoded
from dpmesh.tables import as_table

RANGES: dict[str, Any] = {
    "age": {"range": [0, 100], "missing": True},
    "cost": [-5, 5],
    "visits": [0, 10],
    "sex": ["f", "m"],
    "died": {"flag": True, "missing": True},
    "seen": {"dates": ["2020-01-01", "2020-12-31"], "missing": True},
}
VALUES: dict[str, list[Any]] = {
    "age": [None, "unknown", -3, 0, 33.3, 100, 1e9, "12"],
    "cost": [-9.0, -5.0, 0.1, 5.0, 7.5],
    "visits": [0, 3, 10, 99],
    "sex": ["f", "m", "x", None],
    "died": [0, 1, None, "?"],
    "seen": ["2020-01-01", "2020-06-30 12:00", None, "never", "2031-01-01"],
}
ASKED: list[Question] = [
    Mean("age", "died"),
    Histogram("seen", bins=7),
    Quantiles("cost"),
    Bounds("cost"),
    TwoWay("sex", "died"),
    Correlation("age", "cost"),
    Survival("visits", "died", "sex", bins=5),
    Regression("died", "age", "sex", "cost"),
    Regression("visits", "age", "sex", family="poisson"),
    Regression("cost", "age", "died"),
    Pairs("age", "sex", "seen", bins=4),
]


def vectors_of(about: Questions, table: dict[str, Any], t: int, totals: Any) -> np.ndarray:
    columns, _ = read_columns(about, as_table(table))
    found: Any = about.vectors(columns, t, totals)
    return np.asarray(found.toarray() if sparse.issparse(found) else found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("question", ASKED, ids=lambda question: str(question)[:40])
@given(seed=st.integers(0, 2**31))
@settings(max_examples=8, deadline=None)
def test_a_changed_record_changes_one_row(question: Question, seed: int) -> None:
    draw = np.random.default_rng(seed)
    table = {
        name: np.array([*draw.choice(np.array(values, object), 30)], object)
        for name, values in VALUES.items()
    }
    about = questions_about([question], RANGES)
    other = {name: values.copy() for name, values in table.items()}
    place = int(draw.integers(30))
    for name, values in VALUES.items():
        other[name][place] = values[int(draw.integers(len(values)))]
    totals: list[NoisyTotal] = []
    for t in range(about.rounds):
        one = vectors_of(about, table, t, totals)
        two = vectors_of(about, other, t, totals)
        assert np.isfinite(one).all()
        changed = np.flatnonzero((one != two).any(axis=1))
        assert set(changed) <= {place}
        norms = np.linalg.norm(np.vstack([one, two]), axis=1)
        assert norms.max() <= about.longest[t]
        apart = np.linalg.norm(one[:, np.newaxis] - two, axis=2)
        assert apart.max() <= about.distances[t] * (1 + 1e-12)
        totals.append(NoisyTotal(draw.normal(0, 20, about.lengths[t]), 5.0))


@pytest.mark.filterwarnings("ignore")
def test_cells_that_a_party_holds_give_the_same_vectors_to_the_bit() -> None:
    draw = np.random.default_rng(0)
    table = {
        name: np.array([*draw.choice(np.array(values, object), 200)], object)
        for name, values in VALUES.items()
    }
    about = questions_about(ASKED, RANGES)
    columns, _ = read_columns(about, as_table(table))
    again = decoded(about, encoded(about, columns))
    one: Any = about.vectors(columns)
    two: Any = about.vectors(again)
    assert np.array_equal(one.toarray(), two.toarray())
