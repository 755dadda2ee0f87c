"""Files of results in docs/results, from which pages of the documentation take their numbers.

A study or a benchmark calls `write_rows`: NAME.csv gets the rows, NAME.txt the text that a page
shows of them, and NAME.json the provenance (command, versions, commit, day, machine).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from dpmesh._files import replace_text
from dpmesh_papers._output import checkout, provenance
from dpmesh_papers._scaffold import Row, as_csv, read

RESULTS = checkout() / "docs" / "results"


def read_rows(name: str) -> list[Row]:
    """Return the rows of NAME.csv; an empty list if there is no such file yet."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    return read(path)


def write_rows(name: str, rows: list[Row], text: str = "") -> None:
    """Write rows, their text if there is one, and their provenance.

    The command in the provenance is this process's own.

    Raises
    ------
    FileNotFoundError
        If the program does not run from a checkout, which has a folder of results.
    """
    if not RESULTS.is_dir():
        raise FileNotFoundError(f"{RESULTS}: no such folder; run studies from a checkout of dpmesh")
    program_name = Path(sys.argv[0]).stem
    module_spec = sys.modules["__main__"].__spec__  # set if run by ``python -m``
    if module_spec is not None:
        program_name = module_spec.name
    program = " ".join([program_name, *sys.argv[1:]])
    replace_text(RESULTS / f"{name}.csv", as_csv(rows))
    record = json.dumps(provenance(program=program), indent=1)
    replace_text(RESULTS / f"{name}.json", f"{record}\n")
    if text:
        replace_text(RESULTS / f"{name}.txt", text)


def markdown_table(head: list[str], lines: list[list[str]]) -> str:
    """Return a table in Markdown: its column heads, then its lines of cells."""
    rows = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def in_one_cell(rows: Iterable[Row], show: Callable[[Row], str]) -> str:
    """Return the texts of several rows, such as those of two libraries, for one cell of a table."""
    return " / ".join(map(show, rows))


def accuracy(row: Row) -> str:
    """Return the accuracy of a row in percent and its standard deviation over seeds."""
    return f"{row['accuracy']:.1f} ± {row['spread']:.1f}"


def noise_multiplier(row: Row) -> str:
    """Return the noise multiplier of a row."""
    return f"{row['noise_multiplier']:.3f}"
