"""Measure strong and weak scaling of gossip over MPI on this machine; predict it for more ranks.

    python -m benches.mpi_scaling
    python -m benches.mpi_scaling --latency 2e-6 --bandwidth 1e10

A round of gossip is: Laplace noise at each node, a collective check that no rank has failed (the
*agreement*), an exchange of the rows (model vectors) that other ranks need, and a sum of
neighbours' rows (mixing). Nodes form a torus; each MPI rank computes for a part of the nodes, on
one thread. Strong scaling: the same torus on more ranks. Weak scaling: equally many nodes on each
rank.

Printed bytes are those that the busiest rank sends in a round, and those that it would send under
the best cut of the torus into equal rectangles. A time is the 10th percentile of the rounds, since
other work on the machine disturbs the rest. Ranks beyond the idle cores measure nothing useful.

The program then fits the constants of `benches.mpi_model`, prints the model's largest errors on the
measurements, and predicts a torus of a million nodes. Options replace constants by those of a
network: latency in seconds, bandwidth in bytes a second.

The main process starts one `mpiexec` for each number of ranks; its processes run this module with
``--on-ranks``, and rank 0 prints its results as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benches.mpi_model import Load, Model, Times, predictions

DIM = 1_000
"""Coordinates of a row, in float32."""

ROUNDS = 30
"""Measured rounds of large tori; small ones have ten times as many."""

LARGE_BYTES = 1e6
"""Bytes of a rank's rows from which a torus is large."""

STRONG_SIDE = 128
"""Side of the torus of strong scaling, in nodes."""

WEAK_SIDE = 64
"""Side of one rank's square of the torus of weak scaling, in nodes."""


@dataclass(frozen=True)
class Torus:
    """A torus of rows x columns nodes, with vectors of `dim` coordinates."""

    rows: int
    columns: int
    dim: int


SMALL_TORI = (
    Torus(16, 16, 10),
    Torus(16, 16, 1000),
    Torus(32, 64, 10),
    Torus(32, 64, 100),
    Torus(64, 64, 100),
)
"""Tori that are measured for the fit alone."""


def tori(ranks: int) -> list[Torus]:
    """Return the tori to measure on `ranks` ranks: of strong scaling, weak scaling, small ones."""
    strong = Torus(STRONG_SIDE, STRONG_SIDE, DIM)
    weak = Torus(WEAK_SIDE * ranks, WEAK_SIDE, DIM)
    return [strong, weak, *SMALL_TORI]


@dataclass(frozen=True)
class Measured:
    """A torus on several ranks.

    Parameters
    ----------
    nodes, rows_sent, neighbours
        Largest number over ranks: nodes of a rank, rows that it sends in a round, and other ranks
        to which it sends.
    seconds
        The 10th percentile of a whole round and of its parts, in the order of the fields of
        `benches.mpi_model.Times`.
    """

    nodes: int
    rows_sent: int
    neighbours: int
    seconds: list[float]


def on_ranks() -> None:
    """Measure all tori as one rank of MPI; rank 0 prints the results as JSON."""
    from mpi4py import MPI

    ranks = MPI.COMM_WORLD
    results = [asdict(measure_torus(torus)) for torus in tori(ranks.size)]
    if ranks.rank == 0:
        print(json.dumps(results))


def measure_torus(torus: Torus) -> Measured:
    """Time the rounds of one torus on all ranks; each rank calls it and gets the same result.

    The time of a round is that of the slowest rank.
    """
    import numpy as np
    from mpi4py import MPI

    import dpmesh as dm
    from dpmesh._privacy_types import Released
    from dpmesh.engines.blocks import boundary
    from dpmesh.engines.mpi import MpiEngine, MpiGossip
    from dpmesh.keys import Purpose
    from dpmesh.run.carriers import Packet

    network = dm.topology.torus(torus.rows, torus.columns)
    engine = MpiEngine(network)
    ranks = MPI.COMM_WORLD
    carrier = MpiGossip(engine, network)
    key = dm.Key.seeded(0).for_nodes(engine.nodes.astype(np.uint32))
    across = boundary(network.matrix(0).weights, engine.parts, ranks.rank)
    models = np.zeros((len(engine.nodes), torus.dim), np.float32)
    local_nodes, local_and_foreign = len(models), across.weights.shape[1]
    received = np.zeros((local_and_foreign, torus.dim), np.float32)

    def noisy(t: int) -> Released:
        noise_stream = key.stream(Purpose.NOISE, t)
        return Released(dm.kernels.add_noise("laplace", models, 1.0, noise_stream))

    def whole_round(t: int) -> object:
        return carrier.carry(t, Packet(noisy(t)))

    def noise_and_mixing(t: int) -> object:
        received[:local_nodes] = noisy(t)
        return dm.kernels.mix(across.weights, received)

    def exchange(_t: int) -> None:
        carrier._exchange(across, Released(models), received[local_nodes:])

    def agreement(_t: int) -> None:
        engine.agree()

    timed: list[Callable[[int], object]] = [whole_round, noise_and_mixing, exchange, agreement]
    seconds_of_parts: list[list[float]] = [[] for _ in timed]
    rounds = ROUNDS if models.nbytes > LARGE_BYTES else 10 * ROUNDS
    for t in range(rounds):
        for part, seconds in zip(timed, seconds_of_parts, strict=True):
            ranks.Barrier()
            start = time.perf_counter()
            part(t)
            seconds.append(ranks.allreduce(time.perf_counter() - start, MPI.MAX))
    rows_sent = sum(len(rows) for rows in across.send)
    neighbours = sum(len(rows) > 0 for rows in across.send)
    loads_of_ranks = ranks.allgather((local_nodes, rows_sent, neighbours))
    nodes, rows_sent, neighbours = np.max(loads_of_ranks, axis=0).tolist()
    first_deciles = [statistics.quantiles(seconds, n=10)[0] for seconds in seconds_of_parts]
    return Measured(nodes, rows_sent, neighbours, first_deciles)


def measure(ranks: int) -> list[tuple[Load, Times]]:
    """Start `ranks` ranks; return the load of the busiest and the times, for each torus."""
    folder = str(Path(sys.executable).parent)
    launcher = shutil.which("mpiexec", path=folder) or shutil.which("mpiexec")
    if launcher is None:
        sys.exit("needs mpiexec")
    program = [sys.executable, "-m", "mpi4py", "-m", "benches.mpi_scaling", "--on-ranks"]
    command = [launcher, "-n", str(ranks), *program]
    environment = {**os.environ, "DPMESH_NUM_THREADS": "1"}
    output = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout
    pairs = []
    for torus, fields in zip(tori(ranks), json.loads(output), strict=True):
        result = Measured(**fields)
        load = Load(ranks, result.nodes, torus.dim, result.rows_sent, result.neighbours)
        pairs.append((load, Times(*result.seconds)))
    return pairs


def print_scaling(results_by_ranks: dict[int, list[tuple[Load, Times]]]) -> None:
    """Print a line for each kind of scaling and number of ranks.

    The speed is relative to one rank: for weak scaling, nodes a second.
    """
    print(f"{'':<8}{'ranks':>6}{'nodes':>8}{'ms/round':>10}{'speed':>8}{'MB/rank':>9}{'least':>8}")
    for number, kind in enumerate(("strong", "weak")):  # the order of `tori`
        _, times_of_one_rank = results_by_ranks[1][number]
        for ranks, results in results_by_ranks.items():
            torus = tori(ranks)[number]
            load, times = results[number]
            speed = times_of_one_rank.round / times.round
            if kind == "weak":
                speed *= ranks
            least_bytes = Load.of_torus(ranks, torus.rows, torus.columns, DIM).bytes
            print(
                f"{kind:<8}{ranks:>6}{torus.rows * torus.columns:>8}{1e3 * times.round:>10.2f}"
                f"{speed:>8.2f}{load.bytes / 1e6:>9.2f}{least_bytes / 1e6:>8.2f}"
            )


def main(latency: float | None, bandwidth: float | None) -> None:
    """Measure each number of ranks for which there are cores; fit the model; print predictions."""
    rank_counts = [ranks for ranks in (1, 2, 4, 8) if ranks <= (os.cpu_count() or 1)]
    results_by_ranks = {ranks: measure(ranks) for ranks in rank_counts}
    print_scaling(results_by_ranks)
    all_results = [result for results in results_by_ranks.values() for result in results]
    loads, times = zip(*all_results, strict=True)
    model = Model.fit(loads, times)
    errors = [model.seconds(load) / measured.round - 1 for load, measured in all_results]
    print(f"\n{model}\noff by {min(errors):+.0%} to {max(errors):+.0%} on {len(errors)} tori")
    if latency is not None:
        # an agreement counts as two messages for each doubling of the ranks
        model = replace(model, message=latency, agreement=2 * latency)
    if bandwidth is not None:
        model = replace(model, byte=1 / bandwidth)
    print(f"\na torus of 1024 x 1024 nodes, {DIM} coordinates; weak: 1024 nodes a rank")
    print("\n".join(predictions(model, (1024, 1024), DIM)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, help="seconds of a message")
    parser.add_argument("--bandwidth", type=float, help="bytes a second")
    parser.add_argument("--on-ranks", action="store_true", help="measure as a rank of MPI")
    options = parser.parse_args()
    if options.on_ranks:
        on_ranks()
    else:
        main(options.latency, options.bandwidth)
