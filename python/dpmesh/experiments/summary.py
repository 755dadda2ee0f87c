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
from dpmesh.run.baselines import Baselines
from dpmesh.run.run import cost_in_words

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
    """Return epsilon, score beside the baselines, and traffic of each setting."""
    beside = {name: mean_of(runs) for name, runs in groups.items()}
    known = [one for one in beside.values() if one is not None]
    shown = known[0].metric if known else "accuracy"
    heads = ["", "runs", "epsilon", "delta", shown]
    if known:
        heads += ["chance", "alone", "alone, private", "pooled", "beats alone"]
    rows = []
    for name, runs in groups.items():
        cost = dearest(runs)
        epsilon = rounded_up(cost.epsilon, 4) if cost.is_private else "none"
        row = [name, str(len(runs)), epsilon, rounded_up(cost.delta), spread(scores(runs))]
        if known:
            row += _cells(beside[name], scores(runs))
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


def sentence(runs: Sequence[Result]) -> str | None:
    """Return whether sharing paid, on average over the runs of a setting; None if unknown."""
    beside = mean_of(runs)
    if beside is None:
        return None
    return beside.sentence(float(np.mean(scores(runs))), cost_in_words(dearest(runs)))


def mean_of(runs: Sequence[Result]) -> Baselines | None:
    """Return the mean of the baselines of runs; None unless all have them."""
    found = [run.baselines for run in runs if run.score is not None]
    own = [one for one in found if one is not None]
    if len(own) < len(runs) or len({len(one.alone) for one in own}) > 1:
        return None
    private = [one.alone_private for one in own if one.alone_private is not None]
    return Baselines(
        metric=own[0].metric,
        chance=float(np.mean([one.chance for one in own])),
        alone=np.mean([one.alone for one in own], axis=0),
        alone_private=np.concatenate(private) if private else None,
        pooled=float(np.mean([one.pooled for one in own])),
    )


def scores(runs: Sequence[Result]) -> list[float]:
    """Return the score of each run's released models; NaN where it was not measured."""
    return [_score(run) for run in runs]


def _score(run: Result) -> float:
    if run.score is not None:
        return run.score
    name = "released_accuracy"
    return run.history.last(name) if name in run.history.metrics else float("nan")


def _cells(beside: Baselines | None, reached: Sequence[float]) -> list[str]:
    if beside is None:
        return ["-"] * 5
    private = "-" if beside.alone_private is None else f"{beside.alone_private.mean():.3g}"
    beaten = f"{beside.beaten(float(np.mean(reached)))} of {len(beside.alone)}"
    plain = [f"{level:.3g}" for level in (beside.chance, beside.alone.mean(), beside.pooled)]
    return [*plain[:2], private, plain[2], beaten]


def dearest(runs: Sequence[Result]) -> Report:
    """Return the report of the run that cost most: chance may decide what a run releases."""
    return max((run.privacy for run in runs), key=lambda report: report.epsilon)


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation in few digits."""
    if not all(map(isfinite, values)):
        return "-"
    text = f"{np.mean(values):.3g}"
    return f"{text} ± {np.std(values, ddof=1):.1g}" if np.ptp(values) > 0 else text
