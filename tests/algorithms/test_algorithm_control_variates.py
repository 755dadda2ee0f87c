"""SCAFFOLD under differential privacy: its twin in loops, and what a client moves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from faulty_federated import ControlWithoutNoise, CorrectionAfterClipping, with_fault
from federated_parts import changed
from federated_problem import Clients, make_clients
from one_round import one_round
from scipy.stats import norm
from twin_federated import epoch_orders, gradient, shorten

from dpmesh import kernels
from dpmesh._privacy_types import Released
from dpmesh.algorithms import ClientUpdates, FederatedLearning, SecureAggregation
from dpmesh.audit import alone, couple
from dpmesh.keys import Key, Purpose

ALGORITHM = FederatedLearning(
    ClientUpdates(
        clients=6,
        sampling_rate=0.5,
        clipping_norm=0.4,
        batch_size=2,
        steps=3,
        step_size=0.7,
        clients_at_once=2,
        control_variates=True,
    ),
    noise_multiplier=0.3,
)
SIZES = [3, 7, 2, 0, 5, 4]


@dataclass
class Corrected(Clients):
    """Clients whose training takes a correction of each gradient, in plain numpy."""

    def local_training(self, start, walks, *, step_size, radius, correction=None):
        updates = np.zeros((len(walks.steps) - 1, start.shape[1]))
        correction = np.zeros_like(updates) if correction is None else correction
        indptr, indices = walks.batches
        for client, update in enumerate(updates):
            for step in range(walks.steps[client], walks.steps[client + 1]):
                records = indices[indptr[step] : indptr[step + 1]]
                batch = [(self.features[r], self.labels[r]) for r in records]
                g = gradient(start[0] + update, batch, self.weight_decay) + correction[client]
                update[:] = shorten(update - step_size * g, radius)
        return updates


def corrected(*, dim=3, seed=0):
    return Corrected(**vars(make_clients(SIZES, dim, weight_decay=0.1, seed=seed)))


def run(algorithm, problem, rounds, key):
    state = algorithm.init(problem, key)
    for t in range(rounds):
        state = one_round(algorithm, state, t, problem, key).state
    return state


@pytest.mark.parametrize("sampling", ["poisson", "cyclic"])
@pytest.mark.parametrize("arrival_rate", [1.0, 0.6])
def test_equals_its_twin(sampling, arrival_rate) -> None:
    """Option II of Karimireddy et al., Algorithm 1, whose lines stand beside the code."""
    problem, key, dim, T = corrected(), Key.seeded(7), 3, 5
    algorithm = changed(ALGORITHM, sampling=sampling, arrival_rate=arrival_rate)
    N, K, L, eta, S = 6, 3, 0.4, 0.7, 3 * arrival_rate
    x, c, own = np.zeros(dim), np.zeros(dim), np.zeros((N, dim))
    for t in range(T):
        total = np.zeros(dim)
        for j in algorithm.cohort(t, key, 6):
            records = list(range(problem.indptr[j], problem.indptr[j + 1]))
            coins = kernels.uniform(
                (1, max(1, K * len(records))), key.stream(Purpose.BATCHES, t), nodes=[j]
            )[0]
            orders = epoch_orders(coins, records, K)
            batches = [order[i : i + 2] for order in orders for i in range(0, len(order), 2)]
            y = x
            for batch in batches[:K]:
                example = [(problem.features[r], problem.labels[r]) for r in batch]
                y = y - eta * (gradient(y, example, 0.1) - own[j] + c)  # y_i <- y_i - eta_l (..)
                y = x + shorten(y - x, L)
            own[j] = own[j] - c + (x - y) / (K * eta)  # (ii) c_i^+
            total = total + y - x
        total = total + 0.3 * L * kernels.gaussian(dim, 1.0, key.stream(Purpose.NOISE, t))
        c = c - S / N * c - total / (N * K * eta)  # c <- c + 1/N sum (c_i^+ - c_i), with the noise
        x = x + total / S
    state = run(algorithm, problem, T, key)
    np.testing.assert_allclose(state.w[0], x, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(state.control[0], c, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(state.controls, own, rtol=1e-10, atol=1e-12)


def test_without_noise_the_servers_control_is_the_mean_of_the_clients() -> None:
    """Though no client sends its own: what the paper sums follows from the updates."""
    quiet = changed(ALGORITHM, sampling_rate=1.0, noise_multiplier=None)
    state = run(quiet, corrected(), 4, Key.seeded(1))
    assert np.abs(state.controls).max() > 0.01
    np.testing.assert_allclose(state.control[0], state.controls.mean(axis=0), atol=1e-12)


def neighbours(algorithm):
    """Two problems that differ in client 1: it has extreme records, or none."""
    there = corrected(seed=2)
    there.features[3:10] *= 100
    without = np.array([0, 3, 3, 5, 5, 10, 14])
    keep = np.r_[0:3, 10:21]
    gone = Corrected(there.features[keep], there.labels[keep], without, there.weight_decay)
    return couple(algorithm, there, gone, alone, rounds=8, key=Key.seeded(3))


def test_one_client_moves_a_release_by_the_clipping_norm_and_no_further() -> None:
    found = neighbours(ALGORITHM)
    assert not found.violated, found
    reached = [m.distance / m.allowed for m in found.movements if m.distance > 0]
    assert 2 < len(reached) < 8  # a client of control 0 and others, in some of the rounds
    assert reached == pytest.approx([1.0] * len(reached), rel=1e-6)


@pytest.mark.parametrize("fault", [CorrectionAfterClipping, ControlWithoutNoise])
def test_an_audit_finds_what_is_not_clipped_or_has_no_noise(fault) -> None:
    assert neighbours(with_fault(fault, ALGORITHM)).violated


@pytest.mark.parametrize("moves", [(-1.0, 1.0), (1.0, -1.0), (0.0, 1.0), (1.0, 1.0)])
def test_moves_that_depend_on_earlier_coins_cost_no_more_than_the_plan(moves) -> None:
    """Two rounds, exactly: the client's second move knows whether it took part in the first."""
    q, z, epsilon = 0.3, 1.0, 0.5
    algorithm = changed(ALGORITHM, sampling_rate=q, clipping_norm=1.0, noise_multiplier=z)
    x = np.linspace(-8, 9, 1201)
    without, full = norm.pdf(x, 0, z), norm.pdf(x, 1, z)
    idle, active = ((1 - q) * without + q * norm.pdf(x, move, z) for move in moves)
    present = (1 - q) * np.outer(without, idle) + q * np.outer(full, active)
    absent = np.outer(without, without)
    deltas = [
        np.maximum(one - np.exp(epsilon) * other, 0).sum() * (x[1] - x[0]) ** 2
        for one, other in ((present, absent), (absent, present))
    ]
    planned = algorithm.plan(2).cost(max(deltas)).epsilon
    assert planned >= epsilon * (1 - 1e-3)
    if moves == (1.0, 1.0):  # the worst of all: it knows nothing
        assert planned == pytest.approx(epsilon, rel=1e-3)


def test_what_is_not_proved_or_not_possible_is_refused() -> None:
    for changes, message in (
        ({"sampling": "uniform"}, "sampling: wanted another one: cohorts"),
        ({"steps": None, "epochs": 1}, "steps: wanted a number with control_var"),
        (
            {"combination": SecureAggregation(dim=3, rounds=5)},
            "control_variates: wanted False under a secure sum",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            changed(ALGORITHM, **changes)
    with pytest.raises(ValueError, match="control_variates: wanted none: local_training of a Cl"):
        ALGORITHM.init(make_clients(SIZES, 3), Key.seeded(0))
    start = ALGORITHM.start_from(Released(np.zeros((1, 3))))
    still = changed(ALGORITHM, local_step_size=lambda t: 0.0)
    with pytest.raises(ValueError, match="step_size: wanted "):
        one_round(still, start, 0, corrected(), Key.seeded(0))
