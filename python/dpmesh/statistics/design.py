"""The terms of a regression, coded by public ranges alone, and their coefficients in other units.

A number is in [-1, 1], linear in its range. A flag is -1 or 1. A category of m levels is a corner
of a regular simplex of length 1 in m - 1 dimensions. The constant and the terms are z: its squared
length is at most 1 + columns, whatever the number of levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import NamedTuple

import numpy as np

from dpmesh.statistics.bins import Floats, ends
from dpmesh.statistics.geometry import Columns
from dpmesh.tables.kinds import Category, Flag, Kind

CONSTANT = "(constant)"


class Block(NamedTuple):
    """The entries of one column in z.

    Attributes
    ----------
    name
        The column.
    kind
        Its public range.
    first, width
        The place of its first entry, and their number.
    """

    name: str
    kind: Kind
    first: int
    width: int

    @property
    def entries(self) -> slice:
        """The places of its entries."""
        return slice(self.first, self.first + self.width)


@dataclass(frozen=True, kw_only=True)
class Design:
    """The columns that a regression has as terms, with their public ranges.

    Parameters
    ----------
    kinds
        The range of each term, in their order.
    """

    kinds: Mapping[str, Kind]

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Where the entries of each column are; the constant is entry 0."""
        result: list[Block] = []
        first = 1
        for name, kind in self.kinds.items():
            width = len(kind.categories) - 1 if isinstance(kind, Category) else 1
            result.append(Block(name, kind, first, width))
            first += width
        return tuple(result)

    @property
    def width(self) -> int:
        """Length of z, p."""
        return 1 + sum(block.width for block in self.blocks)

    @property
    def radius(self) -> float:
        """Largest length of z, R."""
        return sqrt(1 + len(self.kinds))

    @property
    def has_categories(self) -> bool:
        """True if an entry may be other than linear in a number or a flag."""
        return any(isinstance(kind, Category) for kind in self.kinds.values())

    @property
    def may_be_missing(self) -> bool:
        """True if a record may lack a term."""
        return any(kind.may_be_missing for kind in self.kinds.values())

    def present(self, columns: Columns) -> Floats:
        """Return 1 for records that have all terms, else 0, shape (records,)."""
        there = [columns[name].present for name in self.kinds]
        return np.asarray(np.all(there, axis=0), np.float64)

    def rows(self, columns: Columns) -> Floats:
        """Return z of each record, shape (records, width), zeros where a term is missing."""
        whole = self.present(columns)
        result = np.zeros((len(whole), self.width))
        result[:, 0] = 1
        for block in self.blocks:
            column = columns[block.name]
            if isinstance(block.kind, Category):
                corners = simplex(block.width + 1)
                corners = np.vstack([corners, np.zeros(block.width)])  # no category
                result[:, block.entries] = corners[column.places]
            else:
                result[:, block.first] = column.z
        return result * whole[:, np.newaxis]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of coefficients in the units of the columns."""
        result = [CONSTANT]
        for block in self.blocks:
            if isinstance(block.kind, Category):
                levels = block.kind.categories
                result += [f"{block.name}, {level} against {levels[0]}" for level in levels[1:]]
            elif isinstance(block.kind, Flag):
                result.append(f"{block.name}, true against false")
            else:
                result.append(f"{block.name}, per unit")
        return tuple(result)

    @cached_property
    def to_units(self) -> Floats:
        """The linear map from coefficients of z to those in the units of the columns.

        Shape (width, width). The constant is then for numbers 0, flags false and first levels.
        """
        result = np.zeros((self.width, self.width))
        result[0, 0] = 1
        for block in self.blocks:
            if isinstance(block.kind, Category):
                corners = simplex(block.width + 1)
                result[0, block.entries] = corners[0]
                result[block.entries, block.entries] = corners[1:] - corners[0]
                continue
            low, high = ends(block.kind)
            result[0, block.first] = -(low + high) / (high - low)
            result[block.first, block.first] = 2 / (high - low)
        return result

    def spans(self) -> Floats:
        """Return how much each coefficient's column may vary, in its units, shape (width,)."""
        result = np.ones(self.width)
        for block in self.blocks:
            if not isinstance(block.kind, Category):
                low, high = ends(block.kind)
                result[block.first] = high - low
        return result

    def largest_score(self, coefficients: Floats) -> float:
        """Return the largest possible ``abs(z @ coefficients)``."""
        largest = abs(float(coefficients[0]))
        for block in self.blocks:
            part = coefficients[block.entries]
            if isinstance(block.kind, Category):
                largest += float(np.abs(simplex(block.width + 1) @ part).max())
            else:
                largest += abs(float(part[0]))
        return largest

    def columns_along(self, direction: Floats) -> list[str]:
        """Return the columns with the largest loadings of a unit vector, the largest first."""
        loadings = {CONSTANT: abs(float(direction[0]))}
        for block in self.blocks:
            loadings[block.name] = float(np.linalg.norm(direction[block.entries]))
        most = max(loadings.values())
        order = sorted(loadings, key=lambda name: -loadings[name])
        return [name for name in order if loadings[name] > most / 3]


def simplex(levels: int) -> Floats:
    """Return the corners of a regular simplex of length 1, shape (levels, levels - 1).

    They are scaled Helmert contrasts; of two levels -1 and 1.
    """
    result = np.zeros((levels, levels - 1))
    for place in range(1, levels):
        length = sqrt(place * (place + 1))
        result[:place, place - 1] = -1 / length
        result[place, place - 1] = place / length
    return result * sqrt(levels / (levels - 1))
