"""Run committed results again and compare: ``python .ci/again.py [NAME ..]``, by default all.

A name is that of a file of rows in docs/results, such as federated-figureS9 or views, or a task of
the benchmark. Each runs by the settings and seeds that its record has. What differs by more than
the last digits is listed; a result of another commit, machine or number of threads may. Seconds and
memory are not compared.
"""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from collections.abc import Iterable, Mapping
from math import isclose, isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dpmesh_papers._scaffold import Row, read
from dpmesh_papers.benchmark.cells import Cell, cells_of
from dpmesh_papers.benchmark.results import read as read_benchmark
from dpmesh_papers.benchmark.results import splits_of
from dpmesh_papers.catalog import reproduce

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
RELATIVE = 1e-6
"""Up to which numbers count as the same: threads add floating-point numbers in other orders."""
TIMED = {"seconds", "per_unit", "mib", "start"}


def records() -> dict[str, dict[str, Any]]:
    """Return what made each file of rows, by name."""
    found = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    return {name: by for name, by in found.items() if name != "benchmark"}


def again(name: str, by: dict[str, Any]) -> Iterable[str]:
    """Run by a record once more; yield what differs from the committed rows."""
    before = read(RESULTS / f"{name}.csv")
    with TemporaryDirectory() as folder:
        if "program" in by:
            _study(Path(folder) / "results", *by["program"].split())
            after = read(Path(folder) / "results" / f"{name}.csv")
        else:
            reproduce(name, Path(folder), seeds=by.get("seeds"), progress=_silent)
            after = read(Path(folder) / f"{name}.csv")
    if len(after) != len(before):
        yield f"{len(after)} rows, committed {len(before)}"
    for one, other in zip(after, before, strict=False):
        yield from _different(one, other)


def _study(folder: Path, module: str, *arguments: str) -> None:
    """Run a study that keeps its results in another folder, where it finds the committed ones."""
    from dpmesh_papers.studies import results

    shutil.copytree(RESULTS, folder)
    results.RESULTS, sys.argv[1:] = folder, arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _silent(line: str) -> None:
    """Show no progress."""


def _different(after: Row, before: Row) -> Iterable[str]:
    timed = TIMED | ({"mean", "interval"} if "seconds" in str(before.get("unit")) else set())
    for name in [name for name in {**before, **after} if name not in timed]:
        new, old = after.get(name), before.get(name)
        if not _same(new, old):
            where = ", ".join(f"{k} {v}" for k, v in list(before.items())[:4])
            yield f"{where}: {name} is {new}, committed {old}"


def _same(new: Any, old: Any) -> bool:
    if isinstance(new, float) and isinstance(old, float) and not (isnan(new) and isnan(old)):
        return isclose(new, old, rel_tol=RELATIVE, abs_tol=1e-12)
    return str(new) == str(old)


def benchmark_again(task: str, by: Mapping[str, Any], cells: list[Cell]) -> Iterable[str]:
    """Run a task of the benchmark by its record; yield the cells whose accuracies differ."""
    most_records = None if by["records"] == "all" else by["records"]
    asked: Any = {"epsilons": by["epsilons"], "splits": splits_of(cells, task)}
    *_, after = cells_of(task, **asked, most_records=most_records, progress=_silent)
    found = {(cell.method, cell.epsilon): cell for cell in after}
    for old in (cell for cell in cells if cell.task == task):
        new = found[old.method, old.epsilon]
        both = zip(new.accuracy, old.accuracy, strict=False)
        if new.why != old.why or not all(_same(one, other) for one, other in both):
            yield f"{old.method}, epsilon {old.epsilon}: {new.accuracy}, committed {old.accuracy}"


def main(names: list[str]) -> int:
    """Run what is named; return how many differ."""
    known, (cells, tasks) = records(), read_benchmark(RESULTS)
    differ = 0
    for name in names or [*known, *tasks]:
        if name in tasks:
            found = [*benchmark_again(name, tasks[name], cells)]
        else:
            found = [*again(name, known[name])]
        print(f"{name}: {f'{len(found)} numbers differ' if found else 'the same'}", flush=True)
        print("".join(f"  {line}\n" for line in found[:5]), end="")
        differ += bool(found)
    return differ


if __name__ == "__main__":
    sys.path.append(str(ROOT))
    sys.exit(main(sys.argv[1:]))
