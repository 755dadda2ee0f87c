"""Experiments on the ranks of MPI: one run after the other, each on all of them."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from mpi4py import MPI

from dpmesh.engines.mpi import MpiEngine
from dpmesh.experiments.experiment import Experiment, is_finished, run_into
from dpmesh.experiments.settings import Settings
from dpmesh.experiments.sweep import cells, claim
from dpmesh.simulator.engine import Engine
from dpmesh.topology import Topology


def run_on_ranks(settings: Settings, folder: Path, ranks: MPI.Comm = MPI.COMM_WORLD) -> None:
    """Run all cells that are not finished; every rank makes this call.

    A rank that fails ends all others. The same command then goes on from the last checkpoint, on
    any number of ranks.

    Parameters
    ----------
    settings
        The experiment, with a seed: the ranks must deal out the same records.
    folder
        Where each cell gets a folder of its own, written by rank 0.

    Raises
    ------
    ValueError
        If a setting does not fit, a cell has no seed, or the folder holds results of others.
    """
    wanted = cells(settings)
    for cell in wanted:
        settled = settings.replaced(cell.changes)
        Experiment.of(settled)
        if settled.table("run").get("seed") is None:
            settled.fail("run.seed", "wanted a seed, by which all ranks deal out the same records")

    def engine(topology: Topology | None) -> Engine:
        if topology is None:
            settings.fail("topology", "wanted a table [topology]: only gossip runs on MPI")
        return MpiEngine(topology, ranks)

    missing = [cell for cell in wanted if not is_finished(folder / cell.name)]
    if ranks.rank == 0:
        claim(folder, settings)
    try:
        for cell in missing:
            changed = settings.replaced(cell.changes)
            run_into(folder / cell.name, changed, cell.changes, None, None, engine)
    except BaseException as error:
        if ranks.size == 1 or isinstance(error, KeyboardInterrupt):  # which all ranks get
            raise
        traceback.print_exc()
        sys.stderr.flush()
        ranks.Abort(1)
