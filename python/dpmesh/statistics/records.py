"""The records of parties of a contract, as a problem whose sums answer questions.

Engines between parties need a `Dataset` of numbers. `encoded` writes each cell as two numbers, and
`QuestionProblem` reads them back as columns. `dpmesh.statistics.ask.RecordVectors` then makes the
vectors, as in `ask`.
"""

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
from dpmesh.statistics.ask import Questions, RecordVectors, RoundVectors
from dpmesh.statistics.bins import Floats
from dpmesh.statistics.geometry import Column
from dpmesh.statistics.questions import Vectors

PER_COLUMN = 2
"""Number of numbers of a cell: its value (0 if missing), and 1 if it is present, else 0."""


def encoded(questions: Questions, columns: Mapping[str, Column]) -> Floats:
    """Encode the cells of columns as numbers, shape (records, `PER_COLUMN` * columns)."""
    parts = [columns[name].encoded for name in questions.kinds]
    return np.concatenate(parts, axis=1)


def decoded(questions: Questions, cells: Floats) -> dict[str, Column]:
    """Return the columns, bit by bit, from an array that `encoded` returned."""
    columns: dict[str, Column] = {}
    for position, (name, kind) in enumerate(questions.kinds.items()):
        first = PER_COLUMN * position
        columns[name] = Column.decoded(kind, cells[:, first : first + PER_COLUMN])
    return columns


@dataclass(frozen=True, eq=False)
class QuestionProblem:
    """Records of some nodes whose sums answer questions.

    Parameters
    ----------
    train
        Cells as numbers, see `encoded`.
    partition
        Indices of the records of each node.
    questions
        The questions.
    counts
        Public number of records of each node of the whole problem, if this problem has the records
        of one node alone. None if this is the whole problem.
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
        """Number of nodes whose records this problem has."""
        return len(self.partition)

    @property
    def records(self) -> npt.NDArray[np.int64]:
        """Number of records of each node whose records this problem has, shape (nodes,)."""
        return np.array([len(part) for part in self.partition])

    @property
    def all_records(self) -> npt.NDArray[np.int64]:
        """Number of records of each node of the whole problem."""
        return self.records if self.counts is None else np.array(self.counts)

    @property
    def dim(self) -> int:
        """Number of elements of the sums of all rounds together."""
        return sum(self.questions.lengths)

    @cached_property
    def asked(self) -> RecordVectors:
        """The records as vectors."""
        cells = self.train.features
        if isinstance(cells, sparse.csr_array):
            cells = cells.toarray()
        columns = decoded(self.questions, np.asarray(cells, np.float64))
        return RecordVectors(questions=self.questions, columns=columns, parts=self.partition)

    def vectors(self, node: int) -> Iterator[Vectors]:
        """Return the vectors of a node's records in round 0, in blocks of shape (records, dim)."""
        return self.in_round(0, ()).vectors(node)

    def in_round(self, t: int, totals: Sequence[NoisyTotal]) -> RoundVectors:
        """Return the problem of round t, given the noisy sums of earlier rounds."""
        return replace(self.asked.in_round(t, totals), counts=self.counts)

    def as_node(self, node: int, records: npt.ArrayLike) -> QuestionProblem:
        """Return this problem of a single node as a part of a larger problem.

        Parameters
        ----------
        node
            Index of this node in the larger problem.
        records
            Public number of records of each node of the larger problem, shape (nodes,).

        Raises
        ------
        ValueError
            If this problem has several nodes, or its number of records is not ``records[node]``.
        """
        counts = tuple(np.asarray(records, np.int64).tolist())
        if self.nodes != 1 or counts[node] != self.records[0]:
            fail("records", f"those of node {node}: {counts[node]}", self.records)
        return replace(self, counts=counts)
