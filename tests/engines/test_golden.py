"""The same key gives the bits, the ledger, the epsilon and the traffic that it always gave.

What tests/helpers/golden/golden.json holds was recorded once, from a version whose bits other tests
check.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden import cases, make
from test_engines_mpi import succeed

import dpmesh as dm

GOLDEN = json.loads(make.FILE.read_text())
SAME_PLATFORM = GOLDEN.pop("platform") == make.platform()
REPEATS = GOLDEN.pop("repeats")

each = pytest.mark.parametrize("name", cases.CASES)


def assert_array(got: dict[str, Any], golden: dict[str, Any]) -> None:
    """On other platforms the last bits of noise scales may differ, and so those of all numbers."""
    assert (got["dtype"], got["shape"]) == (golden["dtype"], golden["shape"])
    close = 1e-4 if got["dtype"] == "float32" else 1e-9
    np.testing.assert_allclose(got["numbers"], golden["numbers"], rtol=close, atol=close)
    if SAME_PLATFORM:
        assert got["sha256"] == golden["sha256"]


def assert_golden(got: dict[str, Any], golden: dict[str, Any]) -> None:
    for name in ("parameters", "released"):
        assert_array(got[name], golden[name])
    for row, wanted in zip(got["ledger"], golden["ledger"], strict=True):
        np.testing.assert_allclose(row[2:4], wanted[2:4], rtol=1e-12)  # noise and sensitivity
        assert row[:2] + row[4:] == wanted[:2] + wanted[4:]
    assert got["epsilon"] == pytest.approx(golden["epsilon"], rel=1e-9)
    assert got["traffic"] == golden["traffic"]
    assert list(got["history"]) == list(golden["history"])
    for metric, values in golden["history"].items():
        close = 1e-4 if got["released"]["dtype"] == "float32" else 1e-9
        np.testing.assert_allclose(got["history"][metric], values, rtol=close)


def test_every_case_is_recorded() -> None:
    assert list(GOLDEN) == list(cases.CASES)


LONG = [name for name in cases.CASES if name.endswith(", long")]  # threads share no other's rows


@pytest.mark.parametrize(
    ("name", "threads"), [*((name, 4) for name in cases.CASES), *((name, 1) for name in LONG)]
)
def test_a_run_gives_what_it_always_gave(name: str, threads: int) -> None:
    before = dm.kernels.get_threads()
    dm.kernels.set_threads(threads)
    try:
        got = make.record(cases.simulate(name))
    finally:
        dm.kernels.set_threads(before)
    assert_golden(got, GOLDEN[name])


@each
def test_a_resumed_run_gives_the_same(name: str, tmp_path: Path) -> None:
    def stop(round: int, values: object) -> None:
        raise dm.StopRun

    path = tmp_path / "checkpoint"
    half = cases.simulate(name, checkpoint=path, callback=stop)
    assert half.history.rounds("accuracy").tolist() == [2]
    assert_golden(make.record(cases.simulate(name, checkpoint=path)), GOLDEN[name])


def test_repeated_runs_give_what_they_always_gave() -> None:
    got = make.repeats_record(cases.repeats())
    for name in ("parameters", "released"):
        assert_array(got[name], REPEATS[name])
    np.testing.assert_allclose(got["losses"], REPEATS["losses"], rtol=1e-9)


GOSSIP = ["gradient descent, varying network", "online", "quantized", "quantized, sparse"]
TOKEN = ["without replacement, random", "without replacement, learned"]


@pytest.mark.slow
def test_ranks_give_the_same(tmp_path: Path) -> None:
    names = GOSSIP + TOKEN
    file, program = tmp_path / "records.json", Path(make.__file__).with_name("on_ranks.py")
    succeed(3, "-m", "mpi4py", program, file, *names, program=False)
    found = json.loads(file.read_text())
    assert list(found) == names
    for name in names:
        assert_golden(found[name], GOLDEN[name])
