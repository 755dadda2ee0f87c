"""A controller that asks for private losses with noise: costs, what it sees, audits, mistakes.

Confidence of the statistical audit: 0.999, so that a correct algorithm is flagged in at most 1 of
1,000 keys, and the key is fixed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpmesh.accounting import gdp_epsilon
from dpmesh.algorithms import WithoutReplacement
from dpmesh.algorithms.controllers import NoisyLoss
from dpmesh.audit import alone, audit_algorithm, couple
from dpmesh.data import Dataset
from dpmesh.keys import Key
from dpmesh.noise import Gaussian
from dpmesh.privacy import Release, Sensitive
from dpmesh.problems import LinearProblem
from dpmesh.run import Metrics, simulate
from dpmesh_papers.deep_q import DeepQ

DELTA, BATCH, FAR = 1e-5, 2, 100.0


def learner(kind: type[WithoutReplacement] = WithoutReplacement, **changes: Any) -> Any:
    controller = DeepQ(anneal_rounds=3, hidden=16, batch_size=1, memory_size=2, sees="noisy")
    settings: dict[str, Any] = {"epsilon": 2.0, "delta": DELTA, "batch_size": BATCH}
    settings |= {"step_size": 0.001, "radius": 1.0, "controller": controller}
    return kind(**settings | changes)


def stream(canary: float, *, rounds: int = 6, nodes: int = 1) -> LinearProblem:
    """Targets of 0, which a model of 0 meets, but for the first record of the first node."""
    labels = np.zeros(nodes * rounds * BATCH)
    labels[0] = canary
    train = Dataset(np.ones((len(labels), 1)), labels)
    parts = tuple(np.split(np.arange(len(labels)), nodes))
    return LinearProblem(train, parts, "squared", feature_norm=1.0, label_bound=FAR)


def test_the_plan_is_one_query_and_one_update_of_each_record() -> None:
    asked = NoisyLoss(bound=2.0, budget_share=0.3)
    algorithm = learner(
        models=4, copies=3, controller=DeepQ(anneal_rounds=2, sees="noisy", loss=asked)
    )
    query, update = algorithm.release_of(5)
    mu = np.hypot(1 / query.noise_to_sensitivity, 1 / update.noise_to_sensitivity)
    assert gdp_epsilon(delta=DELTA, mu=float(mu)) == pytest.approx(2.0, rel=1e-9)
    assert 1 / query.noise_to_sensitivity**2 == pytest.approx(0.3 * mu**2)
    assert query.sensitivity.bound == pytest.approx(np.sqrt(3))
    for rounds in (1, 7):
        assert algorithm.plan(rounds).cost(DELTA).epsilon == pytest.approx(2.0, rel=1e-9)


def test_answers_are_cut_losses_of_the_released_model_and_reach_the_controller() -> None:
    seen = []

    class Spy(DeepQ):
        def decide(self, state, observation, round, key):  # type: ignore[no-untyped-def]
            seen.append(observation)
            return super().decide(state, observation, round, key)

    draw = np.random.default_rng(0)
    x = draw.normal(size=(24, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    data = Dataset(x, draw.integers(3, size=24))
    parts = tuple(np.split(np.arange(24), 2))
    problem = LinearProblem(data, parts, "logistic", classes=3, feature_norm=1.0)
    spy = Spy(anneal_rounds=3, hidden=16, sees="noisy", loss=NoisyLoss(bound=0.69))
    algorithm = learner(epsilon=None, models=3, step_size=0.5, radius=None, controller=spy)
    run = simulate(
        algorithm, problem, rounds=6, key=Key.seeded(1), metrics=Metrics([], progress=False)
    )
    for t, observation in enumerate(seen):
        assert np.isnan(observation.local_models).all()
        assert np.isnan(observation.last_losses).all()
        w = observation.released_models
        for m in range(2):
            total = 0.0
            for record in parts[m][BATCH * t : BATCH * (t + 1)]:
                losses = [
                    np.log1p(np.exp(-(1 if data.labels[record] == k else -1) * w[k] @ x[record]))
                    for k in range(3)
                ]
                total += min(float(np.mean(losses)), 0.69) / BATCH
            np.testing.assert_allclose(observation.losses[m], total, rtol=1e-12)
    assert len(seen) == 6
    assert len(run.ledger.releases) >= 6


@pytest.mark.parametrize("nodes", [1, 2])
def test_coupled_runs_move_one_answer_and_one_update(nodes: int) -> None:
    one, other = (stream(canary, nodes=nodes) for canary in (0.0, FAR))
    found = couple(learner(), one, other, alone, rounds=6, key=Key.seeded(3))
    assert not found.violated, str(found)
    moved = [m for m in found.movements if m.distance > 0]
    assert moved[0].distance / moved[0].allowed == pytest.approx(1.0)
    assert len(moved) <= 2


class Uncut(WithoutReplacement):
    """Forgets to cut the losses."""

    def _loss_message(self, state, query, problem, acting, batches):  # type: ignore[no-untyped-def]
        message = super()._loss_message(state, query, problem, acting, batches)
        w = np.repeat(state.released.reshape(1, -1), len(acting), axis=0)
        losses = problem.record_losses(w, batches).reshape(-1, self.batch_size)
        return message._replace(values=Sensitive(losses.mean(axis=1)[:, np.newaxis]))


class OfLocalModels(WithoutReplacement):
    """Asks for the losses of the nodes' own models, which remember earlier records."""

    def _loss_message(self, state, query, problem, acting, batches):  # type: ignore[no-untyped-def]
        public = replace(state, released=state.local[0])
        return super()._loss_message(public, query, problem, acting, batches)


class SumsForMeans(WithoutReplacement):
    """Forgets to divide by the batch."""

    def _loss_message(self, state, query, problem, acting, batches):  # type: ignore[no-untyped-def]
        message = super()._loss_message(state, query, problem, acting, batches)
        return message._replace(values=Sensitive(message.values * BATCH))


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (Uncut, "round 0: moved by"),
        (OfLocalModels, "all releases together"),
        (SumsForMeans, "round 0: moved by 2, allowed is 1"),
    ],
)
def test_coupling_finds_planted_mistakes(kind: type[WithoutReplacement], fault: str) -> None:
    """The answers have nearly all of the budget: two of one record are beyond it."""

    class StaysLocal(DeepQ):
        def decide(self, state, observation, round, key):  # type: ignore[no-untyped-def]
            actions, state = super().decide(state, observation, round, key)
            return np.zeros_like(actions), state

    asked = NoisyLoss(budget_share=0.95)
    controller = StaysLocal(anneal_rounds=3, hidden=16, sees="noisy", loss=asked)
    learns = learner(kind, controller=controller, step_size=0.2)
    found = couple(learns, stream(0.0), stream(FAR), alone, rounds=6, key=Key.seeded(3))
    assert fault in str(found)


class HalfTheNoise(Gaussian):
    """Draws half of the noise that it declares."""

    def _add_noise(self, values, scale, source):  # type: ignore[no-untyped-def]
        return super()._add_noise(values, scale / 2, source)


class QuietAnswers(WithoutReplacement):
    """Answers with half of the noise."""

    def release_of(self, t: int) -> tuple[Release, ...]:
        query, update = super().release_of(t)  # type: ignore[misc]
        return replace(query, mechanism=HalfTheNoise(query.noise_to_sensitivity)), update


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "violated"), [(WithoutReplacement, False), (QuietAnswers, True)])
def test_many_runs_refute_too_little_noise(kind: type[WithoutReplacement], violated: bool) -> None:
    asks = replace(learner().controller, loss=NoisyLoss(budget_share=0.95))
    result = audit_algorithm(
        learner(kind, controller=asks, epsilon=8.0),
        stream(0.0, rounds=1),
        stream(FAR, rounds=1),
        alone,
        rounds=1,
        runs=200,
        delta=DELTA,
        confidence=0.999,
        key=Key.seeded(5),
    )
    assert result.violated is violated, str(result)


def test_other_calibrations_are_refused() -> None:
    with pytest.raises(ValueError, match="'analytic', which noisy losses need"):
        learner(calibration="classical")


class Never(DeepQ):
    """Learns from the answers, and lets no node update."""

    def decide(self, state: Any, seen: Any, t: int, key: Any) -> Any:
        decided, state = super().decide(state, seen, t, key)
        return np.zeros_like(decided), state


def test_releases_that_answers_decided_against_are_counted() -> None:
    controller = Never(
        anneal_rounds=3, hidden=16, batch_size=1, memory_size=2, sees="noisy", loss=NoisyLoss()
    )
    run = simulate(
        learner(controller=controller), stream(0.0), rounds=3, key=Key.seeded(0), delta=DELTA
    )
    assert run.privacy.epsilon == pytest.approx(2.0)
    assert run.ledger.cost(DELTA).epsilon < 1.9
    (why,) = (text for text in run.privacy.assumptions if "did not happen" in text)
    assert why.endswith("they are counted, as earlier releases decided which happen")
