"""Estimators: what they compute, and when they beat the noisy vector."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from dpmesh import kernels
from dpmesh.algorithms.denoisers import (
    AdaptiveSmoothing,
    Identity,
    JamesStein,
    LaplacianSmoothing,
    ReleasedSum,
    Reordered,
    SoftThreshold,
    smoothing_risk,
)


def once(estimator, noisy, scale):
    return estimator(noisy, scale, ReleasedSum(noisy, 1))


def normal(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@given(seed=st.integers(0, 2**32), dim=st.integers(1, 40), scale=st.floats(0, 1))
def test_formulas(seed: int, dim: int, scale: float) -> None:
    x = normal((3, dim), seed) * [[1.0], [3.0], [1 / np.sqrt(dim)]]
    np.testing.assert_array_equal(once(Identity(), x, scale), x)
    shrunk, cut = once(JamesStein(), x, scale), once(SoftThreshold(), x, scale)
    for row in range(3):
        factor = max(0, 1 - max(dim - 2, 0) * scale**2 / sum(x[row] ** 2))
        np.testing.assert_allclose(shrunk[row], factor * x[row], rtol=1e-12)
        for j in range(dim):
            moved = max(0, abs(x[row, j]) - scale * np.sqrt(2 * np.log(dim)))
            assert cut[row, j] == pytest.approx(np.sign(x[row, j]) * moved)


@given(seed=st.integers(0, 2**32), smoothing=st.floats(0, 100), power=st.integers(1, 3))
def test_laplacian_smoothing_is_the_kernel(seed: int, smoothing: float, power: int) -> None:
    x = normal((2, 12), seed)
    estimate = once(LaplacianSmoothing(smoothing, power=power, blocks=(5, 7)), x, 1.0)
    np.testing.assert_array_equal(
        estimate, kernels.smooth(x, smoothing, power=power, blocks=(5, 7))
    )


def test_reordered_smoothing_smooths_the_reordered_row() -> None:
    x, order = normal((2, 12)), np.random.default_rng(1).permutation(12)
    estimate = once(Reordered(LaplacianSmoothing(2.0, blocks=(5, 7)), order), x, 1.0)
    np.testing.assert_array_equal(
        estimate[:, order], kernels.smooth(x[:, order], 2.0, blocks=(5, 7))
    )
    adaptive = AdaptiveSmoothing(rounds=10)
    np.testing.assert_array_equal(
        once(Reordered(adaptive, order), x, 0.1)[:, order], once(adaptive, x[:, order], 0.1)
    )
    for bad in (np.array([0, 0]), np.array([1, 2]), np.zeros((1, 1), np.int64)):
        with pytest.raises(ValueError, match=r"order: wanted a permutation of 0, 1, \.\."):
            Reordered(adaptive, bad)
    with pytest.raises(ValueError, match="order: wanted a permutation of 12 coordinates, got 2"):
        once(Reordered(adaptive, np.array([1, 0])), x, 0.1)


def signal(kind: str, dim: int) -> np.ndarray:
    x = np.linspace(0, 30, dim)
    return {"smooth": np.sin(x), "rough": normal(dim, 7), "zero": 0 * x}[kind]


@pytest.mark.parametrize("kind", ["smooth", "rough", "zero"])
@pytest.mark.parametrize(("smoothing", "power"), [(0.0, 1), (1.0, 1), (4.0, 2)])
def test_proposition_1_is_the_mean_square_error(kind, smoothing, power) -> None:
    """Against 4,000 draws: within 6 standard errors of their mean, false alarm 2e-9 each."""
    truth, scale, draws = signal(kind, 60), 0.7, 4000
    noisy = truth + scale * normal((draws, 60), 3)
    errors = ((once(LaplacianSmoothing(smoothing, power=power), noisy, scale) - truth) ** 2).sum(
        axis=1
    )
    tolerance = 6 * errors.std() / np.sqrt(draws)
    risk = smoothing_risk(truth, scale, smoothing, power=power)
    assert abs(errors.mean() - sum(risk)) < tolerance
    if smoothing:
        assert abs(errors.mean() - risk.variance * 1.5 - risk.bias) > tolerance


@pytest.mark.parametrize("kind", ["smooth", "rough", "zero"])
@pytest.mark.parametrize("scale", [0.01, 0.3, 3.0])
@pytest.mark.parametrize(("so_far", "rounds"), [(1, 1), (5, 5), (4, 20)])
def test_adaptive_smoothing_is_nearly_as_good_as_the_best_factor(
    kind, scale, so_far, rounds
) -> None:
    """For the sum over all rounds, which are alike; the noise of that sum grows by sqrt(rounds)."""
    truth, factors = signal(kind, 3000), [0.0, *np.exp2(np.arange(-6, 8.25, 0.25))]
    noisy = truth + scale * normal((so_far, 1, 3000), 5)
    past = ReleasedSum(noisy.sum(axis=0), so_far)
    estimator = AdaptiveSmoothing(rounds=rounds)
    (chosen,) = estimator.factors(scale, past)[0]
    assert chosen in factors
    whole = rounds * truth, scale * np.sqrt(rounds)
    best = min(sum(smoothing_risk(*whole, s)) for s in factors)
    assert sum(smoothing_risk(*whole, chosen)) < 1.05 * best + 0.01 * whole[1] ** 2 * 3000
    np.testing.assert_allclose(
        estimator(noisy[-1], scale, past), once(LaplacianSmoothing(chosen), noisy[-1], scale)
    )


def test_adaptive_smoothing_treats_each_block_for_itself() -> None:
    clean = np.concatenate([signal("smooth", 1000), signal("rough", 1000)])[np.newaxis]
    estimator = AdaptiveSmoothing(rounds=1, blocks=(1000, 1000), largest=64.0)
    noisy = clean + 0.3 * normal((1, 2000), 8)
    smooth, rough = estimator.factors(0.3, ReleasedSum(noisy, 1))[0]
    assert smooth > 10 * rough
    assert not estimator.factors(0.0, ReleasedSum(clean, 1)).any()  # no noise: nothing to gain
    np.testing.assert_allclose(once(estimator, clean, 0.0), clean)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "estimator",
    [
        Identity(),
        LaplacianSmoothing(1.0),
        AdaptiveSmoothing(rounds=9),
        JamesStein(),
        SoftThreshold(),
    ],
)
def test_shape_and_type_stay_and_zero_stays(estimator, dtype) -> None:
    estimate = once(estimator, np.zeros((1, 9), dtype), 0.5)
    assert estimate.dtype == dtype
    np.testing.assert_array_equal(estimate, np.zeros((1, 9)))


@pytest.mark.parametrize(
    ("estimator", "truth"),
    [
        (LaplacianSmoothing(5.0), np.sin(np.arange(400) / 60)),
        (JamesStein(), normal(400, 1) / 3),
        (SoftThreshold(), np.where(np.arange(400) < 5, 30.0, 0.0)),
    ],
)
def test_each_wins_on_the_vectors_it_is_made_for(estimator, truth) -> None:
    """The squared error falls by half or more; that of the noisy vector is 400 +- 28."""
    noisy = (truth + normal(400, 2))[np.newaxis]
    assert ((once(estimator, noisy, 1.0) - truth) ** 2).sum() < 200
    assert ((noisy - truth) ** 2).sum() > 300


test_bad_parameters_are_named = refused(
    (lambda: LaplacianSmoothing(1.0, blocks=[3]), "blocks: wanted a tuple of lengths, or None"),
    (lambda: smoothing_risk(np.ones((2, 2)), 1.0, 1.0), "signal: wanted 1 axes"),
    (lambda: LaplacianSmoothing(1.0, blocks=(0,)), "blocks: wanted an integer of at least 1"),
    (
        lambda: once(LaplacianSmoothing(1.0, blocks=(3,)), np.ones((1, 5)), 1.0),
        "blocks: wanted lengths that sum to the 5 elements of a row, got sum 3",
    ),
)
