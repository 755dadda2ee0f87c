"""What correlated noise costs: against brute force, for parts of runs, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_back import planned_factors

import dpmesh as dm
from dpmesh import topology
from dpmesh.accounting import gdp_mu
from dpmesh.noise import correlated

SEEDS = st.integers(0, 2**32 - 1)


def random_release(seed: int, *, changing: bool) -> tuple[correlated.CorrelatedGaussian, tuple]:
    """A random C, graphs, amplitudes and coalition; graphs may be disconnected."""
    rng = np.random.default_rng(seed)
    nodes, rounds = int(rng.integers(3, 7)), int(rng.integers(2, 6))
    bands = int(rng.integers(1, rounds + 1))
    matrix = np.tril(rng.normal(size=(rounds, rounds)))
    matrix[np.subtract.outer(range(rounds), range(rounds)) >= bands] = 0
    np.fill_diagonal(matrix, rng.uniform(0.5, 2, rounds))
    own, shared = rng.uniform(0.3, 1), rng.uniform(0, 3)
    every = [(i, j) for i in range(nodes) for j in range(i)]
    size = int(rng.integers(0, nodes - 1))

    def secrets() -> correlated.Secrets:
        kept = [pair for pair in every if rng.random() < 0.6]
        return correlated.Secrets(nodes=nodes, pairs=kept, own=own, shared=shared, coalition=size)

    release = correlated.CorrelatedGaussian(
        noise_to_sensitivity=rng.uniform(0.5, 3),
        factorization=correlated.from_matrix(matrix),
        sensitivities=rng.uniform(0.2, 2, rounds),
        secrets=[secrets() for _ in range(rounds)] if changing else secrets(),
    )
    return release, tuple(rng.choice(nodes, size, replace=False).tolist())


def by_force(release: correlated.CorrelatedGaussian, coalition: tuple[int, ...]) -> float:
    """The worst shift of one record in everything seen, from the covariance of all messages."""
    nodes, rounds = release.secrets_of(0).nodes, release.rounds
    factors = planned_factors(release, rounds, nodes)
    unknown = []
    for t in range(rounds):
        unknown += [u not in coalition for u in range(nodes)]
        unknown += [not {i, j} & set(coalition) for i, j in release.secrets_of(t).pairs.tolist()]
    known = factors[:, ~np.array(unknown)]
    whole = factors @ factors.T
    if known.size:  # what the coalition knows is subtracted
        whole = whole - known @ known.T
    honest = np.tile([u not in coalition for u in range(nodes)], rounds)
    inverse = np.linalg.inv(whole[np.ix_(honest, honest)])
    shifts = np.diag(np.repeat(release.sensitivities, nodes))[:, honest]
    return float(np.sqrt(max(shift @ inverse @ shift for shift in shifts)))


@given(SEEDS, st.booleans())
def test_the_plan_is_what_everything_seen_costs(seed: int, changing: bool) -> None:
    release, coalition = random_release(seed, changing=changing)
    assert release.mu_of(coalition) == pytest.approx(by_force(release, coalition), rel=1e-8)
    assert release.mu >= release.mu_of(coalition) * (1 - 1e-9)


@given(SEEDS)
def test_uses_under_changing_graphs_cost_what_everything_seen_costs(seed: int) -> None:
    """Exact where their columns do not overlap, for all coalitions of a size; else a bound."""
    release, coalition = random_release(seed, changing=True)
    rounds, nodes = release.rounds, release.secrets[0].nodes
    single = release.mus([[t] for t in range(rounds)], len(coalition))
    assert max(single) == pytest.approx(release.mu, rel=1e-9)
    alone = np.array([1 / each.own for each in release.secrets])
    columns = release.factorization.matrix()
    wanted = np.linalg.norm(columns * alone[:, None], axis=0) / release.noise_to_sensitivity
    np.testing.assert_allclose(release.mus([[t] for t in range(rounds)], None), wanted)
    assert release.mu_against_partners == pytest.approx(wanted.max())
    used = (0, rounds - 1)
    (together,) = release.mus([used], 0)
    factors = planned_factors(release, rounds, nodes)
    inverse = np.linalg.inv(factors @ factors.T)
    for u, sign in [(u, sign) for u in range(nodes) for sign in (1, -1)]:
        shift = np.zeros((rounds, nodes))
        shift[used, u] = np.asarray(release.sensitivities)[list(used)] * [1, sign]
        assert shift.ravel() @ inverse @ shift.ravel() <= together**2 * (1 + 1e-8)


def test_secrets_of_changing_graphs_keep_the_claim_of_independent_noise() -> None:
    """Matched in pairs, a node has one partner: own noise of at least 1 / sqrt(2)."""
    matched = topology.random_matchings(8, key=dm.Key.seeded(1))
    noise = correlated.BetweenPartners(topology=matched, rounds=5)
    release = noise.release(2.0, np.ones(4))
    assert 1 / 2 - 1e-9 < release.mu <= 1 / 2
    assert all(each.own > 1 / np.sqrt(2) for each in release.secrets)
    with pytest.raises(ValueError, match="one at least leaves every node an honest partner"):
        replace(noise, coalition=1).release(2.0, np.ones(4))
    everybody = replace(noise, coalition=1, partners=topology.complete(8))
    assert everybody.release(2.0, np.ones(4)).mu <= 1 / 2
    halves = topology.edge_dropping(topology.ring(8), 0.5, key=dm.Key.seeded(2))
    mixed = replace(noise, topology=halves, rounds=12).release(2.0, np.ones(11))
    assert {len(each.pairs) > 0 for each in mixed.secrets} == {True, False}
    assert mixed.mu <= 1 / 2


@given(SEEDS)
def test_a_larger_coalition_knows_more(seed: int) -> None:
    release, coalition = random_release(seed, changing=False)
    if coalition:
        assert release.mu_of(coalition[1:]) <= release.mu * (1 + 1e-9)


@pytest.mark.slow
@given(SEEDS, st.booleans())
def test_a_run_that_stops_early_costs_no_more(seed: int, changing: bool) -> None:
    release, _ = random_release(seed, changing=changing)
    costs = [release.prefix(rounds).mu for rounds in range(1, release.rounds + 1)]
    assert costs == sorted(costs)
    assert costs[-1] == pytest.approx(release.mu)


@given(SEEDS, st.integers(1, 4), st.integers(1, 5))
def test_no_signs_and_no_pattern_exceed_the_sensitivity(seed: int, uses: int, apart: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = np.tril(rng.normal(size=(6, 6)))
    np.fill_diagonal(matrix, 1.0)
    use = correlated.Participation(uses=uses, separation=apart)
    charged = correlated.from_matrix(matrix, participation=use).sensitivity
    for _ in range(20):
        rounds = np.cumsum(rng.integers(apart, apart + 3, uses)) - apart
        vectors = rng.normal(size=(len(rounds[rounds < 6]), 3))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        assert np.linalg.norm(matrix[:, rounds[rounds < 6]] @ vectors) <= charged * (1 + 1e-12)


def test_epochs_are_separated_uses_of_the_worst_pattern() -> None:
    matrix = np.tril(np.random.default_rng(0).uniform(size=(9, 9))) + np.eye(9)
    use = correlated.Participation(uses=3, separation=3, epochs=True)
    columns = [matrix[:, j::3].sum(axis=1) for j in range(3)]
    wanted = max(np.linalg.norm(column) for column in columns)
    assert correlated.from_matrix(matrix, participation=use).sensitivity == pytest.approx(wanted)


def test_independent_noise_is_charged_as_today() -> None:
    use = correlated.Participation(uses=16)
    identity = correlated.from_matrix(np.eye(16), participation=use)
    release = correlated.CorrelatedGaussian(noise_to_sensitivity=5.0, factorization=identity)
    assert release.mu == pytest.approx(gdp_mu(5.0, count=16))


@pytest.mark.parametrize(
    ("graph", "least"),
    [
        (topology.ring(16), [0.25, 0.26, 1, 1, 1]),
        (topology.torus(4, 4), [0.25, 0.26, 0.27, 0.28, 1]),
        (topology.complete(16), [0.25, 0.26, 0.27, 0.28, 0.29]),
    ],
    ids=["ring", "torus", "complete"],
)
def test_the_least_own_noise_of_a_graph(graph: topology.Static, least: list[float]) -> None:
    links = correlated.links(graph.mixing_matrix)
    found = [correlated.least_own(16, links, coalition=c) for c in range(5)]
    np.testing.assert_allclose(found, least, atol=0.005)


@pytest.mark.parametrize(
    ("coalition", "own", "shared"), [(0, 0.30, 0.921), (1, 0.31, 1.07), (2, 0.32, 1.34)]
)
def test_amplitudes_on_a_torus(coalition: int, own: float, shared: float) -> None:
    matrix = topology.torus(4, 4).mixing_matrix
    found = correlated.partner_secrets(matrix, rounds=22, coalition=coalition, own=own)
    assert shared * 0.995 < found.shared <= shared
    assert 1 - 1e-10 < found.mu <= 1


def test_the_best_amplitudes_are_no_noisier_than_others_on_the_curve() -> None:
    matrix = topology.torus(4, 4).mixing_matrix

    def noise(own: float | None) -> float:
        found = correlated.partner_secrets(matrix, rounds=22, mixings=3, coalition=1, own=own)
        return correlated.gossip(matrix, 22, mixings=3, covariance=found.covariance).trace()

    assert all(noise(None) <= noise(own) * (1 + 1e-9) for own in (0.27, 0.31, 0.4, 0.6, 1.0))


def test_a_changing_network_averages_to_the_static_one() -> None:
    matrix = topology.ring(5).mixing_matrix
    s = np.linspace(1, 2, 6)
    between = np.diag(np.arange(1.0, 6.0))
    static = correlated.gossip(matrix, 6, mixings=2, sensitivities=s, covariance=between)
    average = correlated.average_matrix(
        [[matrix] * 6] * 2, mixings=2, sensitivities=s, covariance=between
    )
    np.testing.assert_allclose(average, static.matrix(), rtol=1e-9)
    by_round = correlated.average_matrix(
        [[matrix] * 6], mixings=2, sensitivities=s, covariance=np.stack([between] * 6)
    )
    np.testing.assert_allclose(by_round, static.matrix(), rtol=1e-9)


@pytest.mark.parametrize("shape", [(4, 5, 5), (6, 4, 4), (1, 5, 5), (4, 4)])
def test_covariances_of_other_rounds_or_nodes_are_refused(shape: tuple[int, ...]) -> None:
    networks = [[topology.ring(5).mixing_matrix] * 6]
    with pytest.raises(ValueError, match="covariance: wanted shape"):
        correlated.average_matrix(networks, covariance=np.ones(shape))


@pytest.mark.parametrize("varying", [False, True])
def test_toeplitz_is_between_the_square_root_and_the_bands(varying: bool) -> None:
    s = 1 / np.sqrt(np.arange(1, 47)) if varying else 1.0
    objective = correlated.gossip(topology.torus(4, 4).mixing_matrix, 46, sensitivities=s)
    gram = objective.matrix()
    noises = [
        correlated.factorize(objective, bands=16, method=method).objective(gram)
        for method in ("optimal", "toeplitz", "square_root")
    ]
    assert noises == sorted(noises)
    assert noises[-1] < objective.trace() / 2


def test_rows_of_another_sensitivity_than_planned_are_refused() -> None:
    noise = correlated.InTime(topology=topology.ring(4), rounds=3)
    plan = dm.OnlineLearning(epsilon=2.0, delta=1e-5, noise=noise).plan(3)
    *others, last = plan.releases
    longer = replace(last.sensitivity, bound=1.01 * last.sensitivity.bound)
    with pytest.raises(ValueError, match="as the noise is planned"):
        plan.with_releases((*others, replace(last, sensitivity=longer))).cost(1e-5)


def test_secrets_are_left_out_where_c_is_chosen() -> None:
    """They cancel in the network's average, whose noise a C that heeds them would not remove."""
    network, ones = topology.torus(4, 4), (1.0,) * 21
    strategy = correlated.Both(topology=network, rounds=22, mixings=5)
    secrets = strategy.secrets(ones)
    heeding = correlated.factorize(strategy.objective(ones, secrets.covariance))
    chosen = strategy.release(1.0, ones).factorization
    for_average = correlated.server(21).matrix()
    assert chosen.objective(for_average) < 0.9 * heeding.objective(for_average)


def test_factorizations_are_kept() -> None:
    objective = correlated.server(50)
    assert correlated.factorize(objective) is correlated.factorize(correlated.server(50))


def test_arguments_that_do_not_fit_are_refused() -> None:
    ring = topology.ring(16).mixing_matrix
    with pytest.raises(ValueError, match="partners all collude"):
        correlated.partner_secrets(ring, rounds=5, coalition=2)
    with pytest.raises(ValueError, match="no secrets are enough"):
        correlated.partner_secrets(ring, rounds=5, own=0.25)
    with pytest.raises(ValueError, match="lower-triangular"):
        correlated.from_matrix([[1.0, 1.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match="every coalition must be tried"):
        _ = correlated.Secrets(
            nodes=64, pairs=[(i, (i + 1) % 64) for i in range(64)], own=1, shared=1, coalition=8
        ).mu
    use = correlated.Participation(uses=3, separation=2)
    with pytest.raises(ValueError, match="bands: wanted at most 2"):
        correlated.factorize(correlated.server(8), participation=use)
    with pytest.raises(ValueError, match="too hard to find"):
        _ = correlated.from_matrix(
            np.tril(np.random.default_rng(0).normal(size=(60, 60))) + 9 * np.eye(60),
            participation=correlated.Participation(uses=30, separation=2),
        ).sensitivity
    with pytest.raises(ValueError, match="sensitivities: wanted finite numbers greater than 0"):
        correlated.server(3, sensitivities=[1, 0, 1])


@pytest.mark.parametrize("shared", [1e3, 1e5, 1e8])
def test_large_secrets_do_not_hide_the_mean(shared: float) -> None:
    """Rounding leaves 1e-16 of the Laplacian's eigenvalue of 0, which is no noise."""
    nodes = 300
    own = 1.2 / np.sqrt(nodes)
    secrets = correlated.Secrets(
        nodes=nodes,
        pairs=correlated.links(topology.ring(nodes).mixing_matrix),
        own=own,
        shared=shared,
    )
    least = 1 / (own * np.sqrt(nodes))
    assert secrets.mu >= least
    assert secrets.mu_of() >= least
