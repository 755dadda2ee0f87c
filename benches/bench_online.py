"""Whole rounds of online learning against NumPy: many short runs at once, and one wide one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from scipy import sparse

import dpmesh as dm
from benches.measure import THREADS, Case
from dpmesh import topology
from dpmesh.schedules import InverseTime
from dpmesh.simulator import Repeats
from dpmesh.simulator.exchange import Gossip

NODES, RUNS, RADIUS = 64, 64, 10.0
KEY = dm.Key.seeded(0)
STEP = InverseTime(10.0)
NETWORK = topology.random_regular(NODES, 4, key=KEY)

Rounds = Callable[[], object]
Array = npt.NDArray[np.floating]


def ours(problem: dm.LinearProblem, runs: int) -> Rounds:
    """Return a call that runs one round of all runs, with noise; then the next."""
    algorithm = dm.OnlineLearning(1.0, step_size=STEP, radius=RADIUS)
    repeats = Repeats(problem, NODES, runs)
    exchange = repeats.side_by_side(Gossip(NETWORK))
    states = [algorithm.init(problem, KEY)]
    rounds = itertools.cycle(range(1, problem.rounds(1)))

    def one_round() -> None:
        states[0], _ = algorithm.step(states[0], next(rounds), problem, exchange, KEY)

    return one_round


def numpy(problem: dm.LinearProblem) -> Rounds:
    """Return a call that does the same for one run, rows divided among threads if they are long."""
    features, labels = problem.train.features, problem.train.labels
    dim = problem.dim
    mixing = NETWORK.matrix(0).weights.toarray().astype(np.float32)
    states = [np.zeros((NODES, dim), np.float32)]
    rounds = itertools.cycle(range(1, problem.rounds(1)))
    threads = THREADS if dim > 1000 else 1
    pool = ThreadPoolExecutor(threads)
    generators = [np.random.default_rng(seed) for seed in range(threads)]
    blocks = np.array_split(np.arange(NODES), threads)

    def noisy(block: npt.NDArray[np.int64], rng: np.random.Generator, scale: float) -> Array:
        return states[0][block] + rng.laplace(scale=scale, size=(len(block), dim))

    def learned(block: npt.NDArray[np.int64], sent: Array, t: int) -> Array:
        b = mixing[block] @ sent
        examples = problem.batch(t, 1)[block, 0]
        y = labels[examples]
        x = features[examples]
        if sparse.issparse(x):
            score = [x[[i]] @ b[i] for i in range(len(block))]
            loss = [max(0, 1 - y[i] * (x[[i]] @ states[0][j])[0]) for i, j in enumerate(block)]
            gradient = x.multiply((-y * (y * np.concatenate(score) < 1))[:, None]).tocsr()
            b -= STEP(t + 1) * gradient.toarray()
        else:
            loss = np.maximum(0, 1 - y * np.einsum("ij,ij->i", x, states[0][block]))
            active = y * np.einsum("ij,ij->i", x, b) < 1
            b += STEP(t + 1) * (y * active)[:, None] * x
        lengths = np.sqrt(np.einsum("ij,ij->i", b, b))
        b *= np.minimum(1, RADIUS / np.maximum(lengths, 1e-30))[:, None]
        assert len(loss) == len(block)
        return b

    def one_round() -> None:
        t = next(rounds)
        scale = 2 * STEP(t) * np.sqrt(dim)
        if threads == 1:
            sent = noisy(blocks[0], generators[0], scale).astype(np.float32)
            states[0] = learned(blocks[0], sent, t)
            return
        rows = pool.map(lambda block, rng: noisy(block, rng, scale), blocks, generators)
        sent = np.concatenate(list(rows)).astype(np.float32)
        states[0] = np.concatenate(list(pool.map(lambda block: learned(block, sent, t), blocks)))

    return one_round


def dense(runs: int) -> dm.LinearProblem:
    rng = np.random.default_rng(0)
    rounds, dim = 100, 10
    features = rng.standard_normal((rounds * NODES * runs, dim), dtype=np.float32)
    labels = rng.choice([-1, 1], size=len(features))
    parts = tuple(np.arange(len(features)).reshape(rounds, NODES * runs).T)
    return dm.LinearProblem(dm.Dataset(features, labels, "dense"), parts, "hinge")


def wide() -> dm.LinearProblem:
    rng = np.random.default_rng(0)
    rounds, dim, density = 20, 47_236, 75 / 47_236
    features = sparse.random_array(
        (rounds * NODES, dim), density=density, format="csr", dtype=np.float32, rng=rng
    )
    parts = tuple(np.arange(rounds * NODES).reshape(NODES, rounds))
    labels = rng.choice([-1, 1], size=rounds * NODES)
    return dm.LinearProblem(dm.Dataset(features, labels, "wide"), parts, "hinge")


def cases() -> Iterator[Case]:
    goals = {"numpy": 20.0} if THREADS > 1 else {}
    yield Case(
        f"round of {RUNS} runs, {NODES} nodes, d = 10",
        ours(dense(RUNS), RUNS),
        peers={"numpy": numpy(dense(1))},
        part={"numpy": 1 / RUNS},
        goals=goals,
        values=RUNS,
    )
    problem = wide()
    yield Case(
        f"round of a run, {NODES} nodes, d = 47,236",
        ours(problem, 1),
        peers={"numpy, rows in threads": numpy(problem)},
        goals={"numpy, rows in threads": 15.0} if THREADS == 4 else {},
    )
