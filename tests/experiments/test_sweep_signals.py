"""Signals that end a sweep end its workers, too, and leave their checkpoints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_experiments import TEXT, write

SWEEP = """
import signal, sys
from dpmesh.experiments import read, run_sweep
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

settings = read(sys.argv[1])
run_sweep(settings, sys.argv[2], processes=2, progress=lambda rounds: print(rounds, flush=True))
"""

ONLINE = """kind = "OnlineLearning"
step_size = {kind = "InverseSqrt", scale = 4.0}
radius = 10
"""
ENDLESS = """kind = "GradientDescent"
records = 100
noise_multiplier = 200.0
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="processes end in another way there")
@pytest.mark.parametrize(
    ("ended_by", "rounds"),  # after one round one worker's run has not begun
    [("SIGTERM", 1), ("SIGKILL", 30), ("Ctrl-C", 30), ("SIGTERM to all", 1)],
)
def test_workers_end_with_the_sweep_and_save(ended_by: str, rounds: int, tmp_path: Path) -> None:
    text = "format = 2\n" + TEXT.partition("algorithm.epsilon")[0].replace(ONLINE, ENDLESS)
    text = text.replace("rounds = 6", "rounds = 10_000\nevery = 1")
    command = [sys.executable, "-c", SWEEP, write(tmp_path, text), tmp_path / "results"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    sweep = subprocess.Popen(command, start_new_session=True, **pipes)
    assert sweep.stdout is not None
    for _ in range(rounds):
        assert sweep.stdout.readline()
    if ended_by in ("SIGTERM", "SIGKILL"):
        sweep.send_signal(getattr(signal, ended_by))
    else:  # by a terminal or a batch system, whose signals workers receive, too
        os.killpg(sweep.pid, signal.SIGINT if ended_by == "Ctrl-C" else signal.SIGTERM)
    _, errors = sweep.communicate(timeout=600)  # until all who hold the pipes are gone
    reported = [line for line in errors.splitlines() if line.startswith(("Traceback", "Keyboard"))]
    ended = ["Traceback (most recent call last):", "KeyboardInterrupt"]  # of the sweep, once
    assert reported == ([] if ended_by == "SIGKILL" else ended)
    assert not [*tmp_path.rglob("run.json")]  # no worker went on to the end of its run
    saved = list((tmp_path / "results").glob("seed=*/checkpoint"))
    headers = [np.load(path)["header"].tobytes() for path in saved]
    assert any(b'"rounds": 0' not in header for header in headers)
