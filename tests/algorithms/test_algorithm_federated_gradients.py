"""Distributed DP-SGD: sums of clipped gradients, what one record moves, training, what it buys."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from federated_parts import changed
from hypothesis import given
from hypothesis import strategies as st
from secure_runs import by_class, linear, train

import dpmesh as dm
from dpmesh._privacy_types import Released
from dpmesh.algorithms import (
    Average,
    FederatedLearning,
    RecordGradients,
    SecureAggregation,
    ServerMomentum,
)
from dpmesh.algorithms.denoisers import LaplacianSmoothing
from dpmesh.algorithms.gradients import clipped_gradient_sums
from dpmesh.audit import couple
from dpmesh.data import Dataset, digits, unit_norm
from dpmesh.kernels import row_norms
from dpmesh.keys import Key
from dpmesh.noise.secure import DistributedDiscreteGaussian, SecureSum, encode
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.plan import Plan
from dpmesh.problems import LinearProblem
from dpmesh.run.carriers import Broadcast
from dpmesh.schedules import InverseSqrt

SILO = FederatedLearning(
    RecordGradients(clients=3, records=105),
    noise_multiplier=6.0,
    combination=SecureAggregation(dim=7, rounds=6),
    average=Average(since=4),
)


def silo(**flat: Any) -> FederatedLearning:
    return changed(SILO, **flat)


# Sums of clipped gradients


def twin_sums(problem: LinearProblem, w: Any, batches: Any, clipping_norm: float) -> list[Any]:
    """Return each site's sum, one record and one number after the other."""
    sums = []
    for i in range(len(batches[0]) - 1):
        total = [0.0] * problem.dim
        for r in batches[1][batches[0][i] : batches[0][i + 1]]:
            x, y = problem.train.features[r], problem.train.labels[r]
            if problem.loss == "logistic":
                margin = y * sum(a * b for a, b in zip(x, w, strict=True))
                g = [-y * a / (1 + math.exp(margin)) for a in x]
            else:
                rows = np.reshape(w, (problem.classes, -1))
                scores = [sum(a * b for a, b in zip(x, row, strict=True)) for row in rows]
                norm = sum(math.exp(s) for s in scores)
                g = [a * (math.exp(s) / norm - (k == y)) for k, s in enumerate(scores) for a in x]
            length = math.sqrt(sum(a * a for a in g))
            factor = min(1.0, clipping_norm / length)
            total = [t + factor * a for t, a in zip(total, g, strict=True)]
        sums.append(total)
    return sums


@given(
    st.integers(0, 10**6),
    st.sampled_from([("logistic", None), ("softmax", 3)]),
    st.sampled_from([np.float64, np.float32]),
)
def test_sums_are_those_of_a_loop_over_records(seed: int, of: Any, kind: Any) -> None:
    loss, classes = of
    problem = linear((4, 1, 7), 5, seed, loss, classes=classes, regularization=0.3)
    records = Dataset(problem.train.features.astype(kind), problem.train.labels)
    problem = replace(problem, train=records)
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(1, problem.dim)).astype(kind) * 3
    batches = np.array([0, 3, 3, 8]), np.arange(8)  # the second site has no record in it
    got = clipped_gradient_sums(problem, w, batches, 0.25)
    np.testing.assert_allclose(
        got, twin_sums(problem, w[0].astype(float), batches, 0.25), atol=1e-10
    )
    assert got.dtype == np.float64
    assert (got[1] == 0).all()


class Doubled(LinearProblem):
    """A linear problem with another gradient, which is longer than the clipping norm."""

    def gradient(self, *args: Any, **kwargs: Any) -> Any:
        return 2.0 * super().gradient(*args, **kwargs)


def test_a_gradient_of_a_subclass_is_clipped_record_by_record() -> None:
    problem = linear((4, 3), 5, 1)
    other = Doubled(problem.train, problem.partition, problem.loss)
    w, batches = np.full((1, 5), 0.1), (np.array([0, 4, 7]), np.arange(7))
    ours, doubled = (clipped_gradient_sums(p, w, batches, 100.0) for p in (problem, other))
    np.testing.assert_allclose(doubled, 2 * ours, rtol=1e-12)
    singles = np.arange(8), np.arange(7)
    each = clipped_gradient_sums(other, np.repeat(w, 7, axis=0), singles, 0.01)
    assert (row_norms(each) <= 0.01 * (1 + 1e-12)).all()


class Unclipped:
    """A problem of a user's own, whose gradients are longer than any clipping norm."""

    regularization = 0.0
    nodes = 2

    def __init__(self, gradients: Any) -> None:
        self.gradients = np.asarray(gradients, float)

    def gradient(self, params: Any, batches: Any) -> Any:
        indptr, records = batches
        assert (np.diff(indptr) == 1).all()
        if any(np.isposinf(self.gradients[records, 0])):
            raise ArithmeticError("a record that cannot be used")
        return self.gradients[records]


def test_gradients_of_a_problem_of_ones_own_are_clipped_here() -> None:
    problem = Unclipped(np.full((6, 4), 100.0))
    batches = np.array([0, 2, 6]), np.arange(6)
    sums = clipped_gradient_sums(problem, np.zeros((1, 4)), batches, 1.0)
    np.testing.assert_allclose(row_norms(sums), [2.0, 4.0])


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf, 1e300])
def test_one_bad_record_moves_a_site_by_at_most_the_sensitivity(bad: float) -> None:
    """Planted faults: NaN, infinity, a record that raises (+inf here), one beyond the norm."""
    gradients = np.random.default_rng(0).normal(size=(40, 8))
    with_it = gradients.copy()
    with_it[7, 0] = bad
    batches = np.array([0, 30, 40]), np.arange(40)
    public = silo(clients=2, colluding=0, records=40, dim=8).secure_sum
    sums = [
        encode(public, clipped_gradient_sums(Unclipped(g), np.zeros((1, 8)), batches, 1.0))
        for g in (gradients, with_it)
    ]
    moved = row_norms((sums[1] - sums[0]).astype(float))
    assert moved[0] <= public.sensitivity
    assert moved[1] == 0
    zeroed = row_norms(sums[0].astype(float))  # planted: the whole site zeroed for one record
    assert zeroed[0] > public.sensitivity


def test_a_linear_record_that_overflows_counts_as_nothing() -> None:
    problem = linear((5, 5), 3, 1)
    x = problem.train.features.copy()
    x[2] = [1e308, 1e308, -1e308]
    problem = replace(problem, train=Dataset(x, problem.train.labels))
    w = np.full((1, 3), 10.0)
    sums = clipped_gradient_sums(problem, w, (np.array([0, 5, 10]), np.arange(10)), 1.0)
    assert np.isfinite(sums).all()
    without = clipped_gradient_sums(
        problem, w, (np.array([0, 4, 9]), np.delete(np.arange(10), 2)), 1.0
    )
    assert row_norms(sums - without)[0] <= 1 + 1e-9


# One record


@given(st.integers(0, 10**6), st.sampled_from([1.0, 0.3]))
def test_a_replaced_record_moves_one_sites_integers_by_at_most_the_sensitivity(
    seed: int, rate: float
) -> None:
    problem = linear((20, 35, 50), 7, seed)
    x, y = problem.train.features.copy(), problem.train.labels.copy()
    x[30] *= -5
    neighbour = replace(problem, train=Dataset(x, y))
    algorithm = silo(sampling_rate=rate)
    public, key = algorithm.secure_sum, Key.seeded(seed)
    w = Released(np.random.default_rng(seed).normal(size=(1, 7)))
    one, other = (
        encode(public, algorithm.contribution.sums(w, 3, of, key)) for of in (problem, neighbour)
    )
    moved = row_norms((one - other).astype(float))
    assert moved[1] <= public.sensitivity
    assert (moved[[0, 2]] == 0).all()


def test_each_record_is_drawn_by_a_coin_of_its_own_site() -> None:
    problem = linear((400, 300, 500), 3, 0)
    algorithm = silo(dim=3, records=1200, sampling_rate=0.25)
    everything = problem.full_batches
    seen = np.zeros((40, 1200), bool)
    for t in range(40):
        indptr, records = algorithm.contribution.sample(everything, t, Key.seeded(1))
        owners = np.repeat(np.arange(3), np.diff(indptr))
        assert (owners == np.searchsorted([400, 700], records, side="right")).all()
        seen[t, records] = True
    assert abs(seen.mean() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / seen.size)
    assert len(np.unique(seen.sum(axis=1))) > 10  # the size is random


def test_the_divisor_is_public() -> None:
    """Planted: the realised batch size as divisor would show how many records took part."""
    problem = linear((20, 35, 50), 7, 3)
    algorithm = silo(sampling_rate=0.2, step_size=1.0, average=None)
    state = algorithm.init(problem, Key.seeded(1))
    total = Released(np.ones((1, 7)))
    steps = {tuple((state.w - algorithm.absorb(state, total, t).w)[0].tolist()) for t in range(5)}
    assert steps == {tuple([1.0 / (0.2 * 105)] * 7)}


def test_times_sizes_and_losses_are_not_among_what_is_released() -> None:
    algorithm = silo()
    _, released = train(algorithm, linear((20, 35, 50), 7, 3), Key.seeded(1))
    assert all(total.shape == (1, 7) for total in released)


def test_a_coupled_run_on_neighbouring_records_keeps_to_the_plan() -> None:
    problem = linear((20, 35, 50), 7, 3)
    x = problem.train.features.copy()
    x[30] *= -1
    neighbour = replace(problem, train=Dataset(x, problem.train.labels))
    coupled = couple(silo(), problem, neighbour, Broadcast(), rounds=6, key=Key.seeded(1))
    assert not coupled.faults
    assert len(coupled.movements) == 6


class RoundsWithoutItsPrice(DistributedDiscreteGaussian):
    """Planted: claims the sensitivity of the sum before it is rounded."""

    def _distance(self, sensitivity: Any, dim: int) -> float:
        return float(sensitivity.bound)


def test_a_coupled_run_flags_a_sensitivity_without_the_price_of_rounding() -> None:
    public: dict[str, Any] = {"dim": 400, "sites": 3, "records": 4, "noise_to_sensitivity": 40.0}
    numbers = SecureSum(grid_steps=2, neighboring_relation="add_remove", **public)
    near = np.zeros((3, 400))
    near[0] = (0.5 - 1e-9) * numbers.grid
    far = near + np.array([[0.05], [0.0], [0.0]])
    for kind, flagged in ((DistributedDiscreteGaussian, False), (RoundsWithoutItsPrice, True)):
        mechanism = kind(numbers)
        one, other = (mechanism.prepared(values) for values in (near, far))
        allowed = mechanism.noise_scale(Sensitivity(1.0, "l2", "C"), 400) / 40.0
        assert (row_norms(one - other)[0] > allowed) == flagged


def test_a_release_is_kept_in_plain_types() -> None:
    plan = silo(neighboring_relation="add_remove", sampling_rate=0.5).plan(6)
    assert Plan.from_dict(json.loads(json.dumps(plan.as_dict()))) == plan


def test_dropouts_are_planned_and_paid_for() -> None:
    algorithm = silo(clients=4, dropouts=1)
    assert len(algorithm.plan(6).releases) == 7
    assert algorithm.plan(6).cost(1e-5).epsilon == algorithm.secure_sum.epsilon(1e-5)


def test_a_reserve_is_planned_and_paid_for() -> None:
    algorithm = silo(clients=4, dropouts=1, reserve=4)
    assert len(algorithm.plan(6).releases) == 10
    assert algorithm.plan(6).cost(1e-5).epsilon == algorithm.secure_sum.epsilon(1e-5)
    costs = {silo(clients=4, dropouts=1, reserve=n).plan(6).cost(1e-5) for n in (None, 1)}
    assert len(costs) == 1


def test_a_reserve_smaller_than_the_dropouts_is_refused() -> None:
    with pytest.raises(ValueError, match="reserve: wanted an integer of at least 2"):
        silo(clients=5, dropouts=2, reserve=1)


# Training


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_training_has_the_same_bits_with_and_without_masks(rate: float) -> None:
    algorithm = silo(
        sampling_rate=rate, optimizer=ServerMomentum(0.5), denoiser=LaplacianSmoothing(1.0)
    )
    problem = linear((20, 35, 50), 7, 3, regularization=0.01)
    with_masks, _ = train(algorithm, problem, Key.seeded(2))
    run = dm.simulate(algorithm, problem, rounds=6, key=Key.seeded(2), delta=1e-5)
    assert with_masks.tobytes() == run.parameters.tobytes()
    assert run.ledger == algorithm.plan(6)
    assert run.privacy.epsilon == pytest.approx(algorithm.secure_sum.epsilon(1e-5))


def test_traffic_counts_the_bits_under_masks_and_the_model_that_comes_back() -> None:
    problem, algorithm = linear((30, 40, 35), 7, 1), silo()
    traffic = dm.simulate(algorithm, problem, rounds=2, key=Key.seeded(1), delta=1e-5).traffic
    masked = 8 * math.ceil(7 * algorithm.secure_sum.modulus_bits / 8)
    assert traffic.messages == 2 * 2 * 3
    assert traffic.bits == 2 * 3 * (masked + 7 * 64)
    assert masked < 7 * 64


def test_steps_are_those_of_the_docstring() -> None:
    problem = linear((20, 35, 50), 7, 3, regularization=0.1)
    algorithm = silo(
        step_size=InverseSqrt(2.0), optimizer=ServerMomentum(0.9), denoiser=LaplacianSmoothing(0.5)
    )
    model, released = train(algorithm, problem, Key.seeded(2))
    w, m, models = np.zeros((1, 7)), 0.0, []
    for t, total in enumerate(released):
        m = 0.9 * m + LaplacianSmoothing(0.5)(total / 105, 0.0, None)
        w = w - 2.0 / math.sqrt(t + 1) * (m + 0.1 * w)
        models.append(w)
    np.testing.assert_allclose(model, np.mean(models[3:], axis=0), rtol=1e-12)


def test_without_noise_to_speak_of_it_learns_as_gradient_descent() -> None:
    problem = linear((20, 35, 50), 3, 3)
    algorithm = silo(dim=3, noise_multiplier=0.02, rounds=50, step_size=1.0, average=None)
    model, _ = train(algorithm, problem, Key.seeded(2))
    w = np.zeros((1, 3))
    for _ in range(50):
        w = w - sum(clipped_gradient_sums(problem, w, problem.full_batches, 1.0)) / 105
    np.testing.assert_allclose(model, w, atol=0.02)


def test_two_class_sites_learn_all_classes_at_a_small_epsilon() -> None:
    """A site alone knows two of ten classes: at most about 0.2 without any privacy."""
    x = digits()
    everything = unit_norm(Dataset(np.c_[x.features, np.ones(x.records)], x.labels))
    order = np.random.default_rng(5).permutation(x.records)
    learned, test = everything.take(order[450:]), everything.take(order[:450])
    problem = LinearProblem(learned, by_class(learned, 10), "softmax", test=test, classes=10)
    rounds = 60
    algorithm = FederatedLearning.for_budget(
        RecordGradients(clients=10, records=learned.records),
        epsilon=1.0,
        delta=1e-5,
        step_size=2.0,
        combination=SecureAggregation(dim=problem.dim, rounds=rounds),
    )
    assert algorithm.secure_sum.epsilon(1e-5) <= 1.0
    run = dm.simulate(algorithm, problem, rounds=rounds, key=Key.seeded(9), delta=1e-5, metrics=[])
    assert run.privacy.epsilon <= 1.0
    assert problem.accuracy(run.parameters)[0] > 0.6


# Budgets


def calibrated(algorithm: FederatedLearning) -> FederatedLearning:
    """Return it with the noise of a budget of 2."""
    budget: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5}
    sums = algorithm.combination
    return FederatedLearning.for_budget(algorithm.contribution, **budget, combination=sums)


@pytest.mark.slow
def test_a_budget_is_kept_and_sampling_needs_less_noise() -> None:
    sizes = {"clients": 5, "records": 500, "rounds": 40}
    noises = [
        calibrated(silo(neighboring_relation=relation, sampling_rate=q, **sizes))
        for relation, q in [("add_remove", 1.0), ("add_remove", 0.1), ("replace_one", 0.1)]
    ]
    full, sampled, replaced = (algorithm.noise_to_sensitivity for algorithm in noises)
    assert sampled < full / 5
    assert replaced == pytest.approx(full)  # no amplification is claimed for it
    for algorithm in noises:
        assert algorithm.secure_sum.epsilon(1e-5) <= 2.0


def test_more_colluding_sites_and_dropouts_cost_more_noise_in_each_share() -> None:
    def share(**more: Any) -> float:
        return calibrated(silo(clients=6, records=500, rounds=20, **more)).secure_sum.share

    assert share(colluding=0) < share(colluding=1) < share(colluding=3)
    assert share() < share(dropouts=1) < share(dropouts=3)


# Bad input


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"colluding": 2}, "at least 2 honest sites"),
        ({"denoiser": LaplacianSmoothing}, "denoiser"),
        ({"sampling_rate": 1.5}, "sampling_rate"),
        ({"step_size": 0.0}, "step_size"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        silo(**changed)


def test_problems_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="one with 3 clients"):
        silo(dim=3).init(linear((5, 6), 3, 1), Key.seeded(1))
    with pytest.raises(ValueError, match="at most 30 records at each client"):
        silo(dim=3, records_per_client=30).init(linear((5, 60, 7), 3, 1), Key.seeded(1))
    with pytest.raises(ValueError, match="a model of length 7"):
        silo().init(linear((5, 6, 7), 3, 1), Key.seeded(1))
    with pytest.raises(ValueError, match="rounds: wanted at most 6"):
        silo().plan(7)


@pytest.mark.parametrize("huge", [1.7e308, 1.0])
def test_a_record_that_overflows_changes_no_other_records_part(huge: float) -> None:
    """A server could choose a model at which one record erased the gradients of all others."""
    x = np.array([[1.0, 0.0]] * 50 + [[0.5**0.5, 0.5**0.5]])
    records = dm.Dataset(x, np.zeros(51, dtype=np.int64))
    without, with_it = (
        clipped_gradient_sums(
            dm.LinearProblem(records, (np.arange(n),), "softmax", classes=2, regularization=1e-4),
            np.array([[-huge, -huge, huge, huge]]),
            (np.array([0, n]), np.arange(n)),
            clipping_norm=1.0,
        )
        for n in (50, 51)
    )
    assert np.linalg.norm(with_it - without) <= 1 + 1e-9
    assert np.linalg.norm(without) > 40
