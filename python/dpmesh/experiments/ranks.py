"""Experiments on MPI ranks: one run after the other, each on all ranks."""

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
"""Up to this many ranks their processes are listed."""

PAUSE = 10.0
"""Rank 0 reports how far a run is at most once in this many seconds."""


def run_on_ranks(settings: Settings, folder: Path) -> None:
    """Run all cells that are not finished; every rank makes this call.

    However it ends, the same command resumes from the last checkpoint, on any number of ranks. Rank
    0 reports it at the beginning, since a killed process cannot.

    Parameters
    ----------
    settings
        The experiment, with a seed: the ranks must partition the records alike.
    folder
        In it each cell gets a folder of its own, written by rank 0.

    Raises
    ------
    ValueError
        On all ranks, if a setting does not fit, a cell has no seed, or the folder holds results of
        other settings.
    RankFailed
        On all ranks, if one fails in a round.
    """
    ranks = MPI.COMM_WORLD
    all_cells = cells(settings)
    for cell in all_cells:
        _check_cell(settings.replaced(cell.changes), ranks)
    missing = [cell for cell in all_cells if not is_finished(folder / cell.name)]
    ranks.Barrier()  # all have checked before one is finished
    _claimed(folder, settings, ranks)
    for cell in missing:
        experiment = Experiment.of(settings.replaced(cell.changes))
        engine = MpiEngine(experiment.topology or experiment.nodes, ranks)
        callback = _reporting(cell.name, experiment.run.rounds)
        run_into(folder / cell.name, experiment, cell.changes, callback, engine=engine)
        sent_by_rank = engine.sent()
        if ranks.rank == 0:
            most = max(sent_by_rank)
            _say(
                f"{cell.name}: at most {most.bytes / 1e6:.6g} MB from a rank to others, "
                f"{most.least / 1e6:.6g} MB by the nodes' own messages"
            )


def _check_cell(settings: Settings, ranks: MPI.Comm) -> None:
    """Fail unless the experiment of a cell can run on these ranks."""
    experiment = Experiment.of(settings)
    if settings.table("run").get("seed") is None:
        settings.fail("run.seed", "wanted a seed, by which all ranks partition the same records")
    reason = why_not(experiment.algorithm)
    if reason:
        settings.fail("algorithm", f"wanted another on MPI, since {reason}")
    if experiment.network is not None:
        settings.fail("network", "wanted no such table on MPI, whose network is a real one")
    if experiment.nodes < ranks.size:
        settings.fail("partition.nodes", f"wanted at least {ranks.size}, one for each rank")


def _claimed(folder: Path, settings: Settings, ranks: MPI.Comm) -> None:
    """Let rank 0 claim the folder; if it fails, all ranks do."""
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
    """Return a callback that reports how far a run is: under a launcher there is no bar."""
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
    """Print a line for the user of a launcher."""
    print(line, file=sys.stderr, flush=True)
