"""The contract of algorithms: each parameter changed once, each mechanism, on each engine.

A run between parties has the simulator's bits, or the contract is refused before any party joins
it: no node stops, and none is charged for a run that it could not take part in. Ranks are swept by
``tests/engines``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mesh_parties import ALGORITHMS, STAGES, Parties

from dpmesh.deploy import Router

PUBLIC_SIZES = ("records", "clients", "sites", "dim", "nodes", "rounds", "topology")
"""Parameters that a contract fills in, or that must fit its parties."""
MECHANISMS = (
    {"kind": "Laplace"},
    {"kind": "Gaussian", "grid": 2.0**-10},
    {"kind": "InTime", "bands": 2},
    {"kind": "BetweenPartners"},
    {"kind": "BetweenPartners", "mixings": 2},
    {"kind": "Both", "bands": 2},
    {"kind": "Both", "bands": 2, "mixings": 2},
)


def other_values(hint: str, value: Any) -> list[Any]:
    """Return values of a parameter that differ from its own."""
    if hint.startswith("Literal["):
        choices = ast.literal_eval(f"({hint[len('Literal[') : -1]},)")
        return [choice for choice in choices if choice != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value * 0.75]
    return []


def changes_of(name: str) -> Iterator[dict[str, Any]]:
    """Yield tables of an algorithm, each with one parameter changed or another mechanism."""
    settings = ALGORITHMS[name]
    kind, own = _algorithm_of(settings)
    for field in fields(kind):
        if field.name in PUBLIC_SIZES or not field.init:
            continue
        value = settings.get(field.name, field.default)
        for other in other_values(str(field.type), value):
            yield {field.name: other}
    if "noise" in {field.name for field in fields(kind)}:
        for noise in MECHANISMS:
            yield {"noise": noise, **own}


def _algorithm_of(settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the class of a table, and what correlated noise needs beside it."""
    import dpmesh as dm

    kind = getattr(dm, settings["kind"])
    needs_delta = settings["kind"] == "OnlineLearning"
    return kind, ({"delta": 1e-5} if needs_delta else {})


CASES = [(name, change) for name in ALGORITHMS if name != "noisy" for change in changes_of(name)]
FEW = CASES[:: max(1, len(CASES) // 24)]


def outcome(name: str, change: dict[str, Any], path: Path) -> str:
    """Return ``same`` or ``refused``; fail if a node stops, or has other bits."""
    try:
        parties = Parties(path, name, changes=change, rounds=3)
    except ValueError:
        return "refused"
    router = Router(parties.contract)
    for _ in range(400):
        if router.done or router.gone:
            break
        for party, message in router.requests().items():
            router.take(party, parties.nodes[party].answer(message))
    try:
        assert not router.gone, f"{name} {change}: {router.gone}"
        assert router.done, f"{name} {change}: it waits for {router.waits_for}"
        simulated = parties.simulated()
        models = parties.models()[: len(simulated.parameters)]
        np.testing.assert_array_equal(models, simulated.parameters, f"{name} {change}")
        for folder in parties.folders:
            spent = folder.ledger(parties.contract).cost(1e-5).epsilon
            assert spent <= parties.contract.plan.cost(1e-5).epsilon * (1 + 1e-9)
    finally:
        for folder in parties.folders:
            folder.close()
    return "same"


@pytest.mark.parametrize(("name", "change"), FEW, ids=str)
def test_a_changed_parameter_has_the_simulators_bits_or_is_refused(
    name: str, change: dict[str, Any], tmp_path: Path
) -> None:
    assert outcome(name, change, tmp_path) in ("same", "refused")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "noisy"])
def test_each_parameter_changed_once_has_the_simulators_bits_or_is_refused(
    name: str, tmp_path: Path
) -> None:
    changes = [change for of, change in CASES if of == name]
    outcomes = [
        outcome(name, change, tmp_path / str(number)) for number, change in enumerate(changes)
    ]
    assert "same" in outcomes or name in STAGES
