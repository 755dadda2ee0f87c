"""Runs that are interrupted end like runs that are not, and no file is ever torn."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import killed_run
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from problems import stream_problem as make_problem

import dpmesh as dm
from dpmesh import kernels, topology
from dpmesh.algorithms import QuantizedGossip, WithoutReplacement
from dpmesh.noise.mechanisms import Gaussian
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.releases import Release
from dpmesh.run.checkpoint import SavedRun
from dpmesh.run.codec import classes_in, decode, encode
from dpmesh.run.interrupt import Interrupt
from dpmesh.schedules import Constant, SampleSize
from dpmesh_papers.deep_q import DeepQ

ROUNDS = 12


class StoppedError(Exception):
    """Ends a run at the end of a round."""


def online(path: Path | None = None, stop: int | None = None, **options: Any) -> dm.Run:
    """Run to the end, or up to the round `stop`."""

    def stopper(t: int, values: Any) -> None:
        if t == stop:
            raise StoppedError

    settings = {
        "rounds": ROUNDS,
        "key": dm.Key.seeded(0),
        "metrics": dm.Metrics(
            options.pop("metrics", None),
            every=options.pop("every", 1),
            callback=options.pop("callback", stopper),
        ),
        "checkpoint": path and dm.Checkpoint(path, every=options.pop("save_every", 1)),
    }
    return dm.simulate(
        options.pop("algorithm", dm.OnlineLearning(epsilon=2.0)),
        replace(make_problem(4, ROUNDS), feature_norm=10.0),
        options.pop("network", topology.ring(4)),
        **(settings | options),
    )


def federated(path: Path | None = None, stop: int | None = None) -> dm.Run:
    algorithm = dm.FederatedLearning(
        dm.ClientUpdates(clients=4, sampling_rate=0.5, clipping_norm=1.0, epochs=1),
        noise_multiplier=1.0,
        average=dm.algorithms.Average(weights=Constant(1.0)),
    )
    return online(path, stop, algorithm=algorithm, network=None)


def quantized(path: Path | None = None, stop: int | None = None) -> dm.Run:
    algorithm = QuantizedGossip(
        step_size=Constant(0.1),
        consensus_step_size=Constant(0.5),
        sample_size=SampleSize(scale=2, exponent=0.0, rounds=ROUNDS),
        noise_std=Constant(0.1),
    )
    return online(path, stop, algorithm=algorithm)


def deep_q(path: Path | None = None, stop: int | None = None) -> dm.Run:
    """With networks that learn in the arrays of the state that they are given."""
    controller = DeepQ(anneal_rounds=6, hidden=16, memory_size=4, batch_size=2)
    algorithm = WithoutReplacement(epsilon=None, batch_size=1, controller=controller)
    return online(path, stop, algorithm=algorithm, network=None, delta=1e-5)


def allocated(path: Path | None = None, stop: int | None = None) -> dm.Run:
    """With rounds of records that are drawn again after a resume, from the same key."""
    algorithm = dm.OnlineLearning(
        epsilon=2.0, delta=1e-5, sampling="allocation", records=ROUNDS, batch_size=1
    )
    return online(path, stop, algorithm=algorithm)


def assert_same(a: dm.Run, b: dm.Run) -> None:
    assert a.parameters.tobytes() == b.parameters.tobytes()
    assert a.released.tobytes() == b.released.tobytes()
    assert str(a.history.records) == str(b.history.records)  # NaN equals NaN
    assert (a.ledger, a.traffic, a.privacy) == (b.ledger, b.traffic, b.privacy)


@pytest.mark.parametrize("simulate", [online, allocated, federated, quantized, deep_q])
@pytest.mark.parametrize("stop", [1, 2, ROUNDS - 1])
def test_a_resumed_run_ends_like_one_that_was_not_stopped(simulate, stop, tmp_path) -> None:
    whole = simulate()
    with pytest.raises(StoppedError):
        simulate(tmp_path / "run", stop)
    threads = kernels.get_threads()
    kernels.set_threads(3 - min(2, threads))
    try:
        assert_same(simulate(tmp_path / "run"), whole)
    finally:
        kernels.set_threads(threads)
    assert_same(simulate(tmp_path / "run"), whole)  # nothing is left to do


def test_a_key_from_the_operating_system_resumes_if_it_was_saved(tmp_path) -> None:
    key = dm.Key.generate()
    key.save(tmp_path / "key")
    with pytest.raises(StoppedError):
        online(tmp_path / "run", 5, key=key)
    online(tmp_path / "run", key=dm.Key.load(tmp_path / "key"))
    with pytest.raises(ValueError, match="key: wanted that of the run in the checkpoint"):
        online(tmp_path / "run", key=dm.Key.generate())
    with pytest.raises(ValueError, match="key: wanted one that you keep"):
        online(tmp_path / "run", key=None)


def test_the_file_is_the_owners_and_holds_no_key(tmp_path) -> None:
    seed = int.from_bytes(b"a seed of thirty-two bytes, wow!", "little")
    online(tmp_path / "run", key=dm.Key.seeded(seed))
    content = (tmp_path / "run").read_bytes()
    assert b"thirty-two" not in content
    assert str(seed).encode() not in content
    if os.name == "posix":
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_file_that_is_no_checkpoint_is_refused_and_left_alone(tmp_path) -> None:
    online(tmp_path / "run")
    whole = (tmp_path / "run").read_bytes()
    for content in (b"", b"notes", whole[: len(whole) // 2]):
        (tmp_path / "run").write_bytes(content)
        with pytest.raises(ValueError, match="checkpoint: wanted a checkpoint, or a path where"):
            online(tmp_path / "run")
        assert (tmp_path / "run").read_bytes() == content


def test_a_damaged_file_is_named(tmp_path) -> None:
    """It ended in a KeyError."""
    path = tmp_path / "checkpoint"
    online(path)
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    header = json.loads(arrays["header"].tobytes())
    for name in [*header["progress"], "salt", "run", *(set(arrays) - {"header"})]:
        kept = {k: v for k, v in arrays.items() if k != name}
        left = {k: v for k, v in header.items() if k != name}
        left["progress"] = {k: v for k, v in header["progress"].items() if k != name}
        kept["header"] = np.frombuffer(json.dumps(left).encode(), np.uint8)
        with path.open("wb") as file:
            np.savez(file, **kept)
        with pytest.raises(ValueError, match=r"checkpoint: .* is damaged"):
            online(path)


def test_a_full_disk_stops_the_run_and_loses_nothing(tmp_path, monkeypatch) -> None:
    def full(handle: int) -> None:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StoppedError):
        online(tmp_path / "run", 5)
    before = (tmp_path / "run").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="is untouched") as caught:
            online(tmp_path / "run")
    assert "No space left on device" in str(caught.value)
    assert str(tmp_path / "run") in str(caught.value)
    assert (tmp_path / "run").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert_same(online(tmp_path / "run"), online())


def test_every_so_many_rounds_are_saved_and_the_last(tmp_path) -> None:
    for every, due in ((3, [3, 6, 9, 10]), (10, [10]), (99, [10]), (None, [10])):
        saved = SavedRun(dm.Checkpoint(tmp_path / "run", every=every), {}, [], "")
        assert [rounds for rounds in range(1, 11) if saved.is_due(rounds, last=10)] == due


def test_a_folder_that_cannot_be_written_to_stops_the_run_before_it_starts(tmp_path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match=r"cannot write this file: .*run'$"):
        online(tmp_path / "file" / "run", stop=1)


def test_a_state_that_cannot_be_stored_is_named_before_the_first_round(tmp_path) -> None:
    class Odd(dm.OnlineLearning):
        def init(self, problem: Any, key: Any) -> Any:
            return object()

    with pytest.raises(TypeError, match=r"state: wanted dataclasses, .* got object"):
        online(tmp_path / "run", algorithm=Odd())


@pytest.mark.slow
def test_kill_9_never_tears_a_file(tmp_path) -> None:
    draw = random.Random(0)  # of the moments only
    killed_run.run_with_kills(tmp_path / "whole", 0, draw, 1)
    wanted, killed, runs = killed_run.outcome(tmp_path / "whole"), 0, 0
    while killed < 3:
        runs += 1
        killed += killed_run.run_with_kills(tmp_path / f"{runs}", 3 - killed, draw, within=0.1)
        assert killed_run.outcome(tmp_path / f"{runs}") == wanted
    assert not list(tmp_path.glob(".*"))  # nothing that a killed one began


def test_two_runs_may_write_one_file_at_a_time(tmp_path, monkeypatch) -> None:
    fsync, path = os.fsync, tmp_path / "run"

    def slowly(handle: int) -> None:
        """Let a whole run go by, and write, before this file is on the disk."""
        monkeypatch.setattr(os, "fsync", fsync)
        online(path)
        fsync(handle)

    whole = online(path)
    monkeypatch.setattr(os, "fsync", slowly)
    path.unlink()
    assert_same(online(path), whole)
    assert_same(online(path), whole)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


SIGNALLED = """
import os, signal, sys, threading, time
import dpmesh as dm
from dpmesh.run import interrupt

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
folder, path, number, rounds, *patience = sys.argv[1:]
sys.path.insert(0, folder)
from problems import stream_problem as make_problem

left = int(rounds)

def slow(problem, parameters, received):
    global left
    left -= 1
    if left == 0:
        ask = threading.Timer(0.1, os.kill, (os.getpid(), int(number)))
        ask.start()
        if patience:
            ask.join()
        else:
            time.sleep(600)
    return 0.0

interrupt.PATIENCE = float(patience[0]) if patience else interrupt.PATIENCE
dm.simulate(dm.OnlineLearning(), make_problem(4, 1000), dm.topology.ring(4), rounds=1000,
            key=dm.Key.seeded(1), metrics=dm.Metrics([slow], every=1),
            checkpoint=dm.Checkpoint(path, every=1 if rounds == "2" else None))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("rounds", "patience", "saved"), [("3", ["600"], 3), ("1", [], 0), ("2", [], 1)]
)
def test_a_signal_stops_after_the_round_or_in_a_long_one_and_leaves_a_checkpoint(
    rounds, patience, saved, number, tmp_path
) -> None:
    path = tmp_path / "run"
    command = [
        sys.executable,
        "-c",
        SIGNALLED,
        Path(__file__).parents[1] / "helpers",
        path,
        str(int(number)),
    ]
    ended = subprocess.run([*command, rounds, *patience], capture_output=True, timeout=300)
    reported = f": the last checkpoint is {path}" if patience else ""
    assert f"KeyboardInterrupt{reported}".encode() in ended.stderr
    with np.load(path) as file:
        assert b'"rounds": %d,' % saved in file["header"].tobytes()


def test_all_signals_are_one_request_and_ctrl_c_again_is_impatience() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Interrupt(deferred=True, patient=True) as interrupt:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)  # by a terminal, and by all who end its processes
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            assert interrupt.requested
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class Node:
    values: Any
    more: Any = None


arrays = hnp.arrays(
    st.sampled_from(["f4", "f8", "i8", "u1", "?", "c16"]), hnp.array_shapes(min_dims=0, min_side=0)
)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | arrays
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(), inner)
        | st.builds(Pair, inner, inner)
        | st.builds(Node, inner, inner)
    ),
    max_leaves=8,
)


rows = st.sampled_from([True, 1, 1.0, -0.0, 0.0, float("nan"), "a", None, Node(1), (2, Node(2.0))])
tables = st.lists(st.builds(Node, rows | st.integers(), rows), min_size=2, max_size=5)


@given(values | tables)
def test_any_state_comes_back_exactly(value: Any) -> None:
    stored: dict[str, np.ndarray] = {}
    back = decode(encode(value, stored), stored, classes_in(value))
    assert_equal(back, value)


def assert_equal(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, (np.ndarray, np.generic)):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for name in a:
            assert_equal(a[name], b[name])
    elif isinstance(a, Node):
        assert_equal((a.values, a.more), (b.values, b.more))
    else:
        assert a == b or (a != a and b != b)


@pytest.mark.slow
def test_releases_that_repeat_take_no_more_space() -> None:
    def size(rounds: int) -> int:
        releases = [
            Release(t, Gaussian(2.0), Sensitivity(1.0, "l2", "clipped"), nodes=(0, 1))
            for t in range(rounds)
        ]
        tree = encode(releases, {})
        assert decode(tree, {}, classes_in(releases)) == releases
        return len(json.dumps(tree))

    assert size(10_000) < size(100) + 50


def test_a_file_makes_no_class_but_those_of_the_run() -> None:
    for tree in (encode(Node(1), {}), encode([Node(1), Node(2)], {})):
        with pytest.raises(ValueError, match="checkpoint: wanted records of this run"):
            decode(tree, {}, classes_in(Pair(1, 2)))
    with pytest.raises(ValueError, match="checkpoint: wanted a known kind of value"):
        decode({"odd": 1}, {}, {})


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", np.array([object()]), {1: 2}])
def test_what_cannot_be_stored_is_an_error(value: Any) -> None:
    with pytest.raises(TypeError, match="state: wanted dataclasses"):
        encode((1, value), {})
