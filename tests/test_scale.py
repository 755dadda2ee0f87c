"""The largest run that is promised, in a process of its own: its peak memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("resource", reason="peak memory is asked of Unix")


def test_sparse_online_learning_stays_under_a_gigabyte() -> None:
    """64 nodes, 47,236 features, dense noise; all data of 1,500 rounds, and the first 15 of them.

    What a round needs it gives back: the peak of 15 rounds is that of 5 but for the ledger, and a
    dense copy of the examples (17 GiB) was never made.
    """
    script = Path(__file__).with_name("scale_online.py")
    done = subprocess.run(
        [sys.executable, script, "15"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    early, last = map(float, done.stdout.split())
    assert last < 1000
    assert last - early < 10
