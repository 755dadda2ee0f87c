"""Results in a table: epsilon, scores and traffic of each setting, beside its baselines."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dpmesh._epsilons import rounded_up
from dpmesh._table import Table
from dpmesh.algorithms.base import NOISES
from dpmesh.experiments.results import Result
from dpmesh.privacy.report import Report
from dpmesh.run.measures import shown_difference
from dpmesh.run.run import cost_in_words
from dpmesh.run.verdict import LEAST, Verdict, clearly, difference

Groups: TypeAlias = Mapping[str, Sequence[Result]]
"""Runs that differ in their seed alone, by the name of their setting."""

Changes: TypeAlias = Mapping[str, Any]
"""Settings of a cell of a sweep, by key."""

_BUDGET = ("epsilon", "delta", *NOISES)


class SettingsTable(NamedTuple):
    """A table of settings: columns that are the same for all of them are one line."""

    table: Table

    def __str__(self) -> str:
        """Return lines of text; columns whose cells are all alike are one line below."""
        varying = self.varying
        sides = "l" + "r" * (len(varying.heads) - 1)
        return "\n".join(filter(None, (varying.aligned(sides), self.constant)))

    @property
    def varying(self) -> Table:
        """The columns that differ between rows, of at least 3; the first one always."""
        columns = [
            column
            for column in range(len(self.table.heads))
            if column == 0 or not self._is_constant(column)
        ]
        heads = [self.table.heads[column] for column in columns]
        rows = [[row[column] for column in columns] for row in self.table.rows]
        return Table(heads, rows)

    @property
    def constant(self) -> str:
        """The columns that are the same in all rows, in words."""
        heads, rows = self.table
        constants = [
            f"{name} {rows[0][column]}"
            for column, name in enumerate(heads)
            if column > 0 and self._is_constant(column)
        ]
        if not constants:
            return ""
        return f"In all rows: {', '.join(constants)}."

    def _is_constant(self, column: int) -> bool:
        """Return whether a column of at least 3 rows has one value."""
        rows = self.table.rows
        return len(rows) > 2 and len({row[column] for row in rows}) == 1


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


def _differing(changes: Sequence[Changes]) -> set[tuple[str, str]]:
    """Return kinds of tables and their keys of which there are several values, or one and none."""
    tables = [
        value
        for changes_of_run in changes
        for value in changes_of_run.values()
        if isinstance(value, dict)
    ]
    keys = {(str(table.get("kind")), key) for table in tables for key in table}
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for kind, key in keys:
        for table in tables:
            if str(table.get("kind")) == kind:
                text = json.dumps(table[key]) if key in table else ""
                values[kind, key].add(text)
    return {place for place, texts in values.items() if len(texts) > 1}


def _label(changes: Changes, differing: set[tuple[str, str]]) -> str:
    """Return the name of a setting: its algorithm first, without the seed."""
    parts = []
    for key in sorted(changes, key=_is_not_algorithm):
        value = changes[key]
        if key == "run.seed":
            continue
        if isinstance(value, dict) and "kind" in value:
            kind = str(value["kind"])
            differences = [
                _stated(name, part) for name, part in value.items() if (kind, name) in differing
            ]
            parts.append(", ".join([kind, *differences]))
        else:
            parts.append(f"{key.rpartition('.')[2]} = {value}")
    return ", ".join(parts) or "run"


def _is_not_algorithm(key: str) -> bool:
    """Return whether a key is of another table than the algorithm's."""
    return not key.startswith("algorithm")


def _stated(key: str, value: object) -> str:
    """Return a key and its value; a table that has a kind is named by it."""
    if isinstance(value, str):
        return f"{key} = {value}"
    if not isinstance(value, dict) or "kind" not in value:
        return f"{key} = {json.dumps(value)}"
    parts = [_stated(name, part) for name, part in value.items() if name != "kind"]
    if not parts:
        return str(value["kind"])
    return f"{value['kind']}({', '.join(parts)})"


def compared(groups: Groups) -> SettingsTable:
    """Return epsilon, scores beside the baselines, and traffic of each setting."""
    verdicts = {name: verdict(runs) for name, runs in groups.items()}
    with_baselines = [setting for setting in verdicts.values() if setting is not None]
    metrics = ["accuracy"]
    if with_baselines:
        metrics = [*with_baselines[0].beside[0].measures]
    main_metric, *further_metrics = metrics
    heads = ["", "runs", "epsilon", "delta", "unit", "neighbours", "adversary", main_metric]
    if with_baselines:
        heads += [*further_metrics, "chance", "alone", "alone, private", "pooled", "than alone"]
    rows = []
    for name, runs in groups.items():
        cost = dearest(runs)
        epsilon = rounded_up(cost.epsilon, 4) if cost.is_finite else "none"
        row = [name, str(len(runs)), epsilon, rounded_up(cost.delta), *_protected(cost)]
        row.append(spread(scores(runs)))
        if with_baselines:
            row += _baseline_cells(verdicts[name], further_metrics)
        row.append(spread([run.traffic.megabytes for run in runs]))
        rows.append(row)
    return SettingsTable(Table([*heads, "MB sent"], rows))


def _protected(cost: Report) -> tuple[str, str, str]:
    """Return unit, neighboring relation and adversary; dashes where nothing is guaranteed."""
    if not cost.is_finite:
        return "-", "-", "-"
    return cost.unit, cost.neighboring_relation.replace("_", "-"), cost.adversary_in_brief


def measured(groups: Groups, metrics: Sequence[str]) -> Table:
    """Return the last measurements that all runs have, of these metrics and of seconds."""
    runs_of_all = [run for runs in groups.values() for run in runs]
    measured_by_all = set.intersection(*(set(run.history.metrics) for run in runs_of_all))
    names = [name for name in (*metrics, "seconds") if name in measured_by_all]
    rows = []
    for setting, runs in groups.items():
        values = [spread([run.history.last(metric) for run in runs]) for metric in names]
        rows.append([setting, *values])
    return Table(["at the end", *(name.replace("_", " ") for name in names)], rows)


class Setting(NamedTuple):
    """Method, network ("" for none) and epsilon as shown, which some runs have in common."""

    method: str
    network: str
    epsilon: str


def placed(results: Sequence[Result]) -> dict[Setting, list[Result]]:
    """Return the results by method, network and epsilon, the largest of their seeds."""
    differing = _differing([_unpriced(result.changes) for result in results])
    units = {result.privacy.unit for result in results if result.privacy.is_finite}
    results_by_setting: dict[Setting, list[Result]] = defaultdict(list)
    for runs in grouped(results).values():
        changes = _unpriced(runs[0].changes)
        of_network = {key: value for key, value in changes.items() if _is_of_network(key)}
        of_method = {key: value for key, value in changes.items() if not _is_of_network(key)}
        network = _label(of_network, differing) if of_network else ""
        method = _label(of_method, differing)
        privacy = dearest(runs)
        if len(units) > 1 and privacy.is_finite:
            method = f"{method} ({privacy.unit}-level)"
        results_by_setting[Setting(method, network, _epsilon(runs))] += runs
    return dict(results_by_setting)


def _epsilon(runs: Sequence[Result]) -> str:
    """Return the epsilon of runs as shown; "none" without a guarantee."""
    cost = dearest(runs)
    if not cost.is_finite:
        return "none"
    return rounded_up(cost.epsilon, 3)


def _is_of_network(key: str) -> bool:
    """Return whether a key is of the table [topology]."""
    return key.partition(".")[0] == "topology"


def _unpriced(changes: Changes) -> dict[str, Any]:
    """Return settings without those that state a budget or a noise."""
    without_budget: dict[str, Any] = {}
    for key, value in changes.items():
        if key.rpartition(".")[2] in _BUDGET:
            continue
        without_budget[key] = _unpriced(value) if isinstance(value, dict) else value
    return without_budget


def _leader(groups: Groups, opening: str) -> str:
    """Return which setting scores highest, and which are not clearly below it."""
    best = max(groups, key=lambda name: float(np.mean(scores(groups[name]))))
    runs = groups[best]
    reached = f"{opening} {best} scores highest: {spread(scores(runs))} ({len(runs)} runs)."
    if len(runs) < LEAST or any(_seeds(group) != _seeds(runs) for group in groups.values()):
        return f"{reached} Whether that is clear takes {LEAST} runs each, of the same seeds."
    best_scores = np.array(scores(runs))
    held_out = max(0.0 if run.baselines is None else run.baselines.held_out for run in runs)
    differences = {
        name: difference(best_scores - scores(group), held_out=held_out)
        for name, group in groups.items()
        if name != best
    }
    is_below = clearly([gain.p for gain in differences.values()])
    close = [name for name, clear in zip(differences, is_below, strict=True) if not clear]
    count = f"{sum(is_below)} of {len(differences)} others"
    sentence = f"{reached} It is clearly above {count} (paired, 5% in all)."
    if not close:
        return sentence
    named = "; ".join(close[:3])
    if len(close) > 3:
        named += f" and {len(close) - 3} more"
    return f"{sentence} No clear difference from {named}."


def _seeds(runs: Sequence[Result]) -> list[object]:
    """Return the seed of each run."""
    return [run.changes.get("run.seed") for run in runs]


def verdict(runs: Sequence[Result]) -> Verdict | None:
    """Return whether sharing paid, over the runs of a setting; None if unknown."""
    measured = []
    beside = []
    for run in runs:
        if run.measured is None or run.baselines is None:
            return None
        measured.append(run.measured)
        beside.append(run.baselines)
    kinds = {(len(baselines.alone), baselines.metric) for baselines in beside}
    if len(kinds) > 1:
        return None
    privacy = dearest(runs)
    populations = [run.population for run in runs if run.population is not None]
    return Verdict(
        populations=populations if len(populations) == len(runs) else (),
        measured=measured,
        beside=beside,
        epsilon=cost_in_words(privacy),
        unit="run",
        protects=privacy.unit if privacy.is_finite else "",
        adversary=privacy.adversary_in_brief,
    )


def sentences(groups: Groups) -> list[str]:
    """Return what can be said of one setting beside its baselines, or of several at one epsilon.

    Of several: which scores highest, and which are not clearly below it. Runs are paired by their
    seeds; how many settings are clearly below is Holm's procedure at 5%. Settings are compared that
    have the epsilon, the unit, the relation and the adversary in common.
    """
    if len(groups) == 1:
        verdicts = [verdict(runs) for runs in groups.values()]
        return [setting.sentence for setting in verdicts if setting is not None]
    comparable: dict[tuple[str, ...], dict[str, Sequence[Result]]] = defaultdict(dict)
    for name, runs in groups.items():
        if all(map(isfinite, scores(runs))):
            guarantee = (_epsilon(runs), *_protected(dearest(runs)))
            comparable[guarantee][name] = runs
    texts = []
    for (epsilon, unit, *_), settings in comparable.items():
        if len(settings) > 1:
            of_unit = "" if unit == "-" else f" of one {unit}"
            texts.append(_leader(settings, f"At epsilon {epsilon}{of_unit}"))
    return texts


def scores(runs: Sequence[Result]) -> list[float]:
    """Return the score of each run's released models; NaN where it was not measured."""
    return [float("nan") if run.score is None else run.score for run in runs]


def _baseline_cells(verdict: Verdict | None, metrics: Sequence[str]) -> list[str]:
    """Return further measures, the baselines, and the claim; dashes if they are not known."""
    if verdict is None:
        return ["-"] * (len(metrics) + 5)
    measures = [f"{verdict.mean(metric):.3g}" for metric in metrics]
    baselines = verdict.baselines
    private = "-"
    if baselines.alone_private is not None:
        private = f"{baselines.alone_private.mean():.3g}"
    chance = f"{baselines.chance:.3g}"
    alone = f"{baselines.alone.mean():.3g}"
    pooled = f"{baselines.pooled:.3g}"
    claim: str = verdict.claim or "-"
    if verdict.claim is not None:
        gain = shown_difference(verdict.metric, verdict.gain.low, verdict.gain.high)
        claim += f" ({gain})"
    return [*measures, chance, alone, private, pooled, claim]


def dearest(runs: Sequence[Result]) -> Report:
    """Return the report of the run that cost most: chance may decide what a run releases."""
    return max((run.privacy for run in runs), key=lambda report: report.epsilon)


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation in few digits."""
    if not all(map(isfinite, values)):
        return "-"
    mean = f"{np.mean(values):.3g}"
    if np.ptp(values) == 0:
        return mean
    return f"{mean} ± {np.std(values, ddof=1):.1g}"
