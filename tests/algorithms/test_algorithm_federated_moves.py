"""How far one client moves a round's sum, and what a problem of one's own may return as moves."""

from __future__ import annotations

import numpy as np
import pytest
from federated_problem import Clients
from one_round import one_round

from dpmesh.algorithms import ClientUpdates, FederatedLearning
from dpmesh.audit import alone, couple
from dpmesh.keys import Key


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
        (lambda moves: moves * np.inf, "problem: wanted training that stays finite at a step"),
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
        noise_multiplier=1.0,
    )
    with pytest.raises(ValueError, match=message):
        one_round(algorithm, algorithm.init(problem, key), 0, problem, key)


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
