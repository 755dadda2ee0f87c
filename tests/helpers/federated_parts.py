"""Federated algorithms by the names of their parts' fields, wherever these are."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from dpmesh.algorithms import FederatedLearning

OTHER_NAMES = {"local_step_size": "step_size"}
"""Names here of a contribution's fields that the algorithm has, too."""


def changed(algorithm: FederatedLearning, **flat: Any) -> FederatedLearning:
    """Return the algorithm with other values of its own fields, or of those of its parts."""
    own_fields = {field.name for field in fields(algorithm)}
    changes = {name: flat.pop(name) for name in flat.keys() & own_fields}
    for part in ("combination", "contribution"):
        part_fields = {field.name for field in fields(getattr(algorithm, part))}
        names_of_part = {name for name in flat if OTHER_NAMES.get(name, name) in part_fields}
        values = {OTHER_NAMES.get(name, name): flat.pop(name) for name in names_of_part}
        if values:
            changes[part] = replace(changes.get(part, getattr(algorithm, part)), **values)
    assert not flat, flat
    return replace(algorithm, **changes)
