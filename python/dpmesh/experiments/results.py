"""Finished runs in folders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpmesh._validate import fail
from dpmesh.experiments.experiment import Result, is_finished


def finished(folder: Path) -> tuple[list[Result], Any]:
    """Return the results in a folder or one level below, and the settings of the sweep.

    Results are sorted by their changes. Without a sweep there are the settings of each run, by
    the name of its folder.
    """
    places = [folder, *sorted(folder.glob("*"))] if folder.is_dir() else []
    note = folder / "settings.json"
    if note.exists():
        finished = (Result.load(place) for place in places if is_finished(place))
        return _some(sorted(finished, key=_order), folder), json.loads(note.read_text())
    saved = {p.name: Result.load(p) for p in places if (p / "run.json").exists()}
    results = _some(list(saved.values()), folder)
    if len(results) == 1:
        return results, results[0].settings
    named = [replace(run, changes=run.changes or {"run": name}) for name, run in saved.items()]
    return sorted(named, key=_order), {name: run.settings for name, run in saved.items()}


FAILED = "failed.txt"
"""In the folder of a run that failed: why."""


def failures(folder: Path) -> dict[str, str]:
    """Return why runs of a sweep failed, by the names of their folders."""
    return {
        note.parent.name: note.read_text("utf-8") for note in sorted(folder.glob(f"*/{FAILED}"))
    }


def _some(results: list[Result], folder: Path) -> list[Result]:
    if not results:
        fail("folder", "one with finished runs of dpmesh run, or of Run.save", folder)
    return results


def _order(result: Result) -> Any:
    """Return the sort key of a result: numbers by size, before texts."""
    return [
        (isinstance(v, (dict, list, str)), v if _is_number(v) else 0, str(v))
        for v in result.changes.values()
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))
