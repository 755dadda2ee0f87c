"""Compare MPI ranks with one process, for each registered algorithm and each of its parameters.

A case is an algorithm's example with one parameter changed, or with another mechanism. As a program
(under mpiexec) it writes the outcome of each case: ``same`` as in one process, ``refused`` if no
rank released anything, or the names of the results that differ.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from problems import contract_problem

import dpmesh as dm
from dpmesh.algorithms.registry import NODES, REGISTRY, ROUNDS
from dpmesh.noise import Gaussian, Independent, Laplace
from dpmesh.noise.correlated import BetweenPartners, Both, InTime
from dpmesh.privacy.ledger import Ledger

PUBLIC_SIZES = ("records", "clients", "sites", "dim", "nodes", "rounds", "topology")
"""Parameters that must fit the problem."""

RING = dm.topology.ring(NODES)

MECHANISMS: tuple[Any, ...] = (
    Gaussian,
    Laplace,
    Independent(Gaussian, (("grid", 2.0**-10),)),
    InTime(topology=RING, rounds=ROUNDS, bands=2),
    BetweenPartners(topology=RING, rounds=ROUNDS),
    BetweenPartners(topology=RING, rounds=ROUNDS, mixings=2),
    Both(topology=RING, rounds=ROUNDS, bands=2, mixings=2),
)

Case = tuple[str, dict[str, Any]]
"""Name of an algorithm, and new values of its example by parameter; of a part: ``part.name``."""


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


def changes_of(part: Any, prefix: str = "") -> Iterator[dict[str, Any]]:
    """Yield changes of an algorithm, or of a part of it, each of one parameter."""
    for field in fields(part):
        if not field.init or field.name in PUBLIC_SIZES:
            continue
        value = getattr(part, field.name)
        if field.name in ("contribution", "combination"):
            yield from changes_of(value, f"{field.name}.")
        for other in other_values(str(field.type), value):
            yield {prefix + field.name: other}
    if not prefix and "noise" in {field.name for field in fields(part)}:
        for noise in MECHANISMS:
            yield {"noise": noise}


EXAMPLES: dict[str, Any] = {entry.name: entry.example for entry in REGISTRY if entry.learns}

CASES: list[Case] = [
    (name, change) for name, example in EXAMPLES.items() for change in ({}, *changes_of(example))
]


def changed(name: str, change: dict[str, Any]) -> Any:
    """Return an example with a change."""
    algorithm = EXAMPLES[name]
    for path, value in change.items():
        part_name, _, parameter = path.rpartition(".")
        if part_name:
            part = replace(getattr(algorithm, part_name), **{parameter: value})
            algorithm = replace(algorithm, **{part_name: part})
        else:
            algorithm = replace(algorithm, **{parameter: value})
    assert is_dataclass(algorithm)
    return algorithm


def run(algorithm: Any, **options: Any) -> dm.Run:
    """Run an algorithm on the problem that the examples are made for."""
    network = RING if algorithm.communication == "gossip" else None
    return dm.simulate(
        algorithm,
        contract_problem(),
        network,
        rounds=getattr(algorithm, "run_length", None) or ROUNDS,
        key=dm.Key.seeded(5),
        delta=1e-5,
        metrics=[],
        **options,
    )


def differences(one: dm.Run, other: dm.Run) -> list[str]:
    """Return the names of the results that differ between two runs."""
    names = []
    if str(one.ledger) != str(other.ledger):
        names.append("ledger")
    if not np.array_equal(one.parameters, other.parameters):
        names.append("parameters")
    if not np.array_equal(one.released, other.released):
        names.append("released")
    return names


def outcome(case: Case, admitted: list[str]) -> str:
    """Return the outcome of a case on the ranks; `admitted` is the list of their releases."""
    from dpmesh.engines.mpi import MpiEngine, RankFailed

    name, change = case
    try:
        algorithm = changed(name, change)
    except (ValueError, TypeError):
        return "refused"
    engine = MpiEngine(RING if algorithm.communication == "gossip" else NODES)
    admitted.clear()
    try:
        on_ranks = run(algorithm, engine=engine)
    except (ValueError, RankFailed) as error:
        if admitted:
            return f"refused after a release: {error}"
        return "refused"
    if not engine.is_root:
        return "same"
    return ", ".join(differences(on_ranks, run(algorithm))) or "same"


def main(path: str, numbers: str) -> None:
    """Write the outcomes of these cases, by their numbers, on all ranks."""
    from mpi4py import MPI

    admitted: list[str] = []
    admit = Ledger.admit

    def admit_and_record(self: Ledger, release: Any, nodes: Any) -> None:
        admit(self, release, nodes)
        admitted.append(str(release))

    Ledger.admit = admit_and_record  # type: ignore[method-assign]
    outcomes = {}
    for number in json.loads(numbers):
        on_this_rank = outcome(CASES[number], admitted)
        on_all = MPI.COMM_WORLD.allgather(on_this_rank)
        refused = [text == "refused" for text in on_all]
        disagree = len(set(refused)) > 1
        outcomes[number] = f"ranks disagree: {on_all}" if disagree else on_all[0]
        if MPI.COMM_WORLD.rank == 0:
            Path(path).write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
