"""`Survival`: Kaplan-Meier curves, medians, hazard ratios and the log-rank test.

All follow from one noisy table of counts. Each group has a cell for events and a cell for censored
records in each bin of time, and a cell for records that were followed to the end. Each record is in
one cell. Bins include their high end: an event at time t is counted at t. Numbers at risk are sums
of cells from the last bin backwards, and need no further release.
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
    normal_row,
    p_value_of,
    shift_to_total,
    unknown_row,
)
from dpmesh.statistics.bins import Floats, bins_closed_above, edge_in_words, edges_of, ends
from dpmesh.statistics.geometry import Columns, cells, kind_of
from dpmesh.statistics.kaplan_meier import Cells, Curve, curve
from dpmesh.tables.kinds import Flag, Kind, Number

CONVENTION = (
    "a row includes events at its time; half of those censored in a bin count as at risk in it"
)
"""Note of an answer: the closed end of a bin, and the treatment of censored records in it."""

PROPORTIONAL = (
    "hazard ratios assume that hazards are proportional; if not, each is a weighted mean of ratios"
)

SIMULATIONS = 999
"""Number of simulated tables under the null hypothesis, for the p-value of the log-rank test."""


@dataclass(frozen=True)
class Survival(questions.OneHot):
    """Survival analysis: Kaplan-Meier curve, median survival and numbers at risk of each group.

    With several groups the answer has a log-rank test, and the hazard ratio of each group to the
    first group.

    Everything is computed from one noisy table of counts by group, bin of time, and event or
    censoring. Each record is one person, in one cell of the table, so that the L2 sensitivity to
    replacing a record is sqrt(2). Follow-up starts at the low end of the public range of `time`.
    Late entry and repeated events are not supported, because a person would be in several cells.

    Parameters
    ----------
    time
        Name of a column of numbers: duration of follow-up. A person with a longer follow-up than
        the public range is censored at the end of the range.
    event
        Name of a column of flags: 1 if the follow-up ended with the event, 0 if it was censored.
    by
        Name of a column of categories or flags that defines the groups; None for a single group.
    bins
        Number of bins of equal width over the public range of `time`. A bin includes its high end:
        an event at time t is counted in the bin that ends at or after t.

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
        """Return the names of the groups, without records whose group is missing."""
        if self.by is None:
            return ["all"]
        kind = kind_of(kinds, self.by, questions.LISTED, questions.A_CATEGORY)
        names = cells(kind, 2)
        if kind.may_be_missing:
            return names[:-1]
        return names

    @property
    def _cells_of_group(self) -> int:
        """Number of cells of a group: two for each bin, and one for records followed to the end."""
        return 2 * self.bins + 1

    def cells(self, kinds: questions.Kinds) -> int:
        """Return the number of cells; the last one counts records that lack a value, if any may."""
        kind_of(kinds, self.time, Number, "a number, how long a person was followed")
        kind_of(kinds, self.event, Flag, "a flag, {flag = true}: whether the event came")
        cells_of_groups = self._cells_of_group * len(self._groups(kinds))
        if any(kinds[name].may_be_missing for name in self.names):
            return cells_of_groups + 1
        return cells_of_groups

    def cell(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Return the index of each record's cell, shape (records,).

        The cells of a group are, for each bin in turn, events and censored records, and at last
        records that were followed to the end. The groups follow each other.
        """
        kinds = {name: columns[name].kind for name in self.names}
        time = columns[self.time]
        event = columns[self.event]
        _, end = ends(time.kind)
        event_cell = 2 * bins_closed_above(time.numbers, time.kind, self.bins)
        is_censored = event.z <= 0
        with np.errstate(invalid="ignore"):  # NaN for a missing time, handled below
            is_beyond = time.numbers > end
            is_followed = is_beyond | (is_censored & (time.numbers >= end))
        cell_in_group = np.where(is_followed, 2 * self.bins, event_cell + is_censored)
        cell = cell_in_group
        if self.by is not None:
            cell = self._cells_of_group * columns[self.by].cell(questions.FLAG_BINS) + cell_in_group
        has_all_values = np.all([columns[name].present for name in self.names], axis=0)
        missing_cell = self.cells(kinds) - 1
        return np.where(has_all_values, cell, missing_cell)

    def answer(self, kinds: questions.Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Return curves, medians, numbers at risk, hazard ratios, and the log-rank test."""
        groups = self._groups(kinds)
        cells_of_groups = self._cells_of_group * len(groups)
        all_counts = shift_to_total(total, records)
        counts = all_counts[:cells_of_groups].reshape(len(groups), -1)
        results = [
            self._group(kinds[self.time], group, group_counts, noise)
            for group, group_counts in zip(groups, counts, strict=True)
        ]
        rows = [row for group_result in results for row in group_result.rows]
        medians = tuple(group_result.median for group_result in results)
        curves = tuple(group_result.curve for group_result in results)
        if len(groups) < 2:
            return Answer(
                title="survival",
                rows=tuple(rows),
                medians=medians,
                curves=curves,
                notes=(CONVENTION,),
            )
        ratios = []
        for group, group_counts in zip(groups[1:], counts[1:], strict=True):
            name = f"hazard ratio, {self.by} {group} against {groups[0]}"
            ratios.append(_hazard_ratio(name, np.stack([counts[0], group_counts]), noise))
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
        """Return the results of one group.

        Parameters
        ----------
        kind
            The public range of the time.
        group
            Name of the group.
        counts
            Its noisy cells, shape (2 bins + 1,).
        noise
            Standard deviation of the noise in each.
        """
        edges = edges_of(kind, self.bins)
        marks = [edge_in_words(kind, edge, self.bins) for edge in edges]
        prefix = "" if self.by is None else f"{self.by} {group}, "
        cells = Cells.of(counts)
        survival = curve(cells, noise)
        points = np.transpose(survival)  # survival, noise and sampling at the end of each bin
        rows = []
        for mark, point in zip(marks[1:], points, strict=True):
            rows.append(normal_row(f"{prefix}{self.time} {mark}", point, (0, 1)))
        at_risk, at_risk_noise = hazard.number_at_risk(cells, noise)
        group_curve = GroupCurve(
            name=group,
            time=self.time,
            times=tuple(edges.tolist()),
            marks=tuple(marks),
            survival=(1.0, *(row.estimate for row in rows)),
            low=(1.0, *(row.low for row in rows)),
            high=(1.0, *(row.high for row in rows)),
            at_risk=tuple(at_risk.tolist()),
            at_risk_noise=tuple((Z * at_risk_noise).tolist()),
        )
        median = _median(f"{prefix}median {self.time}", survival, edges)
        return _Group(tuple(rows), median, group_curve)


def _median(name: str, survival: Curve, edges: Floats) -> Row:
    """Return the median of a curve in the units of time."""
    low = float(edges[0])
    width = float(edges[1] - edges[0])

    def half_interval(deviations: Floats) -> float:
        """Return the half-width of the interval due to these standard deviations alone."""
        median_in_bins = hazard.median(survival, deviations)
        return (median_in_bins.high - median_in_bins.low) / 2 * width

    both_deviations = np.sqrt(np.square(survival.noise) + np.square(survival.sampling))
    in_bins = hazard.median(survival, both_deviations)
    return Row(
        name,
        estimate=low + width * in_bins.estimate,
        noise=half_interval(survival.noise),
        sampling=half_interval(survival.sampling),
        low=low + width * in_bins.low,
        high=low + width * in_bins.high,
    )


def _hazard_ratio(name: str, counts: Floats, noise: float) -> Row:
    """Return the row of the hazard ratio of the second group against the first.

    Parameters are as of `hazard.log_hazard_ratio`.
    """
    log_ratio = hazard.log_hazard_ratio(counts, noise)
    if log_ratio is None:
        return unknown_row(name)
    deviation = sqrt(log_ratio.noise**2 + log_ratio.sampling**2)
    ratio = exp(log_ratio.estimate)
    return Row(
        name,
        estimate=ratio,
        noise=Z * ratio * log_ratio.noise,
        sampling=Z * ratio * log_ratio.sampling,
        low=exp(log_ratio.estimate - Z * deviation),
        high=exp(log_ratio.estimate + Z * deviation),
        p_value=p_value_of(log_ratio.estimate, deviation),
    )


class _Group(NamedTuple):
    """Results of one group: rows of the survival curve, median, and the curve as numbers."""

    rows: tuple[Row, ...]
    median: Row
    curve: GroupCurve


def log_rank(cells: Cells, noise: float) -> float:
    """Return the log-rank p-value of the hypothesis that all groups have the same hazards.

    The statistic is the sum over groups of ``(observed - expected)^2 / expected``. The p-value
    compares it with the statistics of simulated tables. In these all groups have the pooled
    hazards, each has its observed censoring, and the counts have noise like the released ones.

    Parameters
    ----------
    cells
        Noisy counts of all groups, shape (groups, bins).
    noise
        Standard deviation of the noise in each count.
    """
    draw = np.random.default_rng(0)  # a public seed: post-processing of the release
    groups, bins = cells.events.shape
    risk = np.maximum(cells.at_risk, 1.0)
    pooled_hazard = np.clip(cells.events.sum(axis=0) / risk.sum(axis=0), 0, 1)  # shape (bins,)
    # share of the records at risk that are censored in half a bin, shape (groups, bins)
    half_censored = np.clip(cells.censored / risk, 0, 0.99) / 2
    group_sizes = cells.events.sum(axis=1) + cells.censored.sum(axis=1) + cells.ended
    whole_sizes = np.maximum(np.rint(group_sizes), 0).astype(np.int64)
    remaining = np.tile(whole_sizes, (SIMULATIONS, 1))  # shape (simulations, groups)
    simulated = np.empty((SIMULATIONS, groups, 2 * bins + 1))
    for j in range(bins):
        # half of the censored records leave before the events of the bin, the others after them
        censored = draw.binomial(remaining, half_censored[:, j])
        events = draw.binomial(remaining - censored, pooled_hazard[j])
        second_half = half_censored[:, j] / (1 - half_censored[:, j])  # share of the remaining
        censored += draw.binomial(remaining - censored - events, second_half)
        simulated[:, :, 2 * j] = events
        simulated[:, :, 2 * j + 1] = censored
        remaining -= events + censored
    simulated[:, :, -1] = remaining
    simulated += noise * draw.standard_normal(simulated.shape)
    expected = np.maximum((risk * pooled_hazard).sum(axis=1), 1.0)  # shape (groups,)
    observed_statistic = _log_rank_statistic(cells, expected)
    statistics = _log_rank_statistic(Cells.of(simulated), expected)  # shape (simulations,)
    at_least_as_large = (statistics >= observed_statistic).sum()
    return float((1 + at_least_as_large) / (SIMULATIONS + 1))


def _log_rank_statistic(cells: Cells, expected: Floats) -> Floats:
    """Return the log-rank statistic, sum of ``(observed - expected)^2 / expected``, shape (..).

    The differences of observed and expected events are summed over the bins in which more than one
    record is at risk.

    Parameters
    ----------
    cells
        Counts of one or several tables, shape (.., groups, bins).
    expected
        Expected events of each group, by which the squares are divided, shape (groups,).
    """
    risk = cells.at_risk
    risk_of_all = risk.sum(axis=-2, keepdims=True)
    is_empty = risk_of_all <= 1.0
    events = np.where(is_empty, 0.0, cells.events)
    hazard_of_all = events.sum(axis=-2, keepdims=True) / np.where(is_empty, 1.0, risk_of_all)
    difference = (events - risk * hazard_of_all).sum(axis=-1)
    return np.asarray((np.square(difference) / expected).sum(axis=-1))
