"""Epsilons of other tools' runs, beside those of the tools' own accountants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpmesh.privacy.other_tools import OtherRun, check_claim, dp_sgd, fedavg, gaussian, laplace

ORACLES = Path(__file__).parents[1] / "oracles" / "oracles-other-tools.json"
CASES = json.loads(ORACLES.read_text())["cases"]

WIDE = {"Opacus PRV": 0.02}
"""Absolute error that an accountant states of itself, up and down."""


def run_of(case: dict[str, Any]) -> tuple[OtherRun, float, float]:
    """Return the run of a case, its noise multiplier and its delta."""
    given = dict(case["given"])
    noise, delta = given.pop("noise_multiplier"), given.pop("delta")
    if "records" in given:
        return dp_sgd(tool=case["tool"], **given), noise, delta
    return fedavg(**given), noise, delta


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['tool']}: {case['example']}")
def test_within_a_percent_of_the_tool_and_never_above_renyi(case: dict[str, Any]) -> None:
    run, noise, delta = run_of(case)
    epsilon = run.epsilon(noise, delta=delta)
    for accountant, theirs in case["epsilon"].items():
        if accountant.endswith("RDP"):
            assert epsilon <= theirs * (1 + 1e-6), accountant
        else:
            assert epsilon == pytest.approx(theirs, rel=0.01, abs=WIDE.get(accountant)), accountant


def test_every_tool_has_examples() -> None:
    assert {case["tool"] for case in CASES} == {"opacus", "tensorflow-privacy", "flower", "pfl"}


def test_steps_are_rounded_as_each_tool_rounds_them() -> None:
    sizes = {"records": 1000, "batch_size": 300, "epochs": 3}
    opacus = dp_sgd(**sizes, tool="opacus")
    assert (opacus.releases, opacus.sampling_rate) == (12, 0.25)
    tensorflow = dp_sgd(**sizes, tool="tensorflow-privacy")
    assert (tensorflow.releases, tensorflow.sampling_rate) == (10, 0.3)
    with pytest.raises(ValueError, match="steps in their place"):
        dp_sgd(**sizes, tool="jax-privacy")
    jax = dp_sgd(records=1000, batch_size=300, steps=10, tool="jax-privacy")
    assert (jax.releases, jax.sampling_rate) == (10, 0.3)


def test_both_or_neither_of_epochs_and_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="either epochs or steps"):
        dp_sgd(records=1000, batch_size=300)
    with pytest.raises(ValueError, match="either epochs or steps"):
        dp_sgd(records=1000, batch_size=300, epochs=1, steps=1)


def test_to_replace_a_unit_moves_a_sum_twice_as_far() -> None:
    for run in (gaussian(releases=5), laplace(releases=5)):
        removed = run.epsilon(3.0, delta=1e-6)
        assert run.epsilon(6.0, delta=1e-6, relation="replace_one") == pytest.approx(removed)
    run = dp_sgd(records=1000, batch_size=100, steps=20)
    replaced = run.epsilon(2.0, delta=1e-6, relation="replace_one")
    removed = run.epsilon(2.0, delta=1e-6)
    assert removed < replaced < 2.2 * removed


def test_laplace_noise_needs_no_delta_and_gaussian_noise_does() -> None:
    assert laplace(releases=3).epsilon(5.0, delta=0.0) == pytest.approx(0.6)
    with pytest.raises(ValueError, match="delta"):
        gaussian().epsilon(5.0, delta=0.0)


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize(
    "run", [gaussian(releases=3), laplace(), fedavg(clients=100, cohort=50, rounds=2)]
)
def test_calibrated_noise_keeps_epsilon(run: OtherRun, relation: Any) -> None:
    noise = run.calibrated(1.0, delta=1e-5, relation=relation)
    epsilon = run.epsilon(noise, delta=1e-5, relation=relation)
    assert epsilon == pytest.approx(1.0, rel=1e-4)
    assert epsilon <= 1 + 1e-9


def test_a_claim_is_judged_under_its_relation() -> None:
    run = gaussian(releases=2)
    epsilon = run.epsilon(4.0, delta=1e-5)
    true = check_claim(run, claims=epsilon * 1.001, noise_multiplier=4.0, delta=1e-5)
    assert not true.refuted
    assert "larger than needed by" in str(true)
    assert "replace-one, one record" in str(true)
    false = check_claim(run, claims=epsilon * 0.9, noise_multiplier=4.0, delta=1e-5)
    assert false.refuted
    assert "too small by" in str(false)
    assert "(10.0%)" in str(false)
    assert check_claim(
        run, claims=epsilon * 1.001, noise_multiplier=4.0, delta=1e-5, relation="replace_one"
    ).refuted
