"""A round of the mesh beside the simulator's: seconds, and bytes beside the routed minimum.

    python -m benches.bench_mesh

Gradient descent on a ring. Nodes and router are in one process, each node with a folder on disk: no
time is spent on a network, and all of it on checks, signatures, folders and the round itself. On
machines of their own, nodes work at the same time; the router works for one after the other. The
routed minimum sends each row to the router once, and once to each node that hears it.

A model is fitted to the router's seconds and to a node's, and says what a thousand nodes need:

    router = party P + byte B           P parties, B bytes a round through the router
    node = round + number d             d numbers of a model, on a ring
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

import dpmesh as dm
from benches.measure import Case
from dpmesh.deploy import Contract, Folder, Node, Router

RECORDS, ROUNDS = 100, 20
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
    """Seconds and bytes of a round: of one node, of the router for all, and of the simulator."""

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
    router, nodes, clock = Router(deployed.contract), 0.0, time.perf_counter
    begin = clock()
    while not router.done:
        for party in range(deployed.contract.nodes):
            message = router.request(party)
            if message is not None:
                before = clock()
                answer = deployed.nodes[party].answer(message)
                nodes += clock() - before
                router.take(party, answer)
    routed = clock() - begin - nodes
    begin = clock()
    simulate(deployed)
    simulated = clock() - begin
    size = deployed.contract.dim * 8
    least = size * (deployed.contract.nodes + deployed.contract.topology.matrix(0).messages)
    node_rounds = deployed.contract.nodes * ROUNDS
    return Costs(
        nodes / node_rounds, routed / ROUNDS, simulated / ROUNDS, router.bytes / ROUNDS, least
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


def fitted(parts: list[tuple[float, ...]], seconds: list[float]) -> Any:
    """Return the constants, at least 0, whose sum of parts is relatively closest to the seconds."""
    weights = 1 / np.array(seconds)
    constants, _ = nnls(np.array(parts) * weights[:, np.newaxis], np.ones(len(seconds)))
    return constants


def main() -> None:
    """Print a table, the fitted model, and its predictions."""
    print("nodes | numbers | a node | router | simulator | bytes a round | least | overhead")
    costs_of_sizes = {}
    for nodes, dim in SIZES:
        with TemporaryDirectory() as folder:
            costs_of_sizes[nodes, dim] = costs = run(mesh(Path(folder), nodes, dim))
        times = " | ".join(f"{1e3 * seconds:.2f} ms" for seconds in costs[:3])
        more = costs.bytes / costs.least - 1
        print(f"{nodes} | {dim} | {times} | {costs.bytes:.0f} | {costs.least} | {more:.1%}")
    carried = [(float(nodes), costs.bytes) for (nodes, _), costs in costs_of_sizes.items()]
    party, byte = fitted(carried, [costs.router for costs in costs_of_sizes.values()])
    node_parts = [(1.0, float(dim)) for _, dim in costs_of_sizes]
    once, number = fitted(node_parts, [costs.node for costs in costs_of_sizes.values()])
    print(f"router: {1e3 * party:.2f} ms a party, {1e9 * byte:.2f} ns a byte")
    print(f"node: {1e3 * once:.1f} ms a round, {1e9 * number:.0f} ns a number")
    errors = [
        (party * nodes + byte * costs.bytes) / costs.router - 1
        for (nodes, _), costs in costs_of_sizes.items()
    ]
    print(f"the router's model is off by {min(errors):+.0%} to {max(errors):+.0%}")
    for dim in (1_000, 10_000):
        moved = MANY * costs_of_sizes[16, dim].bytes / 16
        seconds = party * MANY + byte * moved
        text = f"{seconds:.2f} s of the router, {once + number * dim:.3f} s of a node"
        print(f"{MANY} nodes of {dim} numbers: {text}, {moved / 1e6:.0f} MB a round")


if __name__ == "__main__":
    main()
