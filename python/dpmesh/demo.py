"""The first thing that a user runs: private online learning on real digits, at several epsilons."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dpmesh._files import replace_text, replacing
from dpmesh.algorithms import OnlineLearning
from dpmesh.data import digits, iid, train_test_split, unit_norm
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import LinearProblem
from dpmesh.run import Run, simulate
from dpmesh.schedules import InverseSqrt
from dpmesh.topology import Topology, edge_dropping, random_regular

NODES = 16
BATCH_SIZE = 4
EPSILONS = (None, 16.0, 4.0, 1.0)
DELTA = 1e-5


def make_problem(key: Key) -> LinearProblem:
    """Return handwritten digits, even against odd, a fifth for testing, the rest partitioned."""
    dataset = unit_norm(digits()).relabelled(lambda digit: np.where(digit % 2 == 0, 1, -1))
    draw = generator(key, Purpose.SPLIT)
    train, test = train_test_split(dataset, 0.2, draw)
    parts = iid(train, NODES, draw, equal_sizes=True)
    return LinearProblem(train, parts, "logistic", test=test)


def make_topology(key: Key) -> Topology:
    """Return a random 8-regular graph, each of whose links is up in half of the rounds."""
    return edge_dropping(random_regular(NODES, 8, key=key), keep=0.5, key=key)


def run_demo(key: Key, on_run: Callable[[str, Run], None]) -> dict[str, Run]:
    """Learn at each epsilon; call `on_run` with every finished run.

    A seeded key serves all runs. Otherwise each run takes a new key, since the difference of two
    runs under one key would have no noise.
    """
    problem, topology = make_problem(key), make_topology(key)
    rounds = min(len(part) for part in problem.partition) // BATCH_SIZE
    runs, own = {}, key if key.is_seeded else None
    for epsilon in EPSILONS:
        algorithm = OnlineLearning(
            epsilon, DELTA, step_size=InverseSqrt(4.0), radius=10.0, batch_size=BATCH_SIZE
        )
        name = "not private" if epsilon is None else f"epsilon = {epsilon:g}"
        runs[name] = simulate(
            algorithm, problem, topology, rounds=rounds, key=own, delta=DELTA, every=2
        )
        on_run(name, runs[name])
    return runs


def save(runs: dict[str, Run], folder: Path) -> tuple[Path, Path]:
    """Write one figure and one JSON file.

    Raises
    ------
    OSError
        If the folder cannot be written to.
    """
    from matplotlib.figure import Figure

    import dpmesh.plots as plots

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    histories = {name: run.history for name, run in runs.items()}
    for ax, metric in zip(figure.subplots(1, 2), ("accuracy", "regret"), strict=True):
        plots.curves(histories, metric, ax=ax)
    picture, numbers = folder / "demo.png", folder / "demo.json"
    with replacing(picture) as file:
        figure.savefig(file, format="png", dpi=150)
    replace_text(numbers, json.dumps({name: run.as_dict() for name, run in runs.items()}, indent=1))
    return picture, numbers
