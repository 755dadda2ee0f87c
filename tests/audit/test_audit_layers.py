"""All layers together, in words; and bad input of each."""

from __future__ import annotations

import sys
from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from faulty_mechanisms import HalvedLaplace, SilentLaplace
from faulty_online import MissingFactor2

from dpmesh.algorithms import FederatedLearning, OnlineLearning, RecordGradients, SecureAggregation
from dpmesh.audit import (
    OneRelease,
    alone,
    audit_algorithm,
    audit_layers,
    audit_mechanism,
    audit_one_run,
    couple,
)
from dpmesh.keys import Key
from dpmesh.noise import Gaussian, Laplace, Mechanism, Sensitivity
from dpmesh.problems.canaries import canary_records
from dpmesh.tables import Columns, Number
from dpmesh.tables.models import Outline

HOSPITALS = Path(__file__).parents[2] / "examples" / "three_hospitals"
CASE = OnlineLearning(epsilon=1.0).worst_case(canaries=50)


def test_all_layers_in_words() -> None:
    texts = [str(result) for result in audit_layers(*CASE, runs=50, key=Key.seeded(10))]
    coupling, many, one = texts
    assert (
        "moved     1 of 3 releases differed; largest shift = 100.0000% of the declared sensitivity"
        in coupling
    )
    assert "2 x 50 runs of OnlineLearning, rounds: 3; distinguished by a threshold" in many
    assert "claim     epsilon = 1 at delta = 0" in many
    assert "1 run of OnlineLearning, rounds: 3, canaries: 50" in one
    assert "with confidence 0.95" in one
    assert all("no violation found (an audit cannot prove the claim)" in text for text in texts)
    again = audit_layers(*CASE, runs=50, key=Key.seeded(10))
    assert [str(result) for result in again] == texts


def test_coupling_takes_the_pairs_that_are_meant_for_it() -> None:
    pair, crowd = CASE
    short = replace(pair, rounds=2)
    for pairs, releases in (((), [3]), ((short,), [2]), ((pair, short), [3, 2])):
        results = list(audit_layers(replace(pair, coupled=pairs), crowd, runs=1))
        assert [len(coupling.movements) for coupling in results[:-2]] == releases


def test_a_record_that_coins_leave_out_is_removed_by_the_same_coins() -> None:
    of = RecordGradients(clients=1, records=9, sampling_rate=0.3, neighboring_relation="add_remove")
    pair, _ = FederatedLearning(of, noise_multiplier=1.0).worst_case(canaries=2)
    (coupled,) = pair.coupled
    for seed in range(5):
        found = couple(
            coupled.algorithm,
            coupled.problem,
            coupled.neighbor,
            alone,
            rounds=20,
            key=Key.seeded(seed),
        )
        assert "largest shift = 100.0000%" in str(found)
        assert not found.violated
    none = couple(
        OneRelease(mechanism=Gaussian(1.0), sensitivity=Sensitivity(1.0, "l2", "x")),
        np.zeros((2, 1)),
        np.zeros((2, 1)),
        alone,
        rounds=1,
    )
    assert "verdict   nothing was tested, since no release differed" in str(none)


@pytest.mark.slow
def test_the_command_line_says_what_leaks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    testing = pytest.importorskip("typer.testing")
    pytest.importorskip("matplotlib")
    from dpmesh.cli import app
    from dpmesh.cli.audit import case_names

    def audit(*arguments: str) -> tuple[int, str]:
        quick = ["--runs", "50", "--canaries", "50", "--seed", "1"]
        result = testing.CliRunner().invoke(app, ["audit", *quick, *arguments])
        return result.exit_code, result.output

    code, output = audit()
    assert code == 0, output
    assert {"gaussian", "laplace"} < set(case_names())
    assert all(f"{name}: " in output for name in case_names())
    again = 2  # of without-replacement two pairs are coupled; the last line sums up
    assert output.count("no violation found") == 3 * len(case_names()) + again
    monkeypatch.setattr(sys.modules["dpmesh.cli.audit"], "_example", lambda _: MissingFactor2())
    code, output = audit("online")
    assert (code, "leaks more than it claims: online" in output) == (1, True)
    monkeypatch.undo()
    assert audit("federated")[0] == 0
    secure = FederatedLearning(
        RecordGradients(clients=3, records=60),
        noise_multiplier=4.0,
        combination=SecureAggregation(dim=3, rounds=4),
    )
    columns = Columns.of({"age": (0, 100)}, ["age"])
    outline = Outline(columns=columns, target=Number(low=0, high=1))
    about = {"fit": {"algorithm": repr(secure), "rounds": 4}}
    outline.model(np.zeros(columns.dim), about=about).save(tmp_path / "a.model")
    for claim, words in (
        (("gradient-descent", "--epsilon", "2", "--rounds", "4", "--records", "9"), "epsilon = 2 "),
        (("gaussian", "--noise", "4"), "Gaussian(noise_to_sensitivity=4.0, "),
        (("cross-silo", "--noise", "8", "--rounds", "3"), "noise_multiplier=8.0, combination"),
        ((str(HOSPITALS / "contract.toml"), "--rounds", "3"), "records=180, noise_multiplier=40"),
        ((str(tmp_path / "a.model"), "--rounds", "3"), repr(secure)),
    ):
        code, output = audit(*claim)
        assert (code, words in output, "weak: it shows less" in output) == (0, True, True), output
    code, output = audit("cross-silo", "--noise", "1.1", "--rounds", "20")
    assert (code, "delta: wanted one at which the plan has a finite" in output) == (2, True), output
    code, output = audit("nonsense")
    assert (code, "name: wanted one of" in output) == (2, True)
    code, output = audit("online", "--confidence", "1")
    assert (code, output) == (2, "Error: confidence: wanted a number in (0, 1), got 1.0\n")


@pytest.mark.parametrize("mechanism", [Gaussian(1.0), Gaussian(1.0, grid=2.0**-20), Laplace(1.0)])
def test_a_bare_mechanism_claims_something(mechanism: Mechanism) -> None:
    norm = "l1" if isinstance(mechanism, Laplace) else "l2"
    case = OneRelease(mechanism=mechanism, sensitivity=Sensitivity(1.0, norm, "a test")).worst_case(
        canaries=50
    )
    results = list(audit_layers(*case, runs=50, confidence=1 - 1e-3, key=Key.seeded(1)))
    assert len(results) == 3
    for result in results:
        assert not result.violated
        assert "inf" not in str(result)


@pytest.mark.slow
def test_each_layer_flags_a_missing_factor() -> None:
    case = MissingFactor2(epsilon=1.0).worst_case(canaries=2_000)
    for result in audit_layers(*case, runs=700, confidence=1 - 1e-3, key=Key.seeded(11)):
        assert result.violated, str(result)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "violated"),
    [
        (Laplace, [False, False, False]),
        (HalvedLaplace, [False, True, True]),
        (SilentLaplace, [True, True, True]),
    ],
)
def test_a_bare_mechanism_goes_through_all_layers(kind, violated: list[bool]) -> None:
    sensitivity = Sensitivity(1.0, "l1", "a test")
    case = OneRelease(mechanism=kind(1.0), sensitivity=sensitivity).worst_case(canaries=2_000)
    results = audit_layers(*case, runs=700, confidence=1 - 1e-3, key=Key.seeded(12))
    assert [result.violated for result in results] == violated


ONLINE = OnlineLearning(epsilon=1.0)


def _records(coins=(True,), **other):
    return canary_records(coins, **({"records": 2} | other))


def _many(**arguments):
    pair = _records([True]), _records([False])
    return audit_algorithm(ONLINE, *pair, alone, **({"rounds": 2, "runs": 9} | arguments))


def _one(**arguments):
    return audit_one_run(ONLINE, _records, alone, **({"rounds": 2, "canaries": 4} | arguments))


def test_the_coins_of_one_run_are_fair() -> None:
    """The bound counts on it. Heads are within 6 standard deviations, false alarm 2e-9."""
    shown, canaries = [], 2_000

    def problem_of(coins):
        shown.append(coins)
        return _records(coins)

    audit_one_run(ONLINE, problem_of, alone, rounds=1, canaries=canaries, key=Key.seeded(13))
    assert abs(shown[0].mean() - 0.5) < 6 * 0.5 / sqrt(canaries) < abs(2 / 3 - 0.5)


def test_one_run_guesses_as_many_coins_as_told() -> None:
    for guesses, made in ((None, 4), (10, 10), (20, 20)):
        method = _one(canaries=20, guesses=guesses, key=Key.seeded(14)).method
        assert method.endswith(f" of {made} guesses were right")


ONE = Sensitivity(1.0, "l2", "a test")
SWAPPED = {"algorithm": _records(), "problem": ONLINE, "neighbor": ONLINE, "carrier": alone}
SWAPPED |= {"rounds": 2}
CROWD = {"algorithm": _records, "problem_of": ONLINE, "carrier": alone}
CROWD |= {"rounds": 2, "canaries": 4}


@pytest.mark.parametrize(
    ("audit", "arguments", "message"),
    [
        (_many, {"rounds": 0}, "rounds: wanted an integer of at least 1, got 0"),
        (_many, {"runs": 0}, "runs: wanted an integer of at least 1, got 0"),
        (_many, {"delta": 1.0}, r"delta: wanted a number in \[0, 1\), got 1"),
        (_many, {"confidence": 1.0}, r"confidence: wanted a number in \(0, 1\), got 1"),
        (couple, SWAPPED, "algorithm: wanted an algorithm of .*, got LinearP"),
        (audit_algorithm, SWAPPED, "algorithm: wanted an algorithm of .*, got"),
        (audit_one_run, CROWD, "algorithm: wanted an algorithm of .*, got"),
        (audit_mechanism, {"mechanism": "gaussian", "sensitivity": ONE}, "mechanism: wanted a mec"),
        (
            audit_mechanism,
            {"mechanism": Laplace(1.0), "sensitivity": 1.0},
            r"sensitivity: wanted a Sensitivity, such as Sensitivity\(1\.0, .*, got 1\.0",
        ),
        (_one, {"rounds": 0}, "rounds: wanted an integer of at least 1, got 0"),
        (_one, {"confidence": 1.0}, r"confidence: wanted a number in \(0, 1\), got 1"),
        (_one, {"canaries": 1}, "canaries: wanted an integer of at least 2, got 1"),
        (_one, {"guesses": 5}, "guesses: wanted an integer of at least 2 and below 5, got 5"),
        (
            _one,
            {"scores": lambda run: np.zeros(3)},
            r"scores: wanted one number for each of 4 canaries, got shape \(3,\)",
        ),
        (_records, {"records": 0}, "records: wanted an integer of at least 1, got 0"),
        (_records, {"dim": 0}, "dim: wanted an integer of at least 1, got 0"),
        (_records, {"position": 2}, "position: wanted .* at least 0 and below 2, got 2"),
        (_records, {"coins": []}, "coins: wanted at least 1 element"),
        (_records, {"coins": [np.nan]}, r"coins: wanted truth values, got \[nan\]"),
    ],
)
def test_bad_input_is_named(audit, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit(**arguments)
