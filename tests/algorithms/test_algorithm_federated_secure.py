"""Federated learning under a secure sum: its twin, its plan, what one client moves, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from federated_parts import changed
from federated_problem import make_clients
from hypothesis import given
from hypothesis import strategies as st
from masked_sums import masked_sum
from one_round import one_round
from problems import contract_problem
from twin_federated import client_update, epoch_orders

import dpmesh as dm
from dpmesh import kernels
from dpmesh.algorithms import AdaptiveClipping, ClientUpdates, FederatedLearning, SecureAggregation
from dpmesh.audit import alone, couple
from dpmesh.keys import Key, Purpose
from dpmesh.noise import correlated
from dpmesh.privacy import Budget

DELTA, ROUNDS = 1e-5, 5


def learning(**flat: Any) -> FederatedLearning:
    updates = ClientUpdates(clients=4, sampling_rate=0.5, clipping_norm=0.4, epochs=1)
    secure = SecureAggregation(dim=3, rounds=ROUNDS)
    return changed(FederatedLearning(updates, noise_multiplier=2.0, combination=secure), **flat)


@given(
    sizes=st.lists(st.integers(0, 7), min_size=4, max_size=7),
    uniform=st.booleans(),
    rate=st.floats(0.1, 1.0),
    dim=st.integers(1, 6),
    clients_at_once=st.sampled_from([1, 3, 1024]),
    seed=st.integers(0, 2**32),
)
def test_equals_a_twin_that_adds_up_integers_one_by_one(
    sizes: Any, uniform: bool, rate: float, dim: int, clients_at_once: int, seed: int
) -> None:
    """Updates, coins, rounding, noise and the modulus of each client by itself."""
    n, key = len(sizes), Key.seeded(seed)
    rate = 1.0 if uniform else rate
    problem = make_clients([*sizes[:-1], 2], dim, seed=seed)
    algorithm = learning(
        clients=n,
        dim=dim,
        sampling="uniform" if uniform else "poisson",
        sampling_rate=rate,
        batch_size=3,
        epochs=2,
        clients_at_once=clients_at_once,
        step_size=0.7,
    )
    state = algorithm.init(problem, key)
    for t in range(2):
        state = one_round(algorithm, state, t, problem, key).state

    sums = algorithm.secure_sum
    assert sums is not None
    step, modulus = 0.4 / sums.steps, 2**sums.modulus_bits
    w = np.zeros(dim)
    for t in range(2):
        total = [0] * dim
        for j in range(n):
            own = key.for_nodes(np.array([j], np.uint32))
            records = list(range(problem.indptr[j], problem.indptr[j + 1]))
            coins = kernels.uniform(2 * len(records) or 1, own.stream(Purpose.BATCHES, t))
            update = client_update(
                w,
                epoch_orders(coins, records, 2),
                lambda r: (problem.features[r], problem.labels[r]),
                b=3,
                K=None,
                eta=0.1,
                L=0.4,
                lam=0.0,
            )
            if not kernels.bernoulli(1, rate, own.stream(Purpose.SAMPLE, t))[0]:
                update = 0 * update
            noise = kernels.discrete_gaussian(dim, sums.share, own.stream(Purpose.NOISE, t))
            for k in range(dim):
                total[k] += round(update[k] / step) + int(noise[k])
        centred = [(s + modulus // 2) % modulus - modulus // 2 for s in total]
        w = w + 0.7 * np.array(centred) * step / (rate * n)
    np.testing.assert_allclose(state.w[0], w, atol=1e-10, rtol=1e-10)


PLANS = [
    {},
    {"sampling_rate": 1.0},
    {"sampling": "uniform", "sampling_rate": 1.0},
    {"dropouts": 1},
    {"colluding": 2},
]


@pytest.mark.parametrize("changed", PLANS, ids=str)
def test_the_ledger_is_the_plan_and_costs_what_the_sums_cost(changed: dict[str, Any]) -> None:
    algorithm = learning(**changed)
    run = dm.simulate(
        algorithm, contract_problem(), rounds=ROUNDS, key=Key.seeded(1), delta=DELTA, metrics=[]
    )
    plan, sums = algorithm.plan(ROUNDS), algorithm.secure_sum
    assert sums is not None
    assert len(plan.releases) == sums.attempts
    assert run.ledger.releases == plan.releases[:ROUNDS]  # nobody is lost in a simulation
    assert plan.cost(DELTA).epsilon == pytest.approx(sums.epsilon(DELTA))
    assert run.privacy.unit == plan.unit == "user"
    assert (run.privacy.epsilon == plan.cost(DELTA).epsilon) == (sums.dropouts == 0)
    against = f"the server and {sums.colluding} of the clients"
    assert f"the guarantee is against {against}; if more collude it is weaker" in str(run.privacy)
    assert "trusted" not in str(run.privacy)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_it_has_the_bits_of_a_sum_under_real_masks(kind: Any) -> None:
    plain, algorithm, key = contract_problem(), learning(), Key.seeded(3)
    train = dm.Dataset(plain.train.features.astype(kind), plain.train.labels)
    problem = replace(plain, train=train)
    state = algorithm.init(problem, key)
    for t in range(ROUNDS):
        cohort = algorithm.cohort(t, key, problem.nodes)
        sent = algorithm.contribution.vectors(state, cohort, t, problem, key, 0.0)
        vectors = algorithm.combination.message(sent, algorithm, state, t, problem.nodes).values
        total = masked_sum(algorithm.secure_sum, vectors, key.stream(Purpose.NOISE, t))
        state = algorithm.absorb(state, total, t)
    run = dm.simulate(algorithm, problem, rounds=ROUNDS, key=key, delta=DELTA, metrics=[])
    assert run.parameters.dtype == kind
    assert run.parameters.tobytes() == state.w.tobytes()


def test_traffic_counts_the_bits_under_masks_and_the_model_that_comes_back() -> None:
    algorithm = learning()
    run = dm.simulate(
        algorithm, contract_problem(), rounds=2, key=Key.seeded(1), delta=DELTA, metrics=[]
    )
    sums = algorithm.secure_sum
    assert sums is not None
    assert run.traffic.messages == 2 * 2 * 4
    assert run.traffic.bits == 2 * 4 * (8 * sums.message_bytes + 3 * 64)
    assert sums.message_bytes < 3 * 8


def test_the_estimator_gets_the_noise_of_all_shares() -> None:
    seen = []

    def estimator(noisy: Any, noise_scale: float, so_far: Any) -> Any:
        seen.append(noise_scale)
        return noisy

    algorithm = learning(denoiser=estimator)
    dm.simulate(algorithm, contract_problem(), rounds=1, key=Key.seeded(1), delta=DELTA, metrics=[])
    sums = algorithm.secure_sum
    assert sums is not None
    assert seen == [pytest.approx(2.0 * sums.sensitivity * sums.grid * (4 / 3) ** 0.5 / 2)]


# Privacy


def coupled(algorithm: FederatedLearning, *, rounds: int) -> Any:
    pair, _ = algorithm.worst_case(rounds=rounds)
    return couple(algorithm, pair.problem, pair.neighbor, alone, rounds=rounds, key=Key.seeded(1))


@pytest.mark.parametrize("sampling", ["poisson", "uniform"])
def test_a_client_moves_the_sum_by_the_sensitivity_and_no_further(
    sampling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate = 0.5 if sampling == "poisson" else 1.0
    coupling = coupled(learning(sampling=sampling, sampling_rate=rate), rounds=ROUNDS)
    assert not coupling.violated, str(coupling)
    moved = [m.distance / m.allowed for m in coupling.movements]
    assert 0.98 < max(moved) <= 1.0  # but for what rounding may add
    assert (min(moved) == 0.0) == (sampling == "poisson")

    honest = ClientUpdates.bounded
    monkeypatch.setattr(ClientUpdates, "bounded", lambda *given: 1.1 * honest(*given))
    assert coupled(learning(sampling=sampling, sampling_rate=rate), rounds=ROUNDS).violated


def test_each_client_takes_part_by_a_coin_of_its_own() -> None:
    """A client's coin is the same whoever else there is; half of 2,000 fall on either side.

    6 standard errors: false alarm 2e-9.
    """
    few, many = learning(), learning(clients=2000)
    cohort = many.cohort(3, Key.seeded(1), 2000)
    assert few.cohort(3, Key.seeded(1), 4).tolist() == cohort[cohort < 4].tolist()
    assert abs(len(cohort) - 1000) < 6 * (0.25 * 2000) ** 0.5


def test_noise_is_calibrated_to_a_budget() -> None:
    updates, secure = ClientUpdates(clients=50, steps=1), SecureAggregation(dim=7, rounds=ROUNDS)
    asked: dict[str, Any] = {"epsilon": 2.0, "delta": DELTA}
    made = FederatedLearning.for_budget(updates, **asked, combination=secure)
    budget = Budget(2.0, delta=DELTA)
    assert 2 * (1 - 1e-5) < made.plan(ROUNDS).cost(DELTA).epsilon <= 2 * (1 + 1e-9)
    assert budget.affordable_rounds(made, at_most=ROUNDS) == ROUNDS
    trusted = FederatedLearning.for_budget(updates, **asked, rounds=ROUNDS)
    # What accounting, rounding and one colluder of 50 cost beside a trusted server.
    assert 1.0 < made.noise_to_sensitivity / trusted.noise_to_sensitivity < 1.01


# Refusals


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sampling": "uniform"}, "sampling: .*the server must not know the cohort"),
        ({"sampling": "cyclic"}, "sampling: .*the server must not know the cohort"),
        ({"noise_multiplier": None}, "noise_multiplier: wanted a positive number"),
        ({"adaptive_clipping": AdaptiveClipping()}, "adaptive_clipping: wanted None under"),
        ({"clients": 2}, "at least 2 honest sites"),
        ({"colluding": -1}, "colluding"),
        ({"dim": 0}, "dim"),
    ],
)
def test_what_a_secure_sum_cannot_keep_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        learning(**changed)


def test_correlated_noise_is_refused() -> None:
    noise = correlated.InTime(topology=None, rounds=ROUNDS)
    with pytest.raises(ValueError, match=r"sampling: .*the server must not know the cohort"):
        learning(sampling="cyclic", noise=noise)


def test_other_lengths_than_those_it_was_made_for_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a model of length 4 \(combination\.dim\)"):
        learning(dim=4).init(contract_problem(), Key.seeded(1))
    with pytest.raises(ValueError, match="rounds: wanted at most 5"):
        learning().plan(ROUNDS + 1)
