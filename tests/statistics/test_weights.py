"""Weights of questions: each one's share of the budget, with the same cost of all together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dpmesh as dm
from dpmesh.deploy import Contract
from dpmesh.statistics import Histogram, Mean, Regression, ask
from dpmesh.statistics.ask import AnswerBudget

RANGES: dict[str, Any] = {"age": [0, 100], "arm": ["old", "new"], "died": {"flag": True}}
BUDGET = AnswerBudget(epsilon=2.0, delta=1e-5, sites=4, records=20_000)
QUESTIONS = (Mean("age"), Histogram("arm"), Regression("died", "age"))


def test_a_question_of_four_times_the_weight_has_half_the_noise_at_the_same_cost() -> None:
    equal, sums = BUDGET.settle(QUESTIONS, RANGES)
    weighted, other = BUDGET.settle(QUESTIONS, RANGES, (1, 1, 4))
    assert np.square(equal.distances).sum() == pytest.approx(3)
    assert np.square(weighted.distances).sum() == pytest.approx(3)
    assert other.plan(7).cost(1e-5).epsilon <= 2.0
    assert other.plan(7).cost(1e-5).epsilon == pytest.approx(2.0, abs=1e-3)
    before, after = equal.noises_of(sums.noise_scales), weighted.noises_of(other.noise_scales)
    for place, weight in enumerate((0.5, 0.5, 2.0)):
        assert after[place] == pytest.approx(np.array(before[place]) / np.sqrt(weight), rel=0.02)


def test_answers_have_the_noise_of_their_weight() -> None:
    draw = np.random.default_rng(0)
    held = {"age": draw.uniform(20, 80, 2000), "arm": draw.choice(["old", "new"], 2000)}
    how: Any = {"ranges": RANGES, "epsilon": 1.0, "key": dm.Key.seeded(0)}
    asked = [Mean("age"), Histogram("arm")]
    sites = np.arange(2000) % 4
    equal = ask(asked, held, sites, **how)
    weighted = ask(asked, held, sites, weights=[1, 15], **how)
    ratios = [
        after.rows[-1].noise / before.rows[-1].noise
        for before, after in zip(equal.answers, weighted.answers, strict=True)
    ]
    assert ratios == pytest.approx([np.sqrt(8), np.sqrt(8 / 15)], rel=0.1)
    assert weighted.privacy.epsilon == pytest.approx(equal.privacy.epsilon, abs=1e-3)


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        ([1.0], r"weights: wanted 2 numbers, one for each question \(Mean, Histogram\), got 1"),
        ([1.0, 0.0], "weights: wanted a finite number greater than 0"),
        ([1.0, float("nan")], "weights: wanted a"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights: list[float], match: str) -> None:
    how: Any = {"ranges": RANGES, "epsilon": 1.0, "weights": weights}
    held = {"age": np.full(60, 3.0), "arm": ["old"] * 60}
    with pytest.raises(ValueError, match=match):
        ask([Mean("age"), Histogram("arm")], held, np.arange(60) % 3, **how)


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        ([1, 3], None),
        ([1], r"wanted 2 numbers, one for each question \(Mean, Histogram\), got 1"),
        ("1,3", "questions.weights: wanted a list of numbers"),
    ],
)
def test_a_contract_states_the_weights(weights: Any, match: str | None) -> None:
    keys = [dm.deploy.SigningKey.generate().public.hex() for _ in range(3)]
    content: dict[str, Any] = {
        "contract": {"rounds": 1, "public_key": "05" * 32, "deadline": 9.0, "quorum": 3},
        "ranges": {name: RANGES[name] for name in ("age", "arm")},
        "questions": {"mean": "age", "histogram": "arm", "weights": weights},
        "algorithm": {"kind": "RecordSums", "noise_to_sensitivity": 4.0},
        "party": [
            {"name": f"p{i}", "signing_key": key, "records": 500, "epsilon": 3.0, "delta": 1e-5}
            for i, key in enumerate(keys)
        ],
    }
    if match is not None:
        with pytest.raises(ValueError, match=match):
            Contract.of(content)
        return
    questions = Contract.of(content).tables.questions
    assert questions is not None
    assert questions.weights == pytest.approx((0.5, 1.5))
