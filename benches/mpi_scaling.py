"""Strong and weak scaling of gossip over MPI on this machine, extrapolated to more ranks.

    python -m benches.mpi_scaling
    python -m benches.mpi_scaling --latency 2e-6 --bandwidth 1e10

A round is Laplace noise, an agreement, and mixing on a torus, with one thread per rank. Strong: the
same nodes on more ranks. Weak: equally many nodes on each rank. Bytes are those that leave the
busiest rank in a round, next to what the best cut of the torus into rectangles would send. A time
is the 10th percentile of the rounds, since other work on the machine disturbs the rest. More ranks
than idle cores tell nothing. Then follow the constants of `mpi_model`, its worst error on the
measurements, and its prediction for a torus of a million nodes: with the constants of this
machine's memory or, for a network, with its latency in seconds and bandwidth in bytes a second.
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
from dataclasses import replace
from pathlib import Path

from benches.mpi_model import Load, Model, Times, predictions

DIM, ROUNDS = 1_000, 30
STRONG, WEAK = 128, 64
"""Side of the torus of all nodes, and of the part of one rank."""

SMALL = [(16, 16, 10), (16, 16, 1000), (32, 64, 10), (32, 64, 100), (64, 64, 100)]
"""Rows, columns and coordinates of tori for the fit alone."""


def tori(ranks: int) -> list[tuple[int, int, int]]:
    """Return the tori that are measured on `ranks` ranks: strong, weak, and the small ones."""
    return [(STRONG, STRONG, DIM), (WEAK * ranks, WEAK, DIM), *SMALL]


def on_ranks() -> None:
    """Run the rounds on this rank; rank 0 prints the load of the busiest and the times."""
    from mpi4py import MPI

    ranks = MPI.COMM_WORLD
    results = [one_torus(*torus) for torus in tori(ranks.size)]
    if ranks.rank == 0:
        print(json.dumps(results))


def one_torus(rows: int, columns: int, dim: int) -> tuple[int, int, int, list[float]]:
    """Return the busiest rank's nodes, rows sent and neighbours, and the times of a round."""
    import numpy as np
    from mpi4py import MPI

    import dpmesh as dm
    from dpmesh._privacy_types import Released
    from dpmesh.engines.blocks import boundary
    from dpmesh.engines.mpi import MpiEngine, MpiGossip
    from dpmesh.keys import Purpose
    from dpmesh.run.carriers import Packet

    network = dm.topology.torus(rows, columns)
    engine, ranks = MpiEngine(network), MPI.COMM_WORLD
    carrier = MpiGossip(engine, network)
    key = dm.Key.seeded(0).for_nodes(engine.nodes.astype(np.uint32))
    across = boundary(network.matrix(0).weights, engine.parts, ranks.rank)
    x = np.zeros((len(engine.nodes), dim), np.float32)
    received = np.zeros((across.weights.shape[1], dim), np.float32)

    def noisy(t: int) -> Released:
        return Released(dm.kernels.add_noise("laplace", x, 1.0, key.stream(Purpose.NOISE, t)))

    def work(t: int) -> None:
        received[: len(x)] = noisy(t)
        dm.kernels.mix(across.weights, received)

    parts: list[Callable[[int], object]] = [
        lambda t: carrier.carry(t, Packet(noisy(t))),
        work,
        lambda _: carrier._exchange(across, Released(x), received[len(x) :]),
        lambda _: engine.agree(),
    ]
    times: list[list[float]] = [[] for _ in parts]
    for t in range(ROUNDS if x.nbytes > 1e6 else 10 * ROUNDS):
        for part, seconds in zip(parts, times, strict=True):
            ranks.Barrier()
            start = time.perf_counter()
            part(t)
            seconds.append(ranks.allreduce(time.perf_counter() - start, MPI.MAX))
    counts = sum(map(len, across.send)), sum(len(needed) > 0 for needed in across.send)
    nodes, rows_sent, neighbours = np.max(ranks.allgather((len(x), *counts)), axis=0).tolist()
    tenth = [statistics.quantiles(seconds, n=10)[0] for seconds in times]
    return nodes, rows_sent, neighbours, tenth


def measured(ranks: int) -> list[tuple[Load, Times]]:
    """Return the load of a rank and the times of a round, on each torus."""
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
    return [
        (Load(ranks, nodes, dim, rows, neighbours), Times(*times))
        for (_, _, dim), (nodes, rows, neighbours, times) in zip(
            tori(ranks), json.loads(output), strict=True
        )
    ]


def main(latency: float | None, bandwidth: float | None) -> None:
    """Measure every number of ranks that has a core of its own, fit, predict."""
    counts = [n for n in (1, 2, 4, 8) if n <= (os.cpu_count() or 1)]
    by_ranks = {ranks: measured(ranks) for ranks in counts}
    print(f"{'':<8}{'ranks':>6}{'nodes':>8}{'ms/round':>10}{'speed':>8}{'MB/rank':>9}{'least':>8}")
    for place, kind in enumerate(("strong", "weak")):
        alone = by_ranks[1][place][1].round
        for ranks in counts:
            (rows, columns, _), (load, times) = tori(ranks)[place], by_ranks[ranks][place]
            seconds = times.round
            speed = alone / seconds * (1 if kind == "strong" else ranks)
            least = Load.of_torus(ranks, rows, columns, DIM).bytes
            cells = f"{rows * columns:>8}{1e3 * seconds:>10.2f}{speed:>8.2f}"
            print(f"{kind:<8}{ranks:>6}{cells}{load.bytes / 1e6:>9.2f}{least / 1e6:>8.2f}")
    loads, times = zip(*(pair for pairs in by_ranks.values() for pair in pairs), strict=True)
    model = Model.fit(loads, times)
    errors = [model.seconds(load) / time.round - 1 for load, time in zip(loads, times, strict=True)]
    print(f"\n{model}\noff by {min(errors):+.0%} to {max(errors):+.0%} on {len(errors)} tori")
    if latency is not None:
        model = replace(model, message=latency, agreement=2 * latency)
    if bandwidth is not None:
        model = replace(model, byte=1 / bandwidth)
    print(f"\na torus of 1024 x 1024 nodes, {DIM} coordinates; weak: 1024 nodes a rank")
    print("\n".join(predictions(model, (1024, 1024), DIM)))


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--latency", type=float)
    options.add_argument("--bandwidth", type=float)
    options.add_argument("--on-ranks", action="store_true")
    given = options.parse_args()
    if given.on_ranks:
        on_ranks()
    else:
        main(given.latency, given.bandwidth)
