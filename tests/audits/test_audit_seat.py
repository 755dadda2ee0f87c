"""The audit from one node's seat: right claims pass, planted mistakes of accounting are flagged."""

from __future__ import annotations

import numpy as np
import pytest
from view_systems import metropolis

from dpmesh.kernels.views import Mixing, solve_pair, view_system
from dpmesh.privacy.audit.seat import LinearRun, Seen, audit_from_seat

NODES, ROUNDS = 8, 10
RING = metropolis(NODES, [[i, (i + 1) % NODES] for i in range(NODES)])
MOVES = np.array([0.0] + [1.0] * (ROUNDS - 1))


def _run(target: int, *, others_forget: bool = False) -> LinearRun:
    contractions = np.ones((ROUNDS, NODES))
    if others_forget:
        contractions[:] = 0.0
        contractions[:, target] = 1.0
    return LinearRun(
        matrices=[RING] * ROUNDS,
        contractions=contractions,
        moves=MOVES,
        noise=np.ones(ROUNDS),
        target=target,
    )


def _seen(*observers: int) -> Seen:
    seen = np.zeros((ROUNDS, NODES), dtype=bool)
    for v in observers:
        seen[:, RING[v] > 0] = True
    return seen


def _proved(observers: tuple[int, ...], target: int) -> float:
    mixings = [Mixing(t, t, RING) for t in range(ROUNDS)]
    system = view_system(mixings, noise=np.ones(ROUNDS), fresh=MOVES, nodes=NODES)
    return solve_pair(system, observers, target).mu


def _flagged(run: LinearRun, seen: Seen, claim: float) -> bool:
    return audit_from_seat(run, seen, claim, generator=np.random.default_rng(5)).violated


def test_right_claims_pass() -> None:
    assert not _flagged(_run(2), _seen(0), _proved((0,), 2))
    assert not _flagged(_run(1, others_forget=True), _seen(0), _proved((0,), 1))


def test_a_neighbour_whose_messages_were_left_out_is_found() -> None:
    assert _flagged(_run(1), _seen(0), _proved((0,), 2))


def test_fixed_inputs_are_found() -> None:
    """The exact mu with every other node's step taken as given is no bound."""
    claim = _run(1).mu(_seen(0))
    assert claim < _run(1, others_forget=True).mu(_seen(0))
    assert _flagged(_run(1, others_forget=True), _seen(0), claim)


@pytest.mark.parametrize("second", [1, 4])
def test_a_forgotten_second_member_is_found(second: int) -> None:
    assert _flagged(_run(2), _seen(0, second), _proved((0,), 2))


def test_forgotten_final_messages_are_found() -> None:
    seen = _seen(0)
    seen[-1] = True
    assert _flagged(_run(4), seen, _proved((0,), 4))


def test_simulated_messages_follow_the_law() -> None:
    run, seen = _run(2), _seen(0, 3)
    runs = 40_000
    moved, still = (
        run.messages(runs, world, np.random.default_rng(1))[:, seen.reshape(-1)]
        for world in (True, False)
    )
    np.testing.assert_allclose(moved.mean(0) - still.mean(0), run.shift(seen), atol=1e-9)
    spread = run.covariance(seen)
    np.testing.assert_allclose(np.cov(still.T), spread, atol=6 * spread.max() / np.sqrt(runs))
