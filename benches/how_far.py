"""The largest cases: ``python -m benches.how_far [NAME ..]``, each alone in a process.

Processor time on one thread, and what a run adds to the memory at its peak. Results go to
``docs/results/how-far.csv``, a line for each case, and as text beside it; other lines stay. Needs
Linux.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import dpmesh as dm
from benches.machine import description
from benches.measure import with_unit
from benches.memory import added
from dpmesh import accounting, kernels
from dpmesh.keys import Key, Purpose
from dpmesh.noise.secure import DistributedDiscreteGaussian, SecureSum
from dpmesh_papers.studies.results import read_rows, write_rows

FIELDS = ("case", "what", "unit", "seconds", "per_unit", "mib", "states", "processor")
Run = Callable[[], object]
Made = tuple[str, str, int, float, Run]
"""What it is, the unit that is counted, how many, the MiB of a state (0 if none), and the run."""


def secure_sum_of_sites() -> Made:
    """Encode, add noise, mask for each partner, and open."""
    sites, dim = 1_000, 1_000
    sizes = {"records": 100 * sites, "records_per_site": 100, "rounds": 1}
    numbers = SecureSum(dim=dim, sites=sites, noise_to_sensitivity=20.0, **sizes)
    sums, stream = np.full((sites, dim), 0.1), Key.generate().stream(Purpose.NOISE)
    between = [[os.urandom(32) for _ in range(sites)] for _ in range(sites)]
    shared = [[between[min(i, j)][max(i, j)] for j in range(sites)] for i in range(sites)]
    mechanism, bits = DistributedDiscreteGaussian(numbers), numbers.modulus_bits

    def opened() -> object:
        messages = []
        for site, part in enumerate(mechanism.part(sums, np.arange(sites), stream).part()):
            partners = {"add": shared[site][site + 1 :], "subtract": shared[site][:site]}
            messages.append(kernels.mask_and_pack(part, bits, **partners))
        return mechanism.opened(kernels.unpack_sum(messages, dim, bits)[np.newaxis])

    what, pairs = "a secure sum of 1,000 sites' 1,000 numbers", sites * (sites - 1) // 2
    return what, "pair of sites", pairs, 0.0, opened


def linear(nodes: int, records: int, dim: int) -> dm.LinearProblem:
    draw = np.random.default_rng(0)
    features = draw.standard_normal((nodes * records, dim), dtype=np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = np.where(features[:, 0] > 0, 1, -1)
    parts = tuple(np.arange(nodes * records).reshape(nodes, records))
    return dm.LinearProblem(dm.Dataset(features, labels, "random"), parts, "logistic")


def simulated(algorithm: Any, problem: Any, network: Any, rounds: int) -> Run:
    measured = dm.Metrics((), every=rounds, progress=False)

    def run() -> dm.Run:
        return dm.simulate(algorithm, problem, network, rounds=rounds, delta=1e-5, metrics=measured)

    return run


def sums_over_neighbours() -> Made:
    """Each node learns a noisy sum over its neighbours alone."""
    nodes, dim = 1_000, 1_000
    network = dm.topology.random_regular(nodes, 4, key=Key.seeded(1))
    algorithm = dm.SecureGossip(topology=network, dim=dim, records=2 * nodes, noise_multiplier=40.0)
    run = simulated(algorithm, linear(nodes, 2, dim), None, rounds=1)
    return "sums over 4 neighbours, 1,000 nodes of 1,000 numbers", "node", nodes, 0.0, run


def gossip_of_a_million() -> Made:
    """A round of online learning: noise, mixing and a step of each node."""
    nodes, dim, rounds = 1_000_000, 100, 2
    problem = linear(nodes, rounds, dim)
    network = dm.topology.random_regular(nodes, 4, key=Key.seeded(1))
    network.matrix(0)
    run = simulated(dm.OnlineLearning(epsilon=1.0), problem, network, rounds)
    what = "online learning, 1,000,000 nodes of 100 numbers, 4-regular"
    return what, "round", rounds, nodes * dim * 4 / 2**20, run


def network_of_a_million() -> Made:
    nodes = 1_000_000

    def run() -> object:
        return dm.topology.random_regular(nodes, 4, key=Key.seeded(1)).matrix(0)

    return "a random 4-regular network of 1,000,000 nodes", "node", nodes, 0.0, run


def registered_clients() -> Made:
    clients = 10_000_000
    algorithm = dm.FederatedLearning(
        dm.ClientUpdates(
            clients=clients, sampling_rate=1e-4, clipping_norm=1.0, epochs=1, batch_size=10
        ),
        noise_multiplier=1.0,
    )
    key = Key.generate()

    def run() -> None:
        for t in range(10):
            algorithm.cohort(t, key, clients)

    what = "10 secret cohorts of 1,000 in the mean out of 10,000,000 clients"
    return what, "cohort", 10, 0.0, run


def a_million_rounds() -> Made:
    """The plan release by release, and its epsilon."""
    rounds = 1_000_000
    algorithm = dm.FederatedLearning(
        dm.ClientUpdates(
            clients=100_000, sampling_rate=1e-3, clipping_norm=1.0, epochs=1, batch_size=10
        ),
        noise_multiplier=4.0,
    )
    return (
        "plan and epsilon of 1,000,000 sampled rounds",
        "round",
        rounds,
        0.0,
        lambda: algorithm.plan(rounds).cost(1e-6),
    )


def secret_rounds() -> Made:
    def run() -> float:
        return accounting.random_allocation_epsilon(
            delta=1e-6, noise_to_sensitivity=0.5, rounds=100_000, neighboring_relation="replace_one"
        )

    return "epsilon of one secret round out of 100,000", "pass", 1, 0.0, run


CASES: dict[str, Callable[[], Made]] = {
    case.__name__.replace("_", "-"): case
    for case in (
        secure_sum_of_sites,
        sums_over_neighbours,
        network_of_a_million,
        gossip_of_a_million,
        registered_clients,
        a_million_rounds,
        secret_rounds,
    )
}


def measured(name: str) -> dict[str, Any]:
    """Return the line of one case."""
    what, unit, count, state, run = CASES[name]()
    began = time.perf_counter(), time.process_time()
    mib = added(run)
    seconds = time.process_time() - began[1]
    return {
        "case": name,
        "what": what,
        "unit": unit,
        "seconds": f"{seconds:.3g}",
        "per_unit": f"{seconds / count:.3g}",
        "mib": f"{mib:.0f}",
        "states": f"{mib / state:.2f}" if state else "",
        "processor": description()["processor"],
    }


def as_text(rows: list[dict[str, Any]]) -> str:
    """Return the lines as they stand on the page."""
    lines = [f"{'processor time of':<66}  {'seconds':>7}  {'memory':>9}  each"]
    for row in rows:
        mib = f"{float(row['mib']):,.0f} MiB"
        per_unit = f"{with_unit(float(row['per_unit']))} a {row['unit']}"
        states = f", {row['states']} states" if row["states"] else ""
        lines.append(
            f"{row['what']:<66}  {float(row['seconds']):>7.3g}  {mib:>9}  {per_unit}{states}"
        )
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> None:
    """Measure one case here, or each in a process of its own."""
    if names[:1] == ["--here"]:
        print(json.dumps(measured(names[1])))
        return
    lines = {line["case"]: line for line in read_rows("how-far")}
    for name in names or CASES:
        command = [sys.executable, "-m", "benches.how_far", "--here", name]
        one_thread = {**os.environ, "DPMESH_NUM_THREADS": "1"}
        done = subprocess.run(
            command, env=one_thread, check=True, stdout=subprocess.PIPE, text=True
        )
        lines[name] = json.loads(done.stdout.splitlines()[-1])
        print(lines[name], flush=True)
        rows = [lines[case] for case in CASES if case in lines]
        write_rows("how-far", rows, as_text(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
