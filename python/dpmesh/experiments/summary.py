"""Results in a table: what each setting cost, reached and sent, beside its baselines."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from dpmesh.algorithms.base import NOISES
from dpmesh.experiments.experiment import Result
from dpmesh.privacy.report import Report
from dpmesh.privacy.shown import rounded_up
from dpmesh.run.run import cost_in_words
from dpmesh.run.verdict import Verdict

Groups = Mapping[str, Sequence[Result]]
"""Runs that differ in their seed alone, by what they set."""


_BUDGET = ("epsilon", "delta", *NOISES)


class Table(NamedTuple):
    """Heads of columns, and rows of cells."""

    heads: list[str]
    rows: list[list[str]]

    def __str__(self) -> str:
        lines = [self.heads, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )


def grouped(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the results by what they set, except the seed.

    A table, such as an algorithm, is named by its kind, and by what differs between those of a
    kind.
    """
    differing = _differing([result.changes for result in results])
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[_label(result.changes, differing)].append(result)
    return dict(groups)


def _differing(changes: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return kinds of tables and their keys of which there are several values."""
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in changes:
        for table in (value for value in one.values() if isinstance(value, dict)):
            for key, value in table.items():
                values[str(table.get("kind")), key].add(json.dumps(value))
    return {place for place, found in values.items() if len(found) > 1}


def _label(changes: Mapping[str, Any], differing: set[tuple[str, str]]) -> str:
    parts = []
    for key, value in changes.items():
        if key == "run.seed":
            continue
        if isinstance(value, dict) and "kind" in value:
            kind = str(value["kind"])
            own = {k: v for k, v in value.items() if (kind, k) in differing}
            parts.append(", ".join([kind, *(f"{k} = {_short(v)}" for k, v in own.items())]))
        else:
            parts.append(f"{key.rpartition('.')[2]} = {value}")
    return ", ".join(parts) or "run"


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def compared(groups: Groups) -> Table:
    """Return epsilon, scores beside the baselines, and traffic of each setting."""
    found = {name: verdict(runs) for name, runs in groups.items()}
    known = [one for one in found.values() if one is not None]
    metric, *others = known[0].beside[0].measures if known else ("accuracy",)
    heads = ["", "runs", "epsilon", "delta", metric]
    if known:
        heads += [*others, "chance", "alone", "alone, private", "pooled", "than alone"]
    rows = []
    for name, runs in groups.items():
        cost = dearest(runs)
        epsilon = rounded_up(cost.epsilon, 4) if cost.is_private else "none"
        row = [name, str(len(runs)), epsilon, rounded_up(cost.delta), spread(_scores(runs))]
        if known:
            row += _cells(found[name], others)
        rows.append([*row, spread([run.traffic.megabytes for run in runs])])
    return Table([*heads, "MB sent"], rows)


def measured(groups: Groups, metrics: Sequence[str]) -> Table:
    """Return the last measurements that all runs have, of these metrics and of seconds."""
    shared = set.intersection(*(set(r.history.metrics) for runs in groups.values() for r in runs))
    names = [name for name in (*metrics, "seconds") if name in shared]
    rows = [
        [name, *(spread([run.history.last(metric) for run in runs]) for metric in names)]
        for name, runs in groups.items()
    ]
    return Table(["at the end", *(name.replace("_", " ") for name in names)], rows)


def without_budget(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the results by what they set, except the seed and what decides epsilon."""
    plain = [replace(result, changes=_unpriced(result.changes)) for result in results]
    groups = grouped(plain)
    by_id = dict(zip(map(id, plain), results, strict=True))
    return {name: [by_id[id(run)] for run in runs] for name, runs in groups.items()}


def _unpriced(changes: Mapping[str, Any]) -> dict[str, Any]:
    left = {key: v for key, v in changes.items() if key.rpartition(".")[2] not in _BUDGET}
    return {key: _unpriced(v) if isinstance(v, dict) else v for key, v in left.items()}


def verdict(runs: Sequence[Result]) -> Verdict | None:
    """Return whether sharing paid, over the runs of a setting; None if unknown."""
    pairs = [(run.measured, run.baselines) for run in runs]
    known = [(own, beside) for own, beside in pairs if own is not None and beside is not None]
    if len(known) < len(runs) or len({(len(one.alone), one.metric) for _, one in known}) > 1:
        return None
    measured, beside = zip(*known, strict=True)
    epsilon = cost_in_words(dearest(runs))
    return Verdict(measured=measured, beside=beside, epsilon=epsilon, unit="run")


def sentences(groups: Groups) -> dict[str, str]:
    """Return what can be said of each setting whose baselines are known."""
    found = {name: verdict(runs) for name, runs in groups.items()}
    return {name: one.sentence for name, one in found.items() if one is not None}


def _scores(runs: Sequence[Result]) -> list[float]:
    """Return the score of each run's released models; NaN where it was not measured."""
    return [_score(run) for run in runs]


def _score(run: Result) -> float:
    if run.measured is not None:
        return next(iter(run.measured.values()))
    name = "released_accuracy"
    return run.history.last(name) if name in run.history.metrics else float("nan")


def _cells(found: Verdict | None, others: Sequence[str]) -> list[str]:
    """Return further measures, the baselines, and the claim; dashes if they are not known."""
    if found is None:
        return ["-"] * (len(others) + 5)
    own, beside = [f"{found.mean(name):.3g}" for name in others], found.baselines
    private = "-" if beside.alone_private is None else f"{beside.alone_private.mean():.3g}"
    chance, alone, pooled = (
        f"{x:.3g}" for x in (beside.chance, beside.alone.mean(), beside.pooled)
    )
    return [*own, chance, alone, private, pooled, found.claim or "-"]


def dearest(runs: Sequence[Result]) -> Report:
    """Return the report of the run that cost most: chance may decide what a run releases."""
    return max((run.privacy for run in runs), key=lambda report: report.epsilon)


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation in few digits."""
    if not all(map(isfinite, values)):
        return "-"
    text = f"{np.mean(values):.3g}"
    return f"{text} ± {np.std(values, ddof=1):.1g}" if np.ptp(values) > 0 else text
