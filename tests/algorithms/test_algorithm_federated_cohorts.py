"""Who takes part in a round of federated learning, who drops out, and what a cohort costs."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from federated_parts import changed
from federated_problem import Clients, make_clients
from one_round import one_round

from dpmesh.algorithms import ClientUpdates, FederatedLearning, TrustedServer
from dpmesh.keys import Key
from dpmesh.privacy import FixedSizeSampling, PoissonSampling


def run(algorithm, problem, rounds, key):
    state = algorithm.init(problem, key)
    for t in range(rounds):
        state = one_round(algorithm, state, t, problem, key).state
    return state


@pytest.mark.parametrize("sampling", ["poisson", "uniform"])
def test_cohorts_are_drawn_with_the_stated_probability(sampling) -> None:
    """Each client's count over T rounds is binomial; 6 standard errors: false alarm 1e-7 in all."""
    clients, rate, T = 40, 0.25, 4000
    algorithm = FederatedLearning(
        ClientUpdates(
            clients=clients, sampling_rate=rate, clipping_norm=1.0, sampling=sampling, epochs=1
        ),
        noise_multiplier=1.0,
    )
    key = Key.seeded(11)
    counts, sizes = np.zeros(clients), []
    for t in range(T):
        cohort = algorithm.contribution.cohort(t, key, None)
        assert (np.diff(cohort) > 0).all()
        counts[cohort] += 1
        sizes.append(len(cohort))
    error = np.sqrt(rate * (1 - rate) / T)
    assert np.abs(counts / T - rate).max() < 6 * error
    assert np.abs(counts / T - 1.3 * rate).min() > 6 * error  # the test has power
    if sampling == "uniform":
        assert set(sizes) == {10}
    else:
        assert np.var(sizes) == pytest.approx(clients * rate * (1 - rate), rel=6 * np.sqrt(2 / T))


@pytest.mark.parametrize("sampling", ["poisson", "uniform"])
def test_clients_drop_out_at_their_rate_and_independently(sampling) -> None:
    """Binomial counts over T rounds; 6 standard errors: false alarm 1e-6 in all."""
    clients, rate, T = 40, 0.7, 4000
    algorithm = FederatedLearning(
        ClientUpdates(
            clients=clients, sampling_rate=0.5, clipping_norm=1.0, sampling=sampling, epochs=1
        ),
        noise_multiplier=1.0,
        combination=TrustedServer(arrival_rate=rate),
    )
    key = Key.seeded(12)
    asked, arrived, pairs = np.zeros(clients), np.zeros(clients), 0
    for t in range(T):
        cohort = algorithm.contribution.cohort(t, key, None)
        some = algorithm.cohort(t, key, clients)
        assert set(some) <= set(cohort)
        assert (np.diff(some) > 0).all()
        asked[cohort] += 1
        arrived[some] += 1
        pairs += {0, 1} <= set(some)
    error = np.sqrt(rate * (1 - rate) / asked)
    assert (np.abs(arrived / asked - rate) < 6 * error).all()
    assert (np.abs(arrived / asked - 0.6) > 6 * error).all()  # the test has power
    both = rate**2 * (0.25 if sampling == "poisson" else 20 * 19 / (40 * 39))
    assert abs(pairs / T - both) < 6 * np.sqrt(both * (1 - both) / T)


@pytest.mark.parametrize("sampling", ["poisson", "uniform"])
def test_who_drops_out_changes_the_divisor_and_no_cost(sampling) -> None:
    usual = FederatedLearning(
        ClientUpdates(
            clients=20, sampling_rate=0.5, clipping_norm=0.3, sampling=sampling, epochs=1
        ),
        noise_multiplier=1.0,
    )
    failing = changed(usual, arrival_rate=0.25)
    assert failing.plan(4) == usual.plan(4)
    assert failing.expected_size == usual.expected_size / 4
    problem, key = make_clients([3] * 20, 4), Key.seeded(3)
    nobody = changed(usual, arrival_rate=1e-12)
    for algorithm, updates in ((failing, 3), (nobody, 1)):
        done = one_round(algorithm, algorithm.init(problem, key), 0, problem, key)
        assert done.sent.times == 10 + updates  # ten models go out; 2.5 return on average
        assert done.releases == [usual.release_of(0)]


@pytest.mark.parametrize("sampling", ["poisson", "uniform"])
def test_a_million_clients_cost_what_a_cohort_costs(sampling) -> None:
    """A population that is never stored: the records of a client are made from its number.

    Beyond the cohort only the draw of who takes part grows with it: three numbers a client at most.
    """

    class Population(Clients):
        nodes = 0

        def records_of(self, clients):
            return np.arange(len(clients) + 1) * 2, np.repeat(clients % 1000, 2)

    x = np.random.default_rng(0).normal(size=(1000, 8))
    problem = Population(x, np.sign(x[:, 0]), np.zeros(1, np.int64))
    peaks = []
    for problem.nodes in (10_000, 1_000_000):
        rate = 1000 / problem.nodes
        algorithm = FederatedLearning(
            ClientUpdates(
                clients=problem.nodes,
                sampling_rate=rate,
                clipping_norm=0.5,
                sampling=sampling,
                steps=2,
            ),
            noise_multiplier=1.0,
        )
        tracemalloc.start()
        state = run(algorithm, problem, 3, Key.seeded(0))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert state.w[0, 0] > 3 * np.abs(state.w[0, 1:]).max()
    assert peaks[1] - peaks[0] < 3 * 8 * 1_000_000


def test_sampling_is_in_the_events() -> None:
    poisson = FederatedLearning(
        ClientUpdates(clients=100, sampling_rate=0.1, clipping_norm=1.0, epochs=1),
        noise_multiplier=1.0,
    )
    assert poisson.plan(1).releases[0].sampling == PoissonSampling(0.1)
    trusted, secret = poisson.plan(1).assumptions
    assert trusted.startswith("the server is trusted")
    assert secret.endswith("stays secret")
    assert poisson.expected_size == pytest.approx(10)
    uniform = changed(poisson, sampling="uniform", sampling_rate=0.099)
    assert uniform.plan(1).releases[0].sampling == FixedSizeSampling(size=10, population=100)
    assert uniform.expected_size == 10
    assert uniform.sensitivity(0).bound == 2 * poisson.sensitivity(0).bound == 2.0
