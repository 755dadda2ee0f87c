"""What the logger ``dpmesh`` reports of runs: where they are, and no data."""

from __future__ import annotations

import logging

import pytest
from problems import Spendthrift
from test_checkpoint import ROUNDS, StoppedError, online

from dpmesh.privacy import Budget


def reported(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return said


def test_runs_tell_where_they_begin_and_end_and_of_their_checkpoints(tmp_path, caplog) -> None:
    caplog.set_level(logging.DEBUG, logger="dpmesh")
    path, nodes = tmp_path / "run", "on 4 nodes: OnlineLearning(epsilon=2.0, "
    with pytest.raises(StoppedError):
        online(path, 2, save_every=2)
    first, begun, *others = reported(caplog)
    assert first == ("DEBUG", f"0 rounds are in {path}")
    assert begun[1].startswith(f"a run begins with 0 of {ROUNDS} rounds done, {nodes}")
    assert not others
    with pytest.raises(StoppedError):
        online(path, 3, save_every=2)
    assert reported(caplog)[1:] == [("DEBUG", f"2 rounds are in {path}")]
    online(path)
    begun, *_, last = reported(caplog)
    assert begun[0] == "INFO"
    assert begun[1].startswith(f"a run begins with 2 of {ROUNDS} rounds done, {nodes}")
    assert last == ("INFO", f"a run ends with {ROUNDS} of {ROUNDS} rounds done")


def test_a_run_that_the_budget_ends_warns(caplog) -> None:
    online(algorithm=Spendthrift(epsilon=0.1), budget=Budget(1.0))
    assert ("WARNING", "the budget ended a run after 5 rounds") in reported(caplog)
