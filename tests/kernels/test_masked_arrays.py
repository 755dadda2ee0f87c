"""Arrays with a mask are refused by name: the values below it would count as data."""

from __future__ import annotations

import numpy as np
import pytest

import dpmesh as dm
from dpmesh import kernels
from dpmesh.privacy import Gaussian, Sensitivity, accounting
from dpmesh.reproduce.attacks import threshold_attack

X, Y = np.ones((4, 3)), np.array([1, -1, 1, -1])
DATA = dm.Dataset(X, Y)
NORM = Sensitivity(1.0, "l2", "a test")


def hidden(array: np.ndarray) -> np.ma.MaskedArray:
    """The array with its first element under a mask."""
    mask = np.zeros(array.shape, dtype=bool)
    mask.flat[0] = True
    return np.ma.masked_array(array, mask)


def released(values: np.ndarray) -> None:
    Gaussian(1.0).release(values, NORM, dm.Key.generate().stream(1, 0))


@pytest.mark.parametrize(
    ("argument", "takes"),
    [
        ("features", lambda: dm.Dataset(hidden(X), Y)),
        ("labels", lambda: dm.Dataset(X, hidden(Y))),
        ("indices", lambda: DATA.take(hidden(np.arange(4)))),
        ("rule", lambda: DATA.relabelled(hidden)),
        ("users", lambda: dm.data.by_user(hidden(Y))),
        ("partition", lambda: dm.LinearProblem(DATA, (hidden(np.arange(4)),), "logistic")),
        ("weights", lambda: dm.topology.MixingMatrix(hidden(np.eye(2)))),
        ("x", lambda: kernels.clip_rows(hidden(X), 1.0)),
        ("noise_multiplier", lambda: accounting.gdp_mu(hidden(np.ones(2)))),
        ("member_losses", lambda: threshold_attack(hidden(np.ones(3)), np.ones(3))),
        ("", lambda: released(hidden(X))),
    ],
)
def test_a_mask_is_refused(argument, takes) -> None:
    with pytest.raises(ValueError, match=rf"^{argument}.*: wanted an array without a mask"):
        takes()
