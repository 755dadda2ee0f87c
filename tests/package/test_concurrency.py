"""Python threads that use the package at once, with and without an interpreter lock."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from linear_calls import linear_gradient, linear_loss

import dpmesh as dm
from dpmesh import kernels
from dpmesh.keys import Key, Purpose
from dpmesh_papers.qnet import q_init, q_values

THREADS, TURNS = 8, 20
NODES, DIM = 16, 1_100  # results so large that the memory of one may serve for the next


def at_once(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """Return what `work(thread)` gives, all threads having started together."""
    start = Barrier(threads)

    def begin(thread: int) -> Any:
        start.wait()
        return work(thread)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(begin, range(threads)))


def calls() -> dict[str, Callable[[], Any]]:
    """Return one call of each family of kernels, all of them on the same arrays and streams."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NODES, DIM))
    weights = sp.csr_array(np.full((NODES, NODES), 1 / NODES))
    labels = rng.integers(0, 3, NODES)
    batches = [np.array([node]) for node in range(3)]
    params = np.zeros((3, 3 * DIM))
    key = Key.seeded(1)
    stream, coins = key.stream(Purpose.NOISE), key.stream(Purpose.QUANTIZE)
    chacha = Key.seeded(1, "chacha20").stream(Purpose.NOISE)
    codes = kernels.quantize(x, 0.1, coins)
    networks = q_init(3, 4, stream, hidden=16)
    states = np.ones((3, 2, 4), np.float32)
    return {
        "noise": lambda: kernels.add_noise("gaussian", x, 1.0, stream),
        "noise of chacha": lambda: kernels.laplace((NODES, DIM), 2.0, chacha),
        "discrete noise": lambda: kernels.discrete_gaussian((NODES, 20), 3.0, stream),
        "coins": lambda: kernels.bernoulli((NODES, DIM), 0.3, coins),
        "clipping": lambda: kernels.clip_rows(x, 1.0),
        "smoothing": lambda: kernels.smooth(x, 3.0, method="fft"),
        "mixing": lambda: kernels.mix(weights, x),
        "quantization": lambda: kernels.quantize(x, 0.1, coins),
        "packing": lambda: kernels.unpack(kernels.pack(codes, kernels.bits_needed(codes))),
        "linear": lambda: linear_gradient(params, x, labels, batches, "logistic", classes=3),
        "networks": lambda: q_values(networks, states),
    }


LONG: dict[str, Callable[[], Any]] = {
    "noise": lambda: kernels.gaussian((50, 3_000), 1.0, _STREAM, dtype=np.float32),
    "partners": lambda: kernels.add_pair_gaussian(_ROWS.copy(), range(20), _RING, 0.5, _STREAM),
    "correlated": lambda: kernels.correlated_gaussian(
        _ROWS.shape, 1.0, [_ROWS, 2 * _ROWS], [0.3, -0.2], _STREAM
    ),
    "clipping": lambda: kernels.clip_rows(_ROWS, 1.0),
    "recursion": lambda: kernels.smooth(_ROWS.ravel(), 2.0, method="recursion"),
    "recursion of short rows": lambda: kernels.smooth(_ROWS.reshape(-1, 25), 1.0),
    "fft": lambda: kernels.smooth(_ROWS.astype(np.float32).ravel(), 1e5, method="fft"),
    "mixing": lambda: kernels.mix(_WEIGHTS, _ROWS.reshape(400, -1)),
    "quantization": lambda: kernels.quantize(_ROWS, 0.01, _STREAM),
    "sums": lambda: kernels.weighted_sum((0.1, _ROWS), (0.7, _ROWS[::-1])),
    "dense gradients": lambda: linear_gradient(*_MODEL, clipping_norm=1.0, classes=5),
    "sparse gradients": lambda: linear_gradient(
        _MODEL[0], sp.csr_array(_MODEL[1]), *_MODEL[2:], classes=5
    ),
    "losses": lambda: linear_loss(*_MODEL, classes=5),
    "networks": lambda: q_values(q_init(60, 50, _STREAM), _ROWS.reshape(60, -1, 50).astype("f")),
}
"""Calls that are so long that threads share them."""

_DRAW = np.random.default_rng(2)
_STREAM, _ROWS = Key.seeded(1).stream(Purpose.NOISE), _DRAW.normal(size=(20, 15_000))
_RING = [[i, (i + 1) % 20] for i in range(20)]
_WEIGHTS = sp.random_array((400, 400), density=0.02, rng=_DRAW, format="csr")
_SIZES = np.array([*[40] * 32, 3000])
_MODEL: Any = (
    _DRAW.normal(size=(33, 300)).astype(np.float32),
    _DRAW.normal(size=(3000, 60)).astype(np.float32),
    _DRAW.integers(5, size=3000),
    (np.append(0, _SIZES.cumsum()), _DRAW.integers(3000, size=_SIZES.sum())),
    "softmax",
)


@pytest.mark.parametrize("name", LONG)
def test_bits_do_not_depend_on_the_number_of_threads(name: str) -> None:
    before, results = kernels.get_threads(), []
    try:
        for threads in (1, 2, 7):
            kernels.set_threads(threads)
            assert kernels.get_threads() == threads
            results.append(LONG[name]().tobytes())
    finally:
        kernels.set_threads(before)
    assert results[0] == results[1] == results[2]


def test_kernels_give_the_same_bits_when_threads_call_them_at_once() -> None:
    every = calls()
    alone = {name: call() for name, call in every.items()}
    names = list(every)

    def work(thread: int) -> None:
        for turn in range(TURNS * len(names)):
            name = names[(turn + thread) % len(names)]
            np.testing.assert_array_equal(every[name](), alone[name], err_msg=name)

    at_once(work)


@pytest.mark.slow
def test_the_number_of_threads_may_change_while_kernels_run() -> None:
    x, stream = np.zeros((NODES, 40_000)), Key.seeded(1).stream(Purpose.NOISE)
    alone, before = kernels.add_noise("gaussian", x, 1.0, stream), kernels.get_threads()

    def work(thread: int) -> None:
        for turn in range(TURNS):
            if thread == 0:
                kernels.set_threads(1 + turn % 3)
            else:
                np.testing.assert_array_equal(kernels.add_noise("gaussian", x, 1.0, stream), alone)

    try:
        at_once(work)
    finally:
        kernels.set_threads(before)


def test_two_threads_that_write_into_one_array_are_refused_or_take_turns() -> None:
    """Never a result made of both: the second learns that the array is not its own."""
    out = np.empty((NODES, 40_000))
    streams = [Key.seeded(seed).stream(Purpose.NOISE) for seed in range(THREADS)]

    def refusal(thread: int) -> str | None:
        try:
            kernels.gaussian(out.shape, 1.0, streams[thread], out=out)
        except ValueError as error:
            return str(error)
        return None

    said = {message for _ in range(TURNS) for message in at_once(refusal)}
    assert None in said
    said.discard(None)
    assert all(message.startswith("out: wanted a writeable array of its own") for message in said)
    results = [kernels.gaussian(out.shape, 1.0, stream) for stream in streams]
    assert any(np.array_equal(out, result) for result in results)


def problem_and_network() -> tuple[dm.LinearProblem, dm.topology.Topology]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8 * 12, 5))
    train = dm.Dataset(x, np.where(x[:, 0] < 0, -1, 1), "synthetic")
    problem = dm.LinearProblem(train, tuple(np.split(np.arange(96), 8)), "logistic")
    network = dm.topology.edge_dropping(dm.topology.ring(8), keep=0.5, key=Key.seeded(9))
    return problem, network


@pytest.mark.slow
def test_runs_on_one_problem_at_once_are_the_runs_alone() -> None:
    """They share the problem and the network; memory is their own."""
    algorithm = dm.OnlineLearning(epsilon=2.0)

    def run(seed: int, problem: dm.LinearProblem, network: dm.topology.Topology) -> Any:
        result = dm.simulate(algorithm, problem, network, rounds=12, key=Key.seeded(seed))
        return result.parameters, result.released, result.history.last("loss")

    alone = [run(seed, *problem_and_network()) for seed in range(THREADS)]
    shared = problem_and_network()
    for one, other in zip(alone, at_once(lambda seed: run(seed, *shared)), strict=True):
        for mine, same in zip(one, other, strict=True):
            np.testing.assert_array_equal(mine, same)


@pytest.mark.slow
def test_many_threads_may_be_the_first_to_use_the_names() -> None:
    """Before CPython 3.15, two that import modules of one package at once may stop each other."""
    code = f"""
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
import networkx, scipy.linalg, scipy.stats, scipy.sparse.csgraph
import dpmesh as dm

start = Barrier({THREADS})

def use(thread):
    start.wait()
    names = sorted(dm.__all__)
    for turn in range(len(names)):
        getattr(dm, names[(turn + 5 * thread) % len(names)])

with ThreadPoolExecutor({THREADS}) as pool:
    list(pool.map(use, range({THREADS})))
"""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="needs a free-threaded CPython"
)
def test_importing_everything_leaves_the_interpreter_without_its_lock() -> None:
    """The extension says of itself that it needs none."""
    code = """
import sys
import dpmesh as dm
everything = [getattr(dm, name) for name in dm.__all__]
sys.exit(sys._is_gil_enabled())
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
