"""Results in a table: what each setting cost, reached and sent, beside its baselines."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from dpmesh._epsilons import rounded_up
from dpmesh._table import Table
from dpmesh.algorithms.base import NOISES
from dpmesh.experiments.results import Result
from dpmesh.privacy.report import Report
from dpmesh.run.measures import shown_difference
from dpmesh.run.run import cost_in_words
from dpmesh.run.verdict import LEAST, Verdict, clearly, difference

Groups = Mapping[str, Sequence[Result]]
"""Runs that differ in their seed alone, by what they set."""


_BUDGET = ("epsilon", "delta", *NOISES)


class Settings(NamedTuple):
    """A table of settings: what is the same for all of them is said once."""

    whole: Table

    def __str__(self) -> str:
        """Return lines of text; columns whose cells are all alike are one line below."""
        varying = self.varying
        sides = "l" + "r" * (len(varying.heads) - 1)
        return "\n".join(filter(None, (varying.aligned(sides), self.constant)))

    @property
    def varying(self) -> Table:
        """The columns that differ between rows, of at least 3; the first one always."""
        heads, rows = self.whole
        kept = [i for i in range(len(heads)) if i == 0 or not self._same(i)]
        return Table([heads[i] for i in kept], [[row[i] for i in kept] for row in rows])

    @property
    def constant(self) -> str:
        """What is the same in all rows, in words."""
        heads, rows = self.whole
        same = [f"{name} {rows[0][i]}" for i, name in enumerate(heads) if i and self._same(i)]
        return f"In all rows: {', '.join(same)}." if same else ""

    def _same(self, column: int) -> bool:
        rows = self.whole.rows
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


def _differing(changes: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return kinds of tables and their keys of which there are several values, or one and none."""
    tables = [value for one in changes for value in one.values() if isinstance(value, dict)]
    keys = {(str(table.get("kind")), key) for table in tables for key in table}
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for kind, key in keys:
        for table in tables:
            if str(table.get("kind")) == kind:
                values[kind, key].add(json.dumps(table[key]) if key in table else "")
    return {place for place, found in values.items() if len(found) > 1}


def _label(changes: Mapping[str, Any], differing: set[tuple[str, str]]) -> str:
    parts = []
    for key, value in sorted(changes.items(), key=lambda one: not one[0].startswith("algorithm")):
        if key == "run.seed":
            continue
        if isinstance(value, dict) and "kind" in value:
            kind = str(value["kind"])
            own = {k: v for k, v in value.items() if (kind, k) in differing}
            parts.append(", ".join([kind, *map(_stated, own, own.values())]))
        else:
            parts.append(f"{key.rpartition('.')[2]} = {value}")
    return ", ".join(parts) or "run"


def _stated(key: str, value: Any) -> str:
    """Return a key and its value; a table that has a kind is named by it."""
    if not isinstance(value, dict) or "kind" not in value:
        return f"{key} = {value if isinstance(value, str) else json.dumps(value)}"
    own = ", ".join(_stated(*one) for one in value.items() if one[0] != "kind")
    return f"{value['kind']}({own})" if own else str(value["kind"])


def compared(groups: Groups) -> Settings:
    """Return epsilon, scores beside the baselines, and traffic of each setting."""
    found = {name: verdict(runs) for name, runs in groups.items()}
    known = [one for one in found.values() if one is not None]
    metric, *others = known[0].beside[0].measures if known else ("accuracy",)
    heads = ["", "runs", "epsilon", "delta", "unit", "neighbours", "adversary", metric]
    if known:
        heads += [*others, "chance", "alone", "alone, private", "pooled", "than alone"]
    rows = []
    for name, runs in groups.items():
        cost = dearest(runs)
        epsilon = rounded_up(cost.epsilon, 4) if cost.is_finite else "none"
        row = [name, str(len(runs)), epsilon, rounded_up(cost.delta), *_protected(cost)]
        row.append(spread(scores(runs)))
        if known:
            row += _cells(found[name], others)
        rows.append([*row, spread([run.traffic.megabytes for run in runs])])
    return Settings(Table([*heads, "MB sent"], rows))


def _protected(cost: Report) -> tuple[str, str, str]:
    """Return unit, neighboring relation and adversary; dashes where nothing is guaranteed."""
    if not cost.is_finite:
        return "-", "-", "-"
    return cost.unit, cost.neighboring_relation.replace("_", "-"), cost.adversary_in_brief


def measured(groups: Groups, metrics: Sequence[str]) -> Table:
    """Return the last measurements that all runs have, of these metrics and of seconds."""
    shared = set.intersection(*(set(r.history.metrics) for runs in groups.values() for r in runs))
    names = [name for name in (*metrics, "seconds") if name in shared]
    rows = [
        [name, *(spread([run.history.last(metric) for run in runs]) for metric in names)]
        for name, runs in groups.items()
    ]
    return Table(["at the end", *(name.replace("_", " ") for name in names)], rows)


class Setting(NamedTuple):
    """What runs of one kind have in common: method, network ("" for none), epsilon as shown."""

    method: str
    network: str
    epsilon: str


def placed(results: Sequence[Result]) -> dict[Setting, list[Result]]:
    """Return the results by method, network and epsilon, the largest of their seeds."""
    differing = _differing([_unpriced(result.changes) for result in results])
    units = {result.privacy.unit for result in results if result.privacy.is_finite}
    found: dict[Setting, list[Result]] = defaultdict(list)
    for runs in grouped(results).values():
        changes = _unpriced(runs[0].changes)
        network = {key: value for key, value in changes.items() if _of_network(key)}
        method = {key: value for key, value in changes.items() if not _of_network(key)}
        where = _label(network, differing) if network else ""
        label, privacy = _label(method, differing), dearest(runs)
        if len(units) > 1 and privacy.is_finite:
            label = f"{label} ({privacy.unit}-level)"
        found[Setting(label, where, _epsilon(runs))] += runs
    return dict(found)


def _epsilon(runs: Sequence[Result]) -> str:
    cost = dearest(runs)
    return rounded_up(cost.epsilon, 3) if cost.is_finite else "none"


def _of_network(key: str) -> bool:
    return key.partition(".")[0] == "topology"


def _unpriced(changes: Mapping[str, Any]) -> dict[str, Any]:
    left = {key: v for key, v in changes.items() if key.rpartition(".")[2] not in _BUDGET}
    return {key: _unpriced(v) if isinstance(v, dict) else v for key, v in left.items()}


def _leader(groups: Groups, at: str) -> str:
    best = max(groups, key=lambda name: float(np.mean(scores(groups[name]))))
    runs = groups[best]
    reached = f"{at} {best} scores highest: {spread(scores(runs))} ({len(runs)} runs)."
    if len(runs) < LEAST or any(_seeds(other) != _seeds(runs) for other in groups.values()):
        return f"{reached} Whether that is clear takes {LEAST} runs each, of the same seeds."
    own = np.array(scores(runs))
    held_out = max(0.0 if run.baselines is None else run.baselines.held_out for run in runs)
    found = {
        name: difference(own - scores(other), held_out=held_out)
        for name, other in groups.items()
        if name != best
    }
    below = clearly([one.p for one in found.values()])
    close = [name for name, clear in zip(found, below, strict=True) if not clear]
    said = f"{reached} It is clearly above {sum(below)} of {len(found)} others (paired, 5% in all)."
    more = f" and {len(close) - 3} more" if len(close) > 3 else ""
    return f"{said} No clear difference from {'; '.join(close[:3])}{more}." if close else said


def _seeds(runs: Sequence[Result]) -> list[Any]:
    return [run.changes.get("run.seed") for run in runs]


def verdict(runs: Sequence[Result]) -> Verdict | None:
    """Return whether sharing paid, over the runs of a setting; None if unknown."""
    pairs = [(run.measured, run.baselines) for run in runs]
    known = [(own, beside) for own, beside in pairs if own is not None and beside is not None]
    if len(known) < len(runs) or len({(len(one.alone), one.metric) for _, one in known}) > 1:
        return None
    measured, beside = zip(*known, strict=True)
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
        found = [verdict(runs) for runs in groups.values()]
        return [one.sentence for one in found if one is not None]
    comparable: dict[tuple[str, ...], dict[str, Sequence[Result]]] = defaultdict(dict)
    for name, runs in groups.items():
        if all(map(isfinite, scores(runs))):
            place = (_epsilon(runs), *_protected(dearest(runs)))
            comparable[place][name] = runs
    said = []
    for (epsilon, unit, *_), those in comparable.items():
        if len(those) > 1:
            of_unit = "" if unit == "-" else f" of one {unit}"
            said.append(_leader(those, f"At epsilon {epsilon}{of_unit}"))
    return said


def scores(runs: Sequence[Result]) -> list[float]:
    """Return the score of each run's released models; NaN where it was not measured."""
    return [float("nan") if run.score is None else run.score for run in runs]


def _cells(found: Verdict | None, others: Sequence[str]) -> list[str]:
    """Return further measures, the baselines, and the claim; dashes if they are not known."""
    if found is None:
        return ["-"] * (len(others) + 5)
    own, beside = [f"{found.mean(name):.3g}" for name in others], found.baselines
    private = "-" if beside.alone_private is None else f"{beside.alone_private.mean():.3g}"
    chance, alone, pooled = (
        f"{x:.3g}" for x in (beside.chance, beside.alone.mean(), beside.pooled)
    )
    claim: str = found.claim or "-"
    if found.claim is not None:
        claim += f" ({shown_difference(found.metric, found.gain.low, found.gain.high)})"
    return [*own, chance, alone, private, pooled, claim]


def dearest(runs: Sequence[Result]) -> Report:
    """Return the report of the run that cost most: chance may decide what a run releases."""
    return max((run.privacy for run in runs), key=lambda report: report.epsilon)


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation in few digits."""
    if not all(map(isfinite, values)):
        return "-"
    text = f"{np.mean(values):.3g}"
    return f"{text} ± {np.std(values, ddof=1):.1g}" if np.ptp(values) > 0 else text
