"""Sweeps: all combinations of lists of settings, each a run in a folder, in parallel.

`cells` lists the combinations (*cells*). `run_sweep` runs the unfinished ones, in this process or
in a pool of worker processes, so that the same call continues an interrupted sweep. Workers ignore
Ctrl-C. The sweep ends them by closing a pipe, and each then saves its checkpoint.
"""

from __future__ import annotations

import datetime
import itertools
import json
import multiprocessing
import os
import queue
import re
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from dpmesh._files import JsonObject, replace_text, writable_folder
from dpmesh._validate import fail, instance, integer
from dpmesh.experiments.experiment import CHECKPOINT, Changes, Experiment, run_into
from dpmesh.experiments.results import FAILED, Result, is_finished
from dpmesh.run.interrupt import Interrupt
from dpmesh.settings import Settings
from dpmesh.settings.parts import SECTIONS

Progress: TypeAlias = Callable[[int], None]
"""Function that is called with the number of newly finished rounds."""

Failures: TypeAlias = list[tuple["Cell", Exception]]
"""Failed cells, each with its error."""

_OF_THESE = "a new one, or that of results of these settings"
"""Description, for errors, of the folders into which a sweep may write."""

_finished_rounds: Any = None
"""In a worker: the queue to which it writes numbers of finished rounds."""


@dataclass(frozen=True)
class Cell:
    """One combination of a sweep.

    Parameters
    ----------
    changes
        Settings that the combination replaces, by key.
    """

    changes: Changes

    @property
    def name(self) -> str:
        """Name of the cell's folder, from the changes."""
        parts = [
            f"{key.removeprefix('run.')}={_short(value)}" for key, value in self.changes.items()
        ]
        return re.sub(r"[^\w.=,+-]+", "_", ",".join(parts)) or "run"


def cells(settings: Settings) -> list[Cell]:
    """Return all combinations of the lists in the table ``[sweep]``.

    Without that table there is a single cell, without changes.

    Raises
    ------
    ValueError
        If a value is not a list, a key is unknown, or two cells have the same name.
    """
    settings.known("sweep", settings.table("sweep"), ["seeds", "run", "data", *SECTIONS])
    grid = dict(_flat(settings.table("sweep")))
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            settings.fail(f"sweep.{key}", f"wanted a list of values, got {values!r}")
    if "seeds" in grid:
        grid["run.seed"] = grid.pop("seeds")
    combinations = []
    for values in itertools.product(*grid.values()):
        changes = dict(zip(grid, values, strict=True))
        combinations.append(Cell(_without_unused_topology(settings, changes)))
    # an algorithm without a topology runs once for all topologies
    if any(key.startswith("topology") for key in grid):
        distinct = {json.dumps(cell.changes): cell for cell in combinations}
        combinations = [*distinct.values()]
    ((name, times),) = Counter(cell.name for cell in combinations).most_common(1)
    if times > 1:
        settings.fail("sweep", f"wanted runs that all differ, got {name} {times} times")
    return combinations


def _without_unused_topology(settings: Settings, changes: Changes) -> Changes:
    """Return the changes, without those of a topology that the algorithm does not use."""
    table = settings.replaced(changes).table("algorithm")
    maker = settings.maker("algorithm", table, SECTIONS["algorithm"])
    if getattr(maker, "communication", "gossip") == "gossip":
        return changes
    return {key: value for key, value in changes.items() if key.partition(".")[0] != "topology"}


def run_sweep(
    settings: Settings,
    folder: str | Path,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Failures:
    """Run all unfinished combinations of a sweep, and return the failed ones.

    An interrupted run with a seed resumes from its checkpoint.

    Parameters
    ----------
    settings
        Settings with a table ``[sweep]``, or of a single run.
    folder
        Folder of the sweep, in which each combination has a folder.
    processes
        Number of combinations that run at a time; by default one for each core.
    progress
        Function that is called with numbers of newly finished rounds.

    Returns
    -------
    The combinations that failed, each with its error, which is also saved in its folder.

    Raises
    ------
    ValueError
        Before any run, if settings are invalid, or the folder holds results of other settings.
    OSError
        Before any run, if the folder cannot be written.
    """
    instance("settings", settings, "what dpmesh.experiments.read returns", Settings)
    folder = Path(folder)
    unfinished = _unfinished(settings, folder)
    for cell in unfinished or cells(settings)[:1]:
        Experiment.of(settings.replaced(cell.changes))
    claim(folder, settings)
    for cell in unfinished:
        (folder / cell.name / FAILED).unlink(missing_ok=True)
    if progress is None:
        progress = _no_progress
    count = min(len(unfinished), os.cpu_count() or 1)
    if processes is not None:
        count = min(count, integer("processes", processes, at_least=1))
    if count <= 1:
        failed = _run_one_by_one(settings, unfinished, folder, progress)
    else:
        failed = _run_in_parallel(settings, unfinished, folder, count, progress)
    for cell, error in failed:
        writable_folder(folder / cell.name)
        replace_text(folder / cell.name / FAILED, str(error))
    return failed


def rounds_left(settings: Settings, folder: Path) -> int:
    """Return the total number of rounds of all unfinished cells."""
    total = 0
    for cell in _unfinished(settings, folder):
        changed = settings.replaced(cell.changes)
        stated = changed.table("run").get("rounds")
        if stated is None:
            continue  # the run of the cell will fail with a precise error
        rounds: int = changed.convert("run.rounds", stated, int)
        total += rounds
    return total


def _no_progress(rounds: int) -> None:
    """Show no progress."""


def _unfinished(settings: Settings, folder: Path) -> list[Cell]:
    """Return the cells that are not finished."""
    return [cell for cell in cells(settings) if not is_finished(folder / cell.name)]


def _run_one_by_one(
    settings: Settings, unfinished: list[Cell], folder: Path, progress: Progress
) -> Failures:
    """Run cells in this process; return those that failed."""
    failed: Failures = []
    for cell in unfinished:
        error = _error_of(settings, cell, folder, progress)
        if error is not None:
            failed.append((cell, error))
    return failed


def _error_of(settings: Settings, cell: Cell, folder: Path, progress: Progress) -> Exception | None:
    """Run a cell; return its error if it fails, so that other cells continue."""
    try:
        _run(settings, cell, folder, progress)
    except Exception as error:
        return error
    return None


def _run_in_parallel(
    settings: Settings, unfinished: list[Cell], folder: Path, count: int, progress: Progress
) -> Failures:
    """Run cells in several processes; return those that failed."""
    context = multiprocessing.get_context("spawn")
    finished_rounds = context.Queue()
    workers_end, sweep_end = context.Pipe(duplex=False)
    threads = max(1, (os.cpu_count() or 1) // count)
    worker_arguments = (finished_rounds, workers_end, threads)
    pool = ProcessPoolExecutor(count, context, _start_worker, worker_arguments)
    # Ctrl-C only sets `interrupt.requested`, so that the workers are ended in order
    with workers_end, Interrupt(deferred=True, patient=True) as interrupt:
        try:
            with _without_ctrl_c():
                running = {
                    pool.submit(_run_in_worker, settings, cell, folder): cell for cell in unfinished
                }
            _report_until_done(running, finished_rounds, progress, interrupt)
        finally:
            # ends all workers, also those that wait for the lock of a dead worker
            sweep_end.close()
            pool.shutdown(cancel_futures=True)
    failed: Failures = []
    for future, cell in running.items():
        error = future.exception()
        if isinstance(error, Exception):
            failed.append((cell, error))
    return failed


def _report_until_done(
    running: Iterable[Future[None]], finished_rounds: Any, progress: Progress, interrupt: Interrupt
) -> None:
    """Report finished rounds until all cells are done or the user interrupts."""
    while not interrupt.requested and not all(future.done() for future in running):
        with suppress(queue.Empty):
            progress(finished_rounds.get(timeout=0.2))
    if interrupt.requested:
        raise KeyboardInterrupt


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Block Ctrl-C (SIGINT) for processes started here, and in this process until the end."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def _start_worker(finished_rounds: Any, sweep: Connection, threads: int) -> None:
    """Initialize a worker process.

    Parameters
    ----------
    finished_rounds
        Queue for numbers of finished rounds.
    sweep
        The worker's end of a pipe that the sweep closes to end the worker.
    threads
        Number of threads of kernels, since workers share the cores.
    """
    global _finished_rounds
    import dpmesh.kernels as kernels

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _finished_rounds = finished_rounds
    _finished_rounds.cancel_join_thread()  # a killed worker may hold the queue's lock
    kernels.set_threads(threads)
    # warnings without their line of source
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"
    threading.Thread(target=_end_with, args=(sweep,), daemon=True).start()


def _end_with(sweep: Connection) -> None:
    """Wait until the sweep closes its end of the pipe or dies, and then end this worker."""
    with suppress(EOFError, OSError):
        sweep.recv_bytes()
    while True:
        signal.raise_signal(signal.SIGTERM)  # a run with a checkpoint saves it first
        time.sleep(0.1)


def _run_in_worker(settings: Settings, cell: Cell, folder: Path) -> None:
    """Run a cell in a worker process."""
    try:
        _run(settings, cell, folder, _finished_rounds.put)
    except KeyboardInterrupt:
        raise InterruptedError("the process of this run was ended") from None


def _run(settings: Settings, cell: Cell, folder: Path, progress: Progress) -> None:
    """Run a cell, and report its finished rounds."""
    reported = 0

    def callback(rounds: int, _: object) -> None:
        nonlocal reported
        progress(rounds - reported)
        reported = rounds

    experiment = Experiment.of(settings.replaced(cell.changes))
    run_into(folder / cell.name, experiment, cell.changes, callback, progress=False)


def claim(folder: Path, settings: Settings) -> None:
    """Record the settings of a sweep in its folder; fail if its results have other settings.

    A folder that holds only errors of failed runs, as after a typo in a file, accepts any settings.

    Raises
    ------
    ValueError
        If the folder holds results of other settings, or a setting is a date or time.
    """
    base = {name: table for name, table in settings.content.items() if name != "sweep"}
    for key, value in _flat(base):
        if isinstance(value, (datetime.date, datetime.time)):
            settings.fail(key, f"wanted no date or time, got {value}")
    note = folder / "settings.json"
    text = json.dumps(base, indent=1)
    writable_folder(folder)
    has_results = any(file.name != FAILED for file in folder.glob("*/*"))
    if note.exists() and has_results:
        _require_same(folder, saved=json.loads(note.read_text()), current=json.loads(text))
    for cell in cells(settings):
        if is_finished(folder / cell.name):
            saved = json.dumps(Result.load(folder / cell.name).changes)
            if saved != json.dumps(cell.changes):  # other values may have the same short name
                fail("folder", _OF_THESE, f"{folder}, whose {cell.name} is of {saved}")
            # a run that was killed after its result has left its checkpoint
            (folder / cell.name / CHECKPOINT).unlink(missing_ok=True)
    replace_text(note, text)


def _require_same(folder: Path, *, saved: JsonObject, current: JsonObject) -> None:
    """Fail if the settings of the results in a folder differ from the current ones."""
    saved_values = dict(_flat(saved))
    current_values = dict(_flat(current))
    for key in {**current_values, **saved_values}:
        if saved_values.get(key) != current_values.get(key):
            value = saved_values.get(key, "left out")
            fail("folder", _OF_THESE, f"{folder}, whose {key} is {value}")


def _flat(table: JsonObject, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of all values in nested tables, with dotted keys."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _short(value: object) -> str:
    """Return a value as text for a folder's name."""
    if isinstance(value, dict):
        return "-".join(map(_short, value.values()))
    if isinstance(value, list):
        return "-".join(map(_short, value))
    return str(value)
