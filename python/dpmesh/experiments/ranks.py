"""Sweeps on MPI ranks: one run after the other, each on all ranks.

Every rank executes `run_on_ranks`. Rank 0 writes the folders, and reports progress to stderr. A
*cell* is one combination of a sweep's settings.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

from mpi4py import MPI

from dpmesh.engines.mpi import MpiEngine, why_not
from dpmesh.experiments.experiment import Experiment, run_into
from dpmesh.experiments.results import is_finished
from dpmesh.experiments.sweep import cells, claim
from dpmesh.run.metrics import Callback
from dpmesh.settings import Settings

NAMED = 64
"""Largest number of ranks whose processes are listed at the start."""

PAUSE = 10.0
"""Shortest time between two reports of progress, in seconds."""


def run_on_ranks(settings: Settings, folder: Path) -> None:
    """Run all unfinished cells of a sweep; every rank calls this function.

    After an interruption or a failure, the same command resumes from the last checkpoint, on any
    number of ranks. Rank 0 prints the command at the start, since a killed process cannot.

    Parameters
    ----------
    settings
        Settings of the sweep, with a seed, so that all ranks partition the records in the same way.
    folder
        Folder of the sweep, in which rank 0 writes a folder for each cell.

    Raises
    ------
    ValueError
        On all ranks, if a setting is invalid, a cell has no seed, or the folder holds results of
        other settings.
    RankFailed
        On all ranks, if one rank fails in a round.
    """
    ranks = MPI.COMM_WORLD
    all_cells = cells(settings)
    for cell in all_cells:
        _check_cell(settings.replaced(cell.changes), ranks)
    missing = [cell for cell in all_cells if not is_finished(folder / cell.name)]
    ranks.Barrier()  # all ranks have listed the unfinished cells before one finishes
    _claim_on_all_ranks(folder, settings, ranks)
    for cell in missing:
        experiment = Experiment.of(settings.replaced(cell.changes))
        engine = MpiEngine(experiment.topology or experiment.nodes, ranks)
        callback = _reporting(cell.name, experiment.run.rounds)
        run_into(folder / cell.name, experiment, cell.changes, callback, engine=engine)
        sent_by_rank = engine.sent()
        if ranks.rank == 0:
            busiest = max(sent_by_rank)  # the rank that sent most bytes
            _say(
                f"{cell.name}: at most {busiest.bytes / 1e6:.6g} MB from a rank to others, "
                f"{busiest.least / 1e6:.6g} MB by the nodes' own messages"
            )


def _check_cell(settings: Settings, ranks: MPI.Comm) -> None:
    """Fail unless the experiment of a cell can run on these ranks."""
    experiment = Experiment.of(settings)
    if settings.table("run").get("seed") is None:
        settings.fail("run.seed", "wanted a seed, by which all ranks partition the same records")
    reason = why_not(experiment.algorithm)
    if reason:
        settings.fail("algorithm", reason)
    if experiment.network is not None:
        settings.fail("network", "wanted no such table on MPI, whose network is a real one")
    if experiment.nodes < ranks.size:
        settings.fail("partition.nodes", f"wanted at least {ranks.size}, one for each rank")


def _claim_on_all_ranks(folder: Path, settings: Settings, ranks: MPI.Comm) -> None:
    """Let rank 0 claim the folder; if it fails, all ranks raise its error."""
    failure = None
    if ranks.rank == 0:
        try:
            claim(folder, settings)
        except (ValueError, OSError) as error:
            failure = error
    failure = ranks.bcast(failure)
    if failure is not None:
        raise ValueError(str(failure)) from failure
    processes = ranks.gather((ranks.rank, MPI.Get_processor_name(), os.getpid()))
    if processes is not None:
        if len(processes) <= NAMED:  # launchers may report a dead process by its number alone
            listed = ", ".join(f"{rank}: {host} {pid}" for rank, host, pid in processes)
            _say(f"processes by rank: {listed}")
        _say(
            f"{ranks.size} ranks; checkpoints in {folder}; to go on after an end: {command(ranks)}"
        )


def _reporting(name: str, rounds: int) -> Callback:
    """Return a callback that prints the number of finished rounds, in place of a progress bar."""
    last_report = time.monotonic()

    def callback(finished: int, _: object) -> None:
        nonlocal last_report
        if time.monotonic() - last_report >= PAUSE:
            _say(f"{name}: {finished} of {rounds} rounds")
            last_report = time.monotonic()

    return callback


def command(ranks: MPI.Comm) -> str:
    """Return the command that started this program."""
    return shlex.join(["mpiexec", "-n", str(ranks.size), "dpmesh", *sys.argv[1:]])


def _say(line: str) -> None:
    """Print a line to stderr at once, also under a launcher."""
    print(line, file=sys.stderr, flush=True)
