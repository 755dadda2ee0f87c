"""A problem of a user's own is not relied on: it moves no state in place, and clips as asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from federated_problem import Clients, make_clients
from one_round import one_round
from point_problem import PointProblem
from quantized_problems import make_problem

import dpmesh as dm
from dpmesh import kernels
from dpmesh.algorithms import ClientUpdates, FederatedLearning, GradientDescent, QuantizedGossip
from dpmesh.algorithms.controllers import AlwaysGlobal
from dpmesh_papers.repeats import Repeats

KEY = dm.Key.seeded(1)
FEDERATED = FederatedLearning(
    ClientUpdates(clients=4, sampling_rate=1.0, clipping_norm=0.1, epochs=2), noise_multiplier=1.0
)


def released(problem: Any) -> Any:
    state = FEDERATED.init(problem, KEY)
    for t in range(3):
        state = one_round(FEDERATED, state, t, problem, KEY).state
    return state.w


class InPlace(Clients):
    """``w = start``, then ``w -= ..``, which for numpy is `start`."""

    def local_training(self, start, walks, *, step_size, radius):
        start -= self.features.mean(axis=0)
        return super().local_training(start, walks, step_size=step_size, radius=radius)


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


def test_clients_that_train_in_their_first_model_move_no_released_one() -> None:
    np.testing.assert_array_equal(released(like(OwnModel)), released(like(Clients)))


@pytest.mark.parametrize("mode", ["safe", "public_point"])
def test_a_gradient_in_place_moves_no_state(mode: Any) -> None:
    def slope(w: Any, x: Any) -> Any:
        w *= 10.0
        return w - x

    problem = PointProblem(np.ones((3, 4, 2)), slope, lambda w, x: ((w - x) ** 2).sum(-1))
    algorithm = QuantizedGossip(
        step_size=0.1, consensus_step_size=0.5, sample_size=2, noise_std=1.0, mode=mode
    )
    with pytest.raises(ValueError, match="read-only"):
        dm.simulate(algorithm, problem, dm.topology.complete(3), rounds=3)


def test_an_accuracy_in_place_moves_no_state() -> None:
    class Normalized(PointProblem):
        test = dm.Dataset(np.ones((2, 2)), np.ones(2))

        def accuracy(self, params: Any) -> Any:
            params /= np.linalg.norm(params, axis=1, keepdims=True)
            return params[:, 0]

    problem = Normalized(np.ones((3, 4, 2)), np.subtract, lambda w, x: ((w - x) ** 2).sum(-1))
    algorithm = QuantizedGossip(
        step_size=0.1, consensus_step_size=0.5, sample_size=2, noise_std=1.0
    )
    for metric in ("accuracy", "node_accuracy"):
        with pytest.raises(ValueError, match="read-only"):
            dm.simulate(algorithm, problem, dm.topology.complete(3), rounds=3, metrics=[metric])


@pytest.mark.parametrize(
    "algorithm",
    [
        GradientDescent(records=1, noise_multiplier=2.0, clipping_norm=0.5),
        QuantizedGossip(
            step_size=0.1,
            consensus_step_size=0.5,
            sample_size=2,
            noise_std=1.0,
            clipping_norm=0.5,
            mode="safe",
        ),
        QuantizedGossip(
            step_size=0.1,
            consensus_step_size=0.5,
            sample_size=2,
            noise_std=1.0,
            clipping_norm=0.5,
            mode="public_point",
        ),
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

    class ClippedMean(dm.LinearProblem):
        """A record moves the mean by as much as all of them together may."""

        def gradient(self, params, batches, *, clipping_norm=None):
            whole = super().gradient(params, batches)
            return whole if clipping_norm is None else kernels.clip_rows(whole, clipping_norm)

    class Same(dm.LinearProblem):
        def gradient(self, params, batches, *, clipping_norm=None):
            return super().gradient(params, batches, clipping_norm=clipping_norm)

    ours = make_problem()
    same = Same(ours.train, ours.partition, ours.loss, regularization=0.5)
    dm.simulate(algorithm, same, dm.topology.ring(4), rounds=3, metrics=[])
    each = "the mean of its records' gradients, each clipped by itself"
    for kind, wanted in ((Longer, each), (ClippedMean, each), (InPlace, "read-only")):
        problem = kind(ours.train, ours.partition, ours.loss)
        with pytest.raises(ValueError, match=wanted):
            dm.simulate(algorithm, problem, dm.topology.ring(4), rounds=3, metrics=[])


def of_kind(kind: type[dm.LinearProblem], seed: int = 0, **options: Any) -> dm.LinearProblem:
    rng = np.random.default_rng(seed)
    records = dm.Dataset(rng.normal(size=(24, 3)).astype(np.float32), rng.choice([-1, 1], size=24))
    return kind(records, np.arange(24).reshape(4, 6), "logistic", **options)


def online(problem: dm.LinearProblem, **options: Any) -> Any:
    algorithm = dm.OnlineLearning(epsilon=2.0, batch_size=2, **options)
    return dm.simulate(algorithm, problem, dm.topology.ring(4), rounds=3, key=KEY).released


class SameStep(dm.LinearProblem):
    def step(self, params, step_size, batches, **settings):
        return super().step(params, step_size, batches, **settings)


class LongerStep(dm.LinearProblem):
    """Does not clip."""

    def step(self, params, step_size, batches, *, clipping_norm, norm, radius):
        return super().step(params, step_size, batches, radius=radius)


class StepInPlace(dm.LinearProblem):
    def step(self, params, step_size, batches, **settings):
        params *= 0.5
        return super().step(params, step_size, batches, **settings)


@pytest.mark.parametrize(
    ("norm", "projection"),
    [("l2", "ball"), ("l2", "mixture"), ("l2", "box"), ("l2", "none"), ("l1", "none")],
)
@pytest.mark.parametrize("regularization", [0.0, 2.0])
def test_a_step_of_ones_own_is_held_to_its_clipping(
    norm: Any, projection: Any, regularization: float
) -> None:
    """A run without it printed the epsilon of one with it."""
    settings: Any = {"norm": norm, "projection": projection, "clipping_norm": 0.1, "radius": 9.0}
    kept, *others = (
        of_kind(kind, regularization=regularization)
        for kind in (SameStep, dm.LinearProblem, LongerStep, StepInPlace)
    )
    np.testing.assert_array_equal(online(kept, **settings), online(others[0], **settings))
    with pytest.raises(ValueError, match="each clipped by itself"):
        online(others[1], **settings)
    with pytest.raises(ValueError, match="read-only"):
        online(others[2], **settings)


class Epochs(dm.LinearProblem):
    """Its records arrive again and again."""

    def rounds(self, size):
        return 10 * super().rounds(size)

    def batch(self, round, size):
        return super().batch(round % super().rounds(size), size)


def test_batches_of_ones_own_are_refused_where_a_record_is_to_be_in_one_alone() -> None:
    """Its epsilon would be that of one round, however many it is in."""
    wanted = "problem: wanted batches in the order of its partition, each record once, got Epochs"
    with pytest.raises(ValueError, match=wanted):
        online(of_kind(Epochs))
    repeats = Repeats.deal(of_kind(Epochs), 2, key=KEY)
    with pytest.raises(ValueError, match=wanted):
        repeats.simulate(
            dm.OnlineLearning(epsilon=2.0), dm.topology.ring(4), checkpoints=[6], key=KEY
        )


class OwnGradient(dm.LinearProblem):
    def gradient(self, *arguments, **settings):
        return 100.0 * super().gradient(*arguments, **settings)


class OwnConstants(OwnGradient):
    def model_constants(self, radius=None):
        ours = dm.problems.linear_constants("logistic", 1.0)
        return replace(ours, loss_lipschitz=100.0)


@pytest.mark.parametrize(
    "algorithm",
    [
        dm.WithoutReplacement(batch_size=2, step_size=1e-4, controller=AlwaysGlobal()),
        dm.WithReplacement(nodes=4, records=6, noise_multiplier=2.0, batch_size=2),
    ],
)
def test_our_constants_are_not_taken_for_a_gradient_of_ones_own(algorithm: Any) -> None:
    """Noise is made from the longest gradient that they allow."""
    with pytest.raises(ValueError, match="problem: wanted model_constants of its own"):
        dm.simulate(algorithm, of_kind(OwnGradient, feature_norm=9.0), rounds=2)
    dm.simulate(algorithm, of_kind(OwnConstants), rounds=2)
