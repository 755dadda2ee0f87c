"""A signal's handler that raises stops a kernel: at once, not when the kernel is done."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import numpy.typing as npt
import pytest

import dpmesh as dm
from dpmesh import kernels

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
