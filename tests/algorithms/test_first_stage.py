"""The first stage: what a record moves, what it costs, and faults that audits find."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from federated_parts import changed

import dpmesh as dm
from dpmesh.algorithms import (
    FirstStage,
    GradientDescent,
    PushSum,
    RecordSums,
    SecureAggregation,
    first_stage,
)
from dpmesh.algorithms.first_stage import SecondMoments, axes, triangle
from dpmesh.audit import alone, couple
from dpmesh.audit.claims import GaussianClaim
from dpmesh.audit.linear_run import from_scores
from dpmesh.audit.transcript import record
from dpmesh.keys import Key
from dpmesh.privacy import Budget, Plan
from dpmesh.privacy.views import OneNode
from dpmesh.run.carriers import Gossip
from dpmesh.tables.features import AXES, centred
from dpmesh.topology import complete, ring

SITES, RECORDS, FEATURES, ROUNDS = 4, 6, 3, 4


def mean(secure: bool, **others: Any) -> RecordSums:
    public = {
        "dim": FEATURES,
        "sites": SITES,
        "records": SITES * RECORDS,
        "noise_to_sensitivity": 2.0,
    }
    return RecordSums(secure=secure, **{**public, **others})


def staged(kind: str) -> FirstStage:
    if kind in ("sum", "moment"):
        learns: Any = dm.FederatedLearning(
            dm.RecordGradients(clients=SITES, records=24),
            noise_multiplier=6.0,
            combination=SecureAggregation(dim=2 * (FEATURES + 1), rounds=ROUNDS),
        )
    else:
        learns = {"gossip": GradientDescent, "push-sum": PushSum}[kind](
            records=RECORDS, noise_multiplier=6.0
        )
    moment = SecondMoments(dim=6, sites=SITES, records=24, noise_to_sensitivity=6.0)
    secure = kind in ("sum", "moment")
    return FirstStage(
        algorithm=learns, mean=mean(secure), moment=moment if kind == "moment" else None
    )


def problem(first: Any = (1, 0, 0), test: bool = False) -> dm.LinearProblem:
    """Records of norm 1, of which the first one points to a side."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((SITES * RECORDS, FEATURES))
    x[:, 0] += 1
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x[0] = first
    data = dm.Dataset(x, np.arange(len(x)) % 2, "signs")
    parts = np.arange(len(x)).reshape(SITES, RECORDS)
    return dm.LinearProblem(data, tuple(parts), "softmax", classes=2, test=data if test else None)


@pytest.mark.parametrize("kind", ["sum", "gossip", "push-sum"])
def test_a_record_moves_the_mean_by_its_sensitivity_and_what_follows_by_theirs(kind: str) -> None:
    algorithm, pair = staged(kind), (problem(), problem((-1, 0, 0)))
    carrier = alone if kind == "sum" else Gossip(complete(SITES))
    found = couple(algorithm, *pair, carrier, rounds=ROUNDS)
    assert not found.violated, found
    assert found.movements[0].distance == pytest.approx(2, rel=1e-6)
    half = replace(algorithm.mean, diameter=1.0)
    object.__setattr__(algorithm, "mean", half)  # which the constructor refuses
    assert "moved by 2" in couple(algorithm, *pair, carrier, rounds=ROUNDS).faults[0]


def test_a_record_moves_the_second_moment_by_sqrt_2_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = np.random.default_rng(0)
    sides = draw.standard_normal((60, FEATURES))
    sides[:4] = [[1, 0, 0], [0, 1, 0], [1, 1, 0], [1, -1, 0]]
    sides /= np.linalg.norm(sides, axis=1, keepdims=True)
    sides[4:] *= draw.uniform(0.3, 1, (56, 1))
    each = np.array(
        [
            [x[i] * x[j] * (1 if i == j else np.sqrt(2)) for i in range(3) for j in range(i, 3)]
            for x in sides
        ]
    )
    assert triangle(sides) == pytest.approx(each.sum(axis=0))
    apart = np.linalg.norm(each[:, np.newaxis] - each, axis=2)
    full = np.einsum("ri,rj->rij", sides, sides)
    assert apart == pytest.approx(np.linalg.norm(full[:, np.newaxis] - full, axis=(2, 3)))
    assert apart.max() == pytest.approx(np.sqrt(2))
    algorithm = replace(staged("moment"), mean=mean(True, noise_to_sensitivity=0.2))
    centre = problem().train.features[1:].mean(axis=0)
    centre[1:] = [np.sqrt((1 - centre[0] ** 2) / 2)] * 2  # what is left has no first number
    pair = problem(centre), problem(centre * [1, 1, -1])
    options: Any = {"rounds": ROUNDS, "key": Key.seeded(1)}
    found = couple(algorithm, *pair, alone, **options)
    assert not found.violated, found
    assert 1.35 < found.movements[1].distance <= found.movements[1].allowed
    charged = replace(algorithm)
    object.__setattr__(charged, "moment", replace(charged.moment, diameter=1.0))
    assert "moved by 1." in couple(charged, *pair, alone, **options).faults[0]
    wrong = np.array([1, np.sqrt(2), np.sqrt(2), 1, np.sqrt(2), 1])  # twice the root
    monkeypatch.setattr(first_stage, "triangle", lambda vectors: wrong * triangle(vectors))
    assert "moved by 1.9" in couple(algorithm, *pair, alone, **options).faults[0]


def test_axes_shorten_what_stands_out_of_the_noise() -> None:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((500, 20)) * np.linspace(6, 0.1, 20) / 30
    values, vectors = np.linalg.eigh(x.T @ x)
    largest = 0.05 * np.sqrt(2 * 20)
    left = np.minimum(1, np.sqrt(largest / values))
    left[: 20 - AXES] = 1  # but the largest
    found = axes(triangle(x), 0.05, 20).reshape(AXES, 20)
    assert np.eye(20) - found.T @ found == pytest.approx((vectors * left) @ vectors.T, abs=1e-5)
    assert found.max(axis=1) == pytest.approx(np.abs(found).max(axis=1), abs=0)  # one sign
    assert 3 < np.count_nonzero(np.linalg.norm(found, axis=1)) <= AXES
    row = np.concatenate([np.full(20, 0.1), found.ravel()])
    expected = (x - 0.1) @ ((vectors * left) @ vectors.T)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert centred(x, row)[:, :-1] * np.sqrt(1.09) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", ["sum", "moment", "gossip"])
def test_it_is_the_algorithm_on_what_is_left_of_each_record(kind: str) -> None:
    algorithm, whole = staged(kind), problem(test=True)
    links = complete(SITES) if kind == "gossip" else None
    options: Any = {"rounds": ROUNDS, "key": Key.seeded(3), "delta": 1e-5, "metrics": []}
    run = dm.simulate(algorithm, whole, links, **options)
    weights, centres = np.split(run.released, [2 * (FEATURES + 1)], axis=1)
    assert centres.shape[1] == FEATURES * (1 + AXES if kind == "moment" else 1)
    assert np.ptp(centres, axis=0) == pytest.approx(0, abs=0)  # one centre for all
    rows = whole.train.features.reshape(SITES, RECORDS, FEATURES).sum(axis=1)
    spread = algorithm.mean.noise_scale / (SITES * RECORDS)
    off = centres[0, :FEATURES] - rows.sum(axis=0) / (SITES * RECORDS)
    assert np.abs(off).max() < 6 * spread
    left = whole.centred(centres[0])
    assert np.array_equal(left.train.features, centred(whole.train.features, centres[0]))
    assert whole.accuracy(run.released) == pytest.approx(left.accuracy(weights))
    assert run.model(0).scores(whole.train.features).argmax(axis=1) == pytest.approx(
        (left.train.features @ weights[0].reshape(2, -1).T).argmax(axis=1)
    )
    plan = algorithm.plan(ROUNDS)
    assert run.ledger.releases == plan.releases
    inner = algorithm.algorithm.plan(ROUNDS)
    assert plan.releases[len(algorithm.stages) :] == inner.releases
    before = np.hypot(1 / 2.0, (kind == "moment") / 6.0)
    exact = np.hypot(before, np.sqrt(len(inner.touching)) / 3.0)  # mu^2 adds
    assert plan.cost(1e-5).epsilon >= dm.accounting.gdp_epsilon(delta=1e-5, mu=exact)
    assert plan.cost(1e-5).epsilon > inner.cost(1e-5).epsilon


class NotCharged(FirstStage):
    """Plans the algorithm alone."""

    def plan(self, rounds: int, problem: Any = None) -> Plan:
        return self.algorithm.plan(rounds)


@pytest.mark.parametrize("kind", ["sum", "moment"])
def test_a_stage_that_is_used_and_not_charged_ends_the_run_at_its_budget(kind: str) -> None:
    honest = staged(kind)
    algorithm = NotCharged(**vars(honest))
    budget = Budget(algorithm.plan(ROUNDS).cost(1e-5).epsilon, delta=1e-5)
    run = dm.simulate(algorithm, problem(), rounds=ROUNDS, budget=budget, metrics=[])
    assert "the budget ended" in str(run.settings["rounds"])
    assert run.privacy.epsilon <= budget.epsilon
    run = dm.simulate(algorithm, problem(), rounds=ROUNDS, delta=1e-5, metrics=[])
    assert run.privacy.epsilon == pytest.approx(honest.plan(ROUNDS).cost(1e-5).epsilon)


NODES, FAR, ROUNDS_SEEN = 20_000, 1e6, 2


class HalfTheNoise(RecordSums):
    """Takes the noise of half the distance, and states the whole."""

    @cached_property
    def mechanism(self) -> Any:
        return replace(super().mechanism, noise_to_sensitivity=self.noise_to_sensitivity / 2)


def audited(kind: type[RecordSums] = RecordSums, *, charged: bool = True, seed: int) -> Any:
    """Return what nodes with a canary each show to somebody who sees all their messages.

    The canary points to either side and pulls with a clipped gradient; all else is silent. Its mean
    and the gradient at it shift two independent Gaussian vectors.
    """
    z, records = (1.5, 2.0), 4
    released = kind(
        dim=1, sites=NODES, records=NODES * records, noise_to_sensitivity=z[0], secure=False
    )
    learns = GradientDescent(records=records, noise_multiplier=2 * z[1])
    algorithm = FirstStage(algorithm=learns, mean=released)
    labels = np.zeros((NODES, records))
    labels[:, 0] = FAR

    def scores(side: float, key: Key) -> np.ndarray:
        x = np.zeros((NODES, records, 1))
        x[:, 0] = side
        data = dm.Dataset(x.reshape(-1, 1), labels.reshape(-1), "canaries")
        parts = tuple(np.arange(NODES * records).reshape(NODES, records))
        made = dm.LinearProblem(data, parts, "squared", label_bound=FAR)
        run = record(algorithm, made, alone, rounds=ROUNDS_SEEN, key=key)
        means, _, gradients = (values[:, 0] for values in run.released)
        step = learns.sensitivity(1).bound
        return np.asarray(means / z[0] ** 2 / 2 + gradients / z[1] ** 2 / step)

    mu = np.hypot(1 / z[0], 1 / z[1]) if charged else 1 / z[1]
    ways = (scores(side, Key.seeded(seed + (side > 0))) for side in (1.0, -1.0))
    return from_scores(GaussianClaim(float(mu)), *ways, confidence=0.999, method="canaries")


@pytest.mark.slow
def test_the_audit_comes_close_to_the_claim_and_finds_planted_faults() -> None:
    """A correct claim is refuted with probability 1e-3."""
    sharp = audited(seed=1)
    assert not sharp.violated
    assert sharp.lower_bound > 0.85 * sharp.claim.mu
    assert audited(HalfTheNoise, seed=3).violated
    assert audited(charged=False, seed=5).violated


def test_what_has_no_common_mean_is_refused() -> None:
    gossip, summed, both = staged("gossip"), staged("sum"), staged("moment")
    for refused, said in (
        (lambda: replace(summed, mean=mean(True, diameter=0.1)), "diameter=2"),
        (lambda: replace(summed, mean=mean(True, colluding=0)), "against colluding=1"),
        (lambda: replace(both, moment=replace(both.moment, diameter=0.1)), "as the mean's"),
        (lambda: replace(both, moment=replace(both.moment, colluding=0)), "as the mean's"),
        (lambda: replace(gossip, algorithm=gossip), "one without a first stage"),
        (lambda: replace(gossip, mean=mean(True)), "secure if the algorithm is"),
        (lambda: replace(gossip, moment=staged("moment").moment), "one secure release of 6"),
        (lambda: replace(summed, moment=mean(True)), "wanted SecondMoments"),
        (lambda: replace(summed, algorithm=changed(summed.algorithm, dropouts=1)), "dropouts"),
        (
            lambda: replace(
                summed, algorithm=changed(summed.algorithm, neighboring_relation="add_remove")
            ),
            "proved for record-level DP under replace-one alone",
        ),
        (
            lambda: dm.simulate(
                replace(gossip, mean=mean(False, dim=2)), problem(), ring(4), rounds=1
            ),
            "dim=3",
        ),
        (
            lambda: dm.simulate(gossip, problem(), ring(4), rounds=1, engine=dm.Network(loss=0.1)),
            "another centre",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            refused()


def test_two_sites_of_which_none_colludes_have_a_first_stage() -> None:
    learns = dm.FederatedLearning(
        dm.RecordGradients(clients=2, records=12),
        noise_multiplier=6.0,
        combination=SecureAggregation(dim=2 * (FEATURES + 1), rounds=ROUNDS, colluding=0),
    )
    built = FirstStage.before(learns, sites=2, records=12, features=FEATURES, mean_noise=2.0)
    assert built.mean.secure
    assert built.mean.colluding == 0


def test_a_view_names_private_centering_as_the_reason_why_no_less_is_proved() -> None:
    view = OneNode(topology=ring(SITES))
    cost = staged("gossip").plan(ROUNDS, problem()).cost(1e-5, view=view)
    assert cost.reason == FirstStage.view_refusal
    assert cost.epsilon == cost.full_view_epsilon
    unknown = staged("gossip").plan(ROUNDS).cost(1e-5, view=view)
    assert unknown.reason == "the plan was made without its problem"
