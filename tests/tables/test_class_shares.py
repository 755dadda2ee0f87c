"""Classes weigh by public shares, with the same bound on what a record contributes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpmesh as dm
from dpmesh.kernels.linear import LinearModel

DRAW = np.random.default_rng(0)


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_a_weighted_record_contributes_its_clipped_weighted_gradient(loss: Any) -> None:
    x, codes = DRAW.normal(size=(60, 3)), DRAW.integers(2, size=60)
    labels, classes = (codes, 2) if loss == "softmax" else (2 * codes - 1, None)
    weights, bound = np.array([0.2, 1.0])[codes], 0.3
    model = LinearModel(x, labels, loss, classes=classes, weights=weights)
    plain = LinearModel(x, labels, loss, classes=classes)
    params = np.ones((1, x.shape[1] * (classes or 1)))
    each = np.stack([plain.gradient(params, np.array([[i]]))[0] for i in range(60)])
    each *= weights[:, np.newaxis]
    each *= np.minimum(1, bound / np.linalg.norm(each, axis=1, keepdims=True))
    batch = np.arange(60)[np.newaxis]
    found = model.gradient(params, batch, clipping_norm=bound, divide_by=1.0)[0]
    np.testing.assert_allclose(found, each.sum(axis=0), rtol=1e-12)
    assert 0.99 * bound < np.linalg.norm(each, axis=1).max() <= bound * (1 + 1e-12)
    np.testing.assert_allclose(
        model.record_losses(params, batch), weights * plain.record_losses(params, batch)
    )
    with pytest.raises(ValueError, match="weights: wanted 60 numbers from 0 to 1"):
        LinearModel(x, labels, loss, classes=classes, weights=2 * weights)


def rare() -> tuple[Any, Any, Any]:
    x = DRAW.uniform(-1, 1, (4000, 2))
    ill = x[:, 0] + DRAW.normal(0, 0.3, 4000) > 1.0
    return x, np.where(ill, "yes", "no"), np.arange(4000) % 4


def test_rare_classes_are_recognised_and_verdicts_are_balanced(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    x, y, site = rare()
    shares = {"yes": 0.06, "no": 0.94}
    found = {}
    for given in (None, shares):
        model = dm.sklearn.PrivateClassifier(4.0, class_shares=given, random_state=0)
        found[given is None] = dm.sklearn.evaluate(
            model, x, y, groups=site, test_size=0.5, splits=1
        )
    balanced = [one.verdict.mean("balanced accuracy") for one in found.values()]
    assert balanced[1] > 0.8 > 0.7 > balanced[0]
    assert "balanced accuracy" in found[False].sentence
    assert found[False].verdict.heads[1:] == ["balanced accuracy", "accuracy", "AUC"]
    fitted = found[False].estimator
    assert fitted.report_.privacy.epsilon <= 4
    assert not any("which classes" in text for text in fitted.report_.privacy.assumptions)
    fitted.save(tmp_path / "m")
    assert dm.sklearn.PrivateClassifier.load(tmp_path / "m").class_shares == shares
    for wrong, said in (
        ({"yes": 0.5, "no": 0.4}, "which add up to 0.9"),
        ({"yes": 1.0, "no": 0.0}, "shares: wanted a finite number greater than 0"),
        ({"yes": 0.5, "n": 0.5}, "y is 'no', not one of 'n', 'yes'"),
        ({"no": 1.0}, "y: wanted at least 2 classes"),
    ):
        with pytest.raises(ValueError, match=said):
            dm.sklearn.PrivateClassifier(class_shares=wrong).fit(x, y, site)  # type: ignore[arg-type]
