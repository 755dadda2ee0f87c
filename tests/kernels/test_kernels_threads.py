"""The one setting for threads: where it comes from, and that results and forks do not mind it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import numpy.typing as npt
import pytest

import dpmesh as dm
from dpmesh import kernels

KEPT = np.random.default_rng(5).normal(size=(64, 4096))


def smoothed() -> bytes:
    return kernels.smooth(KEPT, 2.0).tobytes()


def started_with(setting: str) -> subprocess.CompletedProcess[str]:
    program = "import dpmesh; print(dpmesh.kernels.get_threads())"
    environment = {**os.environ, "DPMESH_NUM_THREADS": setting}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "threads"), [("3", 3), ("", None)])
def test_the_environment_says_how_many_threads(setting: str, threads: int | None) -> None:
    available = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    assert int(started_with(setting).stdout) == (threads or len(available(0)))


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["many", "0", "-1", "1.5"])
def test_an_environment_that_says_something_else_is_refused(setting: str) -> None:
    said = f"DPMESH_NUM_THREADS: wanted an integer of at least 1, or nothing, got '{setting}'"
    assert f"ValueError: {said}" in started_with(setting).stderr


def test_bad_numbers_of_threads_are_refused() -> None:
    for count in (0, -1, 1.5, "2", 2**32, 2**70):
        with pytest.raises(ValueError, match="count: wanted"):
            kernels.set_threads(count)  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_forks_after_the_package_was_loaded_again() -> None:
    program = """
import importlib, os, numpy
from dpmesh import kernels
importlib.reload(kernels.threads)
child = os.fork()
kernels.clip_rows(numpy.ones((64, 4096)), 1.0)
if child == 0:
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=600).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")
def test_a_forked_process_works_on_while_others_are_in_kernels() -> None:
    expected, stop = smoothed(), threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            smoothed()

    others = [threading.Thread(target=keep_busy) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(0 if smoothed() == expected and smoothed() == expected else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for other in others:
            other.join()


UNSET = -(2**62)


def interrupted(stream: dm.keys.Stream, rows: int) -> npt.NDArray[np.int64]:
    """Draw rows of noise; send Ctrl-C as soon as the first of them are written."""
    out = np.full((rows, 4_096), UNSET)

    def watch() -> None:
        while out[0, 0] == UNSET:
            time.sleep(0)
        signal.raise_signal(signal.SIGINT)

    def work() -> None:
        watching.start()
        kernels.discrete_gaussian(out.shape, 1e6, stream, out=out)
        while True:  # too late for this kernel: the signal is on its way
            time.sleep(0.001)

    watching = threading.Thread(target=watch)
    with pytest.raises(KeyboardInterrupt):
        work()
    watching.join()
    return out


@pytest.mark.parametrize("threads", [1, 2])
def test_a_long_call_stops_in_its_middle(threads: int) -> None:
    """The work grows until a signal that its own first rows send comes before its last ones."""
    stream = dm.Key.seeded(1).stream(1, 0)
    before, had = signal.signal(signal.SIGINT, signal.default_int_handler), kernels.get_threads()
    kernels.set_threads(threads)
    try:
        sizes = (2**k for k in range(8, 16))  # up to a gigabyte
        found = next(out for rows in sizes if (out := interrupted(stream, rows))[-1, -1] == UNSET)
    finally:
        kernels.set_threads(had)
        signal.signal(signal.SIGINT, before)
    again = kernels.discrete_gaussian((2, 10), 1e6, stream)  # the team works on
    np.testing.assert_array_equal(again[0], found[0, :10])
