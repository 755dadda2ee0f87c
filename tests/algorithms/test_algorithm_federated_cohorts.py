"""Who takes part in a round of federated learning, who drops out, and what a cohort costs."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from federated_parts import changed
from federated_problem import Clients, make_clients
from one_round import one_round

from dpmesh.algorithms import ClientUpdates, FederatedLearning, TrustedServer
from dpmesh.audit import alone, couple
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
        assert done.sent.messages == 10 + updates  # ten models go out; 2.5 return on average
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


class Pushing(Clients):
    """Every client moves by the clipping norm, whatever the model: to the side of its label."""

    def local_training(self, start, walks, *, step_size, radius):
        steps, (indptr, indices) = walks
        moves = np.zeros((len(steps) - 1, 1))
        active = np.diff(steps) > 0
        moves[active, 0] = 1e6 * self.labels[indices[indptr[steps[:-1][active]]]]
        return moves


def pushing(clients: int, *, target: float | None) -> Pushing:
    """All push to -1 but the first, which pushes to `target`, or has no records: is not there."""
    labels = np.full(clients, -1.0)
    indptr = np.arange(clients + 1)
    if target is None:
        indptr[1:] -= 1
    else:
        labels[0] = target
    return Pushing(np.ones((clients, 1)), labels, indptr)


@pytest.mark.parametrize("sampling", ["poisson", "uniform"])
def test_one_client_moves_the_sum_by_its_sensitivity_and_no_further(sampling) -> None:
    """All others move to the other side, where division by the realised size would show."""
    algorithm = FederatedLearning(
        ClientUpdates(clients=12, sampling_rate=0.5, clipping_norm=0.3, sampling=sampling, steps=3),
        noise_multiplier=1.0,
    )
    neighbor = pushing(12, target=None if sampling == "poisson" else -1.0)
    shown = couple(algorithm, pushing(12, target=1.0), neighbor, alone, rounds=8, key=Key.seeded(3))
    assert not shown.violated, shown
    reached = [m.distance / m.allowed for m in shown.movements if m.distance > 0]
    assert 0 < len(reached) < 8  # in some rounds the client takes no part
    assert reached == pytest.approx([1.0] * len(reached), rel=1e-6)


@pytest.mark.parametrize(
    "changed", [np.ndarray.tolist, np.asfortranarray, lambda moves: np.broadcast_to(moves, (6, 1))]
)
def test_moves_of_a_problem_of_ones_own_are_any_array_of_numbers(changed) -> None:
    """Such as a list, one by columns, or one that cannot be written to, as JAX has."""

    class Changed(Pushing):
        def local_training(self, start, walks, *, step_size, radius):
            moves = super().local_training(start, walks, step_size=step_size, radius=radius)
            return changed(moves)

    algorithm, key = (
        FederatedLearning(
            ClientUpdates(clients=6, sampling_rate=1.0, clipping_norm=0.3, steps=1),
            noise_multiplier=1.0,
        ),
        Key.seeded(0),
    )
    ours = pushing(6, target=1.0)
    start, cohort = algorithm.init(ours, key).w, np.arange(6)
    one, other = (
        algorithm.contribution.updates(start, cohort, 0, problem, key)
        for problem in (ours, Changed(**vars(ours)))
    )
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            lambda moves: np.tile(moves, (2, 1)),
            r"local_training: wanted updates of shape \(6, 1\), got \(12",
        ),
        (lambda moves: moves.astype(complex), "local_training: wanted an array of float32 or floa"),
    ],
)
def test_a_problem_of_ones_own_moves_each_client_once(changed, message) -> None:
    class Changed(Pushing):
        def local_training(self, *walk, **options):
            return changed(super().local_training(*walk, **options))

    problem, key = pushing(12, target=-1.0), Key.seeded(0)
    problem = Changed(problem.features, problem.labels, problem.indptr)
    algorithm = FederatedLearning(
        ClientUpdates(
            clients=12, sampling_rate=0.5, clipping_norm=1.0, sampling="uniform", steps=3
        ),
        noise_multiplier=2.0,
    )
    with pytest.raises(ValueError, match=message):
        one_round(algorithm, algorithm.init(problem, key), 0, problem, key)


@pytest.mark.parametrize("end", [np.nan, np.inf, -np.inf])
def test_training_that_ends_in_no_number_ends_no_run(end: float) -> None:
    """The client adds 0 to the sum, and the updates of the others stay as they are."""

    class Diverging(Pushing):
        def local_training(self, *walk, **options):
            moves = super().local_training(*walk, **options)
            moves[1] = end
            return moves

    ours, key = pushing(6, target=1.0), Key.seeded(0)
    contribution = ClientUpdates(
        clients=6, sampling_rate=1.0, clipping_norm=1.0, sampling="uniform", steps=3
    )
    algorithm = FederatedLearning(contribution, noise_multiplier=1.0)
    start, cohort = algorithm.init(ours, key).w, np.arange(6)
    expected = contribution.updates(start, cohort, 0, ours, key).copy()
    expected[1] = 0.0
    diverging = Diverging(ours.features, ours.labels, ours.indptr)
    updates = contribution.updates(start, cohort, 0, diverging, key)
    np.testing.assert_array_equal(updates, expected)


def test_a_round_is_divided_by_the_expected_size() -> None:
    """Without noise and with all clients alike, the model moves by realised / expected size."""
    algorithm = FederatedLearning(
        ClientUpdates(clients=50, sampling_rate=0.3, clipping_norm=1.0, steps=1),
        noise_multiplier=None,
    )
    problem = pushing(50, target=-1.0)
    key = Key.seeded(4)
    state = algorithm.init(problem, key)
    sizes = []
    for t in range(10):
        before = state.w
        state = one_round(algorithm, state, t, problem, key).state
        sizes.append(len(algorithm.contribution.cohort(t, key, None)))
        assert (state.w - before)[0, 0] == pytest.approx(-sizes[-1] / 15)
    assert len(set(sizes)) > 1
