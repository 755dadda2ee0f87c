"""Audits of correlated noise from the seat of an observer who sees all messages of a run.

Planted mistakes go into what the loop draws, or into an algorithm: one seeded run reads the noise
back, one pair of runs shows what moves, and many runs distinguish two neighbouring datasets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from audit_power import gaussian_curve, power
from read_back import read_back

import dpmesh as dm
from dpmesh import kernels
from dpmesh.algorithms import Message
from dpmesh.algorithms.gradient_descent import GradientDescentState
from dpmesh.audit import GaussianClaim, audit_algorithm, couple
from dpmesh.audit.claims import claim_of
from dpmesh.audit.transcript import alone, record
from dpmesh.keys import Purpose
from dpmesh.noise import correlated

ROUNDS, RUNS, KEY, SURE = 4, 200, dm.Key.seeded(5), 1 - 1e-3
PAIR = dm.topology.complete(2)
PARTNERS = correlated.BetweenPartners(topology=PAIR, rounds=ROUNDS)
BOTH = correlated.Both(topology=PAIR, rounds=ROUNDS)
MATCHED = replace(BOTH, topology=dm.topology.random_matchings(2, key=dm.Key.seeded(1)))

draw, share = kernels.correlated_gaussian, kernels.add_pair_gaussian


def descent(noise: Any, kind: Any = dm.GradientDescent, batches: int = 1) -> Any:
    uses = -(-(ROUNDS - 1) // batches)
    return kind(records=6, noise_multiplier=2 * (uses**0.5), batches=batches, noise=noise)


def always(purpose: Purpose) -> Any:
    return KEY.stream(purpose, 1)


def same_noise_every_round(shape, scale, earlier, weights, stream, **rest):
    return draw(shape, scale, earlier, weights, always(Purpose.NOISE), **rest)


def half_the_noise(shape, scale, earlier, weights, stream, **rest):
    return draw(shape, np.multiply(scale, 0.5), earlier, weights, stream, **rest)


def earlier_noise_added(shape, scale, earlier, weights, stream, **rest):
    return draw(shape, scale, earlier, [-w for w in weights], stream, **rest)


def earlier_noise_forgotten(shape, scale, earlier, weights, stream, **rest):
    return draw(shape, scale, earlier, [0.0 for w in weights], stream, **rest)


def same_secrets_every_round(x, pairs, ends, scale, stream):
    return share(x, pairs, ends, scale, always(Purpose.PAIR))


def half_the_secrets(x, pairs, ends, scale, stream):
    return share(x, pairs, ends, scale / 2, stream)


def same_sign_at_both_ends(x, pairs, ends, scale, stream):
    for end in (0, 1):
        share(x, pairs, np.column_stack([ends[:, end], -np.ones(len(ends))]), scale, stream)
    return x


DRAWS = [same_noise_every_round, half_the_noise, earlier_noise_added, earlier_noise_forgotten]
SHARES = [same_secrets_every_round, same_sign_at_both_ends]


@pytest.mark.parametrize("fault", [None, *DRAWS, *SHARES])
def test_one_run_shows_what_its_noise_is_made_of(fault: Any, monkeypatch) -> None:
    if fault is not None:
        name = "correlated_gaussian" if fault in DRAWS else "add_pair_gaussian"
        monkeypatch.setattr(kernels, name, fault)
    algorithm = descent(BOTH, batches=3)
    (pair, _) = algorithm.worst_case(rounds=ROUNDS, dim=60)
    run = record(algorithm, pair.problem, alone, rounds=ROUNDS, key=KEY)
    noise = np.stack([passage.noisy - passage.inside for passage in run.passages[1:]])
    plan = correlated.CorrelatedNoise(release=algorithm.release_of(1).mechanism.joint)
    monkeypatch.undo()
    found = read_back(noise, KEY, plan).violations(tolerance=1e-6)
    assert bool(found) == (fault is not None), found


@pytest.mark.parametrize("late", [False, True])
def test_one_run_shows_secrets_along_the_graph_of_another_round(late: bool) -> None:
    shuffled = dm.topology.shuffled(dm.topology.ring(4), key=dm.Key.seeded(2))
    algorithm = descent(correlated.Both(topology=shuffled, rounds=ROUNDS), batches=3)
    joint = algorithm.release_of(1).mechanism.joint
    run = joint
    if late:
        run = replace(joint, secrets=(joint.secrets[-1], *joint.secrets[:-1]))
    noise, plan = np.zeros((ROUNDS - 1, 4, 60)), correlated.CorrelatedNoise(release=joint)
    state = correlated.CorrelatedNoise(release=run).start(range(4), 60)
    for t in range(ROUNDS - 1):
        noise[t], state = correlated.CorrelatedNoise(release=run).draw(KEY, state)
    found = read_back(noise, KEY, plan).violations(tolerance=1e-6)
    assert bool(found) == late, found


class MissingFactor2(dm.GradientDescent):
    """Takes the bound on one clipped gradient for that on the difference of two."""

    def sensitivity(self, t):
        right = super().sensitivity(t)
        return replace(right, bound=right.bound / 2)


class Remembers(dm.GradientDescent):
    """Starts a step at its own unsent model, so that records move all later messages."""

    def round(self, state, t, problem, key):
        b = yield Message(state.x, self.release_of(t))
        g = problem.gradient(b, self.records_of(t, problem), clipping_norm=self.clipping_norm)
        return GradientDescentState(state.x - self.step_size(t + 1) * g)


@pytest.mark.parametrize("kind", [dm.GradientDescent, MissingFactor2, Remembers])
@pytest.mark.parametrize("noise", [PARTNERS, BOTH, MATCHED])
def test_coupled_runs_move_as_far_as_planned(kind: Any, noise: Any) -> None:
    algorithm = descent(noise, kind, batches=1 if noise is PARTNERS else 3)
    pair, _ = algorithm.worst_case(rounds=ROUNDS)
    coupling = couple(algorithm, pair.problem, pair.neighbor, alone, rounds=ROUNDS)
    assert coupling.violated == (kind is not dm.GradientDescent), str(coupling)


@pytest.mark.slow
@pytest.mark.parametrize("halved", [False, True])
def test_many_runs_tell_half_the_noise_from_the_whole(halved: bool, monkeypatch) -> None:
    """At mu = 1, or 2 in truth; the right noise is refused in one of 1,000 audits."""
    assert power(GaussianClaim(1.0), gaussian_curve(2.0), RUNS, SURE) > 0.98
    algorithm = descent(BOTH, batches=3)
    if halved:
        monkeypatch.setattr(kernels, "correlated_gaussian", half_the_noise)
        monkeypatch.setattr(kernels, "add_pair_gaussian", half_the_secrets)
    pair, _ = algorithm.worst_case(rounds=ROUNDS)
    datasets = pair.problem, pair.neighbor, alone
    result = audit_algorithm(
        algorithm, *datasets, rounds=3, runs=RUNS, confidence=SURE, key=dm.Key.seeded(1)
    )
    assert 0.95 < result.claim.level <= 1.0
    assert result.violated == halved


def test_the_claim_is_that_of_who_knows_no_secret() -> None:
    assert claim_of(descent(PARTNERS).plan(ROUNDS)).level == pytest.approx(1.0)
    assert max(r.noise_to_sensitivity for r in descent(PARTNERS).plan(ROUNDS).compositions()[0]) < 1
