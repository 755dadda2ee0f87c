"""Scale as the variable: all curves are there, and at fixed data more nodes learn less."""

from __future__ import annotations

import csv

import pytest

from dpmesh_papers import scale

pytestmark = pytest.mark.slow  # whole tables and figures in small


def test_more_nodes_are_worse_at_fixed_data_and_better_where_data_grow(
    tmp_path, monkeypatch
) -> None:
    """One key. Each node has two records in the end: the noise leaves little but chance."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(scale, "RECORDS", 800)
    monkeypatch.setattr(scale, "NODES", (1, 10, 400))
    monkeypatch.setattr(scale, "RECORDS_OF_NODE", 80)
    reported: list[str] = []
    table, text, figure = scale.scale(tmp_path, seeds=1, progress=reported.append)
    with table.open() as file:
        rows = list(csv.DictReader(file))
    found = {(row["network"], row["nodes"]): float(row["accuracy"]) for row in rows}
    assert len(found) == len(reported) == 3 * 3 + 2
    for name in scale.NETWORKS:
        assert found[name, "1"] > found[name, "400"] + 10
    assert found[scale.GROWING, "10"] > found[scale.GROWING, "1"]
    assert all(line in text.read_text() for line in reported)
    assert figure.stat().st_size > 10_000


def test_sides_of_a_torus() -> None:
    assert [scale._sides(nodes) for nodes in (10, 100, 1000)] == [(2, 5), (10, 10), (25, 40)]
