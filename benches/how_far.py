"""Measure the largest cases: processor time on one thread, and peak memory that a run adds.

    python -m benches.how_far [NAME ..]

Each case runs alone in a process of its own. A function for each case builds a `LargeCase`; its run
is timed. Results go to ``docs/results/how-far.csv``, a row for each case, and as text to
``how-far.txt``; rows of cases that are not named stay as they are. Needs Linux.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import dpmesh as dm
from benches.machine import description
from benches.measure import with_unit
from benches.memory import added
from dpmesh import accounting, kernels
from dpmesh.keys import Key, Purpose
from dpmesh.noise.secure import DistributedDiscreteGaussian, SecureSum
from dpmesh_papers.studies.results import read_rows, write_rows

Run = Callable[[], object]


class LargeCase(NamedTuple):
    """A large case that is ready to run."""

    what: str
    """Description in the table of results."""
    unit: str
    """Unit of work, by which the time is divided."""
    units: int
    """Number of units in a run."""
    run: Run
    """The timed function."""
    state_mib: float = 0.0
    """Memory of all nodes' models in MiB, with which the run's memory is compared; 0 for none."""


def secure_sum_of_sites() -> LargeCase:
    """Encode, add noise, mask for each partner, and open."""
    sites = 1_000
    dim = 1_000
    secure_sum = SecureSum(
        dim=dim,
        sites=sites,
        noise_to_sensitivity=20.0,
        records=100 * sites,
        records_per_site=100,
        rounds=1,
    )
    sums = np.full((sites, dim), 0.1)
    stream = Key.generate().stream(Purpose.NOISE)
    secrets_above_diagonal = [[os.urandom(32) for _ in range(sites)] for _ in range(sites)]
    shared_secrets = [
        [secrets_above_diagonal[min(i, j)][max(i, j)] for j in range(sites)] for i in range(sites)
    ]
    mechanism = DistributedDiscreteGaussian(secure_sum)
    bits = secure_sum.modulus_bits

    def opened() -> object:
        messages = []
        noisy_parts = mechanism.part(sums, np.arange(sites), stream).part()
        for site, part in enumerate(noisy_parts):
            secrets = shared_secrets[site]
            # each pair of sites adds and subtracts the same mask
            message = kernels.mask_and_pack(
                part, bits, add=secrets[site + 1 :], subtract=secrets[:site]
            )
            messages.append(message)
        return mechanism.opened(kernels.unpack_sum(messages, dim, bits)[np.newaxis])

    pairs = sites * (sites - 1) // 2
    return LargeCase("a secure sum of 1,000 sites' 1,000 numbers", "pair of sites", pairs, opened)


def logistic_problem(nodes: int, records: int, dim: int) -> dm.LinearProblem:
    """Return a logistic regression on random records of norm 1, `records` of them at each node."""
    generator = np.random.default_rng(0)
    features = generator.standard_normal((nodes * records, dim), dtype=np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = np.where(features[:, 0] > 0, 1, -1)
    parts = tuple(np.arange(nodes * records).reshape(nodes, records))
    return dm.LinearProblem(dm.Dataset(features, labels, "random"), parts, "logistic")


def simulation(algorithm: Any, problem: Any, network: Any, rounds: int) -> Run:
    """Return a function that simulates the algorithm and measures nothing in between."""
    no_metrics = dm.Metrics((), every=rounds, progress=False)

    def run() -> dm.Run:
        return dm.simulate(
            algorithm, problem, network, rounds=rounds, delta=1e-5, metrics=no_metrics
        )

    return run


def sums_over_neighbours() -> LargeCase:
    """Each node learns a noisy sum over its neighbours alone."""
    nodes, dim = 1_000, 1_000
    network = dm.topology.random_regular(nodes, 4, key=Key.seeded(1))
    algorithm = dm.SecureGossip(topology=network, dim=dim, records=2 * nodes, noise_multiplier=40.0)
    run = simulation(algorithm, logistic_problem(nodes, 2, dim), None, rounds=1)
    return LargeCase("sums over 4 neighbours, 1,000 nodes of 1,000 numbers", "node", nodes, run)


def gossip_of_a_million() -> LargeCase:
    """A round of online learning: noise, mixing and a step of each node."""
    nodes, dim, rounds = 1_000_000, 100, 2
    problem = logistic_problem(nodes, rounds, dim)
    network = dm.topology.random_regular(nodes, 4, key=Key.seeded(1))
    network.matrix(0)
    run = simulation(dm.OnlineLearning(epsilon=1.0), problem, network, rounds)
    what = "online learning, 1,000,000 nodes of 100 numbers, 4-regular"
    state_mib = nodes * dim * np.dtype(np.float32).itemsize / 2**20
    return LargeCase(what, "round", rounds, run, state_mib)


def network_of_a_million() -> LargeCase:
    """Draw a random regular graph and its mixing matrix."""
    nodes = 1_000_000

    def run() -> object:
        return dm.topology.random_regular(nodes, 4, key=Key.seeded(1)).matrix(0)

    return LargeCase("a random 4-regular network of 1,000,000 nodes", "node", nodes, run)


def registered_clients() -> LargeCase:
    """Draw cohorts of clients out of ten million."""
    clients = 10_000_000
    cohorts = 10
    algorithm = dm.FederatedLearning(
        dm.ClientUpdates(
            clients=clients, sampling_rate=1e-4, clipping_norm=1.0, epochs=1, batch_size=10
        ),
        noise_multiplier=1.0,
    )
    key = Key.generate()

    def run() -> None:
        for t in range(cohorts):
            algorithm.cohort(t, key, clients)

    what = "10 secret cohorts of 1,000 in the mean out of 10,000,000 clients"
    return LargeCase(what, "cohort", cohorts, run)


def a_million_rounds() -> LargeCase:
    """List the planned releases of a million rounds, and compose their epsilon."""
    rounds = 1_000_000
    algorithm = dm.FederatedLearning(
        dm.ClientUpdates(
            clients=100_000, sampling_rate=1e-3, clipping_norm=1.0, epochs=1, batch_size=10
        ),
        noise_multiplier=4.0,
    )

    def run() -> object:
        return algorithm.plan(rounds).cost(1e-6)

    return LargeCase("plan and epsilon of 1,000,000 sampled rounds", "round", rounds, run)


def secret_rounds() -> LargeCase:
    """Compute epsilon of random allocation: each record takes part in one secret round."""

    def run() -> float:
        return accounting.random_allocation_epsilon(
            delta=1e-6, noise_to_sensitivity=0.5, rounds=100_000, neighboring_relation="replace_one"
        )

    return LargeCase("epsilon of one secret round out of 100,000", "pass", 1, run)


CASES: dict[str, Callable[[], LargeCase]] = {
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


def measure(name: str) -> dict[str, Any]:
    """Run one case in this process; return its row."""
    case = CASES[name]()
    start = time.process_time()
    mib = added(case.run)
    seconds = time.process_time() - start
    states = ""
    if case.state_mib:
        states = f"{mib / case.state_mib:.2f}"
    return {
        "case": name,
        "what": case.what,
        "unit": case.unit,
        "seconds": f"{seconds:.3g}",
        "per_unit": f"{seconds / case.units:.3g}",
        "mib": f"{mib:.0f}",
        "states": states,
        "processor": description()["processor"],
    }


def as_text(rows: list[dict[str, Any]]) -> str:
    """Return the rows as the table of the page."""
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
    """Measure the named cases, by default all, each in a process; ``--here NAME`` in this one."""
    if names[:1] == ["--here"]:
        print(json.dumps(measure(names[1])))
        return
    row_by_case = {row["case"]: row for row in read_rows("how-far")}
    for name in names or CASES:
        command = [sys.executable, "-m", "benches.how_far", "--here", name]
        one_thread = {**os.environ, "DPMESH_NUM_THREADS": "1"}
        process = subprocess.run(
            command, env=one_thread, check=True, stdout=subprocess.PIPE, text=True
        )
        row_by_case[name] = json.loads(process.stdout.splitlines()[-1])
        print(row_by_case[name], flush=True)
        rows = [row_by_case[case] for case in CASES if case in row_by_case]
        write_rows("how-far", rows, as_text(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
