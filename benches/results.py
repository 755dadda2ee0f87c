"""Where benches keep what they measure: docs/results, from which pages take their numbers.

NAME.csv holds the rows, NAME.txt what a page shows of them, NAME.json what made them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dpmesh._files import replace_text
from dpmesh_papers._output import made
from dpmesh_papers._scaffold import Row, as_csv, read

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def kept(name: str) -> list[Row]:
    """Return the committed rows, none if there are none yet."""
    path = RESULTS / f"{name}.csv"
    return read(path) if path.exists() else []


def keep(name: str, rows: list[Row], text: str = "") -> None:
    """Write rows, the text of them if there is one, and what made them."""
    command = " ".join([Path(sys.argv[0]).stem, *sys.argv[1:]])
    files = {"csv": as_csv(rows), "json": json.dumps(made(bench=command), indent=1) + "\n"}
    for kind, content in (files | ({"txt": text} if text else {})).items():
        replace_text(RESULTS / f"{name}.{kind}", content)


def table(head: list[str], lines: list[list[str]]) -> str:
    """Return a table of a page."""
    rows = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
