"""A problem of a user's own is not relied on: it moves no state in place, and clips as told."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from federated_problem import Clients, make_clients
from point_problem import PointProblem
from quantized_problems import make_problem

import dpmesh as dm
from dpmesh.algorithms import FederatedLearning, GradientDescent, QuantizedGossip
from dpmesh.privacy.audit import alone

KEY = dm.Key.seeded(1)
FEDERATED = FederatedLearning(4, 1.0, 0.1, 1.0, local_epochs=2)


def released(problem: Any) -> Any:
    state = FEDERATED.init(problem, KEY)
    for t in range(3):
        state, _ = FEDERATED.step(state, t, problem, alone, KEY)
    return state.w


class InPlace(Clients):
    """``w = start``, then ``w -= ..``, which for numpy is `start`."""

    def local_training(self, start, walks, *, step_size, radius):
        start -= self.features.mean(axis=0)
        return super().local_training(start, walks, step_size=step_size, radius=radius)


class ByTorch(Clients):
    """PyTorch takes the memory of an array, and warns at most that it is not to be written to."""

    def local_training(self, start, walks, *, step_size, radius):
        torch = pytest.importorskip("torch")
        moves = super().local_training(start, walks, step_size=step_size, radius=radius)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.from_numpy(start).add_(1.0)
        return moves


class OwnModel(Clients):
    """Trains in the array that it gave as the first model."""

    def initial(self, key):
        self.model = super().initial(key)
        return self.model

    def local_training(self, start, walks, *, step_size, radius):
        moves = super().local_training(start, walks, step_size=step_size, radius=radius)
        self.model += 1.0
        return moves


def like(kind: type[Clients]) -> Clients:
    return kind(**vars(make_clients([5] * 4, 3)))


def test_clients_that_train_in_place_are_told_so() -> None:
    """The released models would be those without noise, at the epsilon of those with it."""
    with pytest.raises(ValueError, match="read-only"):
        released(like(InPlace))


@pytest.mark.parametrize("kind", [ByTorch, OwnModel])
def test_clients_that_train_in_place_unseen_move_no_released_model(kind: type[Clients]) -> None:
    np.testing.assert_array_equal(released(like(kind)), released(like(Clients)))


@pytest.mark.parametrize("mode", ["safe", "public_point"])
def test_a_gradient_in_place_moves_no_state(mode: Any) -> None:
    def slope(w: Any, x: Any) -> Any:
        w *= 10.0
        return w - x

    problem = PointProblem(np.ones((3, 4, 2)), slope, lambda w, x: ((w - x) ** 2).sum(-1))
    algorithm = QuantizedGossip(0.1, 0.5, 2, 1.0, mode=mode)
    with pytest.raises(ValueError, match="read-only"):
        dm.simulate(algorithm, problem, dm.topology.complete(3), rounds=3)


def test_an_accuracy_in_place_moves_no_state() -> None:
    class Normalized(PointProblem):
        test = dm.Dataset(np.ones((2, 2)), np.ones(2))

        def accuracy(self, params: Any) -> Any:
            params /= np.linalg.norm(params, axis=1, keepdims=True)
            return params[:, 0]

    problem = Normalized(np.ones((3, 4, 2)), np.subtract, lambda w, x: ((w - x) ** 2).sum(-1))
    algorithm = QuantizedGossip(0.1, 0.5, 2, 1.0)
    for metric in ("accuracy", "node_accuracy"):
        with pytest.raises(ValueError, match="read-only"):
            dm.simulate(algorithm, problem, dm.topology.complete(3), rounds=3, metrics=[metric])


@pytest.mark.parametrize(
    "algorithm",
    [
        GradientDescent(1, 1.0, clipping_norm=0.5),
        QuantizedGossip(0.1, 0.5, 2, 1.0, clipping_norm=0.5, mode="safe"),
        QuantizedGossip(0.1, 0.5, 2, 1.0, clipping_norm=0.5, mode="public_point"),
    ],
)
def test_a_linear_problem_with_a_gradient_of_its_own_is_checked_like_any_other(
    algorithm: Any,
) -> None:
    class Longer(dm.LinearProblem):
        def gradient(self, params, batches, *, clipping_norm=None):
            return 100.0 * super().gradient(params, batches, clipping_norm=clipping_norm)

    class InPlace(dm.LinearProblem):
        def gradient(self, params, batches, *, clipping_norm=None):
            params *= 10.0
            return super().gradient(params, batches, clipping_norm=clipping_norm)

    ours = make_problem()
    for kind, wanted in ((Longer, r"gradients clipped to 0\.5 each"), (InPlace, "read-only")):
        problem = kind(ours.train, ours.partition, ours.loss)
        with pytest.raises(ValueError, match=wanted):
            dm.simulate(algorithm, problem, dm.topology.ring(4), rounds=3, metrics=[])
