"""What a question is: the kinds of columns it reads, what it sums, and its answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

import dpmesh.statistics.geometry as geometry
from dpmesh._validate import fail
from dpmesh.statistics.answers import Answer
from dpmesh.statistics.geometry import Columns, Floats, Size
from dpmesh.tables.kinds import Category, Flag, Kind, Number

Kinds = Mapping[str, Kind]

MEASURED, A_NUMBER = (Number, Flag), "a number or a flag"
LISTED, A_CATEGORY = (Category, Flag), "a category or a flag"


class Question(ABC):
    """What is asked of a table: a vector for each record, whose sum is released with noise."""

    reads: ClassVar[tuple[str, ...]] = ("column",)
    """The fields that name columns."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return tuple(name for field in self.reads if (name := getattr(self, field)) is not None)

    @abstractmethod
    def size(self, kinds: Kinds) -> Size:
        """Return the public size of a record's vector.

        Raises
        ------
        ValueError
            If a column has no range, or one of another kind.
        """

    @abstractmethod
    def vectors(self, columns: Columns) -> Floats:
        """Return a vector for each record, shape (records, dim)."""

    def require(self, noise: float, records: int) -> None:  # noqa: B027 (most questions need nothing)
        """Fail if records are too few for the noise in a number, before anything is released."""

    @abstractmethod
    def answer(self, kinds: Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Return the answer.

        Parameters
        ----------
        kinds
            The public ranges of the columns.
        total
            The noisy sum, shape (dim,).
        noise
            Standard deviation of the noise in each number.
        records
            The public number of records of all sites.
        """


@dataclass(frozen=True, init=False)
class OfColumns(Question):
    """A question about several columns together, named one by one."""

    columns: tuple[str, ...]
    least: ClassVar[int] = 1

    def __init__(self, *columns: str) -> None:
        object.__setattr__(self, "columns", several(columns, self.least))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return self.columns


@dataclass(frozen=True)
class OneHot(Question):
    """A question whose records are each in one cell: the sensitivity is sqrt(2)."""

    def cells(self, kinds: Kinds) -> int:
        """Return the number of cells."""
        raise NotImplementedError

    def cell(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Return the number of each record's cell."""
        raise NotImplementedError

    def size(self, kinds: Kinds) -> Size:
        """Return the public size of a record's vector."""
        return Size(self.cells(kinds), *geometry.ONE_HOT)

    def vectors(self, columns: Columns) -> Floats:
        """Return a 1 at each record's cell."""
        kinds = {name: column.kind for name, column in columns.items()}
        return geometry.one_hot(self.cell(columns), self.cells(kinds))


def several(given: tuple[str, ...], least: int) -> tuple[str, ...]:
    """Return names of columns, each once."""
    if len(given) < least or len({*given}) < len(given):
        fail("columns", f"at least {least}, each once", ", ".join(given) or "none")
    return given
