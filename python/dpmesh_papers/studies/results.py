"""Results of studies in docs/results, from which pages take their numbers.

NAME.csv holds the rows, NAME.txt the text that a page shows of them, NAME.json the program, its
versions and its commit.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dpmesh._files import replace_text
from dpmesh_papers._output import checkout, made
from dpmesh_papers._scaffold import Row, as_csv, read

RESULTS = checkout() / "docs" / "results"


def kept(name: str) -> list[Row]:
    """Return the committed rows, none if there are none yet."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    return read(path)


def keep(name: str, rows: list[Row], text: str = "") -> None:
    """Write rows, their text if there is one, and the record of what made them.

    Raises
    ------
    FileNotFoundError
        If the program does not run from a checkout, which has a folder of results.
    """
    if not RESULTS.is_dir():
        raise FileNotFoundError(f"{RESULTS}: no such folder; run studies from a checkout of dpmesh")
    module = sys.modules["__main__"].__spec__
    program_name = Path(sys.argv[0]).stem
    if module is not None:
        program_name = module.name
    program = " ".join([program_name, *sys.argv[1:]])
    files = {"csv": as_csv(rows), "json": json.dumps(made(program=program), indent=1) + "\n"}
    if text:
        files["txt"] = text
    for kind, content in files.items():
        replace_text(RESULTS / f"{name}.{kind}", content)


def table(head: list[str], lines: list[list[str]]) -> str:
    """Return a table in Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
