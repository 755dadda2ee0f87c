"""A round of the mesh beside the simulator's: seconds, and bytes beside the routed minimum.

    python -m benches.bench_mesh

Gradient descent on a ring. Nodes and router are in one process, each node with a folder on disk: no
time is spent on a network, and all of it on checks, signatures, folders and the round itself. On
machines of their own, nodes work at the same time; the router works for one after the other. The
routed minimum sends each row to the router once, and once to each node that hears it.

A model is fitted to the router's seconds and to a node's, and says what a thousand nodes need:

    router = party P + byte B           P parties, B bytes a round through the router
    node = round + number d             d numbers of a model, on a ring

The lower-case words are the constants: seconds of a party, a byte, a round and a number.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

import dpmesh as dm
from benches.measure import Case
from dpmesh.deploy import Contract, Folder, Node, Router

RECORDS = 100
"""Records of a node."""
ROUNDS = 20
SIZES = tuple((nodes, dim) for dim in (1_000, 10_000) for nodes in (4, 8, 16))
"""Nodes, and numbers of a model."""
MANY = 1_000
"""A network for which the fitted model says what it would need."""


class Mesh(NamedTuple):
    """A contract, its nodes, and all their records in one problem."""

    contract: Contract
    nodes: list[Node]
    whole: dm.LinearProblem


class Costs(NamedTuple):
    """Costs of a round.

    Attributes
    ----------
    node, router, simulator
        Seconds of one node, of the router for all nodes, and of the simulator.
    bytes, least
        Bytes through the router, and the routed minimum.
    """

    node: float
    router: float
    simulator: float
    bytes: float
    least: float


def mesh(folder: Path, nodes: int, dim: int) -> Mesh:
    """Make a contract and its nodes, which draw noise as in a rehearsal."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(nodes * RECORDS, dim)) / np.sqrt(2 * dim)
    features /= np.maximum(1, np.linalg.norm(features, axis=1, keepdims=True))
    train = dm.Dataset(features, np.where(features[:, 0] > 0, 1, -1), "random")
    parts = np.split(np.arange(len(features)), nodes)
    folders = [Folder.create(folder / str(i), epsilon=100, delta=1e-5) for i in range(nodes)]
    public = {"records": RECORDS, "epsilon": 100.0, "delta": 1e-5}
    content = {
        "format": 2,
        "contract": {
            "rounds": ROUNDS,
            "public_key": "01" * 32,
            "largest_row": 1e4,
            "deadline": 60.0,
            "quorum": nodes,
            "features": dim,
        },
        "problem": {"loss": "logistic", "feature_norm": 1.0},
        "algorithm": {"kind": "GradientDescent", "records": RECORDS, "noise_multiplier": 10.0},
        "topology": {"kind": "ring"},
        "party": [
            {"name": f"p{i}", "signing_key": party_folder.signing.public.hex(), **public}
            for i, party_folder in enumerate(folders)
        ],
    }
    contract = Contract.of(content)
    mesh_nodes = [
        Node(contract, party_folder, train.take(part), rehearsal=True)
        for party_folder, part in zip(folders, parts, strict=True)
    ]
    return Mesh(
        contract, mesh_nodes, dm.LinearProblem(train, tuple(parts), "logistic", feature_norm=1.0)
    )


def run(deployed: Mesh) -> Costs:
    """Run the contract, and the simulator on the same."""
    contract = deployed.contract
    router = Router(contract)
    node_seconds = 0.0
    start = time.perf_counter()
    while not router.done:
        for party in range(contract.nodes):
            question = router.request(party)
            if question is None:
                continue
            start_of_node = time.perf_counter()
            answer = deployed.nodes[party].answer(question)
            node_seconds += time.perf_counter() - start_of_node
            router.take(party, answer)
    router_seconds = time.perf_counter() - start - node_seconds
    start = time.perf_counter()
    simulate(deployed)
    simulator_seconds = time.perf_counter() - start
    row_bytes = 8 * contract.dim  # float64
    rows_up = contract.nodes
    rows_down = contract.topology.matrix(0).messages
    return Costs(
        node=node_seconds / (contract.nodes * ROUNDS),
        router=router_seconds / ROUNDS,
        simulator=simulator_seconds / ROUNDS,
        bytes=router.bytes / ROUNDS,
        least=row_bytes * (rows_up + rows_down),
    )


def simulate(deployed: Mesh) -> dm.Run:
    """Run the same in the simulator."""
    contract = deployed.contract
    key = contract.public_key
    algorithm, network = contract.algorithm, contract.topology
    return dm.simulate(
        algorithm, deployed.whole, network, rounds=ROUNDS, key=key, delta=1e-5, metrics=()
    )


def cases() -> Iterator[Case]:
    """Yield the simulator's runs, whose rounds the mesh's are compared with."""
    for nodes, dim in SIZES[:2]:
        with TemporaryDirectory() as folder:
            deployed = mesh(Path(folder), nodes, dim)
            yield Case(
                f"{ROUNDS} rounds, {nodes} nodes of {dim}",
                lambda deployed=deployed: simulate(deployed),
            )


def fitted(terms: list[tuple[float, float]], seconds: list[float]) -> tuple[float, float]:
    """Return the two constants of at least 0 with the least squared relative errors.

    The model of a time is the sum of its terms times the constants.
    """
    weights = 1 / np.array(seconds)
    constants, _ = nnls(np.array(terms) * weights[:, np.newaxis], np.ones(len(seconds)))
    first, second = constants.tolist()
    return first, second


def main() -> None:
    """Print a table, the fitted model, and its predictions."""
    print("nodes | numbers | a node | router | simulator | bytes a round | least | overhead")
    costs_of_sizes = {}
    for nodes, dim in SIZES:
        with TemporaryDirectory() as folder:
            costs = run(mesh(Path(folder), nodes, dim))
        costs_of_sizes[nodes, dim] = costs
        times = " | ".join(
            f"{1e3 * seconds:.2f} ms" for seconds in (costs.node, costs.router, costs.simulator)
        )
        overhead = costs.bytes / costs.least - 1
        print(f"{nodes} | {dim} | {times} | {costs.bytes:.0f} | {costs.least} | {overhead:.1%}")
    print_model(costs_of_sizes)


def print_model(costs_of_sizes: dict[tuple[int, int], Costs]) -> None:
    """Fit the model to the costs, by nodes and numbers of a model; print it and its predictions."""
    router_terms = [(float(nodes), costs.bytes) for (nodes, _), costs in costs_of_sizes.items()]
    router_seconds = [costs.router for costs in costs_of_sizes.values()]
    of_party, of_byte = fitted(router_terms, router_seconds)
    node_terms = [(1.0, float(dim)) for _, dim in costs_of_sizes]
    of_round, of_number = fitted(node_terms, [costs.node for costs in costs_of_sizes.values()])
    print(f"router: {1e3 * of_party:.2f} ms a party, {1e9 * of_byte:.2f} ns a byte")
    print(f"node: {1e3 * of_round:.1f} ms a round, {1e9 * of_number:.0f} ns a number")
    errors = [
        (of_party * nodes + of_byte * moved) / seconds - 1
        for (nodes, moved), seconds in zip(router_terms, router_seconds, strict=True)
    ]
    print(f"the router's model is off by {min(errors):+.0%} to {max(errors):+.0%}")
    for dim in (1_000, 10_000):
        moved = MANY * costs_of_sizes[16, dim].bytes / 16
        router = of_party * MANY + of_byte * moved
        node = of_round + of_number * dim
        text = f"{router:.2f} s of the router, {node:.3f} s of a node"
        print(f"{MANY} nodes of {dim} numbers: {text}, {moved / 1e6:.0f} MB a round")


if __name__ == "__main__":
    main()
