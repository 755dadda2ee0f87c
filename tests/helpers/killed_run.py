"""Kill a run at random moments, resume it until it ends: the result must be that of a whole run.

As a program: ``python tests/helpers/killed_run.py KILLS`` does it until so many kills have
happened.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHILD = """
import sys
import numpy as np
import dpmesh as dm

path, threads = sys.argv[1], int(sys.argv[2])
dm.kernels.set_threads(threads)
rng = np.random.default_rng(3)
nodes, rounds, dim = 8, 150, 40
features = rng.normal(size=(nodes * rounds, dim))
train = dm.Dataset(features, np.where(features[:, 0] > 0, 1, -1), "synthetic")
problem = dm.LinearProblem(train, tuple(np.arange(nodes * rounds).reshape(nodes, -1)), "logistic")
print("ready", flush=True)
run = dm.simulate(
    dm.OnlineLearning(epsilon=2.0), problem, dm.topology.ring(nodes), rounds=rounds,
    key=dm.Key.seeded(7), metrics=dm.Metrics(["loss", "regret"], every=50),
    checkpoint=dm.Checkpoint(path, every=1),
)
np.savez(path + ".result", run.parameters, run.released, run.history["regret"])
print(run.ledger == dm.OnlineLearning(epsilon=2.0).plan(rounds), run.traffic.bits, flush=True)
"""


def start(path: Path, threads: int) -> subprocess.Popen[str]:
    """Start or resume the run, and return once its rounds begin."""
    command = [sys.executable, "-c", CHILD, str(path), str(threads)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def outcome(path: Path) -> bytes:
    return Path(f"{path}.result.npz").read_bytes()


def run_with_kills(path: Path, kills: int, draw: random.Random, within: float) -> int:
    """Run to the end; kill it up to `kills` times on the way. Return how often it was killed."""
    killed = 0
    while True:
        child = start(path, threads=1 + killed % 2)
        try:
            patience = draw.uniform(0, within) if killed < kills else None
            printed, _ = child.communicate(timeout=patience)
            assert child.returncode == 0
            assert printed.startswith("True ")
            return killed
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.communicate()
            killed += 1


def main(kills: int) -> None:
    draw = random.Random()
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        run_with_kills(Path(folder) / "whole", 0, draw, 1)
        print(f"a whole run takes {time.monotonic() - start:.1f} s")
        expected = outcome(Path(folder) / "whole")
        attempt = 0
        while done < kills:
            attempt += 1
            path = Path(folder) / f"run-{attempt}"
            done += run_with_kills(path, kills - done, draw, within=0.5)
            assert outcome(path) == expected
            print(f"{done} kills, {attempt} runs: all like the whole run", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
