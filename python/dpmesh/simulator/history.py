"""What was measured during a run: tidy records of (round, metric, value)."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmesh._validate import one_of


class Record(NamedTuple):
    """One measurement, of the whole network."""

    round: int
    metric: str
    value: float


@dataclass
class History:
    """Measurements in the order in which they were made.

    They are made with the nodes' own parameters and with test data: they are for research, and are
    no part of the private release.
    """

    records: list[Record] = field(default_factory=list)

    def add(self, round: int, values: dict[str, float]) -> None:
        """Append the measurements of a round."""
        self.records += [Record(round, metric, float(value)) for metric, value in values.items()]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what was measured."""
        return tuple(dict.fromkeys(record.metric for record in self.records))

    def __getitem__(self, metric: str) -> npt.NDArray[np.float64]:
        """Return the values of one metric, over the rounds in which it was measured."""
        return np.array([record.value for record in self._of(metric)])

    def rounds(self, metric: str) -> npt.NDArray[np.int64]:
        """Return the rounds in which a metric was measured."""
        return np.array([record.round for record in self._of(metric)], dtype=np.int64)

    def last(self, metric: str) -> float:
        """Return the last value of a metric."""
        return float(self[metric][-1])

    def _of(self, metric: str) -> Iterator[Record]:
        one_of("metric", metric, self.metrics)
        return (record for record in self.records if record.metric == metric)

    def to_csv(self, path: str | Path) -> None:
        """Write the records with the header round,metric,value."""
        with Path(path).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(Record._fields)
            writer.writerows(self.records)
