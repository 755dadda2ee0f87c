"""Records of which questions are asked, as parties of a contract hold them: two numbers a cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpmesh._validate import fail
from dpmesh.algorithms.adaptive_sums import NoisyTotal
from dpmesh.data import Dataset
from dpmesh.statistics.ask import Asked, AskedInRound, Questions
from dpmesh.statistics.bins import Floats
from dpmesh.statistics.geometry import Column
from dpmesh.statistics.questions import Vectors

PER_COLUMN = 2
"""Numbers of a cell: its value, or 0 if it is missing, and 1 if it is present, else 0."""


def encoded(questions: Questions, columns: Mapping[str, Column]) -> Floats:
    """Return the cells as numbers, `PER_COLUMN` a column, shape (records, 2 * columns)."""
    parts = [columns[name].encoded for name in questions.kinds]
    return np.concatenate(parts, axis=1)


def decoded(questions: Questions, cells: Floats) -> dict[str, Column]:
    """Return the columns that `encoded` gave, bit by bit."""
    return {
        name: Column.decoded(kind, cells[:, PER_COLUMN * nth : PER_COLUMN * (nth + 1)])
        for nth, (name, kind) in enumerate(questions.kinds.items())
    }


@dataclass(frozen=True, eq=False)
class QuestionProblem:
    """Records of some nodes whose sums answer questions.

    Parameters
    ----------
    train
        Cells as numbers, see `encoded`.
    partition
        The records of each node.
    questions
        What is asked.
    counts
        The public number of records of every node of a larger problem, of which this is a part;
        None if it is the whole.
    """

    train: Dataset
    partition: tuple[npt.NDArray[np.int64], ...]
    questions: Questions
    counts: tuple[int, ...] | None = None
    test: None = None
    outline: None = None
    feature_norm: None = None
    models: int = 1

    @property
    def nodes(self) -> int:
        """Number of nodes whose records are here."""
        return len(self.partition)

    @property
    def records(self) -> npt.NDArray[np.int64]:
        """Number of records of each node here."""
        return np.array([len(part) for part in self.partition])

    @property
    def all_records(self) -> npt.NDArray[np.int64]:
        """Number of records of each node of the whole problem."""
        return self.records if self.counts is None else np.array(self.counts)

    @property
    def dim(self) -> int:
        """Length of the totals of all rounds together."""
        return sum(self.questions.lengths)

    @cached_property
    def asked(self) -> Asked:
        """The records as vectors."""
        cells = self.train.features
        if isinstance(cells, sparse.csr_array):
            cells = cells.toarray()
        columns = decoded(self.questions, np.asarray(cells, np.float64))
        return Asked(questions=self.questions, columns=columns, parts=self.partition)

    def vectors(self, node: int) -> Iterator[Vectors]:
        """Return the vectors of a node's records in round 0, in blocks of shape (records, dim)."""
        return self.in_round(0, ()).vectors(node)

    def in_round(self, t: int, totals: Sequence[NoisyTotal]) -> AskedInRound:
        """Return the vectors of round t, given the totals of those before."""
        return replace(self.asked.in_round(t, totals), counts=self.counts)

    def as_node(self, node: int, records: npt.ArrayLike) -> QuestionProblem:
        """Return this problem of one node as a part of a larger one, whose records are elsewhere.

        Raises
        ------
        ValueError
            If there are several nodes here, or not as many records as `records` states.
        """
        counts = tuple(np.asarray(records, np.int64).tolist())
        if self.nodes != 1 or counts[node] != self.records[0]:
            fail("records", f"those of node {node}: {counts[node]}", self.records)
        return replace(self, counts=counts)
