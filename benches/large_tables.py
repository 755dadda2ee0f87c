"""Time and memory of commands on a large table: ``python -m benches.large_tables [RECORDS ..]``.

A table of 12 numbers and 5 columns of four categories, with a label of two classes and a site, is
written as a text file. `dpmesh fit` at epsilon 1 and `dpmesh stats` of all its columns then run in
processes of their own. Results go to ``docs/results/large-tables.csv``, a line for each command and
number of records, and as text beside it. Needs Unix.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dpmesh_papers.studies.results import read_rows, write_rows

RECORDS = (200_000, 1_000_000)
NUMBERS = 12
"""Columns of numbers."""
CATEGORIES = 5
"""Columns of categories."""
SITES = 8
LARGEST = 4.0
"""Numbers lie in [-LARGEST, LARGEST]."""
NAMES = "abcd"
"""The four categories."""

COMMANDS = {
    "fit": ["fit", "--label", "label", "--site", "site", "--epsilon", "1", "--output", "m.dpmesh"],
    "stats": ["stats", "--site", "site", "--epsilon", "1"],
}
FILES = ["--ranges", "ranges.toml"]


def write_table(folder: Path, records: int) -> None:
    """Write ``table.csv``, whose label follows a noisy score of all columns, and its ranges."""
    draw = np.random.default_rng(0)
    numbers = np.clip(draw.normal(size=(records, NUMBERS)), -LARGEST, LARGEST).round(3)
    categories = draw.integers(0, len(NAMES), size=(records, CATEGORIES))
    score = numbers @ np.linspace(-1, 1, NUMBERS) + categories @ np.linspace(-0.5, 0.5, CATEGORIES)
    is_yes = draw.random(records) < 1 / (1 + np.exp(-score))
    sites = draw.integers(0, SITES, size=records)

    number_names = [f"n{column}" for column in range(NUMBERS)]
    category_names = [f"c{column}" for column in range(CATEGORIES)]
    with (folder / "table.csv").open("w") as file:
        print(*number_names, *category_names, "label", "site", sep=",", file=file)
        for record in range(records):
            values = [f"{value:.3f}" for value in numbers[record]]
            letters = [NAMES[category] for category in categories[record]]
            label = "yes" if is_yes[record] else "no"
            print(*values, *letters, label, sites[record], sep=",", file=file)

    ranges = [f"{name} = [-{LARGEST}, {LARGEST}]" for name in number_names]
    ranges += [f"{name} = {list(NAMES)}" for name in category_names]
    ranges.append('label = { classes = ["no", "yes"] }')
    (folder / "ranges.toml").write_text("\n".join(ranges) + "\n")


def measured(folder: Path, command: str, records: int) -> dict[str, str]:
    """Run a command on the table; return its seconds, processor time and peak of memory."""
    words = [sys.executable, "-m", "dpmesh", *COMMANDS[command], *FILES, "table.csv"]
    begin = time.perf_counter()
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words)
    return {
        "command": command,
        "records": str(records),
        "seconds": f"{seconds:.3g}",
        "processor": f"{usage.ru_utime + usage.ru_stime:.3g}",
        "peak_mib": str(peak_mib(usage)),
        "threads": str(os.cpu_count()),
    }


def peak_mib(usage: resource.struct_rusage) -> int:
    """Return the peak of a process's memory; macOS counts bytes, others KiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return round(usage.ru_maxrss * unit / 2**20)


def as_text(rows: list[dict[str, str]]) -> str:
    """Return the rows as the table of the page."""
    lines = [f"{'command':<8} {'records':>9}  seconds  processor seconds  peak of memory, MiB"]
    for row in rows:
        sizes = f"{row['command']:<8} {int(row['records']):>9,}"
        times = f"{float(row['seconds']):>7.1f}  {float(row['processor']):>17.1f}"
        lines.append(f"{sizes}  {times}  {int(row['peak_mib']):>19,}")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Measure these numbers of records, by default `RECORDS`."""
    row_of_run = {(row["command"], int(row["records"])): row for row in read_rows("large-tables")}
    for records in [int(argument) for argument in arguments] or RECORDS:
        with TemporaryDirectory() as name:
            folder = Path(name)
            write_table(folder, records)
            for command in COMMANDS:
                row_of_run[command, records] = measured(folder, command, records)
                print(row_of_run[command, records], flush=True)
        rows = [row_of_run[run] for run in sorted(row_of_run)]
        write_rows("large-tables", rows, as_text(rows) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
