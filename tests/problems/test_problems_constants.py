"""The constants of linear models: never exceeded, and no larger than they must be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from linear_calls import linear_gradient

from dpmesh.kernels.linear_model import Loss
from dpmesh.problems import linear_constants

BOUND, RADIUS, STRENGTH = 1.7, 2.3, 0.6
SINGLE: list[Loss] = ["logistic", "hinge", "squared", "absolute", "huber"]
TASKS: list[tuple[Loss, int | None]] = [
    *((loss, k) for loss in SINGLE for k in (None, 2, 5)),
    ("softmax", 2),
    ("softmax", 5),
    ("poisson", None),
]


def in_ball(rng: np.random.Generator, radius: float, shape: tuple[int, int]) -> np.ndarray:
    """Points whose norms fill the ball, half of them on its surface."""
    points = rng.normal(size=shape)
    lengths = radius * np.minimum(1, 2 * rng.random((len(points), 1)))
    return points * lengths / np.linalg.norm(points, axis=1, keepdims=True)


def gradients(
    w: np.ndarray, x: np.ndarray, y: np.ndarray, loss: Loss, **settings: Any
) -> np.ndarray:
    """Gradient of each record's objective at its own parameters."""
    return linear_gradient(w, x, y, np.arange(len(x))[:, None], loss, **settings)


@pytest.mark.parametrize("strength", [0.0, STRENGTH])
@pytest.mark.parametrize(("loss", "classes"), TASKS)
def test_random_search_does_not_exceed_them(
    loss: Loss, classes: int | None, strength: float
) -> None:
    rng = np.random.default_rng(3)
    count, dim = 100_000, 2  # few dimensions: the search gets half way to the extremes
    constants = linear_constants(
        loss, BOUND, classes=classes, regularization=strength, radius=RADIUS
    )
    x = in_ball(rng, BOUND, (count, dim))
    y = rng.integers(classes, size=count) if classes else rng.choice([-1, 1], count)
    y = (y + 1) // 2 if loss == "poisson" else y
    w, w_too = (in_ball(rng, RADIUS, (count, dim * (classes or 1))) for _ in range(2))
    arguments: Any = (x, y, loss)

    norms = np.linalg.norm(gradients(w, *arguments, classes=classes), axis=1)
    assert norms.max() <= constants.loss_lipschitz * (1 + 1e-12)
    assert norms.max() >= 0.5 * constants.loss_lipschitz

    settings: Any = {"classes": classes, "regularization": strength}
    g, g_too = gradients(w, *arguments, **settings), gradients(w_too, *arguments, **settings)
    assert np.linalg.norm(g, axis=1).max() <= constants.lipschitz * (1 + 1e-12)
    moved, turned = w - w_too, g - g_too
    lengths = np.linalg.norm(moved, axis=1)
    quotients = np.linalg.norm(turned, axis=1) / lengths
    assert quotients.max() <= constants.smoothness * (1 + 1e-9)
    if math.isfinite(constants.smoothness):
        assert quotients.max() >= 0.5 * constants.smoothness
    convexity = (moved * turned).sum(axis=1) / lengths**2
    assert convexity.min() >= constants.strong_convexity - 1e-9
    assert convexity.min() <= constants.strong_convexity + 0.01


@pytest.mark.parametrize(
    ("loss", "classes", "w", "label"),
    [
        ("logistic", None, [-1e3, 0], 1),
        ("hinge", None, [0, 0], 1),
        ("squared", None, [RADIUS, 0], -1),
        ("absolute", None, [0, 0], -1),
        ("huber", None, [0, 0], -1),
        ("poisson", None, [0, 0], 0),
        ("logistic", 3, [-1e3, 0, 1e3, 0, 1e3, 0], 0),
        ("hinge", 3, [0] * 6, 0),
        ("softmax", 3, [-1e3, 0, 1e3, 0, 0, 0], 0),
    ],
)
def test_there_are_records_that_reach_them(
    loss: Loss, classes: int | None, w: list[float], label: int
) -> None:
    x, y = np.array([[BOUND, 0.0]]), np.array([label])
    gradient = gradients(np.array([w], float), x, y, loss, classes=classes)
    constants = linear_constants(loss, BOUND, classes=classes, radius=RADIUS)
    assert np.linalg.norm(gradient) == pytest.approx(constants.loss_lipschitz, rel=1e-12)


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_there_are_parameters_that_reach_the_smoothness(loss: Loss) -> None:
    classes = 2 if loss == "softmax" else None
    x, y = np.array([[BOUND, 0.0]] * 2), np.array([1, 1])
    step = 1e-4
    moves = [[step, 0, -step, 0], [-step, 0, step, 0]] if classes else [[step, 0], [-step, 0]]
    w = np.array(moves, float)
    g = gradients(w, x, y, loss, classes=classes)
    quotient = np.linalg.norm(g[0] - g[1]) / np.linalg.norm(w[0] - w[1])
    assert quotient == pytest.approx(linear_constants(loss, BOUND, classes=classes).smoothness)


def test_without_a_ball_some_are_infinite() -> None:
    assert linear_constants("squared", 1).loss_lipschitz == math.inf
    for loss in ("hinge", "absolute"):
        assert linear_constants(loss, 1).lipschitz == 1
        assert linear_constants(loss, 1).smoothness == math.inf
    regularized = linear_constants("logistic", 1, regularization=0.1)
    assert (regularized.loss_lipschitz, regularized.lipschitz) == (1, math.inf)
    assert regularized.strong_convexity == 0.1


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (("poisson", 1), {"classes": 3}, "classes: wanted None for the loss 'poisson'"),
        (("softmax", 1), {}, "classes: wanted the number of classes"),
        (("hinge", 1), {"classes": 1}, "classes: wanted an integer of at least 2, got 1"),
        (("squared", 1), {"label_bound": 0}, "label_bound: wanted a finite number greater than"),
    ],
)
def test_bad_input_is_named(arguments: Any, settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        linear_constants(*arguments, **settings)
