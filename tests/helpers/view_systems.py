"""Views for tests: the systems of the oracles, and a slow dense twin of the recursion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh._core import ViewSystem
from dpmesh.kernels.views import Mixing, view_system

ORACLES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "oracles" / "oracles-views.json").read_text()
)["oracles"]

Floats = npt.NDArray[np.float64]


def metropolis(nodes: int, edges: list[list[int]]) -> Floats:
    weights = np.zeros((nodes, nodes))
    degrees = np.bincount(np.array(edges).reshape(-1), minlength=nodes)
    for i, j in edges:
        weights[i, j] = weights[j, i] = 1 / (1 + max(degrees[i], degrees[j]))
    return weights + np.diag(1 - weights.sum(axis=1))


def matrices_of(inputs: dict[str, Any]) -> list[Floats]:
    if "mixing_matrices" in inputs:
        return [np.array(matrix) for matrix in inputs["mixing_matrices"]]
    if "mixing_matrix" in inputs:
        return [np.array(inputs["mixing_matrix"])] * inputs["rounds"]
    return [metropolis(inputs["nodes"], inputs["edges"])] * inputs["rounds"]


def published_of(inputs: dict[str, Any]) -> npt.NDArray[np.bool_]:
    """Messages that are seen beside those that the observers receive and send."""
    published = np.zeros((inputs["rounds"], inputs["nodes"]), dtype=bool)
    for t, j in inputs.get("also_seen_round_node", []):
        published[t, j] = True
    for t in inputs.get("rounds_seen_by_all", []):
        published[t] = True
    for sender, _ in inputs.get("links_sender_receiver", []):
        published[:, sender] = True
    if inputs["view"] == "last":
        published[-1] = True
    if inputs["view"] == "everybody":
        published[:] = True
    return published


def system_of(inputs: dict[str, Any]) -> ViewSystem:
    rho = inputs["rho"]
    mixings = [Mixing(t, t, matrix, rho) for t, matrix in enumerate(matrices_of(inputs))]
    for late in inputs.get("late", []):
        matrix = np.array(late["matrix"])
        mixings.append(Mixing(late["mixed_in_round"], late["sent_in_round"], matrix, rho))
    return view_system(
        mixings,
        noise=inputs["sigma"],
        fresh=inputs["s"],
        nodes=inputs["nodes"],
        own=inputs["own_state"],
        rounding=inputs.get("grid_times_sqrt_dim", 0.0),
        published=published_of(inputs),
        mean_of_last=inputs.get("mean_of_last_messages_published", False),
    )


def recursion(
    matrices: list[Floats], shifts: Floats, fresh: Floats, target: int, own: float = 0.0
) -> Floats:
    """Return z of the theorem, shape (rounds, nodes), loop by loop."""
    rounds, nodes = shifts.shape
    z = np.zeros((rounds, nodes))
    for t in range(rounds):
        for i in range(nodes):
            if t > 0:
                z[t, i] = own * z[t - 1, i]
                for j in range(nodes):
                    z[t, i] += matrices[t - 1][i, j] * shifts[t - 1, j]
        z[t, target] += fresh[t]
    return z


def bound_of(z: Floats, shifts: Floats, noise: Floats) -> float:
    return float(np.linalg.norm(np.maximum(0.0, z - shifts) / noise))
