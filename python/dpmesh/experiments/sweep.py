"""Many runs of one experiment: all combinations of settings, in parallel, only missing ones."""

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
from typing import Any

from dpmesh._files import replace_text, writable_folder
from dpmesh._validate import fail, instance, integer
from dpmesh.experiments.experiment import CHECKPOINT, Experiment, run_into
from dpmesh.experiments.results import FAILED, Result, is_finished
from dpmesh.run.interrupt import Interrupt
from dpmesh.settings import Settings
from dpmesh.settings.parts import SECTIONS

Progress = Callable[[int], None]
"""Called with a number of newly finished rounds."""

_OF_THESE = "a new one, or that of results of these settings"

_ticks: Any = None
"""In a worker: the queue for its finished rounds."""


@dataclass(frozen=True)
class Cell:
    """One combination: its changes to the settings, by key, and its folder's name."""

    changes: dict[str, Any]

    @property
    def name(self) -> str:
        """The changes as a folder's name."""
        parts = [f"{key.removeprefix('run.')}={_short(v)}" for key, v in self.changes.items()]
        return re.sub(r"[^\w.=,+-]+", "_", ",".join(parts)) or "run"


def cells(settings: Settings) -> list[Cell]:
    """Return all combinations of the lists in the table ``[sweep]``; one without it."""
    settings.known("sweep", settings.table("sweep"), ["seeds", "run", "data", *SECTIONS])
    grid = dict(_flat(settings.table("sweep")))
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            settings.fail(f"sweep.{key}", f"wanted a list of values, got {values!r}")
    if "seeds" in grid:
        grid["run.seed"] = grid.pop("seeds")
    products = (dict(zip(grid, v, strict=True)) for v in itertools.product(*grid.values()))
    found = [Cell(_used(settings, changes)) for changes in products]
    if any(key.startswith("topology") for key in grid):  # those without a network run once
        found = list({json.dumps(cell.changes): cell for cell in found}.values())
    name, times = Counter(cell.name for cell in found).most_common(1)[0]
    if times > 1:
        settings.fail("sweep", f"wanted runs that all differ, got {name} {times} times")
    return found


def _used(settings: Settings, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the changes without those of a network that the algorithm does not use."""
    table = settings.replaced(changes).table("algorithm")
    maker = settings.maker("algorithm", table, SECTIONS["algorithm"])
    if getattr(maker, "travels", "gossip") == "gossip":
        return changes
    return {key: v for key, v in changes.items() if key.partition(".")[0] != "topology"}


def run_sweep(
    settings: Settings,
    folder: str | Path,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> list[tuple[Cell, Exception]]:
    """Run all cells that are not finished, and return those that failed.

    An interrupted run with a seed resumes from its checkpoint.

    Parameters
    ----------
    settings
        The experiment.
    folder
        In it each cell gets a folder of its own.
    processes
        How many run at a time; by default one for each core, at most one for each cell.
    progress
        Called with numbers of finished rounds.

    Raises
    ------
    ValueError
        If a cell's settings do not fit, before any of them runs, or the folder holds results of
        other settings.
    OSError
        Before any of them runs, if nothing can be written into the folder.
    """
    instance("settings", settings, "what dpmesh.experiments.read returns", Settings)
    folder = Path(folder)
    missing = _missing(settings, folder)
    for cell in missing or cells(settings)[:1]:
        Experiment.of(settings.replaced(cell.changes))
    claim(folder, settings)
    for cell in missing:
        (folder / cell.name / FAILED).unlink(missing_ok=True)
    progress = progress or (lambda _: None)
    count = min(len(missing), os.cpu_count() or 1)
    if processes is not None:
        count = min(count, integer("processes", processes, at_least=1))
    if count <= 1:
        failed = [one for cell in missing if (one := _here(settings, cell, folder, progress))]
    else:
        failed = _side_by_side(settings, missing, folder, count, progress)
    for cell, error in failed:
        writable_folder(folder / cell.name)
        replace_text(folder / cell.name / FAILED, str(error))
    return failed


def rounds_left(settings: Settings, folder: Path) -> int:
    """Return how many rounds the unfinished cells have together."""
    changed = (settings.replaced(cell.changes) for cell in _missing(settings, folder))
    return sum(one.convert("run.rounds", one.table("run").get("rounds"), int) for one in changed)


def _missing(settings: Settings, folder: Path) -> list[Cell]:
    return [cell for cell in cells(settings) if not is_finished(folder / cell.name)]


def _here(
    settings: Settings, cell: Cell, folder: Path, progress: Progress
) -> tuple[Cell, Exception] | None:
    try:
        _run(settings, cell, folder, progress)
    except Exception as error:  # the other cells go on
        return cell, error
    return None


def _side_by_side(
    settings: Settings, missing: list[Cell], folder: Path, count: int, progress: Progress
) -> list[tuple[Cell, Exception]]:
    context = multiprocessing.get_context("spawn")
    ticks, (theirs, ours) = context.Queue(), context.Pipe(duplex=False)
    threads = max(1, (os.cpu_count() or 1) // count)
    pool = ProcessPoolExecutor(count, context, _begin, (ticks, theirs, threads))
    with theirs, Interrupt(deferred=True, patient=True) as interrupt:
        try:
            with _without_ctrl_c():
                running = {pool.submit(_work, settings, cell, folder): cell for cell in missing}
            _follow(running, ticks, progress, interrupt)
        finally:
            ours.close()  # this ends the workers, also those that wait for a lock of a killed one
            pool.shutdown(cancel_futures=True)
    return [(cell, e) for f, cell in running.items() if isinstance(e := f.exception(), Exception)]


def _follow(
    running: Iterable[Future[None]], ticks: Any, progress: Progress, interrupt: Interrupt
) -> None:
    while not interrupt.requested and not all(future.done() for future in running):
        with suppress(queue.Empty):
            progress(ticks.get(timeout=0.2))
    if interrupt.requested:
        raise KeyboardInterrupt


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Start processes that a terminal's Ctrl-C does not reach; here it acts after the block."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(ticks: Any, sweep: Connection, threads: int) -> None:
    """Set a worker up: several share the cores, and the sweep alone ends them."""
    global _ticks
    import dpmesh.kernels as kernels

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _ticks = ticks
    _ticks.cancel_join_thread()  # a killed worker may hold the queue's lock
    kernels.set_threads(threads)
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"  # names no source
    threading.Thread(target=_end_with, args=(sweep,), daemon=True).start()


def _end_with(sweep: Connection) -> None:
    """End this worker when the sweep closes its end of the pipe, or is gone."""
    with suppress(EOFError, OSError):
        sweep.recv_bytes()
    while True:
        signal.raise_signal(signal.SIGTERM)  # a run with a checkpoint saves it first
        time.sleep(0.1)


def _work(settings: Settings, cell: Cell, folder: Path) -> None:
    try:
        _run(settings, cell, folder, _ticks.put)
    except KeyboardInterrupt:
        raise InterruptedError("the process of this run was ended") from None


def _run(settings: Settings, cell: Cell, folder: Path, progress: Progress) -> None:
    reported = 0

    def callback(rounds: int, _: Any) -> None:
        nonlocal reported
        progress(rounds - reported)
        reported = rounds

    experiment = Experiment.of(settings.replaced(cell.changes))
    run_into(folder / cell.name, experiment, cell.changes, callback, progress=False)


def claim(folder: Path, settings: Settings) -> None:
    """Record in the folder the settings of its results, or check that they are these.

    If all runs failed at once, as for a typo in the file, there is nothing to check.
    """
    base = {name: table for name, table in settings.content.items() if name != "sweep"}
    for key, value in _flat(base):  # those that are swept, too, which no run reads
        if isinstance(value, (datetime.date, datetime.time)):
            settings.fail(key, f"wanted no date or time, got {value}")
    note, text = folder / "settings.json", json.dumps(base, indent=1)
    writable_folder(folder)
    if note.exists() and any(file.name != FAILED for file in folder.glob("*/*")):
        then, now = (dict(_flat(json.loads(saved))) for saved in (note.read_text(), text))
        for key in {**now, **then}:
            if then.get(key) != now.get(key):
                fail("folder", _OF_THESE, f"{folder}, whose {key} is {then.get(key, 'left out')}")
    for cell in cells(settings):  # its short name may also stand for other values
        if is_finished(folder / cell.name):
            saved = json.dumps(Result.load(folder / cell.name).changes)
            if saved != json.dumps(cell.changes):
                fail("folder", _OF_THESE, f"{folder}, whose {cell.name} is of {saved}")
            # it is still there if the run was killed between its result and this
            (folder / cell.name / CHECKPOINT).unlink(missing_ok=True)
    replace_text(note, text)


def _flat(table: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "-".join(_short(v) for v in value.values())
    return "-".join(map(_short, value)) if isinstance(value, list) else str(value)
