"""The theorem, from below and from above: couplings, exact linear instances, monotonicity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from view_systems import bound_of, recursion

from dpmesh.audit.linear_run import LinearRun
from dpmesh.kernels.views import Mixing, all_pairs, solve_pair, view_system, worst_pair


def _network(rng: np.random.Generator, nodes: int, rounds: int) -> list[np.ndarray]:
    """Random averages of pairs and of neighbours."""
    matrices = []
    for _ in range(rounds):
        order = rng.permutation(nodes)
        matrix = np.eye(nodes)
        for i, j in zip(order[::2], order[1::2], strict=False):
            matrix[np.ix_([i, j], [i, j])] = 0.5
        if rng.random() < 0.3:
            matrix = matrix @ (0.5 * (np.eye(nodes) + np.roll(np.eye(nodes), 1, axis=0)))
        matrices.append(matrix)
    return matrices


seeds = st.integers(0, 2**32 - 1)


@given(seed=seeds, scale=st.floats(0.0, 1.2))
@settings(max_examples=60, deadline=None)
def test_any_feasible_shift_is_a_bound(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    nodes, rounds = int(rng.integers(2, 6)), int(rng.integers(2, 8))
    matrices, noise = _network(rng, nodes, rounds), rng.uniform(0.5, 2, (rounds, nodes))
    moves, own = rng.uniform(0.1, 2, rounds), float(rng.choice([0.0, 0.6]))
    mixings = [Mixing(t, t, matrix) for t, matrix in enumerate(matrices)]
    system = view_system(mixings, noise=noise, fresh=moves, nodes=nodes, own=own)
    found = solve_pair(system, [0], 1, gap=1e-6)
    seen = system.seen([0]).reshape(rounds, nodes)
    shifts = np.zeros((rounds, nodes))
    for t in range(rounds):  # some share of what could be absorbed later
        z = recursion(matrices, shifts, moves, 1, own)
        shifts[t] = np.where(seen[t], 0, scale * rng.random(nodes) * z[t])
    z = recursion(matrices, shifts, moves, 1, own)
    bound = bound_of(z, shifts, noise)
    assert found.mu_at_least <= bound * (1 + 1e-9)
    assert found.mu <= bound * (1 + 1e-5) or found.mu <= system.everybody(1) * (1 + 1e-12)


@given(seed=seeds)
@settings(max_examples=60, deadline=None)
def test_no_linear_run_exceeds_the_bound(seed: int) -> None:
    """Quadratic problems: steps that contract by node and round, by a Kalman filter's exact law."""
    rng = np.random.default_rng(seed)
    nodes, rounds = int(rng.integers(3, 6)), int(rng.integers(3, 8))
    matrices, moves = _network(rng, nodes, rounds), rng.uniform(0.1, 2, rounds)
    rho, noise = float(rng.choice([0.8, 1.0, 1.2])), rng.uniform(0.5, 2, rounds)
    mixings = [Mixing(t, t, matrix, rho) for t, matrix in enumerate(matrices)]
    system = view_system(mixings, noise=noise, fresh=moves, nodes=nodes)
    found = solve_pair(system, [0], 1, gap=1e-4)
    seen = system.seen([0]).reshape(rounds, nodes)
    for contractions in (
        rng.uniform(-rho, rho, (rounds, nodes)),
        rng.choice([0.0, rho], (rounds, nodes)),
        np.where(np.arange(nodes) == 1, rho, 0.0) * np.ones((rounds, 1)),
    ):
        run = LinearRun(
            matrices=matrices, contractions=contractions, moves=moves, noise=noise, target=1
        )
        assert run.mu(seen) <= found.mu * (1 + 1e-9)


def test_the_bound_is_nearly_reached_on_small_networks() -> None:
    """By linear runs that a local search finds: to 5% in the median, to 15% on each network."""
    shares = []
    for seed in range(24):
        rng = np.random.default_rng(seed)
        nodes, rounds = int(rng.integers(3, 6)), int(rng.integers(3, 7))
        matrices, moves = _network(rng, nodes, rounds), rng.uniform(0.1, 2, rounds)
        mixings = [Mixing(t, t, matrix) for t, matrix in enumerate(matrices)]
        system = view_system(mixings, noise=np.ones(rounds), fresh=moves, nodes=nodes)
        found = solve_pair(system, [0], 1, gap=1e-6).mu
        seen = system.seen([0]).reshape(rounds, nodes)
        if found > 1e-6:
            run = LinearRun(
                matrices=matrices,
                contractions=np.ones((rounds, nodes)),
                moves=moves,
                noise=np.ones(rounds),
                target=1,
            )
            shares.append(_worst_found(run, seen) / found)
    assert len(shares) >= 20
    assert 1 / 1.05 < np.median(shares) <= 1 + 1e-9
    assert min(shares) > 1 / 1.15


def _worst_found(run: LinearRun, seen: np.ndarray) -> float:
    """The largest mu that contracting one step after another finds."""
    worst, better = run.mu(seen), True
    while better:
        better = False
        for place in np.ndindex(*run.contractions.shape):
            for contraction in (0.0, 0.5, 1.0):
                other = run.contractions.copy()
                other[place] = contraction
                tried = replace(run, contractions=other)
                if (mu := tried.mu(seen)) > worst * (1 + 1e-9):
                    run, worst, better = tried, mu, True
    return worst


@given(seed=seeds)
@settings(max_examples=40, deadline=None)
def test_coupled_runs_send_the_observer_equal_messages(seed: int) -> None:
    """The proof itself, on contracting steps that are not linear."""
    rng = np.random.default_rng(seed)
    nodes, rounds, dim, target = 5, 6, 3, 1
    matrices = _network(rng, nodes, rounds)
    offsets = rng.normal(size=(nodes, dim))
    moves = rng.uniform(0.1, 1, rounds)
    system = view_system(
        [Mixing(t, t, matrix) for t, matrix in enumerate(matrices)],
        noise=np.ones(rounds),
        fresh=moves,
        nodes=nodes,
    )
    seen = system.seen([0]).reshape(rounds, nodes)
    shifts = np.zeros((rounds, nodes))
    for t in range(rounds):
        z = recursion(matrices, shifts, moves, target)
        shifts[t] = np.where(seen[t], 0, rng.random(nodes) * z[t])
    z = recursion(matrices, shifts, moves, target)
    x, y = np.zeros((2, nodes, dim))
    for t in range(rounds):
        direction = rng.normal(size=dim)
        x[target] += moves[t] * direction / np.linalg.norm(direction)
        noise, apart = rng.normal(size=(nodes, dim)), x - y
        length = np.linalg.norm(apart, axis=1)
        assert (length <= z[t] + 1e-12).all()
        kept = np.maximum(0, 1 - shifts[t] / np.where(length > 0, length, 1))
        absorbed = apart * kept[:, None]
        assert (np.linalg.norm(absorbed, axis=1) <= np.maximum(0, z[t] - shifts[t]) + 1e-12).all()
        sent, sent_too = x + noise, y + noise + absorbed
        np.testing.assert_allclose(sent[seen[t]], sent_too[seen[t]], rtol=0, atol=1e-12)
        mixed = matrices[t] @ sent, matrices[t] @ sent_too
        x, y = (b - np.tanh(b + offsets) for b in mixed)  # nonexpansive: slope in [0, 1]


@given(seed=seeds)
@settings(max_examples=30, deadline=None)
def test_who_sees_more_learns_more_and_members_add_up(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, rounds = 6, 8
    mixings = [Mixing(t, t, matrix) for t, matrix in enumerate(_network(rng, nodes, rounds))]
    moves = rng.uniform(0.1, 1, rounds)
    system = view_system(mixings, noise=np.ones(rounds), fresh=moves, nodes=nodes)
    alone, other = (solve_pair(system, [v], 5, gap=1e-6).mu for v in (0, 1))
    both = solve_pair(system, [0, 1], 5, gap=1e-6).mu
    assert max(alone, other) <= both * (1 + 1e-5) + 1e-9
    assert both <= np.hypot(alone, other) * (1 + 1e-5) + 1e-9
    noisier = view_system(mixings, noise=2 * np.ones(rounds), fresh=moves, nodes=nodes)
    assert solve_pair(noisier, [0], 5, gap=1e-6).mu == pytest.approx(alone / 2, rel=1e-5)
    less = view_system(mixings[:-1], noise=np.ones(rounds - 1), fresh=moves[:-1], nodes=nodes)
    assert solve_pair(less, [0], 5, gap=1e-6).mu <= alone * (1 + 1e-5) + 1e-9


@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_the_worst_pair_is_the_worst_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, rounds = 6, 7
    mixings = [Mixing(t, t, matrix) for t, matrix in enumerate(_network(rng, nodes, rounds))]
    system = view_system(mixings, noise=np.ones(rounds), fresh=np.ones(rounds), nodes=nodes)
    observers = [(v,) for v in range(nodes)]
    pairs = all_pairs(observers, nodes)
    worst = worst_pair(system, observers, pairs, nodes * rounds, gap=1e-6)
    each = [solve_pair(system, [v], u, gap=1e-6).mu for v, u in pairs]
    assert worst is not None
    assert worst.mu == pytest.approx(max(each), rel=1e-5)
