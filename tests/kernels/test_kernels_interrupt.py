"""A signal's handler that raises stops a kernel: at once, not when the kernel is done."""

from __future__ import annotations

import signal
from types import FrameType

import numpy as np
import pytest

import dpmesh as dm
from dpmesh import kernels

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer of POSIX")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_long_call_stops_in_its_middle(threads: int) -> None:
    def interrupted(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    out = np.full((4_000, 4_000), -(2**62))  # seconds of work
    stream = dm.Key.seeded(1).stream(1, 0)
    before, had = signal.signal(signal.SIGALRM, interrupted), kernels.get_threads()
    kernels.set_threads(threads)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            kernels.discrete_gaussian(out.shape, 1e6, stream, out=out)
    finally:
        kernels.set_threads(had)
        signal.signal(signal.SIGALRM, before)
    assert out[0, 0] > -(2**62) == out[-1, -1]
    again = kernels.discrete_gaussian((2, 10), 1e6, stream)  # the team works on
    np.testing.assert_array_equal(again[0], out[0, :10])
