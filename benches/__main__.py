"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from operator import itemgetter
from pathlib import Path
from typing import Any

from benches.machine import description
from benches.measure import as_line

HERE = Path(__file__).parent
REFERENCE = HERE / "reference.jsonl"
NAMES = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def main() -> None:
    """Measure the named benchmarks, by default all."""
    parser = argparse.ArgumentParser("python -m benches")
    parser.add_argument("names", nargs="*", metavar="name", help=f"out of {', '.join(NAMES)}")
    parser.add_argument("-t", "--threads", type=int, help="1 and all cores by default")
    parser.add_argument("--record", action="store_true", help=f"write {REFERENCE.name}")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    threads = sorted({1, os.cpu_count() or 1})
    if arguments.threads:
        threads = [arguments.threads]
    for name in arguments.names or NAMES:
        results = []
        for count in threads:
            print(f"\n{name}, {count} thread(s)", flush=True)
            for result in _results(name, count):
                print(as_line(result), flush=True)
                results.append(result)
        if arguments.record:
            _record(name, results)


def _results(name: str, threads: int) -> Iterator[dict[str, Any]]:
    """Measure in a process of its own: libraries read the number of threads when they load."""
    limits = {f"{library}_NUM_THREADS": str(threads) for library in ("DPMESH", "OMP", "OPENBLAS")}
    jax = {"JAX_PLATFORMS": "cpu"}
    if threads == 1:
        jax["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    command = [sys.executable, "-m", "benches.measure", name]
    with subprocess.Popen(
        command,
        env={**os.environ, **limits, **jax},
        cwd=HERE.parent,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield from map(json.loads, process.stdout)
    if process.returncode:
        sys.exit(process.returncode)


def _record(name: str, results: list[dict[str, Any]]) -> None:
    """Put the results of one benchmark on this kind of processor into the reference file.

    Below a line about the machine, and in place of earlier ones.
    """
    machine = description()
    key = {"bench": name, "processor": f"{machine['processor']} {machine['family']}"}
    about = {"date": date.today().isoformat(), "machine": machine}
    new_lines = [json.dumps({**key, **entry}) for entry in (about, *results)]
    old_lines = []
    if REFERENCE.exists():
        old_lines = REFERENCE.read_text().splitlines()
    kept_lines = [line for line in old_lines if not key.items() <= json.loads(line).items()]
    lines = sorted(kept_lines + new_lines, key=lambda line: itemgetter(*key)(json.loads(line)))
    REFERENCE.write_text("\n".join(lines) + "\n")


main()
