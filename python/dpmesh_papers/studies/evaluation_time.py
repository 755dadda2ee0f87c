"""Share of the processor time of ``dpmesh fit`` that its baselines take.

    python -m dpmesh_papers.studies.evaluation_time

Forest cover needs DPMESH_DATA. Results go to ``docs/results/evaluation-time.csv``, and as text
beside it. Times are of one process on one machine; shares are what a page quotes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from typer.testing import CliRunner

import dpmesh as dm
import dpmesh.run.baselines as baselines
from dpmesh.cli import app
from dpmesh_papers._scaffold import Row
from dpmesh_papers.public_tables import extremes, varying_columns
from dpmesh_papers.studies.results import write_rows

SITES = 10

MEASURED = ("compute", "private_single_site_measures", "population")
"""Functions of `dpmesh.run.baselines` that only the comparison with single sites needs."""


def tables() -> Iterator[tuple[str, npt.NDArray[Any], npt.NDArray[Any]]]:
    """Yield name, columns and classes of each table."""
    columns, classes = load_digits(return_X_y=True)
    yield "digits", columns, classes
    forest = dm.data.covertype(2)
    order = np.random.default_rng(0).permutation(forest.records)
    for records in (5_000, 40_000):
        sample = forest.take(order[:records])
        yield "forest cover", varying_columns(sample), sample.labels


@contextmanager
def timed(spent: dict[str, float]) -> Iterator[None]:
    """Add the processor time of the functions in `MEASURED` to `spent`, by name."""
    originals = {name: getattr(baselines, name) for name in MEASURED}

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def measured(*arguments: Any, **options: Any) -> Any:
            start = time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                spent[name] = spent.get(name, 0.0) + time.process_time() - start

        return measured

    for name, function in originals.items():
        setattr(baselines, name, watched(name, function))
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(baselines, name, function)


def write_files(
    folder: Path, columns: npt.NDArray[Any], classes: npt.NDArray[Any]
) -> tuple[list[Path], Path]:
    """Write a table as files of ten sites; return them, and the file of public ranges."""
    names = [f"c{number}" for number in range(columns.shape[1])]
    ranges = [
        f"{name} = {{range = [{low}, {max(high, low + 1)}]}}"
        for name, (low, high) in zip(names, extremes(columns), strict=True)
    ]
    quoted_classes = ", ".join(f'"{label}"' for label in np.unique(classes))
    ranges.append(f"label = {{classes = [{quoted_classes}]}}")
    ranges_file = folder / "ranges.toml"
    ranges_file.write_text("\n".join(ranges) + "\n")
    table = np.column_stack([columns, classes])
    header = ",".join([*names, "label"])
    files = []
    for site in range(SITES):
        lines = [",".join(f"{cell:g}" for cell in row) for row in table[site::SITES]]
        file = folder / f"s{site}.csv"
        file.write_text("\n".join([header, *lines]) + "\n")
        files.append(file)
    return files, ranges_file


def row_of(name: str, columns: npt.NDArray[Any], classes: npt.NDArray[Any]) -> Row:
    """Fit a table in files of ten sites, and return the times."""
    spent: dict[str, float] = {}
    with TemporaryDirectory() as folder:
        files, ranges_file = write_files(Path(folder), columns, classes)
        arguments = ["fit", *map(str, files), "--label", "label", "--epsilon", "2"]
        arguments += ["--ranges", str(ranges_file)]
        arguments += ["--output", str(Path(folder) / "model.dpmesh")]
        start = time.process_time()
        with timed(spent):
            result = CliRunner().invoke(app, arguments)
        seconds = time.process_time() - start
    if result.exit_code:
        raise RuntimeError(result.output)
    return {
        "data": name,
        "records": len(columns),
        "columns": columns.shape[1],
        "sites": SITES,
        "seconds": round(seconds, 1),
        "baselines": round(sum(spent.values()), 1),
        "share": round(sum(spent.values()) / seconds, 3),
    }


def as_text(rows: list[Row]) -> str:
    """Return a table of the shares."""
    lines = [f"{'table':<14}{'records':>9}{'columns':>9}{'seconds':>9}{'baselines':>11}"]
    lines += [
        f"{row['data']:<14}{row['records']:>9,}{row['columns']:>9}{row['seconds']:>9.1f}"
        f"{row['share']:>11.0%}"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write all tables."""
    rows = []
    for name, columns, classes in tables():
        rows.append(row_of(name, columns, classes))
        print(rows[-1], flush=True)
    write_rows("evaluation-time", rows, as_text(rows) + "\n")


if __name__ == "__main__":
    main()
