"""A task of the benchmark: records as several sites have them, and what the guarantee covers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dpmesh.data import Dataset
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import LinearProblem
from dpmesh_papers.benchmark.setting import MethodRow

DELTA = 1e-5
"""Delta of tasks that state no other."""
EPSILONS = (1.0, 2.0, 4.0, 8.0)
SPLITS = 10


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task of the benchmark.

    Parameters
    ----------
    title
        The labels to learn, and the nodes.
    make
        Returns the problem of a key, which splits and partitions the records, and of a largest
        number of records.
    data
        The subfolder of the folder of all data sets, empty if the data come with a package.
    unit
        Unit of the guarantee: a record, or all records of a user.
    featured
        Returns the problem with the features that the default rule takes for tables; None if it
        takes the columns as they are.
    held_out
        Share of the records that a split holds out; 0 where all test on the publisher's records.
    delta
        Delta of every private row.
    epsilons, splits
        Epsilons and number of splits by default.
    not_covered
        Step that made the features from private records, covered by no epsilon; empty without.
    tuned_on
        True if constants of the rule were chosen on these records.
    extra_rows
        Methods of this task alone, such as a paper's algorithm with the paper's loss and network.
    """

    title: str
    make: Callable[[Key, int | None], LinearProblem]
    data: str = ""
    unit: Literal["record", "user"] = "record"
    featured: Callable[[Key, int | None], LinearProblem] | None = None
    held_out: float = 0.0
    delta: float = DELTA
    epsilons: tuple[float, ...] = EPSILONS
    splits: int = SPLITS
    not_covered: str = ""
    tuned_on: bool = False
    extra_rows: tuple[MethodRow, ...] = ()

    def problem(
        self, key: Key, *, most_records: int | None = None, featured: bool = False
    ) -> LinearProblem:
        """Return the task with the split and the partition of a key, all records of norm 1.

        Parameters
        ----------
        key
            Source of the split, the partition, and the order of each node's records.
        most_records
            Number of records to keep of a task with data files; None for all.
        featured
            If true, with the features of the default rule.

        Raises
        ------
        ValueError, FileNotFoundError, ImportError
            If its data are not there.
        """
        make = self.make
        if featured and self.featured is not None:
            make = self.featured
        if not self.data:
            most_records = None
        problem = make(key, most_records)
        draw = generator(key, Purpose.BATCHES)
        # some methods use each record once, in this order
        shuffled = tuple(draw.permutation(part) for part in problem.partition)
        return replace(problem, partition=shuffled, feature_norm=1.0)


def in_double_precision(records: Dataset) -> Dataset:
    """Return records in float64: float32 rounds models too coarsely for many records' noise."""
    return replace(records, features=records.features.astype(np.float64))
