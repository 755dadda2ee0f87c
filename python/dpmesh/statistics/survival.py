"""Kaplan-Meier curves, medians, hazard ratios and the log-rank test from one noisy table of cells.

A record is in one cell of its group: a bin of time with an event, a bin in which it was censored,
or followed to the end. Bins are closed above, so that an event at t counts by t. The numbers at
risk are sums of cells from the end, so that they have no noise of their own.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import exp, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import dpmesh.statistics.hazard as hazard
import dpmesh.statistics.questions as questions
from dpmesh._validate import integer
from dpmesh.statistics.answers import (
    Answer,
    GroupCurve,
    Row,
    Z,
    consistent,
    nothing,
    p_value_of,
    row,
)
from dpmesh.statistics.bins import Floats, bins_closed_above, edge_in_words, edges_of, ends
from dpmesh.statistics.geometry import Columns, cells, kind_of
from dpmesh.statistics.kaplan_meier import Cells, Curve, curve
from dpmesh.tables.kinds import Flag, Kind, Number

CONVENTION = (
    "events at the time of a row count by it; of those censored in a bin half are at risk in it"
)
"""Which end of a bin is closed, as Kaplan-Meier curves have it, and what bins cannot tell."""

PROPORTIONAL = (
    "hazard ratios assume that hazards are proportional; if not, each is a weighted mean of ratios"
)

SIMULATIONS = 999
"""Of the log-rank statistic where groups do not differ."""


@dataclass(frozen=True)
class Survival(questions.OneHot):
    """A Kaplan-Meier curve of each group, with its median and numbers at risk.

    With groups there are the log-rank test and hazard ratios against the first group.

    All follow from one noisy table of group, bin of time, and event or not. Each record is one
    person, followed from the low end of the range of `time` on. Late entry and repeated events have
    no proof here: a person would be in several cells.

    Parameters
    ----------
    time
        A number: how long the person was followed. Who is followed beyond the end of its range, or
        to its end without an event, is censored there.
    event
        A flag: whether the event ended it.
    by
        Categories or a flag that divide the records into groups.
    bins
        Equal bins of time, each with its high end: an event at t counts by t.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.statistics.Survival("months", "died", by="arm")
    Survival(time='months', event='died', by='arm', bins=20)
    """

    time: str
    event: str
    by: str | None = None
    _: KW_ONLY
    bins: int = 20
    reads = ("time", "event", "by")

    def __post_init__(self) -> None:
        integer("bins", self.bins, at_least=2, below=2**12)
        questions.several(self.names, 2)

    def _groups(self, kinds: questions.Kinds) -> list[str]:
        if self.by is None:
            return ["all"]
        result = cells(kind_of(kinds, self.by, questions.LISTED, questions.A_CATEGORY), 2)
        return result[:-1] if kinds[self.by].may_be_missing else result

    def cells(self, kinds: questions.Kinds) -> int:
        """Return the number of cells; the last one is of records that lack a value."""
        kind_of(kinds, self.time, Number, "a number, how long a person was followed")
        kind_of(kinds, self.event, Flag, "a flag, {flag = true}: whether the event came")
        return (2 * self.bins + 1) * len(self._groups(kinds)) + self._may_lack(kinds)

    def _may_lack(self, kinds: questions.Kinds) -> bool:
        return any(kinds[name].may_be_missing for name in self.names)

    def cell(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Return the number of each record's cell."""
        kinds = {name: columns[name].kind for name in self.names}
        time, event = columns[self.time], columns[self.event]
        _, end = ends(time.kind)
        place = 2 * bins_closed_above(time.numbers, time.kind, self.bins)
        censored = event.z <= 0
        with np.errstate(invalid="ignore"):  # who has no time is in the last cell
            followed = (time.numbers > end) | (censored & (time.numbers >= end))
        result = np.where(followed, 2 * self.bins, place + censored)
        if self.by is not None:
            result = result + (2 * self.bins + 1) * columns[self.by].cell(2)
        whole = np.all([columns[name].present for name in self.names], axis=0)
        return np.where(whole, result, self.cells(kinds) - 1)

    def answer(self, kinds: questions.Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Return curves, medians, numbers at risk, hazard ratios, and the log-rank test."""
        groups = self._groups(kinds)
        of_groups = (2 * self.bins + 1) * len(groups)
        counts = consistent(total, records)[:of_groups].reshape(len(groups), -1)
        shown = [
            self._group(kinds[self.time], *pair, noise) for pair in zip(groups, counts, strict=True)
        ]
        rows = [row for group in shown for row in group.rows]
        medians = tuple(group.median for group in shown)
        curves = tuple(group.curve for group in shown)
        if len(groups) < 2:
            return Answer(
                title="survival",
                rows=tuple(rows),
                medians=medians,
                curves=curves,
                notes=(CONVENTION,),
            )
        ratios = [self._ratio(groups, counts, nth, noise) for nth in range(1, len(groups))]
        p = log_rank(Cells.of(counts), noise)
        notes = [CONVENTION, PROPORTIONAL]
        if len(ratios) > 1:
            notes.append(f"{len(ratios)} comparisons, each interval 95% by itself")
        notes.append(f"log-rank test of {self.by}, simulated with the noise: p = {p:.3g}")
        return Answer(
            title="survival",
            rows=tuple(rows),
            ratios=tuple(ratios),
            medians=medians,
            curves=curves,
            column=str(self.by),
            notes=tuple(notes),
            p_value=p,
        )

    def _group(self, kind: Kind, group: str, counts: Floats, noise: float) -> _Group:
        """Return what is shown of one group."""
        edges = edges_of(kind, self.bins)
        marks = [edge_in_words(kind, edge, self.bins) for edge in edges]
        prefix = "" if self.by is None else f"{self.by} {group}, "
        cells = Cells.of(counts)
        result = curve(cells, noise)
        rows = [
            row(f"{prefix}{self.time} {mark}", point, (0, 1))
            for mark, point in zip(marks[1:], np.transpose(result), strict=True)
        ]
        at_risk, spread = hazard.number_at_risk(cells, noise)
        drawn = GroupCurve(
            name=group,
            time=self.time,
            times=tuple(edges.tolist()),
            marks=tuple(marks),
            survival=(1.0, *(row.estimate for row in rows)),
            low=(1.0, *(row.low for row in rows)),
            high=(1.0, *(row.high for row in rows)),
            at_risk=tuple(at_risk.tolist()),
            at_risk_noise=tuple((Z * spread).tolist()),
        )
        return _Group(
            tuple(rows), self._median(f"{prefix}median {self.time}", result, edges), drawn
        )

    def _median(self, name: str, result: Curve, edges: Floats) -> Row:
        """Return the median of a curve in the units of time."""
        low, width = float(edges[0]), float(edges[1] - edges[0])

        def half(spread: Floats) -> float:
            interval = hazard.median(result, spread)
            return (interval.high - interval.low) / 2 * width

        both = np.sqrt(np.square(result.noise) + np.square(result.sampling))
        middle = hazard.median(result, both)
        estimate, first, last = (low + width * place for place in middle)
        return Row(name, estimate, half(result.noise), half(result.sampling), first, last)

    def _ratio(self, groups: list[str], counts: Floats, nth: int, noise: float) -> Row:
        """Return the hazard ratio of a group against the first."""
        name = f"hazard ratio, {self.by} {groups[nth]} against {groups[0]}"
        result = hazard.log_hazard_ratio(counts[[0, nth]], noise)
        if result is None:
            return nothing(name)
        deviation = sqrt(result.noise**2 + result.sampling**2)
        estimate = exp(result.estimate)
        return Row(
            name,
            estimate,
            Z * estimate * result.noise,
            Z * estimate * result.sampling,
            exp(result.estimate - Z * deviation),
            exp(result.estimate + Z * deviation),
            p_value_of(result.estimate, deviation),
        )


class _Group(NamedTuple):
    """Results of one group: the rows of its curve, its median, and its curve as numbers."""

    rows: tuple[Row, ...]
    median: Row
    curve: GroupCurve


def log_rank(cells: Cells, noise: float) -> float:
    """Return the p-value of the hypothesis that groups have the same hazards.

    The statistic is the sum over groups of ``(observed - expected)^2 / expected``. It is compared
    with the same statistic of simulated tables, in which all groups have the hazards of all records
    together and the censoring that was observed, with noise added as to the real one.

    Parameters
    ----------
    cells
        Noisy counts, shape (groups, bins).
    noise
        Standard deviation of the noise in each.
    """
    draw = np.random.default_rng(0)  # public: it comes after the release
    groups, bins = cells.events.shape
    risk = np.maximum(cells.at_risk, 1.0)
    together = np.clip(cells.events.sum(axis=0) / risk.sum(axis=0), 0, 1)
    leaving = np.clip(cells.censored / risk, 0, 0.99) / 2
    whole = sum(part.sum(axis=1) for part in cells[:2]) + cells.ended
    left = np.tile(np.maximum(np.rint(whole), 0).astype(np.int64), (SIMULATIONS, 1))
    drawn = np.empty((SIMULATIONS, groups, 2 * bins + 1))
    for j in range(bins):  # half of those who are censored leave before the events
        gone = draw.binomial(left, leaving[:, j])
        died = draw.binomial(left - gone, together[j])
        gone += draw.binomial(left - gone - died, leaving[:, j] / (1 - leaving[:, j]))
        drawn[:, :, 2 * j], drawn[:, :, 2 * j + 1] = died, gone
        left -= died + gone
    drawn[:, :, -1] = left
    drawn += noise * draw.standard_normal(drawn.shape)
    expected = np.maximum((risk * together).sum(axis=1), 1.0)
    result = _statistic(cells, expected)
    as_far = (_statistic(Cells.of(drawn), expected) >= result).sum()
    return float((1 + as_far) / (SIMULATIONS + 1))


def _statistic(cells: Cells, expected: Floats) -> Floats:
    """Return the statistic of tables of shape (.., groups, bins)."""
    risk = cells.at_risk
    together = risk.sum(axis=-2, keepdims=True)
    few = together <= 1.0
    events = np.where(few, 0.0, cells.events)
    expected_share = events.sum(axis=-2, keepdims=True) / np.where(few, 1.0, together)
    difference = (events - risk * expected_share).sum(axis=-1)
    return np.asarray((np.square(difference) / expected).sum(axis=-1))
