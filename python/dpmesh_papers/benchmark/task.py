"""A task of the benchmark: records as several sites have them, and what the guarantee covers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

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
    data
        The subfolder of the folder of all data sets, empty if the data come with a package.
    make
        Returns the problem of a key, which splits and partitions, and a largest number of records.
    unit
        Unit of the guarantee: a record, or all records of a user.
    featured
        Returns the problem with the features that the default rule takes for tables.
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
    own_rows
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
    own_rows: tuple[MethodRow, ...] = ()

    def problem(
        self, key: Key, *, most: int | None = None, featured: bool = False
    ) -> LinearProblem:
        """Return the task with the split and the partition of a key, all records of norm 1.

        At most `most` records of a task with data files are kept.

        Raises
        ------
        ValueError, FileNotFoundError
            If its data are not there.
        """
        make = self.featured if featured and self.featured else self.make
        sorted_problem = make(key, most if self.data else None)
        draw = generator(key, Purpose.BATCHES)  # where records are used once, in random order
        mixed = tuple(draw.permutation(part) for part in sorted_problem.partition)
        return replace(sorted_problem, partition=mixed, feature_norm=1.0)
