"""Online learning with Laplace noise, whole runs: 64 learners, one fresh example a round each.

In every round each learner sends its parameters with noise, mixes what it receives, takes one
subgradient step of the hinge loss, and projects onto a ball. NumPy does the same, with its fastest
generator, which is insecure. Short vectors: many runs side by side against NumPy runs one after
another. Long sparse ones: one run against NumPy with the rows shared among threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from math import sqrt

import networkx as nx
import numpy as np
from scipy import sparse

import dpmesh as dm
from benches.measure import THREADS, Case, Way
from dpmesh.keys import Key
from dpmesh.run import Gossip
from dpmesh.run.channel import run_rounds
from dpmesh_papers.repeats import Repeats, SideBySide

NODES, DEGREE, RADIUS, EPSILON = 64, 4, 10.0, 1.0
RUNS, ROUNDS, LONG_ROUNDS = 256, 100, 20
LONG, STORED = 47_236, 75  # RCV1's features, and how many of them a record has


def dense(records: int, dim: int) -> dm.data.Dataset:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((records, dim), dtype=np.float32)
    labels = np.where(features[:, 0] > 0, 1, -1)
    return dm.data.unit_norm(dm.data.Dataset(features, labels, "dense"))


def thin(records: int) -> dm.data.Dataset:
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(0, LONG // STORED, (records, STORED)), axis=1)
    columns += np.arange(STORED) * (LONG // STORED)
    values = rng.random(columns.shape, dtype=np.float32)
    starts = np.arange(records + 1) * STORED
    shape = (records, LONG)
    features = sparse.csr_array((values.ravel(), columns.ravel(), starts), shape=shape)
    labels = np.where(values[:, 0] > 0.5, 1, -1)
    return dm.data.unit_norm(dm.data.Dataset(features, labels, "sparse"))


def problem(train: dm.data.Dataset) -> dm.LinearProblem:
    parts = dm.data.iid(train, NODES, np.random.default_rng(0))
    return dm.LinearProblem(train, parts, "hinge")


class NumpyRun:
    """NumPy's way; `for_blocks` calls a function for blocks of rows."""

    def __init__(self, train: dm.data.Dataset, weights: np.ndarray, blocks: int) -> None:
        self.x = train.features
        self.y = train.labels
        self.weights = weights
        ends = [block * NODES // blocks for block in range(blocks + 1)]
        self.blocks = [slice(start, end) for start, end in pairwise(ends)]
        self.generators = [np.random.Generator(np.random.SFC64(i)) for i in range(blocks)]

    def run(self, rounds: int, for_blocks: Callable[..., object]) -> np.ndarray:
        dim = self.x.shape[1]
        w, noisy = np.zeros((2, NODES, dim), np.float32)
        blocks = range(len(self.blocks))
        for t in range(1, rounds + 1):
            step = 0.5 / sqrt(t)
            scale = 2 * step * sqrt(dim) / EPSILON
            list(for_blocks(partial(self.emit, w, noisy, scale), blocks))
            w = self.weights @ noisy
            list(for_blocks(partial(self.absorb, w, step, t), blocks))
        return w

    def emit(self, w: np.ndarray, noisy: np.ndarray, scale: float, block: int) -> None:
        """Add the fastest Laplace draw of NumPy: an exponential one with a random sign."""
        rows = self.blocks[block]
        rng = self.generators[block]
        noise = rng.standard_exponential(w[rows].shape, np.float32)
        noise *= np.float32(scale)
        random_bytes = rng.bytes(-(-noise.size // 8))
        signs = np.unpackbits(np.frombuffer(random_bytes, np.uint8))[: noise.size]
        is_negative = signs.reshape(noise.shape).view(bool)
        np.negative(noise, out=noise, where=is_negative)
        np.add(w[rows], noise, out=noisy[rows])

    def absorb(self, w: np.ndarray, step: float, t: int, block: int) -> None:
        """Take a subgradient step of the hinge loss, and project onto the ball."""
        rows = self.blocks[block]
        nodes = np.arange(rows.start, rows.stop)
        records = (t * NODES + nodes) % len(self.y)
        models = w[rows]
        y = self.y[records].astype(np.float32)
        if isinstance(self.x, np.ndarray):
            x = self.x[records]
            is_active = y * (x * models).sum(axis=1) < 1
            models += (step * y * is_active).astype(np.float32)[:, None] * x
        else:
            for row, record in enumerate(records):
                self.sparse_step(models[row], record, step, y[row])
        norms = np.sqrt(np.einsum("ij,ij->i", models, models))
        factors = np.minimum(1, RADIUS / np.maximum(norms, 1e-30))
        models *= factors.astype(np.float32)[:, None]

    def sparse_step(self, model: np.ndarray, record: int, step: float, y: np.float32) -> None:
        """Take a step of one model on one sparse record, in place."""
        entries = slice(self.x.indptr[record], self.x.indptr[record + 1])
        columns = self.x.indices[entries]
        values = self.x.data[entries]
        if y * (values @ model[columns]) < 1:
            model[columns] += np.float32(step * y) * values


def side_by_side(train: dm.data.Dataset, network: dm.topology.Static, numpy_run: NumpyRun) -> Case:
    """As `Repeats.simulate` does it, without the regret, which NumPy does not compute either."""
    learned = Repeats.deal(problem(train), RUNS, key=Key.seeded(1)).problem
    algorithm = dm.OnlineLearning(epsilon=EPSILON, radius=RADIUS)
    carrier = SideBySide(Gossip(network), NODES)

    def ours() -> None:
        for _ in run_rounds(algorithm, learned, carrier, rounds=ROUNDS, key=Key.generate()):
            pass

    return Case(
        f"online, d = 10, a round of {RUNS} runs",
        ours,
        peers={"numpy": lambda: numpy_run.run(ROUNDS, map)},
        part={"numpy": 1 / RUNS},
        goals={"numpy": 20.0},
        values=ROUNDS,
        rounds=5,
    )


def one_run(
    name: str,
    learned: dm.LinearProblem,
    network: dm.topology.Static,
    rounds: int,
    numpy_way: Way,
    goal: float | None = None,
) -> Case:
    algorithm = dm.OnlineLearning(epsilon=EPSILON, radius=RADIUS)
    return Case(
        name,
        lambda: dm.simulate(
            algorithm,
            learned,
            network,
            rounds=rounds,
            metrics=dm.Metrics((), every=rounds, progress=False),
        ),
        peers={"numpy": numpy_way},
        goals={"numpy": goal} if goal else {},
        values=rounds,
        rounds=5,
    )


def cases() -> Iterator[Case]:
    network = dm.topology.from_networkx(nx.random_regular_graph(DEGREE, NODES, seed=1))
    weights = network.matrix(0).weights.astype(np.float32).toarray()
    short = dense(NODES * ROUNDS, 10)
    long = thin(NODES * LONG_ROUNDS)
    short_run = NumpyRun(short, weights, 1)
    yield side_by_side(short, network, short_run)
    name = "online, d = 10, a round of one run"
    yield one_run(name, problem(short), network, ROUNDS, lambda: short_run.run(ROUNDS, map))
    long_run = NumpyRun(long, weights, THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        for_blocks = pool.map
        goal = 15.0
        if THREADS == 1:
            for_blocks = map
            goal = 7.0
        numpy_way = partial(long_run.run, LONG_ROUNDS, for_blocks)
        name = f"online, d = {LONG}, a round"
        yield one_run(name, problem(long), network, LONG_ROUNDS, numpy_way, goal)
