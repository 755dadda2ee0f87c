"""The privacy of quantized gossip: plan, ledger, claims, and what one record moves."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from faulty_quantized import MissingLipschitzTerm
from hypothesis import given
from hypothesis import strategies as st
from one_round import one_round, watcher_of
from point_problem import PointProblem
from quantized_problems import make_algorithm, make_problem

import dpmesh as dm
from dpmesh import accounting, topology
from dpmesh.accounting.papers import NotProved
from dpmesh.accounting.papers import quantized as claims
from dpmesh.audit import alone, couple
from dpmesh.noise import Quantizer
from dpmesh.run.carriers import Gossip
from dpmesh.schedules import Constant, HorizonPower, PowerLaw, SampleSize
from dpmesh_papers.claims.quantized import paper_budget


def test_plans_say_what_they_rest_on() -> None:
    def rests_on(**settings) -> tuple[str, ...]:
        return (
            make_algorithm(3, step_size=0.5, consensus_step_size=0.5, **settings)
            .plan(2)
            .assumptions
        )

    secret = "which records a node samples stays secret"
    lipschitz = "every record's gradient is 0.5-Lipschitz"
    distinct = "no record is held by more than 1 node, nor twice by one"
    convex = ("every record's loss is convex", "no record's gradient is longer than 3")
    assert rests_on() == (secret, distinct)
    assert rests_on(mode="public_point", smoothness=0.5) == (secret, lipschitz, distinct)
    assert rests_on(smoothness=0.5) == (secret, lipschitz, distinct)
    paper = rests_on(mode="paper", smoothness=0.5, clipping_norm=3.0)
    assert paper == (secret, *convex, lipschitz, distinct)


@given(
    rounds=st.integers(1, 12),
    mode=st.sampled_from(claims.MODES),
    smoothness=st.sampled_from([0.3, 1.0]),
    zeta=st.floats(-0.5, 0.5),
    noisy=st.booleans(),
)
def test_ledger_equals_plan(rounds, mode, smoothness, zeta, noisy) -> None:
    noise = PowerLaw(scale=0.1, exponent=zeta) if noisy else None
    algorithm = make_algorithm(
        rounds,
        noise_std=noise,
        mode=mode,
        smoothness=smoothness,
        consensus_step_size=HorizonPower(scale=0.5, exponent=-0.7, rounds=rounds),
    )
    run = dm.simulate(
        algorithm, make_problem(), topology.ring(4), rounds=rounds, delta=1e-5, metrics=["loss"]
    )
    assert run.ledger == algorithm.plan(rounds)
    assert len(run.ledger.releases) == rounds
    if rounds == 1:
        assert run.privacy.epsilon == 0.0  # x_0 does not depend on the data
    elif not noisy:
        assert run.privacy.epsilon == inf
    else:
        sigma = [algorithm.noise_std(k + 1) for k in range(1, rounds)]
        delta = claims.sensitivities(
            rounds - 1,
            step_size=algorithm.step_size(1),
            consensus_step_size=algorithm.consensus_step_size(1),
            gradient_bound=2.0,
            sample_size=algorithm.sample_size(1),
            mode=mode,
            smoothness=smoothness,
        )
        mu = accounting.gdp_mu(np.array(sigma) / delta)
        assert run.privacy.epsilon == pytest.approx(
            accounting.gdp_epsilon(delta=1e-5, mu=mu), rel=1e-12
        )


@pytest.mark.parametrize(
    ("rounds", "mode", "epsilon"),
    [
        (2001, "paper", 0.02717701854),  # O5 and O6 of the specification
        (2001, "safe", 0.03464885742),
        (101, "paper", 0.1668379843),
        (101, "safe", 0.2392132167),
    ],
)
def test_the_budgets_of_the_specification(rounds: int, mode, epsilon: float) -> None:
    algorithm = dm.QuantizedGossip(
        step_size=HorizonPower(scale=1.0, exponent=-0.9, rounds=rounds),
        consensus_step_size=HorizonPower(scale=1.0, exponent=-0.7, rounds=rounds),
        sample_size=SampleSize(scale=1.0, exponent=0.85, rounds=rounds),
        noise_std=PowerLaw(scale=1.0, exponent=0.05),
        clipping_norm=0.5,
        mode=mode,
        smoothness=1.0,
    )
    assert algorithm.plan(rounds).cost(1e-5).epsilon == pytest.approx(epsilon, rel=1e-9)
    if mode == "paper":
        claimed = {2001: 3.084395895, 101: 3.072701821}[rounds]  # O4
        assert paper_budget(algorithm, rounds, 1e-5) == pytest.approx(claimed, rel=1e-9)


def test_where_the_papers_claims_are_not_proved_they_are_refused() -> None:
    """O7: one record a round; and a smoothness that nobody knows."""
    algorithm = make_algorithm(
        101,
        step_size=HorizonPower(scale=1.0, exponent=-0.9, rounds=101),
        consensus_step_size=HorizonPower(scale=1.0, exponent=-0.7, rounds=101),
        sample_size=SampleSize(scale=1.0, exponent=0.0, rounds=101),
        noise_std=PowerLaw(scale=1.0, exponent=0.1),
        clipping_norm=0.5,
        mode="paper",
        smoothness=1.0,
    )
    assert algorithm.plan(101).cost(1e-5).epsilon == pytest.approx(10.75440902, rel=1e-9)
    with pytest.raises(NotProved, match=r"below 1 in each iteration, got 1\.576"):
        paper_budget(algorithm, 101, 1e-5)
    with pytest.raises(NotProved, match="smoothness"):
        replace(algorithm, smoothness=inf).plan(101)


@pytest.mark.parametrize("mode", claims.MODES)
def test_replacing_a_record_moves_a_state_within_the_sensitivity(mode) -> None:
    """Two runs on neighbouring data that hear the same messages, of a convex loss."""
    problem = make_problem("logistic", 3)
    features, labels = problem.train.features.copy(), problem.train.labels.copy()
    record = problem.partition[0][0]
    features[record] = [1.0, 0.0, 0.0]
    datasets = []
    for label in (-1, 1):
        labels[record] = label
        train = dm.Dataset(features, labels.copy(), "neighbour")
        datasets.append(replace(problem, train=train))
    fewest = min(len(part) for part in problem.partition)
    algorithm = make_algorithm(
        40,
        sample_size=SampleSize(scale=fewest, exponent=0.0, rounds=40),
        mode=mode,
        smoothness=0.26,
    )
    seen = couple(algorithm, *datasets, Gossip(topology.ring(3)), rounds=40)
    assert not seen.violated, str(seen)
    assert max(m.distance / m.allowed for m in seen.movements[1:]) > 0.2


def test_a_regularizer_beside_convex_losses_does_not_drive_states_apart() -> None:
    """Mode "paper" needs step_size (smoothness + regularization) <= 2 (1 - consensus_step_size)."""
    algorithm = dm.QuantizedGossip(
        step_size=Constant(1.0),
        consensus_step_size=Constant(0.5),
        sample_size=SampleSize(scale=2, exponent=0.0, rounds=8),
        noise_std=Constant(1e-3),
        compressor=None,
        mode="paper",
        smoothness=0.5,
    )

    def dataset(label: float, regularization: float) -> dm.LinearProblem:
        records = dm.Dataset(np.sqrt([[0.5], [0.5]]), np.array([label, 0.0]), "two records")
        parts = (np.arange(2),)
        return dm.LinearProblem(records, parts, "squared", regularization=regularization)

    kept = couple(algorithm, dataset(1.0, 0.5), dataset(-1.0, 0.5), alone, rounds=8)
    assert not kept.violated, str(kept)
    with pytest.raises(ValueError, match="regularization: wanted at most"):
        couple(algorithm, dataset(1.0, 1.0), dataset(-1.0, 1.0), alone, rounds=8)


def test_lemma_2_as_printed_is_wrong_for_nonconvex_losses() -> None:
    """Records that push away from themselves: the safe recursion holds and is nearly reached."""

    def away(x: np.ndarray, centre: np.ndarray) -> np.ndarray:
        return centre - x

    datasets = []
    for centre in (-1.0, 1.0):  # clipped to C / 2 either way
        centres = np.zeros((3, 50, 1))
        centres[0, 0] = centre
        datasets.append(PointProblem(centres, away, lambda x, c: -((x - c) ** 2).sum(-1) / 2))
    options: dict[str, Any] = {
        "step_size": 0.04,
        "consensus_step_size": 0.1,
        "sample_size": 50,
        "noise_std": 0.1,
        "compressor": Quantizer(0.01),
        "clipping_norm": 0.5,
        "smoothness": 1.0,
    }
    ring = Gossip(topology.ring(3))
    right = couple(dm.QuantizedGossip(**options), *datasets, ring, rounds=60)
    assert not right.violated, str(right)
    assert max(m.distance / m.allowed for m in right.movements[1:]) > 0.9
    wrong = couple(MissingLipschitzTerm(**options), *datasets, ring, rounds=60)
    assert wrong.violated
    assert max(m.distance / m.allowed for m in wrong.movements[1:]) > 1.5


def test_noise_on_the_quantizers_own_grid() -> None:
    """The messages are the noisy integers, accounted as discrete Gaussian noise."""
    problem, rounds = make_problem(dim=5), 8
    plain = make_algorithm(rounds, noise_std=Constant(0.5))
    gridded = replace(plain, grid=2.0**-5, compressor=Quantizer(2.0**-5))
    run = dm.simulate(gridded, problem, topology.ring(4), rounds=rounds, delta=1e-5)
    assert run.ledger == gridded.plan(rounds)
    assert {release.name for release in run.ledger.releases[1:]} == {"discrete_gaussian"}
    usual = plain.plan(rounds).cost(1e-5).epsilon
    assert usual < run.privacy.epsilon < 1.5 * usual  # Rényi in place of exact accounting
    key = dm.Key.seeded(0)
    state = gridded.init(problem, key)
    for k in range(3):
        passages: list[Any] = []
        for algorithm in (gridded, replace(gridded, compressor=None)):
            one_round(algorithm, state, k, problem, key, watcher=watcher_of(passages))
        codes = passages[0].values * 2**5
        np.testing.assert_array_equal(codes, np.rint(codes))
        if k > 0:
            np.testing.assert_array_equal(passages[0].values, passages[1].values)
        state = one_round(gridded, state, k, problem, key, Gossip(topology.ring(4))).state
    mechanism, delta = gridded.mechanism_of(1), gridded.sensitivities(2)[1]
    scale = mechanism.noise_scale(dm.noise.Sensitivity(delta, "l2", ""), 5)
    assert scale == pytest.approx(0.5 * (1 + 2.0**-5 * np.sqrt(5) / delta), rel=1e-9)
    labels = problem.train.labels.copy()
    labels[problem.partition[0][0]] *= -1
    neighbour = replace(problem, train=dm.Dataset(problem.train.features, labels, "neighbour"))
    seen = couple(gridded, problem, neighbour, Gossip(topology.ring(4)), rounds=rounds)
    assert not seen.violated, str(seen)


def test_only_the_node_of_the_record_moves() -> None:
    problem = make_problem()
    labels = problem.train.labels.copy()
    labels[problem.partition[1][0]] *= -1
    other = replace(problem, train=dm.Dataset(problem.train.features, labels, "neighbour"))
    algorithm = make_algorithm(5, sample_size=SampleSize(scale=5, exponent=0, rounds=5))
    key, said = dm.Key.seeded(0), []
    state, moved = algorithm.init(problem, key), algorithm.init(other, key)
    for k in range(5):
        passages: list[Any] = []
        gossip = problem, key, Gossip(topology.ring(4))
        state = one_round(algorithm, state, k, *gossip, watcher_of(passages)).state
        replayed = other, key, Gossip(topology.ring(4)), lambda _: passages[0]  # noqa: B023
        moved = one_round(algorithm, moved, k, *replayed).state
        said.append(np.linalg.norm(state.x - moved.x, axis=1))
    assert max(norms[1] for norms in said) > 0
    assert not np.delete(said, 1, axis=1).any()


@pytest.mark.parametrize("mode", ["safe", "public_point"])
@pytest.mark.parametrize("regularization", [0.0, 0.5])
def test_a_problem_that_does_not_clip_is_told_so(mode, regularization) -> None:
    """Its gradients are longer than any mean of clipped ones."""

    class Deaf(PointProblem):
        def gradient(self, params, batches, *, clipping_norm=None):
            slopes = super().gradient(params, batches) * self.nodes
            return slopes + self.regularization * params

    class Heard(Deaf):
        def gradient(self, params, batches, *, clipping_norm=None):
            slopes = PointProblem.gradient(self, params, batches, clipping_norm=clipping_norm)
            return slopes + self.regularization * params

    def run(kind):
        problem = kind(np.ones((3, 4, 2)), np.subtract, np.subtract, 10.0, regularization)
        algorithm = dm.QuantizedGossip(
            step_size=0.1,
            consensus_step_size=0.5,
            sample_size=2,
            noise_std=1.0,
            clipping_norm=0.5,
            mode=mode,
        )
        return dm.simulate(algorithm, problem, topology.complete(3), rounds=3, metrics=[])

    run(Heard)
    with pytest.raises(ValueError, match="each clipped by itself"):
        run(Deaf)


@pytest.mark.parametrize("shared", [[0, 1, 2, 2], [0, 1, 2, 5]])
def test_a_record_in_two_places_is_refused(shared) -> None:
    """It moves a state twice as far as planned, or the states of two nodes."""

    class Overlapping(PointProblem):
        def records_of(self, nodes):
            starts, records = super().records_of(nodes)
            return starts, np.concatenate((shared, records[4:]))

    problem = Overlapping(np.ones((3, 4, 2)), np.subtract, np.subtract)
    algorithm = dm.QuantizedGossip(
        step_size=0.1, consensus_step_size=0.5, sample_size=2, noise_std=1.0
    )
    with pytest.raises(
        ValueError, match=r"problem: wanted each record at one node, .* got record [25] "
    ):
        dm.simulate(algorithm, problem, topology.complete(3), rounds=3, metrics=[])
