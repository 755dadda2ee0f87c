"""Correlated noise against the oracle values, every one of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from dpmesh import topology
from dpmesh.noise import correlated
from dpmesh.noise.correlated.amplitudes import shared_for
from dpmesh.noise.correlated.coalitions import exposure, laplacian

FILE = Path(__file__).parents[1] / "oracles" / "oracles-noise.json"
ORACLES = json.loads(FILE.read_text())["oracles"]
Inputs = dict[str, Any]


def graph(name: str) -> nx.Graph:
    kind, *sizes = name.split("-")
    numbers = [int(size) for size in sizes]
    if kind == "torus":
        grid = nx.grid_2d_graph(*numbers, periodic=True)
        return nx.relabel_nodes(grid, {(i, j): i * numbers[1] + j for i, j in grid})
    make = {"ring": nx.cycle_graph, "path": nx.path_graph, "complete": nx.complete_graph}
    return nx.star_graph(numbers[0] - 1) if kind == "star" else make[kind](numbers[0])


def secrets(inputs: Inputs, name: str | None = None, **more: float) -> correlated.Secrets:
    links = graph(name or inputs["graph"])
    own, shared = inputs["b"], more.get("shared", inputs.get("a", 0.0))
    return correlated.Secrets(nodes=len(links), pairs=links.edges, own=own, shared=shared)


def objective(inputs: Inputs) -> correlated.Objective:
    rounds = inputs["rounds"]
    s = 1 / np.sqrt(np.arange(1, rounds + 1)) if inputs["sensitivities"] == "sqrt" else 1.0
    if inputs["graph"] == "server":
        return correlated.server(rounds, sensitivities=s)
    links = graph(inputs["graph"])
    matrix = topology.from_networkx(nx.relabel_nodes(links, {})).mixing_matrix
    between = None
    if inputs.get("a_b"):
        shared, own = inputs["a_b"]
        between = secrets({**inputs, "a": shared, "b": own}).covariance
    mixings = inputs.get("mixings", 1)
    return correlated.gossip(matrix, rounds, mixings=mixings, sensitivities=s, covariance=between)


def gram(inputs: Inputs) -> list[float]:
    g = objective(inputs).matrix()
    return [g[0, 0], g[0, -1], g[-1, -1], np.trace(g)]


def dense_objective(inputs: Inputs) -> float:
    chosen = objective(inputs)
    return correlated.factorize(chosen).objective(chosen.matrix())


def dense_entries(inputs: Inputs) -> list[float]:
    c = correlated.factorize(objective(inputs)).matrix()
    return [c[0, 0], c[1, 0], c[-1, 0], c[-2, -2]]


def banded_objective(inputs: Inputs) -> float:
    chosen = objective(inputs)
    found = correlated.factorize(chosen, bands=inputs["bands"])
    return found.objective(chosen.matrix())


def square_root(inputs: Inputs) -> list[float] | float:
    rounds = inputs["rounds"]
    prefix_sums = correlated.server(rounds)
    once = correlated.factorize(prefix_sums, method="square_root")
    if "most" not in inputs:
        first = float(once.bands[0, 0])
        return [1 / first, once.objective(prefix_sums.matrix()) / rounds]
    use = correlated.Participation(uses=inputs["most"], separation=inputs["min_separation"])
    bands = once.bands / once.bands[0, 0]
    return correlated.Factorization(bands=bands, kind="square_root", participation=use).sensitivity


def sensitivity(inputs: Inputs) -> float:
    use = correlated.Participation(uses=inputs["most"], separation=inputs["min_separation"])
    return correlated.from_matrix(inputs["C"], participation=use).sensitivity


def charged_and_scalar(inputs: Inputs) -> list[float]:
    """What is charged, and the largest shift of scalar records, by trying all patterns."""
    c = np.array(inputs["C"])
    largest = 0.0
    for count in range(1, inputs["most"] + 1):
        for pattern in combinations(range(len(c)), count):
            if all(j - i >= inputs["min_separation"] for i, j in pairwise(pattern)):
                for signs in product([1, -1], repeat=count):
                    largest = max(largest, np.linalg.norm(c[:, pattern] @ signs))
    return [sensitivity(inputs), largest]


def every_round(inputs: Inputs) -> float:
    use = correlated.Participation(uses=inputs["rounds"])
    chosen = objective(inputs)
    found = correlated.factorize(chosen, participation=use, method="diagonal")
    return found.objective(chosen.matrix())


def one_round(inputs: Inputs) -> float:
    return secrets(inputs).mu_of(inputs["coalition"])


def least_secret(inputs: Inputs) -> float:
    of = secrets(inputs)
    return shared_for(inputs["b"], exposure(of.nodes, of.pairs, 0))


def after_mixing(inputs: Inputs) -> float:
    one = {**inputs, "rounds": 1, "sensitivities": "constant", "a_b": [inputs["a"], inputs["b"]]}
    return objective(one).trace()


def time_and_space(inputs: Inputs) -> float:
    names = inputs["graph"]
    c = correlated.from_matrix(inputs["C"])
    if isinstance(names, str):
        of: Any = secrets(inputs)
    else:
        of = [secrets(inputs, names[t % len(names)]) for t in range(c.rounds)]
    s = inputs["sensitivities"] or 1.0
    release = correlated.CorrelatedGaussian(
        noise_to_sensitivity=1.0, factorization=c, secrets=of, sensitivities=s
    )
    return release.mu_of(inputs["coalition"])


def dropped(inputs: Inputs) -> float:
    of, lost = secrets(inputs), inputs["lost"]
    if not inputs["told"]:  # the others' secrets with it stay in the sum
        kept = np.delete(np.arange(of.nodes), lost)
        block = of.covariance[np.ix_(kept, kept)]
        return float(np.sqrt(np.diagonal(np.linalg.inv(block)).max()))
    mus = np.sqrt(of.without(lost).leverages(())[1])
    return float(np.delete(mus, lost).max())


def reused(inputs: Inputs) -> float:
    """Covariance of all rounds if the secrets of one are in every one."""
    of, rounds = secrets(inputs), inputs["rounds"]
    shared = of.shared**2 * laplacian(of.nodes, of.pairs)
    whole = np.kron(np.eye(rounds), of.own**2 * np.eye(of.nodes))
    whole += np.kron(np.ones((rounds, rounds)), shared)
    return float(np.sqrt(np.diag(np.linalg.inv(whole)).max()))


CHECKS: dict[str, Callable[[Inputs], Any]] = {
    "gram.": gram,
    "dense.objective.": dense_objective,
    "dense.C.": dense_entries,
    "banded.": banded_objective,
    "sqrt.": square_root,
    "sens.band3": sensitivity,
    "sens.mixed": charged_and_scalar,
    "every.": every_round,
    "space.a.": least_secret,
    "space.after.": after_mixing,
    "space.": one_round,
    "both.": time_and_space,
    "drop.": dropped,
    "mistake.reuse.": reused,
}


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle["id"])
def test_every_value(oracle: dict[str, Any]) -> None:
    check = next(check for prefix, check in CHECKS.items() if oracle["id"].startswith(prefix))
    wanted = np.atleast_1d(oracle["value"])
    got = np.atleast_1d(check(oracle["inputs"]))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=oracle["rel_tol"] * np.abs(wanted).max())
