"""Networks on a GPU, beside one CPU core: ``python -m benches.gpu``, in 8 minutes at most.

It needs JAX's build for the GPU (``pip install "jax[cuda12]"``), PyTorch for the second framework,
and MNIST in the folder that DPMESH_DATA names; with ``--quick`` digits take its place. What is
missing is said, and the rest runs: so it is tested on machines without a GPU.

A convolutional network learns by a secure sum of per-record gradients, by federated learning and by
gossip, in JAX and in PyTorch, under the same key on both devices. Each run has a process of its
own and is a line of JSON, also in the file that ``--out`` names: accuracy, epsilon, seconds a round
after the first, and the most memory of arrays on the device and of the process, for few and for
many records' gradients at once. Then follow ours, Opacus and jax-privacy in a step of clipped
gradients, by `benches.dp_sgd_step`.

Epsilons cannot differ between devices: noise is drawn on the CPU, and what it costs follows from
public numbers. Accuracies may, by rounding; runs under another key show their spread.
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
from typing import Any

import numpy as np

import dpmesh as dm
from dpmesh.algorithms import SecureAggregation

LIMIT = 480.0
"""Seconds for all runs together."""
NODES, EPSILON, DELTA = 20, 4.0, 1e-5
ROUNDS, FEW_ROUNDS = 20, 3
WAYS, KINDS, DEVICES = ("secure", "federated", "gossip"), ("jax", "torch"), ("gpu", "cpu")
MICROBATCHES = (64, 1024)
"""How many records' gradients are in memory at once."""


def images(quick: bool) -> tuple[dm.Dataset, dm.Dataset, tuple[int, int, int]]:
    """Return records to learn from and to test on, and the shape of one, channels last."""
    if quick:
        train, test = dm.data.train_test_split(dm.data.digits(), 0.3, np.random.default_rng(0))
        return train, test, (8, 8, 1)
    train, test = (dm.data.mnist(part) for part in ("train", "test"))
    return train, test, (28, 28, 1)


def problem(kind: str, device: str, *, at_once: int, quick: bool) -> Any:
    """Return a convolutional network's problem, in JAX or in PyTorch."""
    train, test, shape = images(quick)
    parts = dm.data.iid(train, NODES, np.random.default_rng(0), equal_sizes=True)
    options: dict[str, Any] = {"test": test, "records_at_once": at_once}
    if kind == "jax":
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


def measured(
    way: str, kind: str, device: str, key: int, at_once: int, *, quick: bool
) -> dict[str, Any]:
    """Return the accuracy, seconds and memory of one run."""
    if device == "gpu" and not with_gpu(kind):
        return {"not_run": f"{kind} finds no GPU"}
    task = problem(kind, device, at_once=at_once, quick=quick)
    rounds = FEW_ROUNDS if quick else ROUNDS
    training, ended = algorithm(way, task, rounds), [0.0] * rounds

    def note(t: int, _: Any) -> None:
        ended[t - 1] = time.perf_counter()

    run = dm.simulate(
        training,
        task,
        dm.topology.torus(4, NODES // 4) if way == "gossip" else None,
        rounds=rounds,
        key=dm.Key.seeded(key),
        delta=DELTA,
        metrics=dm.Metrics([], every=1, callback=note, progress=False),
    )
    return {
        "accuracy": float(task.accuracy(run.released).mean()),
        "epsilon": run.privacy.epsilon,
        "parameters": task.dim,
        "seconds_a_round": (ended[-1] - ended[0]) / (rounds - 1),
        "device_mib": device_memory(kind),
        "process_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def device_memory(kind: str) -> float | None:
    """Return the peak of arrays' memory on the device in MiB; None where it is not counted."""
    if kind == "torch":
        import torch

        return torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else None
    import jax

    counted = jax.devices()[0].memory_stats() or {}
    return counted["peak_bytes_in_use"] / 2**20 if "peak_bytes_in_use" in counted else None


def with_gpu(kind: str) -> bool:
    """Return True if the framework finds a GPU."""
    if kind == "torch":
        import torch

        return bool(torch.cuda.is_available())
    import jax

    return bool(jax.default_backend() == "gpu")


def runs() -> list[list[Any]]:
    """Return way, framework, device, key and records at once of each run, in order of use."""
    few, many = MICROBATCHES
    ways = product(WAYS, KINDS, DEVICES, [0], [many])
    less = product(["secure"], KINDS, ["gpu"], [0], [few])
    spread = product(WAYS, KINDS, ["gpu"], [1], [many])
    return [list(run) for run in (*ways, *less, *spread)]


def in_a_process(setting: list[Any], options: list[str], seconds: float) -> dict[str, Any]:
    """Return the measurement of one run, or the reason for which there is none."""
    one_core = {f"{name}_NUM_THREADS": "1" for name in ("DPMESH", "OMP", "OPENBLAS")}
    one_core["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    on_cpu = {**one_core, "JAX_PLATFORMS": "cpu"} if setting[2] == "cpu" else {}
    command = [sys.executable, "-m", "benches.gpu", *options, "--run", json.dumps(setting)]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **on_cpu},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"not_run": "no time was left"}
    if done.returncode:
        return {"not_run": done.stderr.strip().splitlines()[-1]}
    measurement: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measurement


def step_of(peer: str) -> str:
    """Return the line of a peer's step of clipped gradients."""
    command = [sys.executable, "-m", "benches.dp_sgd_step", peer]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout if done.returncode == 0 else f"{peer}: {done.stderr}").splitlines()[-1]


def main() -> None:
    """Measure one run, or all of them within the limit."""
    parser = argparse.ArgumentParser("python -m benches.gpu")
    parser.add_argument("--quick", action="store_true", help="digits, and 3 rounds")
    parser.add_argument("--out", type=Path, help="a file for the lines")
    parser.add_argument("--run", type=json.loads, help="one run, in this process")
    arguments = parser.parse_args()
    options = ["--quick"] if arguments.quick else []
    if arguments.run:
        print(json.dumps(measured(*arguments.run, quick=arguments.quick)))
        return
    began, lines = time.monotonic(), []
    for setting in runs():
        seconds_left = LIMIT - (time.monotonic() - began)
        measurement = in_a_process(setting, options, max(seconds_left, 1.0))
        names = ("way", "framework", "device", "key", "records_at_once")
        lines.append(json.dumps({**dict(zip(names, setting, strict=True)), **measurement}))
        print(lines[-1], flush=True)
    for peer in ("dpmesh", "jax_privacy", "opacus"):
        if time.monotonic() - began < LIMIT:
            print(step_of(peer), flush=True)
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
