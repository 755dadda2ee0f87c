"""A step of per-record clipped gradients with noise: 16 networks of dpmesh, one of its peers.

    python -m benches.dp_sgd_step dpmesh | jax_privacy | opacus

Two dense layers of 120 and 50 units on 784 features, 100,760 parameters; 512 records in all. Prints
processor time, wall time and peak memory. The peers need jax-privacy or Opacus.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpmesh as dm
from dpmesh.keys import Key, Purpose

NODES = 16
BATCH = 32
"""Records of a node in a step."""
REPEATS = 12
"""Timed steps, of which the fastest counts."""
WIDTHS = [784, 120, 50, 10]
"""Features, hidden units of both layers, and classes."""


def start(key: Any) -> Any:
    keys = jax.random.split(key, 3)
    return [
        {"w": jax.random.normal(leaf_key, (rows, columns)) / rows**0.5, "b": jnp.zeros(columns)}
        for leaf_key, rows, columns in zip(keys, WIDTHS[:-1], WIDTHS[1:], strict=True)
    ]


def scores(params: Any, x: Any) -> Any:
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


loss = dm.problems.networks.cross_entropy(scores)


def ours(x: Any, y: Any) -> Callable[[], Any]:
    parts = np.split(np.arange(len(x)), NODES)
    problem = dm.problems.JaxProblem(dm.Dataset(x, y), parts, start=start, loss=loss, scores=scores)
    w = np.repeat(problem.initial(Key.seeded(0)), NODES, axis=0)

    def step() -> Any:
        sums = problem.gradient_sum(w, problem.full_batches, clipping_norm=1.0)
        return sums + dm.kernels.gaussian(w.shape, 1.0, Key.seeded(1).stream(Purpose.NOISE, 0))

    return step


def jax_privacy(x: Any, y: Any) -> Callable[[], Any]:
    from jax_privacy import clipped_grad

    def mean_loss(params: Any, x: Any, y: Any) -> Any:
        return jax.vmap(loss, (None, 0, 0))(params, x, y).mean()

    clipped = clipped_grad(mean_loss, l2_clip_norm=1.0, batch_argnums=(1, 2))

    @jax.jit
    def noisy(params: Any, x: Any, y: Any, key: Any) -> Any:
        leaves, _ = jax.tree.flatten(clipped(params, x, y))
        keys = jax.random.split(key, len(leaves))
        return [
            g + jax.random.normal(leaf_key, g.shape)
            for g, leaf_key in zip(leaves, keys, strict=True)
        ]

    arguments = start(jax.random.key(0)), jnp.asarray(x), jnp.asarray(y), jax.random.key(1)
    return lambda: jax.block_until_ready(noisy(*arguments))


def opacus(x: Any, y: Any) -> Callable[[], Any]:
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer
    from torch import nn

    layers = (nn.Linear(784, 120), nn.ReLU(), nn.Linear(120, 50), nn.ReLU(), nn.Linear(50, 10))
    net = GradSampleModule(nn.Sequential(*layers))
    optimizer = DPOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=len(x),
    )
    features, labels = torch.tensor(x), torch.tensor(y)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(features), labels).backward()
        optimizer.step()

    return step


STEPS: dict[str, Callable[[Any, Any], Callable[[], Any]]] = {
    "dpmesh": ours,
    "jax_privacy": jax_privacy,
    "opacus": opacus,
}
"""Functions that return a library's step on records and labels."""


def main() -> None:
    library = sys.argv[1]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NODES * BATCH, 784)).astype(np.float32) / 28
    y = rng.integers(0, 10, len(x))
    step = STEPS[library](x, y)
    step()
    processor_times = []
    wall_times = []
    for _ in range(REPEATS):
        processor_start = time.process_time()
        wall_start = time.perf_counter()
        step()
        processor_times.append(time.process_time() - processor_start)
        wall_times.append(time.perf_counter() - wall_start)
    processor = 1e3 * min(processor_times)
    wall = 1e3 * min(wall_times)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{library}: {processor:.0f} ms of processor time, {wall:.0f} ms; peak {peak:.0f} MiB")


if __name__ == "__main__":
    main()
