"""SGD without replacement against its loop-written twin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_round import one_round
from refused import refused
from twin_without_replacement import without_replacement
from without_replacement_problems import FIXED, make_problem

import dpmesh as dm
from dpmesh import kernels
from dpmesh.accounting import analytic_gaussian_noise_to_sensitivity
from dpmesh.algorithms.controllers import AlwaysGlobal, RandomGlobal
from dpmesh.keys import Purpose
from dpmesh.schedules import Constant, InverseTime
from dpmesh_papers.deep_q import DeepQ


@given(
    M=st.integers(1, 5),
    K=st.sampled_from([None, 2, 3]),
    d=st.integers(1, 5),
    T=st.integers(1, 8),
    b=st.integers(1, 4),
    epsilon=st.one_of(st.none(), st.floats(0.1, 0.9)),
    calibration=st.sampled_from(["analytic", "classical", "paper"]),
    copies=st.integers(1, 3),
    schedule=st.sampled_from(
        [Constant(0.4), InverseTime(scale=0.8), InverseTime(scale=1.5, offset=3.0)]
    ),
    controller=st.sampled_from([*FIXED, RandomGlobal(0.5)]),
    radius=st.sampled_from([None, 0.3]),
    regularization=st.sampled_from([0.0, 0.2]),
    arrival_rate=st.sampled_from([1.0, 0.6]),
    seed=st.integers(0, 2**32),
)
def test_equals_its_twin(
    M, K, d, T, b, epsilon, calibration, copies, schedule, controller, radius, regularization,
    arrival_rate, seed,
) -> None:  # fmt: skip
    key = dm.Key.seeded(seed)
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 2 * T, size=M) * b + rng.integers(1, b + 1, size=M)
    sizes[0] = T * b
    problem = make_problem(sizes, d, K, seed=seed, regularization=regularization)
    models = K or 1
    algorithm = dm.WithoutReplacement(
        epsilon=epsilon,
        delta=1e-6,
        models=models,
        batch_size=b,
        step_size=schedule,
        controller=controller,
        calibration=calibration,
        copies=copies,
        radius=radius,
        arrival_rate=arrival_rate,
    )
    state = algorithm.init(problem, key)
    for t in range(T):
        done = one_round(algorithm, state, t, problem, key)
        state = done.state
        published = algorithm.published(state, done.received)
        np.testing.assert_array_equal(published, state.released.reshape(1, -1))

    used = [0] * M

    def order(t: int) -> list[int]:
        coins = kernels.uniform((M, 2), key.stream(Purpose.SAMPLE, t))
        acting = []
        for m in sorted(range(M), key=lambda m: coins[m, 1]):
            if coins[m, 0] < arrival_rate and (used[m] + 1) * b <= sizes[m]:
                used[m] += 1
                acting.append(m)
        return acting

    x, y = problem.train.features, problem.train.labels
    touched = models * copies
    z = {
        "analytic": lambda: (
            sqrt(touched)
            * analytic_gaussian_noise_to_sensitivity(target_epsilon=epsilon, target_delta=1e-6)
        ),
        "classical": lambda: sqrt(touched) * sqrt(2 * np.log(1.25e6)) / epsilon,
        "paper": lambda: sqrt(2 * np.log(1.25e6)) / epsilon,
    }[calibration]
    local, released = without_replacement(
        loss="logistic",
        minibatch=lambda m, i: [(x[r], y[r]) for r in problem.partition[m][i * b : (i + 1) * b]],
        order=order,
        is_global=lambda t, m, k: controller.choose((M, models), t, key)[m, k],
        noise=lambda t, m, k: kernels.gaussian((M * models, d), 1.0, key.stream(Purpose.NOISE, t))[
            m * models + k
        ],
        eta=schedule,
        z=0.0 if epsilon is None else z(),
        M=M,
        K=models,
        d=d,
        T=T,
        b=lambda _: b,
        L=1.0,
        R=radius or inf,
        lam=regularization,
        binary=K is None,
    )
    np.testing.assert_allclose(state.local, local, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(state.released, released, rtol=1e-10, atol=1e-10)


def test_the_controller_is_told_the_losses_of_algorithm_2() -> None:
    """f(w_t, sample_t) and f(w_t, sample_(t-1)), also of nodes that were away in between."""
    problem = make_problem([30, 30], 2, 3, regularization=0.1)
    seen = []

    @dataclass(frozen=True)
    class Private(RandomGlobal):
        public = False

        def decide(self, state, observation, round, key):
            seen.append(observation)
            return super().decide(state, observation, round, key)

    algorithm = dm.WithoutReplacement(
        models=3, batch_size=3, controller=Private(0.5), arrival_rate=0.7
    )
    key = dm.Key.seeded(2)
    state = algorithm.init(problem, key)
    for t in range(8):
        before = state
        losses = algorithm.losses(state, t, problem, key)
        state = one_round(algorithm, state, t, problem, key).state
        acting = seen[t].acting
        if acting.any():
            np.testing.assert_array_equal(losses, seen[t].losses[acting].sum(axis=1))
        for m in np.flatnonzero(acting):
            i = before.used[m]
            for reported, number in ((seen[t].losses, i), (seen[t].last_losses, i - 1)):
                if number < 0:
                    assert not reported[m].any()  # nor anything of another node
                    continue
                batch = problem.partition[m][number * 3 : number * 3 + 3]
                w = before.local[m].reshape(1, -1)
                np.testing.assert_allclose(
                    reported[m], problem.class_objectives(w, batch[np.newaxis])[0]
                )


def test_a_controller_keeps_what_it_learns_and_decides() -> None:
    @dataclass(frozen=True)
    class Counting(RandomGlobal):
        def init(self, shape, key):
            return 0

        def learn(self, state, observation, round, key):
            return state + 1

        def decide(self, state, observation, round, key):
            actions, _ = super().decide(None, observation, round, key)
            return actions, 10 * state

    algorithm = dm.WithoutReplacement(batch_size=3, controller=Counting(0.5))
    problem, key = make_problem([9], 2), dm.Key.seeded(0)
    state = algorithm.init(problem, key)
    for t in range(3):
        state = one_round(algorithm, state, t, problem, key).state
    assert state.controller == 1110


def test_each_record_is_used_once() -> None:
    problem = make_problem([20, 9], 2)
    algorithm = dm.WithoutReplacement(batch_size=4)
    key = dm.Key.seeded(0)
    state = algorithm.init(problem, key)
    seen = []
    for t in range(6):
        turns = algorithm.senders(t, state.used, problem.all_records, key)
        acts = np.isin(np.arange(problem.nodes), turns)
        seen += algorithm.batches(problem, state.used, acts)[1].tolist()
        done = one_round(algorithm, state, t, problem, key)
        state = done.state
    assert len(seen) == len(set(seen)) == 28
    assert not len(turns)
    assert done.sent.messages == 0
    assert not done.releases
    with pytest.raises(ValueError, match="rounds: wanted at most 5, as many as the records last"):
        dm.simulate(algorithm, problem, rounds=6)


def test_nodes_that_seldom_act_may_have_used_all_records_before_the_end() -> None:
    problem = make_problem([8, 9], 2, loss="hinge")  # which needs no constants without noise
    algorithm = dm.WithoutReplacement(batch_size=4, arrival_rate=0.9, epsilon=None)
    run = dm.simulate(algorithm, problem, rounds=60, key=dm.Key.seeded(0), metrics=["loss"])
    assert np.isfinite(run.parameters).all()


test_bad_input_is_named = refused(
    (
        lambda: dm.WithoutReplacement(models=2).init(make_problem([9], 2), dm.Key.seeded(0)),
        "models: wanted 1, as the problem has, got 2",
    ),
    (lambda: dm.WithoutReplacement(controller="x"), "controller: wanted a controller, with"),
    (
        lambda: dm.simulate(
            dm.WithoutReplacement(batch_size=2, controller=AlwaysGlobal()),
            replace(make_problem([9], 2), feature_norm=None),
            rounds=1,
        ),
        "feature_norm: wanted a public bound on the norm of a record, got None",
    ),
    (
        lambda: dm.WithoutReplacement().init(make_problem([9], 2, loss="hinge"), dm.Key.seeded(0)),
        "problem: wanted one of a smooth loss, as Lemma 4 does, got 'hinge'",
    ),
    (
        lambda: dm.WithoutReplacement().init(
            make_problem([9], 2, loss="absolute"), dm.Key.seeded(0)
        ),
        "problem: wanted one of a smooth loss, as Lemma 4 does, got 'absolute'",
    ),
    (
        lambda: dm.WithoutReplacement(public_data=[1.0]),
        r"public_data: wanted a Dataset, or None, with take, got \[1.0\]",
    ),
    (
        lambda: dm.WithoutReplacement().init(
            make_problem([9], 2, loss="squared"), dm.Key.seeded(0)
        ),
        "radius: wanted one, to bound the gradients of the squared loss, got None",
    ),
)


def test_a_learning_run_resumes_to_the_same_bits(tmp_path) -> None:
    problem = make_problem([40] * 4, 5, 3)
    controller = DeepQ(anneal_rounds=8, hidden=16, batch_size=2, memory_size=3)
    algorithm = dm.WithoutReplacement(models=3, batch_size=4, controller=controller)
    key, file = dm.Key.seeded(6), tmp_path / "run"

    class StopError(Exception):
        pass

    def stop(round: int, values) -> None:
        if round == 6:
            raise StopError

    options = {"rounds": 10, "key": key, "checkpoint": dm.Checkpoint(file, every=2)}
    with pytest.raises(StopError):
        dm.simulate(algorithm, problem, **options, metrics=dm.Metrics(every=1, callback=stop))
    resumed = dm.simulate(algorithm, problem, **options, metrics=dm.Metrics(every=1))
    whole = dm.simulate(algorithm, problem, rounds=10, key=key, metrics=dm.Metrics(every=1))
    np.testing.assert_array_equal(resumed.parameters, whole.parameters)
    np.testing.assert_array_equal(resumed.released, whole.released)
    assert resumed.ledger == whole.ledger
    assert resumed.traffic == whole.traffic
