"""Transductive Rademacher complexity against exact enumeration, and the lemmas on true classes."""

from __future__ import annotations

from itertools import product
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from refused import refused

from dpmesh import kernels
from dpmesh.keys import Key, Purpose
from dpmesh_papers.bounds.complexity import (
    mean_gap_bound,
    rademacher_bound_linear,
    rademacher_complexity,
)


def stream():
    return Key.seeded(3).stream(Purpose.METRIC, 0)


def exact(vectors: np.ndarray, s: int) -> float:
    """Definition 4, summed over all 3^n sign patterns."""
    n = vectors.shape[1]
    u = n - s
    p = s * u / n**2
    total = 0.0
    for r in product((-1, 0, 1), repeat=n):
        weight = np.prod([1 - 2 * p if sign == 0 else p for sign in r])
        total += weight * max(float(np.dot(r, v)) for v in vectors)
    return (1 / s + 1 / u) * total


@given(hnp.arrays(np.float64, (3, 5), elements=st.floats(-5, 5)), st.integers(1, 4))
def test_estimates_the_exact_expectation(vectors: np.ndarray, s: int) -> None:
    # A correct estimate is further than 6 standard errors off about once in 5e8; the small
    # constant is for classes whose suprema hardly vary.
    found = rademacher_complexity(vectors, s, 4000, stream())
    assert abs(found.estimate - exact(vectors, s)) <= 6 * found.standard_error + 1e-9


def test_a_wrong_probability_would_be_seen() -> None:
    vectors = np.random.default_rng(0).normal(size=(4, 6))
    found = rademacher_complexity(vectors, 2, 100_000, stream())
    wrong = exact(vectors, 3)
    assert abs(found.estimate - wrong) > 6 * found.standard_error


def test_the_same_bits_on_any_number_of_threads_and_in_any_parts(monkeypatch) -> None:
    vectors = np.random.default_rng(1).normal(size=(20, 300)).astype(np.float32)
    before, results = kernels.get_threads(), set()
    for threads, at_once in ((1, 1 << 28), (2, 1 << 14), (7, 1)):
        kernels.set_threads(threads)
        monkeypatch.setattr("dpmesh_papers.bounds.complexity._PRODUCTS_AT_ONCE", at_once)
        results.add(rademacher_complexity(vectors, 100, 50, stream()))
    kernels.set_threads(before)
    assert len(results) == 1


def linear_class(n: int, seed: int) -> tuple[np.ndarray, float]:
    """Predictions of many unit vectors w on n records, and the bound B = max |x|."""
    rng = np.random.default_rng(seed)
    X, W = rng.normal(size=(n, 3)), rng.normal(size=(2000, 3))
    W /= np.linalg.norm(W, axis=1, keepdims=True)
    return W @ X.T, float(np.linalg.norm(X, axis=1).max())


@pytest.mark.parametrize(("n", "s"), [(40, 20), (40, 5), (300, 30)])
def test_lemma_5_holds_for_linear_predictors(n: int, s: int) -> None:
    vectors, bound = linear_class(n, seed=n)
    found = rademacher_complexity(vectors, s, 2000, stream())
    limit = rademacher_bound_linear(s, n, bound)
    assert 0.1 * limit < found.estimate + 6 * found.standard_error <= limit


def test_lemma_5_as_printed_fails_for_a_class_of_bounded_vectors() -> None:
    signs = np.array(list(product((-1.0, 1.0), repeat=12)))
    found = rademacher_complexity(signs, 6, 4000, stream())
    assert found.estimate == pytest.approx(2.0, abs=6 * found.standard_error)
    many = 400  # the same class of sign vectors of any length has complexity 2
    assert rademacher_bound_linear(many // 2, many, 1.0) < 2.0


@pytest.mark.parametrize("s", [5, 20, 35])
def test_lemma_7_bounds_the_gap_of_means_in_random_order(s: int) -> None:
    n = 40
    vectors, _ = linear_class(n, seed=7)
    complexity = rademacher_complexity(vectors, s, 4000, stream()).estimate
    rng = np.random.default_rng(2)
    orders = (rng.permutation(n) for _ in range(300))
    gaps = np.array([(vectors[:, o[:s]].mean(1) - vectors[:, o[s:]].mean(1)).max() for o in orders])
    bound = float(np.abs(vectors).max())
    assert gaps.mean() <= mean_gap_bound(complexity, s, n, bound)
    limit = mean_gap_bound(complexity, s, n, bound, squared=True)
    assert sqrt((gaps**2).mean()) <= limit


ONES = np.ones((2, 4))


test_bad_input_is_named = refused(
    (lambda: rademacher_complexity(ONES, 0, 9, stream()), "sample_size: wanted an int"),
    (lambda: rademacher_complexity(ONES, 4, 9, stream()), "below 4, got 4"),
    (lambda: rademacher_complexity(ONES, 2, 1, stream()), "draws: wanted an integer"),
    (lambda: rademacher_complexity([[1.0]], 1, 9, stream()), "vectors: wanted at leas"),
    (lambda: rademacher_complexity(ONES[0], 1, 9, stream()), "vectors: wanted 2 axes"),
    (lambda: rademacher_complexity(ONES * np.nan, 1, 9, stream()), "vectors: wanted finite values"),
    (lambda: rademacher_complexity(ONES, 1, 9, None), "stream: wanted"),
    (lambda: mean_gap_bound(-1.0, 1, 4, 1.0), "complexity: wanted .* at least 0"),
)
