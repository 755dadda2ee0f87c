"""Correlated noise on a grid: what it costs, what a run sends, and mistakes that audits find."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from read_back import read_back_on_grid

import dpmesh as dm
from dpmesh import kernels
from dpmesh.accounting import gdp_delta
from dpmesh.accounting.discrete import FINE, SMOOTHING
from dpmesh.audit import couple
from dpmesh.audit.transcript import alone, record
from dpmesh.keys import Purpose
from dpmesh.noise import correlated
from dpmesh.noise.correlated import sampler
from dpmesh.noise.correlated.lattice import widening
from dpmesh.privacy import views

NODES, ROUNDS, DELTA, GRID, KEY = 4, 6, 1e-5, 2.0**-8, dm.Key.seeded(2)
RING = dm.topology.ring(NODES)
TIME = correlated.InTime(topology=RING, rounds=ROUNDS, grid=GRID)
BOTH = correlated.Both(topology=RING, rounds=ROUNDS, coalition=1, mixings=2, grid=GRID)
PARTNERS = correlated.BetweenPartners(topology=RING, rounds=ROUNDS, grid=GRID)


def online(noise: Any) -> dm.OnlineLearning:
    settings = {"epsilon": 1.0, "delta": DELTA, "step_size": 0.3, "projection": "mixture"}
    return dm.OnlineLearning(**settings, noise=noise)


def problem(dim: int = 30) -> dm.LinearProblem:
    rows = np.random.default_rng(1).normal(size=(NODES * ROUNDS, dim))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    train = dm.Dataset(rows, np.where(rows[:, 0] > 0, 1, -1))
    return dm.LinearProblem(train, np.split(np.arange(len(rows)), NODES), "logistic")


def sent_by(algorithm: Any, first: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """What a run released from its first noisy round on, and what it released that of."""
    passages = record(algorithm, problem(), alone, rounds=ROUNDS, key=KEY).passages[first:]
    return tuple(np.stack([getattr(p, name) for p in passages]) for name in ("noisy", "inside"))


def read(algorithm: Any, sent: Any, first: int = 1) -> list[str]:
    """What the audit finds in it, beside the plan that the noise should follow."""
    joint = algorithm.release_of(first).mechanism.joint
    plan = correlated.CorrelatedNoise(release=joint, first_round=first)
    return read_back_on_grid(*sent, KEY, plan)


@pytest.mark.parametrize("noise", [TIME, BOTH, PARTNERS], ids=["in time", "both", "partners"])
def test_a_run_sends_whole_numbers_of_steps_and_costs_its_epsilon(noise: Any) -> None:
    algorithm = online(noise)
    assert read(algorithm, sent_by(algorithm)) == []
    run = dm.simulate(algorithm, problem(), RING, rounds=ROUNDS, key=KEY, delta=DELTA)
    assert run.ledger == algorithm.plan(ROUNDS)
    view = views.EverybodyButPartners(coalition=noise.coalition if noise is not TIME else 0)
    cost = run.ledger.cost(DELTA, view=view)
    assert cost.epsilon == pytest.approx(1, rel=1e-9)
    assert not any("floating-point" in text for text in run.privacy.assumptions)
    early = algorithm.plan(3).cost(DELTA, view=view).epsilon
    assert early <= cost.epsilon
    stored = type(run.ledger).from_dict(run.ledger.as_dict())
    assert stored == run.ledger


def not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "round_to_grid", lambda values, grid: values)
    monkeypatch.setattr(sampler, "add_on_grid", lambda values, noise, grid: values + noise * grid)


def not_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlated.CorrelatedGaussian, "widened", lambda self, dim: 1.0)


def noise_as_it_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets the rounding of a row, which then moves the centres of all later ones."""
    right = correlated.CorrelatedNoise.send

    def send(self: Any, key: Any, state: Any, values: Any, **more: Any) -> Any:
        sent, after = right(self, key, state, values, **more)
        factors, grid = self.release.recursion[state.row], self.release.grid
        pairs = zip(factors[1:], state.earlier, strict=False)
        centre = factors[0] * values - sum(weight * noise for weight, noise in pairs)
        drawn = after.earlier[0] - (np.rint(centre / grid) * grid - centre) / factors[0]
        return sent, replace(after, earlier=(drawn, *after.earlier[1:]))

    monkeypatch.setattr(correlated.CorrelatedNoise, "send", send)


def same_secrets_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    right = dm.Key.stream

    def stream(self: Any, purpose: int, t: int = 0) -> Any:
        return right(self, purpose, 1 if purpose == Purpose.PAIR else t)

    monkeypatch.setattr(dm.Key, "stream", stream)


def half_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernels.discrete_gaussian
    monkeypatch.setattr(
        kernels, "discrete_gaussian", lambda shape, scale, *a, **k: right(shape, scale / 2, *a, **k)
    )


FAULTS = [not_rounded, not_widened, noise_as_it_was_drawn, same_secrets_every_round, half_the_noise]


@pytest.mark.parametrize("fault", FAULTS)
def test_one_run_shows_a_planted_mistake(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = online(BOTH)
    fault(monkeypatch)
    sent = sent_by(algorithm)
    monkeypatch.undo()
    assert read(algorithm, sent)


def test_a_server_and_quantized_messages_are_on_the_grid() -> None:
    server = dm.FederatedLearning(
        dm.ClientUpdates(
            clients=NODES, sampling_rate=0.5, sampling="cyclic", clipping_norm=1.0, steps=1
        ),
        noise_multiplier=2.0,
        noise=correlated.InTime(topology=None, rounds=ROUNDS, grid=GRID),
    )
    assert read(server, sent_by(server, 0), 0) == []
    real = replace(server, noise=replace(server.noise, grid=None))
    cost, of_real = server.plan(ROUNDS).cost(DELTA), real.plan(ROUNDS).cost(DELTA)
    assert of_real.epsilon < cost.epsilon < of_real.epsilon * 1.0001  # for what samplers err
    quantized = dm.QuantizedGossip(
        step_size=0.1, consensus_step_size=0.5, sample_size=2, noise_std=0.3, noise=PARTNERS
    )
    assert read(quantized, sent_by(quantized)) == []


@pytest.mark.parametrize("batches", [1, 3])
def test_coupled_runs_move_no_further_than_planned(batches: int) -> None:
    noise = PARTNERS if batches == 1 else BOTH
    pair = dm.topology.complete(2)
    noise = replace(noise, topology=pair, rounds=4, mixings=1, coalition=0)
    algorithm = dm.GradientDescent(records=6, noise_multiplier=4.0, batches=batches, noise=noise)
    case, _ = algorithm.worst_case(rounds=4)
    coupling = couple(algorithm, case.problem, case.neighbor, alone, rounds=4)
    assert not coupling.violated, str(coupling)


def test_rounding_is_covered_in_each_row_and_for_each_leading_part() -> None:
    """Sums over rows, as proved, of random C and graphs; a single factor covers all of them."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        rounds, dim, grid = int(rng.integers(1, 7)), int(rng.integers(1, 1000)), 2.0**-9
        matrix = np.tril(rng.normal(size=(rounds, rounds)), -1) + np.diag(
            rng.uniform(0.3, 2, rounds)
        )
        pairs = correlated.links(RING.mixing_matrix)[: int(rng.integers(0, 5))]
        own, shared = rng.uniform(0.3, 1), rng.uniform(0.3, 3)
        secrets = correlated.Secrets(nodes=NODES, pairs=pairs, own=own, shared=shared)
        factor = widening(correlated.from_matrix(matrix), secrets, grid, dim)
        degrees = np.bincount(pairs.reshape(-1), minlength=NODES)
        kappa = np.sqrt(len(pairs) / (4 * shared**2) + (degrees**2).sum() / (4 * own**2))
        for size, column in product(range(NODES - 1), range(rounds)):
            exposed = secrets.mu_against(size)
            root = np.sqrt(dim)
            for last in range(column, rounds):
                part = np.abs(matrix[column : last + 1, column])
                moved = exposed * (part + grid * root) + root * grid * kappa
                assert np.linalg.norm(moved) <= factor * exposed * np.linalg.norm(part) * (1 + 1e-9)


@pytest.mark.parametrize(("own", "shared"), [(1.5, 1.0), (0.7, 1.5), (0.5, 2.0), (2.2, 3.0)])
def test_the_exact_divergence_of_two_nodes_is_below_the_claim(own: float, shared: float) -> None:
    """Messages n_1 + p and n_2 - p of two nodes, of which the first moves by whole numbers."""
    support = np.arange(-60, 61)

    def law(scale: float) -> np.ndarray:
        weights = np.exp(-(support**2) / (2 * scale**2))
        return weights / weights.sum()

    between, single = law(shared), law(own)
    both = np.zeros((len(support), len(support)))
    for p, weight in zip(support, between, strict=True):
        both += weight * np.outer(np.roll(single, p), np.roll(single, -p))
    secrets = correlated.Secrets(nodes=2, pairs=[(0, 1)], own=own, shared=shared)
    kappa = np.sqrt(1 / (4 * shared**2) + 2 / (4 * own**2))
    for shift, order in product((1, 2, 3), (1.5, 2, 4)):
        there = np.roll(both, shift, axis=0)
        seen = (both > 1e-150) & (there > 1e-300)  # elsewhere 1e-100 of the sum at most
        moment = np.sum(both[seen] * (both[seen] / there[seen]) ** (order - 1))
        exact = np.log(moment) / (order - 1)
        assert 0 < exact <= order * (secrets.mu_of(()) * shift + kappa) ** 2 / 2
        if (own, shift, order) == (0.5, 1, 1.5):  # where kappa cannot be left out
            assert exact > 1.01 * order * secrets.mu_of(()) ** 2 / 2


def test_discrete_noise_is_charged_as_gaussian_noise_of_less_variance() -> None:
    """Exact deltas of one number, of noise that is as coarse as may be."""
    one = correlated.from_matrix(np.eye(1))
    support = np.arange(-400, 401)
    for grid in (0.25, 1.0):
        release = correlated.CorrelatedGaussian(
            noise_to_sensitivity=2, factorization=one, grid=grid
        )
        scale, moved = 2 * release.widened(1) / grid, int(1 / grid + 1)
        law = np.exp(-(support**2) / (2 * scale**2))
        law /= law.sum()
        for epsilon in (0.01, 0.3, 1.0, 3.0):
            delta = np.maximum(law - np.exp(epsilon) * np.roll(law, moved), 0).sum()
            assert delta <= gdp_delta(epsilon=epsilon, mu=release.mu)


def test_rounding_of_secrets_is_what_our_specification_says() -> None:
    """sqrt(dim) kappa at own noise of 2**20 steps, of amplitudes .31 and 1.07, at mu 1."""
    one = correlated.from_matrix(np.eye(1))
    for side, dim, wanted in [(4, 650, 2e-4), (8, 7850, 1.4e-3), (4, 10**6, 8e-3)]:
        links = correlated.links(dm.topology.torus(side, side).mixing_matrix)
        secrets = correlated.Secrets(nodes=side**2, pairs=links, own=0.31, shared=1.07)
        grid = 0.31 / 2**20
        more = widening(one, secrets, grid, dim) - 1 - grid * np.sqrt(dim)
        assert more * secrets.mu_of(()) == pytest.approx(wanted, rel=0.05)


@pytest.mark.parametrize("colluding", [(), (0,), (1,)])
def test_mu_covers_the_rounding_of_secrets_if_the_most_exposed_node_colludes(colluding) -> None:
    """By Theorem 4, of the links that are left. Node 0 has no partner, the others all of them."""
    own, shared, dim, grid = 0.4, 2.0, 100, 2.0**-6
    links = [(i, j) for i in range(1, 6) for j in range(i + 1, 6)]
    secrets = correlated.Secrets(nodes=6, pairs=links, own=own, shared=shared)
    release = correlated.CorrelatedGaussian(
        noise_to_sensitivity=4.0,
        factorization=correlated.from_matrix(np.eye(1)),
        secrets=secrets,
        grid=grid,
    )
    left = [link for link in links if not set(link) & set(colluding)]
    degrees = np.bincount(np.reshape(left, -1), minlength=6)
    kappa = np.sqrt(len(left) / (4 * shared**2) + (degrees**2).sum() / (4 * own**2))
    exposed, rounding = secrets.mu_of(colluding), grid * np.sqrt(dim)
    proved = (exposed * (1 + rounding) + rounding * kappa) / (4.0 * release.widened(dim))
    assert release.mu_of(colluding) >= proved * (1 - 1e-9)


def test_what_is_not_proved_or_too_fine_is_refused() -> None:
    shuffled = dm.topology.shuffled(RING, key=dm.Key.seeded(1))
    with pytest.raises(ValueError, match="grid: wanted None, or one graph of secrets"):
        online(replace(BOTH, topology=shuffled)).plan(ROUNDS)
    with pytest.raises(ValueError, match="grid: wanted a power of 2"):
        replace(TIME, grid=0.3)
    with pytest.raises(ValueError, match="grid: wanted at least a 2"):
        sent_by(online(replace(TIME, grid=2.0**-40)))
    real_valued = correlated.CorrelatedGaussian(
        noise_to_sensitivity=4.0, factorization=correlated.from_matrix(np.eye(3))
    )
    plan = correlated.CorrelatedNoise(release=real_valued)
    with pytest.raises(ValueError, match="release: wanted a release on a grid"):
        plan.send(KEY, plan.start([0, 1], 5), np.zeros((2, 5)))


@pytest.mark.parametrize("grid", [2.0**-8, 2.0**-3, 1.0])
@pytest.mark.parametrize(("own", "shared"), [(0.3, 4.0), (4.0, 0.3), (1.0, 1.0)])
def test_each_kind_of_noise_is_smoothed_by_its_own_scale(own, shared, grid: float) -> None:
    """The smaller of own and shared noise needs more: what is charged is left of both."""
    event = online(BOTH).release_of(1).mechanism.joint
    secrets = replace(event.secrets, own=own, shared=shared)
    joint = replace(event, secrets=secrets, grid=grid)
    rounding = widening(joint.factorization, secrets, grid, 30)
    for size in (own, shared):
        steps = joint.noise_to_sensitivity * size / grid
        drawn = steps * joint.widened(30)
        assert drawn >= FINE * (1 - 1e-12)
        assert drawn**2 - SMOOTHING**2 >= (steps * rounding) ** 2 * (1 - 1e-9)
