"""Every value of oracles-views.json, and who sees what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from view_systems import ORACLES, system_of

from dpmesh.kernels.views import Certificate, cheap_bounds, solve_pair
from dpmesh.privacy.views import epsilon_of

IDS = [oracle["id"] for oracle in ORACLES]


def _solved(oracle: dict[str, Any], gap: float) -> Certificate:
    inputs = oracle["inputs"]
    observers = inputs.get("observers", [])
    return solve_pair(system_of(inputs), observers, inputs["target"], gap=gap)


@pytest.mark.parametrize("oracle", ORACLES, ids=IDS)
def test_the_bound(oracle: dict[str, Any]) -> None:
    outputs, tolerance = oracle["output"], oracle["abs_tol"]
    found = _solved(oracle, 1e-8)
    assert found.mu == pytest.approx(outputs["mu"], abs=tolerance)
    assert found.mu_at_least <= outputs["mu"] + tolerance
    inputs = oracle["inputs"]
    everybody = system_of(inputs).everybody(inputs["target"])
    assert everybody == pytest.approx(outputs["mu_everybody"], abs=tolerance)
    if "epsilon" in outputs:
        epsilon = epsilon_of(found.mu, inputs["delta"])
        assert epsilon == pytest.approx(outputs["epsilon"], abs=1e-5)


@pytest.mark.parametrize("oracle", ORACLES, ids=IDS)
def test_who_sees_what(oracle: dict[str, Any]) -> None:
    inputs, wanted = oracle["inputs"], oracle["seen_by_round"]
    rounds, nodes = inputs["rounds"], inputs["nodes"]
    if not wanted or not isinstance(wanted[0], list):
        wanted = [wanted] * rounds
    seen = system_of(inputs).seen(inputs.get("observers", [])).reshape(rounds, nodes)
    assert [np.flatnonzero(row).tolist() for row in seen] == wanted


@pytest.mark.parametrize("oracle", ORACLES, ids=IDS)
def test_cheap_bounds_and_early_stops_are_bounds(oracle: dict[str, Any]) -> None:
    inputs, mu = oracle["inputs"], oracle["output"]["mu"]
    system, observers = system_of(inputs), [tuple(inputs.get("observers", []))]
    pairs = np.array([[0, inputs["target"]]])
    cheap = cheap_bounds(system, observers, pairs, inputs["rounds"] * inputs["nodes"])
    assert mu - 1e-6 <= cheap[0] <= oracle["output"]["mu_everybody"] + 1e-6
    early = _solved(oracle, 0.5)
    assert early.mu_at_least - 1e-6 <= mu <= early.mu + 1e-6
