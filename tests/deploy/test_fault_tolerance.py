"""Faults that a contract tolerates, and what its reserve costs, as its check prints it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mesh_parties import Parties

from dpmesh.deploy import Contract
from dpmesh.deploy.fault_tolerance import FaultTolerance


def _tolerance_of(path: Path, algorithm: str, **terms: Any) -> tuple[FaultTolerance, Contract, str]:
    parties = Parties(path, algorithm, **terms)
    tolerance = FaultTolerance.of(parties.contract)
    return tolerance, parties.contract, "\n".join(tolerance.lines(parties.contract))


def test_a_sum_states_its_reserve_and_the_noise_that_it_costs(tmp_path: Path) -> None:
    tolerance, contract, lines = _tolerance_of(tmp_path, "sums", quorum=3, rounds=8)
    assert (tolerance.missing, tolerance.attempts) == (1, (1,))
    assert len(contract.plan.releases) == 9
    np.testing.assert_allclose(tolerance.noise, np.sqrt(9 / 8 * 4 / 3))  # 4 shares for 3
    assert "1 missing party at a time, after 10 seconds" in lines
    assert "refusals of parties: 1 in all" in lines
    assert "22% more noise: 15% for missing parties, 6.1% for the reserve" in lines
    assert "as much as with 18% fewer records" in lines


def test_a_reserve_is_stated_apart_from_dropouts(tmp_path: Path) -> None:
    combination = {"kind": "SecureAggregation", "colluding": 0, "dropouts": 1, "reserve": 3}
    changes = {"combination": combination}
    tolerance, contract, lines = _tolerance_of(
        tmp_path, "sums", quorum=3, rounds=8, changes=changes
    )
    assert (tolerance.missing, tolerance.attempts) == (1, (3,))
    assert contract.terms.quorum == 3
    assert len(contract.plan.releases) == 11
    np.testing.assert_allclose(tolerance.noise_of_attempts, np.sqrt(11 / 8))
    np.testing.assert_allclose(tolerance.noise_of_missing, np.sqrt(4 / 3))
    assert "refusals of parties: 3 in all" in lines


def test_a_first_stage_counts_with_its_own_noise(tmp_path: Path) -> None:
    tolerance, contract, lines = _tolerance_of(tmp_path, "first stage", quorum=3, rounds=8)
    assert "1 of each kind of sum" in lines
    mean, *gradients = (
        1 / each.mechanism.noise_to_sensitivity**2 for each in contract.planned.sum_releases
    )
    spent = (2 * mean + sum(gradients) + gradients[0]) / (mean + sum(gradients))
    np.testing.assert_allclose(tolerance.noise, np.sqrt(spent * 4 / 3))


def test_a_sum_without_a_reserve_waits(tmp_path: Path) -> None:
    tolerance, _, lines = _tolerance_of(tmp_path, "sums")
    assert (tolerance.missing, tolerance.attempts, tolerance.noise) == (0, (0,), 1.0)
    assert "waits for a party that is away" in lines
    assert "reserve" not in lines


@pytest.mark.parametrize("algorithm", ["online", "without replacement", "neighbour sums"])
def test_others_spend_no_attempts(algorithm: str, tmp_path: Path) -> None:
    tolerance, contract, lines = _tolerance_of(tmp_path, algorithm)
    assert tolerance.attempts == ()
    assert "reserve" not in lines
    assert tolerance.restored_epsilon > contract.cost(1e-5)


def test_a_folder_allows_a_restored_copy_with_the_budget_that_is_printed(tmp_path: Path) -> None:
    tolerance, *_ = _tolerance_of(tmp_path / "probe", "sums")
    for budget, is_over in (
        (1.001 * tolerance.restored_epsilon, False),
        (0.98 * tolerance.restored_epsilon, True),
    ):
        parties = Parties(tmp_path / f"{budget}", "sums", budget=budget)
        parties.folders[0].charge_again()
        assert parties.folders[0].is_over_budget == is_over
