"""Comparison of results: a table of settings with their baselines, and sentences.

Runs that differ in their seed alone are one *group*, named by its setting. `compared` makes the
table of epsilon, scores and traffic; `sentences` states the improvement over single sites, or which
setting is best at an epsilon; `missing_guarantees` states why there is no epsilon. ``dpmesh run``
prints all three, and the page shows them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import NamedTuple, TypeAlias

import numpy as np

from dpmesh._epsilons import rounded_up
from dpmesh._files import JsonObject
from dpmesh._table import Table
from dpmesh.algorithms.base import NOISES
from dpmesh.experiments.results import Result
from dpmesh.privacy.cost import NO_PROOF, WITHOUT_NOISE
from dpmesh.privacy.report import Report
from dpmesh.run.measures import shown_difference
from dpmesh.run.run import shown_epsilon
from dpmesh.run.verdict import LEAST, Verdict, difference, holm_significant

Groups: TypeAlias = Mapping[str, Sequence[Result]]
"""Runs that differ in their seed alone, by the name of their setting."""

Changes: TypeAlias = JsonObject
"""Settings of one combination of a sweep by key, such as ``"run.seed"``: values, or tables with a
``kind``."""

_BUDGET = ("epsilon", "delta", *NOISES)
"""Keys of budgets and of noise, which are left out of the name of a method."""

_MOST_NAMED = 3
"""Largest number of settings, not significantly below the best, that a sentence names."""


class SettingsTable(NamedTuple):
    """A table of settings, of which constant columns are printed as one line below.

    A table of one or two settings has no constant columns.
    """

    table: Table

    def __str__(self) -> str:
        """Return the table as text, with a line of the constant columns."""
        varying = self.varying
        sides = "l" + "r" * (len(varying.heads) - 1)
        lines = varying.aligned(sides)
        if self.constant:
            lines += f"\n{self.constant}"
        return lines

    @property
    def varying(self) -> Table:
        """The table of the first column and all columns that differ between rows."""
        further_columns = range(1, len(self.table.heads))
        columns = [0, *(column for column in further_columns if not self._is_constant(column))]
        heads = [self.table.heads[column] for column in columns]
        rows = [[row[column] for column in columns] for row in self.table.rows]
        return Table(heads, rows)

    @property
    def constant(self) -> str:
        """The constant columns as a sentence; empty if there are none."""
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
        """Return True if a column has the same cell in all rows, of at least 3."""
        rows = self.table.rows
        return len(rows) > 2 and len({row[column] for row in rows}) == 1


def grouped(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Group results by their changes without the seed; return them by the name of the setting.

    A table, such as an algorithm, is named by its kind and by the parameters that differ between
    tables of this kind.
    """
    varying = _varying_keys([result.changes for result in results])
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[_label(result.changes, varying)].append(result)
    return dict(groups)


def _varying_keys(changes_of_runs: Sequence[Changes]) -> set[tuple[str, str]]:
    """Return (kind, key) of each parameter that differs between tables of one kind.

    A parameter that only some tables of the kind have is among them.
    """
    tables_by_kind: dict[str, list[JsonObject]] = defaultdict(list)
    for changes in changes_of_runs:
        for value in changes.values():
            if isinstance(value, dict):
                tables_by_kind[str(value.get("kind"))].append(value)
    varying = set()
    for kind, tables in tables_by_kind.items():
        keys = {key for table in tables for key in table}
        for key in keys:
            texts = {json.dumps(table[key]) if key in table else "" for table in tables}
            if len(texts) > 1:
                varying.add((kind, key))
    return varying


def _label(changes: Changes, varying: set[tuple[str, str]]) -> str:
    """Return the name of a setting: its algorithm first, without the seed."""
    parts = []
    for key in sorted(changes, key=_is_not_algorithm):
        value = changes[key]
        if key == "run.seed":
            continue
        if isinstance(value, dict) and "kind" in value:
            kind = str(value["kind"])
            parameters = [
                _in_words(name, parameter)
                for name, parameter in value.items()
                if (kind, name) in varying
            ]
            parts.append(", ".join([kind, *parameters]))
        else:
            parts.append(f"{key.rpartition('.')[2]} = {value}")
    return ", ".join(parts) or "run"


def _is_not_algorithm(key: str) -> bool:
    """Return True if a key does not belong to the algorithm; sorts the algorithm first."""
    return not key.startswith("algorithm")


def _in_words(key: str, value: object) -> str:
    """Return a key and its value as text; a table with a kind is named by the kind."""
    if isinstance(value, str):
        return f"{key} = {value}"
    if not isinstance(value, dict) or "kind" not in value:
        return f"{key} = {json.dumps(value)}"
    parameters = [_in_words(name, part) for name, part in value.items() if name != "kind"]
    if not parameters:
        return str(value["kind"])
    return f"{value['kind']}({', '.join(parameters)})"


def compared(groups: Groups) -> SettingsTable:
    """Return the table of epsilon, scores, baselines and traffic of each setting."""
    verdicts = {name: verdict(runs) for name, runs in groups.items()}
    known_verdicts = [setting for setting in verdicts.values() if setting is not None]
    metrics = ["accuracy"]
    if known_verdicts:
        metrics = list(known_verdicts[0].baselines_by_split[0].measures)
    main_metric, *further_metrics = metrics
    heads = ["", "runs", "epsilon", "delta", "unit", "neighbours", "adversary", main_metric]
    if known_verdicts:
        heads += [*further_metrics, known_verdicts[0].trivial, "single site"]
        heads += ["single site, private", "centralized", "over single site"]
    heads.append("MB sent")
    rows = []
    for name, runs in groups.items():
        privacy = largest_epsilon(runs)
        epsilon = rounded_up(privacy.epsilon, 4) if privacy.is_finite else "none"
        row = [name, str(len(runs)), epsilon, rounded_up(privacy.delta), *_guarantee(privacy)]
        row.append(mean_and_deviation(scores(runs)))
        if known_verdicts:
            row += _baseline_cells(verdicts[name], further_metrics)
        row.append(mean_and_deviation([run.traffic.megabytes for run in runs]))
        rows.append(row)
    return SettingsTable(Table(heads, rows))


def _guarantee(privacy: Report) -> tuple[str, str, str]:
    """Return unit, neighboring relation and adversary; dashes without a finite epsilon."""
    if not privacy.is_finite:
        return "-", "-", "-"
    relation = privacy.neighboring_relation.replace("_", "-")
    return privacy.unit, relation, privacy.adversary_in_brief


def last_measurements(groups: Groups, metrics: Sequence[str]) -> Table:
    """Return the table of last measurements of metrics, and of seconds, that all runs have."""
    all_runs = [run for runs in groups.values() for run in runs]
    common_metrics = set.intersection(*(set(run.history.metrics) for run in all_runs))
    names = [name for name in (*metrics, "seconds") if name in common_metrics]
    rows = []
    for setting, runs in groups.items():
        values = [
            mean_and_deviation([run.history.last(metric) for run in runs]) for metric in names
        ]
        rows.append([setting, *values])
    return Table(["at the end", *(name.replace("_", " ") for name in names)], rows)


class Setting(NamedTuple):
    """Method, communication graph ("" for none) and epsilon as text: the same for some runs."""

    method: str
    network: str
    epsilon: str


def results_by_setting(results: Sequence[Result]) -> dict[Setting, list[Result]]:
    """Group results by method, communication graph and epsilon (the largest over seeds).

    If the results have several units of privacy, the name of a method states its unit.
    """
    varying = _varying_keys([_without_budget(result.changes) for result in results])
    units = {result.privacy.unit for result in results if result.privacy.is_finite}
    groups: dict[Setting, list[Result]] = defaultdict(list)
    for runs in grouped(results).values():
        changes = _without_budget(runs[0].changes)
        network_changes = {}
        method_changes = {}
        for key, value in changes.items():
            if _is_of_network(key):
                network_changes[key] = value
            else:
                method_changes[key] = value
        network = _label(network_changes, varying) if network_changes else ""
        method = _label(method_changes, varying)
        privacy = largest_epsilon(runs)
        if len(units) > 1 and privacy.is_finite:
            method = f"{method} ({privacy.unit}-level)"
        groups[Setting(method, network, _epsilon(runs))] += runs
    return dict(groups)


def _epsilon(runs: Sequence[Result]) -> str:
    """Return the largest epsilon of runs as text; "none" without a guarantee."""
    privacy = largest_epsilon(runs)
    if not privacy.is_finite:
        return "none"
    return rounded_up(privacy.epsilon, 3)


def _is_of_network(key: str) -> bool:
    """Return True if a key belongs to the table ``[topology]``."""
    return key.partition(".")[0] == "topology"


def _without_budget(changes: Changes) -> Changes:
    """Return changes without keys of budgets and noise, also within tables."""
    without_budget: Changes = {}
    for key, value in changes.items():
        if key.rpartition(".")[2] in _BUDGET:
            continue
        without_budget[key] = _without_budget(value) if isinstance(value, dict) else value
    return without_budget


def _leader(groups: Groups, opening: str) -> str:
    """Return a sentence on the setting with the highest score, and those not significantly below.

    Runs are paired by their seeds. Without equal seeds, or with fewer than `LEAST` runs, no setting
    is compared with the best.

    Parameters
    ----------
    groups
        Runs of each setting, with the same guarantee.
    opening
        Beginning of the sentence.
    """
    best = max(groups, key=lambda name: float(np.mean(scores(groups[name]))))
    best_runs = groups[best]
    best_score = mean_and_deviation(scores(best_runs))
    leader = f"{opening} {best} scores highest: {best_score} ({len(best_runs)} runs)."
    is_paired = all(_seeds(runs) == _seeds(best_runs) for runs in groups.values())
    if len(best_runs) < LEAST or not is_paired:
        return f"{leader} Whether that is clear takes {LEAST} runs each, of the same seeds."
    best_scores = np.array(scores(best_runs))
    held_out = max(_held_out(run) for run in best_runs)
    differences = {
        name: difference(best_scores - scores(runs), held_out=held_out)
        for name, runs in groups.items()
        if name != best
    }
    is_below = holm_significant([gain.p for gain in differences.values()])
    close = [name for name, clear in zip(differences, is_below, strict=True) if not clear]
    count = f"{sum(is_below)} of {len(differences)} others"
    sentence = f"{leader} It is clearly above {count} (paired, 5% in all)."
    if not close:
        return sentence
    named = "; ".join(close[:_MOST_NAMED])
    if len(close) > _MOST_NAMED:
        named += f" and {len(close) - _MOST_NAMED} more"
    return f"{sentence} Inconclusive against {named}."


def _held_out(run: Result) -> float:
    """Return the share of held-out records of a run; 0 without baselines."""
    if run.baselines is None:
        return 0.0
    return run.baselines.held_out


def _seeds(runs: Sequence[Result]) -> list[object]:
    """Return the seed of each run."""
    return [run.changes.get("run.seed") for run in runs]


def verdict(runs: Sequence[Result]) -> Verdict | None:
    """Return the comparison with baselines over the runs of a setting.

    The result is None if a run has no measures or baselines, or if baselines differ in number of
    nodes or metric.
    """
    measures = []
    baselines = []
    for run in runs:
        if run.measured is None or run.baselines is None:
            return None
        measures.append(run.measured)
        baselines.append(run.baselines)
    kinds = {(len(baseline.single_sites), baseline.metric) for baseline in baselines}
    if len(kinds) > 1:
        return None
    privacy = largest_epsilon(runs)
    populations = [run.population for run in runs if run.population is not None]
    if len(populations) < len(runs):
        populations = []
    return Verdict(
        populations=populations,
        measured=measures,
        baselines_by_split=baselines,
        epsilon=shown_epsilon(privacy),
        unit="run",
        protects=privacy.unit if privacy.is_finite else "",
        adversary=privacy.adversary_in_brief,
    )


def sentences(groups: Groups) -> list[str]:
    """Return sentences about the results.

    For one setting: the comparison with its baselines. For several settings with the same epsilon,
    unit, neighbouring relation and adversary: the setting with the highest score, and the settings
    that are not significantly below it. Runs are paired by their seeds. Significance is by Holm's
    procedure at 5%.
    """
    if len(groups) == 1:
        verdicts = [verdict(runs) for runs in groups.values()]
        return [setting.sentence for setting in verdicts if setting is not None]
    groups_by_guarantee: dict[tuple[str, ...], dict[str, Sequence[Result]]] = defaultdict(dict)
    for name, runs in groups.items():
        if all(map(isfinite, scores(runs))):
            guarantee = (_epsilon(runs), *_guarantee(largest_epsilon(runs)))
            groups_by_guarantee[guarantee][name] = runs
    leaders = []
    for (epsilon, unit, *_), comparable in groups_by_guarantee.items():
        if len(comparable) > 1:
            per_unit = "" if unit == "-" else f" of one {unit}"
            leaders.append(_leader(comparable, f"At epsilon {epsilon}{per_unit}"))
    return leaders


def missing_guarantees(groups: Groups) -> list[str]:
    """Return why settings with noise have no epsilon, such as a missing delta; once per reason."""
    reasons = []
    for runs in groups.values():
        privacy = largest_epsilon(runs)
        if not privacy.is_finite and privacy.accountant != WITHOUT_NOISE:
            reasons.append(privacy.accountant.removeprefix(NO_PROOF))
    return [f"There is noise, but no epsilon: {reason}." for reason in dict.fromkeys(reasons)]


def scores(runs: Sequence[Result]) -> list[float]:
    """Return the score of each run's released models; NaN if it was not measured."""
    return [float("nan") if run.score is None else run.score for run in runs]


def _baseline_cells(verdict: Verdict | None, metrics: Sequence[str]) -> list[str]:
    """Return cells of further measures, four baselines and the claim; dashes without a verdict."""
    if verdict is None:
        return ["-"] * (len(metrics) + 5)
    measures = [f"{verdict.mean(metric):.3g}" for metric in metrics]
    baselines = verdict.baselines
    single_site_private = "-"
    if baselines.private_single_sites is not None:
        single_site_private = f"{baselines.private_single_sites.mean():.3g}"
    majority_class = f"{baselines.majority_class:.3g}"
    single_site = f"{baselines.single_sites.mean():.3g}"
    centralized = f"{baselines.centralized:.3g}"
    claim = "-"
    if verdict.claim is not None:
        gain = shown_difference(verdict.metric, verdict.gain.low, verdict.gain.high)
        claim = f"{verdict.claim} ({gain})"
    return [*measures, majority_class, single_site, single_site_private, centralized, claim]


def largest_epsilon(runs: Sequence[Result]) -> Report:
    """Return the report with the largest epsilon, which may differ between seeds."""
    return max((run.privacy for run in runs), key=lambda report: report.epsilon)


def mean_and_deviation(values: Sequence[float]) -> str:
    """Return mean and standard deviation as text; a dash if a value is not finite."""
    if not all(map(isfinite, values)):
        return "-"
    mean = f"{np.mean(values):.3g}"
    if np.ptp(values) == 0:
        return mean
    return f"{mean} ± {np.std(values, ddof=1):.1g}"
