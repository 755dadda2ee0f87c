"""The committed results: what the documentation shows is what the commands wrote."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from dpmesh.reproduce import scale

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "results"


def test_results_say_what_made_them() -> None:
    found = [json.loads(path.read_text()) for path in RESULTS.glob("*.json")]
    assert len(found) >= 2
    for result in found:
        by = result.get("made", result)
        assert {"commit", "seeds", "machine", "numpy"} <= {*by}
        assert not by["quick"]
        assert "dirty" not in by["commit"]


def test_the_page_of_the_arena_is_made_of_its_cells() -> None:
    pytest.importorskip("sklearn")
    from dpmesh.reproduce.arena.cells import Cell
    from dpmesh.reproduce.arena.results import as_markdown, verdict

    saved = json.loads((RESULTS / "arena.json").read_text())
    cells = [Cell(**cell) for cell in saved["cells"]]
    assert (RESULTS / "arena.md").read_text() == as_markdown(cells, saved["made"]) + "\n"
    assert saved["verdict"] == verdict(cells)


def test_the_text_on_scale_is_made_of_its_points() -> None:
    with (RESULTS / "scale.csv").open() as file:
        points = [
            scale.Point(
                row["network"],
                int(row["nodes"]),
                int(row["records"]),
                float(row["accuracy"]),
                float(row["spread"]),
                int(row["seeds"]),
            )
            for row in csv.DictReader(file)
        ]
    assert (RESULTS / "scale.txt").read_text() == scale.as_text(points) + "\n"
    assert '--8<-- "docs/results/scale.txt"' in (DOCS / "reproduce.md").read_text()
