"""Studies of accuracy: they run in small, from data to the files of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpmesh_papers._scaffold import read
from dpmesh_papers.studies import results


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder to which studies write."""
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    return tmp_path


@pytest.mark.slow
def test_guarantees_against_one_node_and_all_end_with_a_run_without_noise(
    folder: Path, real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row without noise ended the study before its results were written."""
    from dpmesh_papers.studies import views_table

    monkeypatch.setattr(views_table, "NODES", 4)
    monkeypatch.setattr(views_table, "EPSILONS", (4.0,))
    views_table.main(records=50, rounds=8)
    rows = read(folder / "views.csv")
    assert [row["against"] for row in rows] == ["any one node", "everybody", "nobody"]
    assert 0 < rows[0]["noise"] < rows[1]["noise"]
    assert rows[2]["accuracy"] > max(row["accuracy"] for row in rows[:2])
    assert (folder / "views.txt").read_text().count("\n") == 3
