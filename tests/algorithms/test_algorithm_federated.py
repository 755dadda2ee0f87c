"""Federated learning against its loop-written twin, and against its plan."""

from __future__ import annotations

from math import inf, log
from types import SimpleNamespace

import numpy as np
import pytest
from federated_parts import changed
from federated_problem import make_clients
from hypothesis import assume, given
from hypothesis import strategies as st
from one_round import one_round, watcher_of
from twin_federated import epoch_orders, federated_learning

import dpmesh as dm
from dpmesh import kernels
from dpmesh.algorithms import (
    AdaptiveClipping,
    Average,
    ClientUpdates,
    FederatedLearning,
    ServerAdam,
    ServerMomentum,
    TrustedServer,
)
from dpmesh.algorithms.denoisers import Identity, LaplacianSmoothing
from dpmesh.audit import alone, couple
from dpmesh.keys import Key, Purpose
from dpmesh.schedules import ExponentialDecay, PowerLaw

ADAPTIVE = AdaptiveClipping(quantile=0.3, step_size=0.5, noise_std=4.0)
RISING = PowerLaw(scale=1.0, exponent=1.0)
SERVERS = {
    None: None,
    ServerMomentum(decay=0.8): ("momentum", 0.8),
    ServerAdam(adaptivity=0.1): ("adam", 0.9, 0.99, 0.1),
}


def run(algorithm, problem, rounds, key):
    state = algorithm.init(problem, key)
    for t in range(rounds):
        state = one_round(algorithm, state, t, problem, key).state
    return state


@given(
    case=st.builds(
        SimpleNamespace,
        sampling=st.sampled_from(["poisson", "uniform"]),
        sizes=st.lists(st.integers(0, 7), min_size=1, max_size=9),
        sampling_rate=st.floats(0.1, 1),
        dim=st.integers(1, 9),
        rounds=st.integers(1, 4),
        noise_multiplier=st.one_of(st.none(), st.floats(0.1, 3)),
        batch_size=st.integers(1, 8),
        epochs=st.one_of(st.none(), st.integers(1, 3)),
        steps=st.integers(1, 9),
        smoothing=st.sampled_from([0.0, 1.0, 7.5]),
        average=st.sampled_from([None, Average(), Average(weights=RISING)]),
        weight_decay=st.sampled_from([0.0, 0.2]),
        clients_at_once=st.sampled_from([1, 3, 1024]),
        arrival_rate=st.sampled_from([1.0, 0.6]),
        adaptive=st.booleans(),
        optimizer=st.sampled_from(list(SERVERS)),
        seed=st.integers(0, 2**32),
    )
)
def test_equals_its_twin(case) -> None:
    assume(sum(case.sizes) > 0)
    N, key, z = len(case.sizes), Key.seeded(case.seed), case.noise_multiplier
    problem = make_clients(case.sizes, case.dim, weight_decay=case.weight_decay, seed=case.seed)
    algorithm = FederatedLearning(
        ClientUpdates(
            clients=N,
            sampling_rate=case.sampling_rate,
            clipping_norm=0.4,
            sampling=case.sampling,
            batch_size=case.batch_size,
            epochs=case.epochs,
            steps=None if case.epochs else case.steps,
            step_size=ExponentialDecay(scale=0.8, rate=0.9),
            clients_at_once=case.clients_at_once,
            adaptive_clipping=ADAPTIVE if case.adaptive else None,
        ),
        noise_multiplier=z and z * (2 if case.sampling == "uniform" else 1),
        step_size=0.7,
        denoiser=LaplacianSmoothing(case.smoothing),
        average=case.average,
        optimizer=case.optimizer,
        combination=TrustedServer(arrival_rate=case.arrival_rate),
    )
    state = run(algorithm, problem, case.rounds, key)

    size = max(1, round(case.sampling_rate * N))

    def cohort(t):
        stream = key.stream(Purpose.SAMPLE, t)
        coins = kernels.uniform((1, N), stream, nodes=[1])[0]
        if case.sampling == "poisson":
            asked = np.flatnonzero(kernels.bernoulli(N, case.sampling_rate, stream))
        else:
            asked = np.argsort(kernels.uniform(N, stream))[:size]
        return [j for j in asked if coins[j] < case.arrival_rate]

    def orders(j, t):
        records = list(range(problem.indptr[j], problem.indptr[j + 1]))
        passes = case.epochs or case.steps
        coins = kernels.uniform(
            (1, max(1, passes * len(records))), key.stream(Purpose.BATCHES, t), nodes=[j]
        )[0]
        return epoch_orders(coins, records, passes)

    twin = federated_learning(
        cohort=cohort,
        orders=orders,
        example=lambda r: (problem.features[r], problem.labels[r]),
        noise=lambda t: kernels.gaussian(
            case.dim + case.adaptive, 1.0, key.stream(Purpose.NOISE, t)
        ),
        N=N,
        tau=case.sampling_rate if case.sampling == "poisson" else size / N,
        arrival_rate=case.arrival_rate,
        T=case.rounds,
        n=case.dim,
        L=0.4,
        z=z,
        replace_one=case.sampling == "uniform",
        b=case.batch_size,
        K=None if case.epochs else case.steps,
        eta_l=ExponentialDecay(scale=0.8, rate=0.9),
        eta_g=0.7,
        sigma=case.smoothing,
        lam=case.weight_decay,
        a=None if case.average is None else case.average.weights,
        adapt=(0.3, 0.5, 4.0) if case.adaptive else None,
        server=SERVERS[case.optimizer],
    )
    np.testing.assert_allclose(algorithm.parameters(state)[0], twin, rtol=1e-10, atol=1e-10)


def test_losses_are_those_of_who_learned() -> None:
    everybody = FederatedLearning(
        ClientUpdates(clients=4, sampling_rate=1.0, clipping_norm=0.3, epochs=1, clients_at_once=3),
        noise_multiplier=None,
    )
    problem = make_clients([3, 0, 2, 4], 4)
    nobody = changed(everybody, sampling_rate=1e-12)
    fallen = changed(everybody, arrival_rate=1e-12)
    state, key = everybody.init(problem, Key.seeded(1)), Key.seeded(1)
    losses = everybody.losses(state, 0, problem, key)
    assert losses == pytest.approx([log(2)] * 3)  # of a logistic model that is 0
    assert nobody.losses(state, 0, problem, key) is None
    assert fallen.losses(state, 0, problem, key) is None


@pytest.mark.parametrize("sampling", ["poisson", "uniform"])
@pytest.mark.parametrize("noise_multiplier", [None, 0.7, 2.0])
def test_ledger_equals_plan(sampling, noise_multiplier) -> None:
    algorithm = FederatedLearning(
        ClientUpdates(
            clients=20, sampling_rate=0.2, clipping_norm=0.3, sampling=sampling, epochs=1
        ),
        noise_multiplier=noise_multiplier,
    )
    problem = make_clients([3] * 20, 4)
    plan = algorithm.plan(5)
    assert dm.simulate(algorithm, problem, rounds=5, metrics=[]).ledger == plan
    assert plan.unit == "user"
    assert (
        plan.neighboring_relation == {"poisson": "add_remove", "uniform": "replace_one"}[sampling]
    )
    cost = plan.cost(1e-5)
    if noise_multiplier is None:
        assert cost.epsilon == inf
    else:
        everybody = changed(algorithm, sampling_rate=1.0).plan(5).cost(1e-5)
        assert 0 < cost.epsilon < everybody.epsilon
        assert plan.cost(0.0).epsilon == inf


def test_an_empty_round_still_releases_noise() -> None:
    algorithm = FederatedLearning(
        ClientUpdates(clients=3, sampling_rate=1e-9, clipping_norm=1.0, epochs=1),
        noise_multiplier=1.0,
    )
    problem, key = make_clients([2, 2, 2], 5), Key.seeded(0)
    state, _, _, releases = one_round(algorithm, algorithm.init(problem, key), 0, problem, key)
    noise = kernels.gaussian(5, 1.0, Key.seeded(0).stream(Purpose.NOISE, 0))
    np.testing.assert_allclose(state.w[0] * 3e-9, noise)
    assert releases == [algorithm.release_of(0)]


@pytest.mark.parametrize("sampling", ["poisson", "uniform"])
def test_an_estimator_gets_the_noise_of_the_average_and_its_sum(sampling) -> None:
    reported = []

    def estimator(average, noise_scale, so_far):
        reported.append((average, noise_scale, so_far))
        return average

    algorithm = FederatedLearning(
        ClientUpdates(
            clients=20, sampling_rate=0.25, clipping_norm=0.5, sampling=sampling, epochs=1
        ),
        noise_multiplier=3.0,
        denoiser=estimator,
    )
    run(algorithm, make_clients([3] * 20, 4), 3, Key.seeded(0))
    averages, scales, sums = zip(*reported, strict=True)
    assert scales == pytest.approx([3.0 * 0.5 / 5] * 3)
    assert [so_far.rounds for so_far in sums] == [1, 2, 3]
    np.testing.assert_allclose(sums[-1].total, sum(averages))


@pytest.mark.parametrize("sampling", ["poisson", "uniform"])
def test_noise_on_a_grid_is_in_the_sums_the_plan_and_what_estimators_get(sampling) -> None:
    reported = []

    def estimator(average, noise_scale, so_far):
        reported.append(noise_scale)
        return average

    grid, dim = 2.0**-6, 4
    usual = FederatedLearning(
        ClientUpdates(
            clients=20, sampling_rate=0.25, clipping_norm=0.5, sampling=sampling, epochs=1
        ),
        noise_multiplier=3.0,
        denoiser=estimator,
    )
    gridded, problem, key = changed(usual, grid=grid), make_clients([3] * 20, dim), Key.seeded(0)
    passages = []
    one_round(gridded, gridded.init(problem, key), 0, problem, key, watcher=watcher_of(passages))
    (passage,) = passages
    np.testing.assert_array_equal(passage.noisy / grid, np.rint(passage.noisy / grid))
    assert passage.release == gridded.plan(1).releases[0]
    assert passage.release.name == "discrete_gaussian"
    wider = gridded.sensitivity(0).bound + grid * np.sqrt(dim)  # neighbours are rounded apart
    assert reported[-1] == pytest.approx(gridded.noise_to_sensitivity * wider / 5)
    assert gridded.plan(9).cost(1e-5).epsilon > usual.plan(9).cost(1e-5).epsilon


GOOD = FederatedLearning(ClientUpdates(clients=10, epochs=1), noise_multiplier=1.0)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"steps": 2}, "epochs: wanted either this or steps"),
        ({"epochs": None}, "epochs: wanted either this or steps"),
        ({"denoiser": 3}, "denoiser: wanted one of dpmesh.algorithms.denoisers, such as .*, got 3"),
        ({"denoiser": Identity}, "denoiser: wanted one of .*, got <class"),
        ({"clipping_norm": np.ones(999)}, r"clipping_norm: .*, got array\(.{,40}$"),
        ({"batch_size": np.ones(999)}, r"batch_size: .*, got array\(.{,40}$"),
        ({"clients_at_once": 0}, "clients_at_once: wanted an integer of at least 1"),
        ({"grid": 0.3}, "grid: wanted a power of 2"),
        ({"contribution": 3}, "contribution: wanted ClientUpdates.* or RecordGradients.*, got 3"),
        ({"combination": None}, "combination: wanted TrustedServer.* or SecureAggregation"),
        ({"average": 1.0}, r"average: wanted Average\(\) or None"),
    ],
)
def test_bad_parameters_are_named(bad, message) -> None:
    with pytest.raises(ValueError, match=message):
        changed(GOOD, **bad)
    with pytest.raises(ValueError, match="weights: wanted a first weight greater than 0"):
        Average(weights=lambda t: t - 1)


def test_a_problem_of_other_clients_is_refused() -> None:
    with pytest.raises(ValueError, match="problem: wanted one with 10 clients, got 3"):
        GOOD.init(make_clients([1, 1, 1], 2), Key.seeded(0))
    with pytest.raises(ValueError, match="rounds: wanted an integer of at least 1, got 0"):
        GOOD.plan(0)


def test_a_quantile_is_found_and_costs_no_epsilon() -> None:
    """From a first norm that is far too small; a round's share of bits has a deviation of 0.07."""
    problem = make_clients([3] * 200, 4)
    fixed = FederatedLearning(
        ClientUpdates(clients=200, sampling_rate=0.5, clipping_norm=1e-3, steps=1),
        noise_multiplier=1.0,
    )
    adaptive = changed(fixed, adaptive_clipping=AdaptiveClipping(quantile=0.7))
    assert adaptive.plan(40).cost(1e-5).epsilon == fixed.plan(40).cost(1e-5).epsilon
    state = run(adaptive, problem, 40, Key.seeded(3))
    unclipped = changed(fixed, clipping_norm=1e3, noise_multiplier=None)
    updates = unclipped.contribution.updates(state.w, np.arange(200), 0, problem, Key.seeded(4))
    share = (kernels.row_norms(updates) < state.clipping_norm).mean()
    assert abs(share - 0.7) < 0.2
    assert dm.simulate(adaptive, problem, rounds=3, metrics=[], delta=1e-5).ledger == adaptive.plan(
        3
    )


def test_another_client_moves_updates_and_bits_as_declared() -> None:
    algorithm = FederatedLearning(
        ClientUpdates(
            clients=3,
            sampling_rate=1.0,
            sampling="uniform",
            clipping_norm=0.1,
            steps=3,
            adaptive_clipping=AdaptiveClipping(noise_std=1.2),
        ),
        noise_multiplier=2.0,
    )
    few, many = make_clients([3, 3, 0], 4), make_clients([3, 3, 0], 4)
    many.features[3:] *= 1e3
    found = couple(algorithm, few, many, alone, rounds=3, key=Key.seeded(0))
    assert not found.violated, found
    with pytest.raises(ValueError, match=r"noise_std: wanted more than 1, what the bits would"):
        changed(algorithm, adaptive_clipping=AdaptiveClipping(noise_std=1.0))
    with pytest.raises(ValueError, match="proximal: wanted none: local_training of a Clients"):
        changed(algorithm, proximal=0.1).init(few, Key.seeded(0))
