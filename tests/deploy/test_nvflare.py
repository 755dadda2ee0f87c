"""The filter of NVFlare: what leaves a site is clipped, noisy, counted, and nothing else."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the extra 'nvflare'")

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

import dpmesh as dm
from dpmesh.deploy.nvflare import PrivateUpdate, _transaction

SETTINGS: dict[str, Any] = {
    "clipping_norm": 0.5,
    "noise_multiplier": 4.0,
    "epsilon": 2.0,
    "delta": 1e-5,
}


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def private(ledger: Path, **changed: Any) -> PrivateUpdate:
    return PrivateUpdate(**{**SETTINGS, **changed}, ledger=str(ledger))


def at(site: str = "site-1") -> FLContext:
    context = FLContext()
    context.put(FLContextKey.CLIENT_NAME, site, private=False, sticky=False)
    context.set_prop("__identity_name__", site, private=False, sticky=False)
    return context


def result(arrays: dict[str, Any], kind: str = DataKind.WEIGHT_DIFF) -> Shareable:
    meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: 17, "metrics": {"accuracy": 0.75}}
    answer = DXO(kind, data=arrays, meta=meta).to_shareable()
    answer.set_header("records", 84)
    return answer


def test_nothing_leaves_but_a_noisy_update(ledger: Path) -> None:
    arrays = {"w": np.ones((20, 3), np.float32), "b": np.ones(3)}
    answer = private(ledger).process(result(arrays), at())
    update = from_shareable(answer)
    assert update.data_kind == DataKind.WEIGHT_DIFF
    assert {name: (a.shape, a.dtype) for name, a in update.data.items()} == {
        name: (a.shape, a.dtype) for name, a in arrays.items()
    }
    assert "metrics" not in update.meta
    assert MetaKey.NUM_STEPS_CURRENT_ROUND not in update.meta
    assert answer.get_header("records") is None


def test_noise_has_the_stated_scale_and_updates_are_clipped(ledger: Path) -> None:
    """False alarms: 1 in 10,000 (the normal law of a variance of 60,000 numbers, 4 deviations)."""
    noisy = private(ledger, noise_multiplier=40.0, epsilon=50.0)
    size = 60_000
    update = from_shareable(noisy.process(result({"w": np.full(size, 1e200)}), at())).data["w"]
    scale = 40.0 * 0.5
    assert abs(update.var() / scale**2 - 1) < 4 * np.sqrt(2 / size)
    # All mass in one direction: clipped to norm 0.5, its projection on it is 0.5 plus noise.
    along = update.sum() / np.sqrt(size)
    assert abs(along - 0.5) < 4 * scale


def test_ledger_and_budget_are_those_of_the_accountant(ledger: Path) -> None:
    noisy = private(ledger)
    gaussian = dm.noise.Gaussian(2.0)  # relative to the sensitivity, twice the clipping norm
    sensitivity = dm.noise.Sensitivity(1.0, "l2", "two clipped updates")

    def cost(rounds: int) -> float:
        releases = tuple(dm.privacy.Release(t, gaussian, sensitivity) for t in range(rounds))
        plan = dm.privacy.Plan(releases=releases, neighboring_relation="replace_one", unit="user")
        return plan.cost(1e-5).epsilon

    assert cost(1) <= 2.0 < cost(2)
    noisy.process(result({"w": np.zeros(4)}), at())
    with pytest.raises(dm.privacy.OverBudget):
        noisy.process(result({"w": np.zeros(4)}), at())
    with pytest.raises(dm.privacy.OverBudget):  # another job, later
        private(ledger).process(result({"w": np.zeros(4)}), at())
    with sqlite3.connect(ledger) as connection:
        rows = connection.execute("SELECT clipping_norm, noise_multiplier FROM releases").fetchall()
    assert rows == [(0.5, 4.0)]


def test_a_power_loss_does_not_undo_a_release_in_the_ledger(tmp_path: Path) -> None:
    """With less than EXTRA, SQLite does not sync the folder in which it removes its journal."""
    extra = 3
    with _transaction(tmp_path / "new" / "ledger.sqlite") as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (extra,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_jobs_of_other_noise_count_too(ledger: Path) -> None:
    private(ledger, noise_multiplier=20.0).process(result({"w": np.zeros(4)}), at())
    with pytest.raises(dm.privacy.OverBudget):
        private(ledger, noise_multiplier=4.0, epsilon=1.9932).process(
            result({"w": np.zeros(4)}), at()
        )


def test_sites_of_one_process_have_ledgers_of_their_own(tmp_path: Path) -> None:
    noisy = private(tmp_path / "{site}.sqlite")
    for site in ("site-1", "site-2"):
        noisy.process(result({"w": np.zeros(4)}), at(site))
    assert {path.name for path in tmp_path.iterdir()} == {"site-1.sqlite", "site-2.sqlite"}


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.METRICS])
def test_other_results_are_refused(kind: str, ledger: Path) -> None:
    with pytest.raises(ValueError, match=r"TransferType\.DIFF"):
        private(ledger).process(result({"w": np.zeros(4)}, kind), at())
    assert not ledger.exists()


def test_counters_are_refused(ledger: Path) -> None:
    with pytest.raises(ValueError, match="floating-point"):
        private(ledger).process(result({"w": np.zeros(4), "steps": np.array(3)}), at())


def test_errors_leave_without_their_data(ledger: Path) -> None:
    failed = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    failed.set_header("records", 84)
    answer = private(ledger).process(failed, at())
    assert answer.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert answer.get_header("records") is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_is_not_finite_counts_as_none(bad: float, ledger: Path) -> None:
    update = from_shareable(private(ledger).process(result({"w": np.full(4, bad)}), at()))
    assert np.isfinite(update.data["w"]).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [("clipping_norm", 0), ("noise_multiplier", -1), ("epsilon", 0), ("delta", 0), ("delta", 2)],
)
def test_bad_settings_are_named(name: str, value: float, ledger: Path) -> None:
    with pytest.raises(ValueError, match=name):
        private(ledger, **{name: value})


@pytest.mark.slow
def test_two_sites_in_the_simulator(tmp_path: Path) -> None:
    """Three rounds fit the budget; in a second job the sites refuse."""
    program = Path(__file__).parents[1] / "helpers" / "nvflare_job.py"
    command = [sys.executable, str(program), str(tmp_path)]
    first = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "epsilon = " in first.stdout + first.stderr
    assert "validation metric 0.75" not in first.stdout + first.stderr  # it stays at the site
    for site in ("site-1", "site-2"):
        with sqlite3.connect(tmp_path / f"{site}.sqlite") as connection:
            (count,) = connection.execute("SELECT COUNT(*) FROM releases").fetchone()
        assert count == 3
    second = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "more than the budget" in second.stdout + second.stderr
    with sqlite3.connect(tmp_path / "site-1.sqlite") as connection:
        (count,) = connection.execute("SELECT COUNT(*) FROM releases").fetchone()
    assert count == 3
