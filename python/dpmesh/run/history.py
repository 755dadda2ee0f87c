"""Measurements of a run, as records of round, node, metric and value (tidy data)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from math import isfinite, nan
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._extras import needed_by
from dpmesh._files import JsonObject, replace_text
from dpmesh._ragged import Indices, Numbers
from dpmesh._validate import fail, integer, number, one_of

if TYPE_CHECKING:
    from pandas import DataFrame

Value: TypeAlias = "float | npt.NDArray[Any]"
"""A measurement of the whole network, or one per node, shape (nodes,)."""


class Record(NamedTuple):
    """Measurement of a metric in a round.

    Attributes
    ----------
    round
        Number of finished rounds.
    node
        Index of the node; None for a measurement of the whole network.
    metric
        Name of the metric.
    value
        Measured number.
    """

    round: int
    node: int | None
    metric: str
    value: float


@dataclass
class History:
    """Metrics of a run, in the order in which they were measured.

    Most come from the nodes' un-noised models and records: they are for research, and no epsilon
    covers them. `dpmesh.Metrics` names those that are covered.

    Examples
    --------
    >>> import dpmesh as dm
    >>> history = dm.run.History()
    >>> history.add(1, {"accuracy": 0.5})
    >>> history.add(2, {"accuracy": 0.75})
    >>> history.last("accuracy")
    0.75
    """

    _measured: list[tuple[int, str, Value]] = field(default_factory=list)

    def __repr__(self) -> str:
        names = ", ".join(dict.fromkeys(name for _, name, _ in self._measured))
        return f"History({len(self._measured)} measurements: {names})"

    def add(self, round: int, values: Mapping[str, Value]) -> None:
        """Append the measurements of a round.

        Raises
        ------
        ValueError
            If a value is neither a number nor an array of shape (nodes,), or the round is not an
            integer.
        """
        t = integer("round", round)
        for metric, value in values.items():
            array = np.asarray(value)
            if array.ndim > 1 or array.dtype.kind not in "biuf":
                got = f"{array.dtype} of shape {array.shape}"
                fail(metric, "a number, or one for each node", got)
            number_or_array = float(array) if array.ndim == 0 else array.astype(np.float64)
            self._measured.append((t, metric, number_or_array))

    @property
    def records(self) -> list[Record]:
        """All records, in the order of measurement."""
        records = []
        for t, metric, value in self._measured:
            if isinstance(value, float):
                records.append(Record(t, None, metric, value))
            else:
                values = value.tolist()
                records += [Record(t, node, metric, number) for node, number in enumerate(values)]
        return records

    def as_dicts(self) -> list[JsonObject]:
        """Return the records for JSON, with null for NaN and infinity, which JSON lacks."""
        reported = []
        for record in self.records:
            fields = record._asdict()
            if not isfinite(record.value):
                fields["value"] = None
            reported.append(fields)
        return reported

    @classmethod
    def from_dicts(cls, reported: Iterable[JsonObject]) -> History:
        """Return the history of which `as_dicts` returned these dictionaries; null becomes NaN."""
        history = cls()
        for (t, metric), group in groupby(reported, itemgetter("round", "metric")):
            records = [*group]
            values = [nan if record["value"] is None else record["value"] for record in records]
            is_of_network = records[0]["node"] is None
            history.add(t, {metric: values[0] if is_of_network else np.array(values)})
        return history

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics of the whole network."""
        return tuple(self._names(of_network=True))

    @property
    def node_metrics(self) -> tuple[str, ...]:
        """Names of the metrics of each node."""
        return tuple(self._names(of_network=False))

    def _names(self, *, of_network: bool) -> dict[str, None]:
        """Return the names of metrics of the network or of nodes, in the order of measurement."""
        return {
            name: None for _, name, value in self._measured if _is_of_network(value) == of_network
        }

    def __getitem__(self, metric: str) -> Numbers:
        """Return the values of a network metric, over the rounds in which it was measured."""
        return np.array([value for _, value in self._measurements(metric)])

    def rounds(self, metric: str) -> Indices:
        """Return the rounds in which a metric of the network was measured."""
        return np.array([t for t, _ in self._measurements(metric)], dtype=np.int64)

    def last(self, metric: str) -> float:
        """Return the last value of a metric of the network."""
        return float(self[metric][-1])

    def node_values(self, metric: str) -> Numbers:
        """Return the values of a metric of each node, shape (measurements, nodes)."""
        if not self.node_metrics:
            which = "which a run measures if asked: metrics=['node_accuracy']"
            fail("metric", f"a metric of each node, {which}", repr(metric))
        one_of("metric", metric, self.node_metrics)
        return np.array(
            [
                values
                for _, name, values in self._measured
                if name == metric and not _is_of_network(values)
            ]
        )

    def first(self, metric: str, at_least: float, of: str = "round") -> float | None:
        """Return the round, time or traffic at which a metric first reached a level.

        None if it never reached the level.

        Parameters
        ----------
        metric
            Name of the metric, such as ``"accuracy"``.
        at_least
            Level that the metric must reach.
        of
            Unit of the answer: ``"round"``, or the name of a metric measured in the same rounds,
            such as ``"seconds"`` (virtual time) or ``"megabytes"`` (10^6 bytes sent).
        """
        reached = np.flatnonzero(self[metric] >= number("at_least", at_least))
        if not len(reached):
            return None
        times = self.rounds(metric) if of == "round" else self[of]
        return float(times[reached[0]])

    def _measurements(self, metric: str) -> list[tuple[int, Value]]:
        """Return the rounds and values of a metric of the network."""
        if metric not in self.metrics and metric in self.node_metrics:
            fail(
                "metric", "one of the network", f"{metric!r}, of each node: node_values({metric!r})"
            )
        one_of("metric", metric, self.metrics)
        return [
            (t, value)
            for t, name, value in self._measured
            if name == metric and _is_of_network(value)
        ]

    def to_pandas(self) -> DataFrame:
        """Return the records as a table; `node` is missing for the whole network.

        Needs the extra ``pandas``.
        """
        with needed_by("a table"):
            from pandas import DataFrame

        kinds = {"round": "int64", "node": "Int64", "value": "float64"}
        return DataFrame(self.records, columns=Record._fields).astype(kinds)

    def to_csv(self, path: str | Path) -> None:
        """Write the records with the header round,node,metric,value."""
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(Record._fields)
        writer.writerows(self.records)
        replace_text(path, text.getvalue())


def _is_of_network(value: Value) -> bool:
    """Return True if a value is one number for the whole network."""
    return isinstance(value, float)
