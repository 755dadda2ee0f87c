"""Compare networks on a GPU with one CPU core, in 8 minutes at most.

    python -m benches.gpu [--quick] [--out FILE]

Needs JAX's build for the GPU (``pip install "jax[cuda12]"``), PyTorch as the second framework, and
MNIST in the folder that DPMESH_DATA names; with ``--quick`` digits take its place. Whatever is
missing is reported and the rest runs, so that the program is tested on machines without a GPU.

A convolutional network learns by secure aggregation of per-record gradients, by federated learning
and by gossip, in JAX and in PyTorch, under the same key on both devices. Each run (`RunSetting`)
has a process of its own and prints a line of JSON: accuracy, epsilon, seconds a round after the
first, and peak memory of arrays on the device and of the process. Secure aggregation runs with few
and with many records' gradients in memory at once. Then `benches.dp_sgd_step` times a step of
clipped gradients in dpmesh, Opacus and jax-privacy.

Epsilon is the same on both devices: noise is drawn on the CPU, and epsilon follows from public
numbers. Accuracies may differ by rounding; runs under another key show their spread.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import dpmesh as dm
from dpmesh.algorithms import SecureAggregation

LIMIT = 480.0
"""Seconds for all runs together."""
NODES = 20
EPSILON = 4.0
DELTA = 1e-5
ROUNDS = 20
QUICK_ROUNDS = 3
WAYS = ("secure", "federated", "gossip")
"""Secure aggregation of per-record gradients, federated learning, and gossip."""
FRAMEWORKS = ("jax", "torch")
DEVICES = ("gpu", "cpu")
FEW_RECORDS = 64
MANY_RECORDS = 1024
"""Numbers of records whose gradients are in memory at once."""


class RunSetting(NamedTuple):
    """Settings of one run; the names are those of the printed JSON."""

    way: str
    framework: str
    device: str
    key: int
    records_at_once: int


def images(quick: bool) -> tuple[dm.Dataset, dm.Dataset, tuple[int, int, int]]:
    """Return records to learn from and to test on, and the shape of one, channels last."""
    if quick:
        train, test = dm.data.train_test_split(dm.data.digits(), 0.3, np.random.default_rng(0))
        return train, test, (8, 8, 1)
    train, test = (dm.data.mnist(part) for part in ("train", "test"))
    return train, test, (28, 28, 1)


def problem(framework: str, device: str, *, records_at_once: int, quick: bool) -> Any:
    """Return a convolutional network's problem, in JAX or in PyTorch."""
    train, test, shape = images(quick)
    parts = dm.data.iid(train, NODES, np.random.default_rng(0), equal_sizes=True)
    options: dict[str, Any] = {"test": test, "records_at_once": records_at_once}
    if framework == "jax":
        net = dm.problems.networks.convolutional(shape, channels=(8, 16), hidden=(64, 32))
        return dm.problems.JaxProblem(train, parts, *net, record_shape=shape, **options)
    from torch import nn

    side = shape[0] // 4

    def module() -> Any:
        return nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(16 * side * side, 64), nn.ReLU(), nn.Linear(64, 10)),
        )

    shape = (1, *shape[:2])
    options |= {"device": "cuda" if device == "gpu" else "cpu"}
    return dm.problems.TorchProblem(train, parts, module, record_shape=shape, **options)


def algorithm(way: str, task: Any, rounds: int) -> Any:
    """Return an algorithm within the budget, its parameters chosen without test records."""
    if way == "gossip":
        training: Any = dm.GradientDescent(
            records=task.fewest_records, noise_multiplier=2.0, step_size=0.5, clipping_norm=1.0
        )
    elif way == "federated":
        updates = dm.ClientUpdates(
            clients=NODES, sampling_rate=0.5, clipping_norm=1.0, epochs=1, step_size=0.1
        )
        training = dm.FederatedLearning(updates, noise_multiplier=1.0)
    else:
        all_records = int(task.records.sum())
        gradients = dm.RecordGradients(clients=NODES, records=all_records, clipping_norm=1.0)
        training = dm.FederatedLearning(
            gradients,
            noise_multiplier=1.0,
            combination=SecureAggregation(dim=task.dim, rounds=rounds),
            step_size=0.5,
        )
    budget = dm.privacy.Budget(EPSILON, delta=DELTA)
    noise = budget.calibrate(lambda z: replace(training, noise_multiplier=z), rounds)
    return replace(training, noise_multiplier=noise)


def measure(setting: RunSetting, *, quick: bool) -> dict[str, Any]:
    """Run once in this process; return accuracy, epsilon, seconds and memory."""
    way, framework, device, key, records_at_once = setting
    if device == "gpu" and not has_gpu(framework):
        return {"not_run": f"{framework} finds no GPU"}
    task = problem(framework, device, records_at_once=records_at_once, quick=quick)
    rounds = QUICK_ROUNDS if quick else ROUNDS
    training = algorithm(way, task, rounds)
    end_of_round = [0.0] * rounds

    def record_time(t: int, _: Any) -> None:
        end_of_round[t - 1] = time.perf_counter()

    network = None
    if way == "gossip":
        network = dm.topology.torus(4, NODES // 4)
    run = dm.simulate(
        training,
        task,
        network,
        rounds=rounds,
        key=dm.Key.seeded(key),
        delta=DELTA,
        metrics=dm.Metrics([], every=1, callback=record_time, progress=False),
    )
    return {
        "accuracy": float(task.accuracy(run.released).mean()),
        "epsilon": run.privacy.epsilon,
        "parameters": task.dim,
        "seconds_a_round": (end_of_round[-1] - end_of_round[0]) / (rounds - 1),
        "device_mib": device_memory(framework),
        "process_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def device_memory(framework: str) -> float | None:
    """Return the peak of arrays' memory on the device in MiB; None where it is not counted."""
    if framework == "torch":
        import torch

        if not torch.cuda.is_available():
            return None
        return torch.cuda.max_memory_allocated() / 2**20
    import jax

    counters = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" not in counters:
        return None
    return counters["peak_bytes_in_use"] / 2**20


def has_gpu(framework: str) -> bool:
    """Return True if the framework finds a GPU."""
    if framework == "torch":
        import torch

        return bool(torch.cuda.is_available())
    import jax

    return bool(jax.default_backend() == "gpu")


def runs() -> list[RunSetting]:
    """Return the settings of all runs, the most useful first, as time may run out."""
    all_ways = product(WAYS, FRAMEWORKS, DEVICES, [0], [MANY_RECORDS])
    less_memory = product(["secure"], FRAMEWORKS, ["gpu"], [0], [FEW_RECORDS])
    second_key = product(WAYS, FRAMEWORKS, ["gpu"], [1], [MANY_RECORDS])
    return [RunSetting(*values) for values in (*all_ways, *less_memory, *second_key)]


def measure_in_process(setting: RunSetting, options: list[str], seconds: float) -> dict[str, Any]:
    """Return the measurement of one run in a process, or the reason why there is none.

    The process ends after `seconds`. Runs on the CPU have one core.
    """
    environment = dict(os.environ)
    if setting.device == "cpu":
        environment |= {f"{name}_NUM_THREADS": "1" for name in ("DPMESH", "OMP", "OPENBLAS")}
        environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        environment["JAX_PLATFORMS"] = "cpu"
    command = [sys.executable, "-m", "benches.gpu", *options, "--run", json.dumps(setting)]
    try:
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {"not_run": "no time was left"}
    if process.returncode:
        return {"not_run": process.stderr.strip().splitlines()[-1]}
    measurement: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return measurement


def step_of(peer: str) -> str:
    """Return the line of a library's step of clipped gradients, or of its error."""
    command = [sys.executable, "-m", "benches.dp_sgd_step", peer]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    output = process.stdout
    if process.returncode:
        output = f"{peer}: {process.stderr}"
    return output.splitlines()[-1]


def main() -> None:
    """Measure one run, or all of them within the limit."""
    parser = argparse.ArgumentParser("python -m benches.gpu")
    parser.add_argument("--quick", action="store_true", help="digits, and 3 rounds")
    parser.add_argument("--out", type=Path, help="a file for the lines")
    parser.add_argument("--run", type=json.loads, help="one run, in this process")
    arguments = parser.parse_args()
    options = ["--quick"] if arguments.quick else []
    if arguments.run:
        print(json.dumps(measure(RunSetting(*arguments.run), quick=arguments.quick)))
        return
    start = time.monotonic()
    lines = []
    for setting in runs():
        seconds_left = LIMIT - (time.monotonic() - start)
        measurement = measure_in_process(setting, options, max(seconds_left, 1.0))
        lines.append(json.dumps({**setting._asdict(), **measurement}))
        print(lines[-1], flush=True)
    for peer in ("dpmesh", "jax_privacy", "opacus"):
        if time.monotonic() - start < LIMIT:
            print(step_of(peer), flush=True)
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
