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
        blocks: list[Block] = []
        first = 1
        for name, kind in self.kinds.items():
            width = 1
            if isinstance(kind, Category):
                width = len(kind.categories) - 1
            blocks.append(Block(name, kind, first, width))
            first += width
        return tuple(blocks)

    @property
    def width(self) -> int:
        """Length p of a record's vector z: the constant and the entries of all blocks."""
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
        present_by_term = [columns[name].present for name in self.kinds]
        return np.asarray(np.all(present_by_term, axis=0), np.float64)

    def rows(self, columns: Columns) -> Floats:
        """Return z of each record, shape (records, width), zeros where a term is missing."""
        has_all_terms = self.present(columns)
        rows = np.zeros((len(has_all_terms), self.width))
        rows[:, 0] = 1
        for block in self.blocks:
            column = columns[block.name]
            if isinstance(block.kind, Category):
                corners = simplex(block.width + 1)
                corners = np.vstack([corners, np.zeros(block.width)])  # no category
                rows[:, block.entries] = corners[column.places]
            else:
                rows[:, block.first] = column.z
        return rows * has_all_terms[:, np.newaxis]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of coefficients in the units of the columns."""
        names = [CONSTANT]
        for block in self.blocks:
            if isinstance(block.kind, Category):
                levels = block.kind.categories
                names += [f"{block.name}, {level} against {levels[0]}" for level in levels[1:]]
            elif isinstance(block.kind, Flag):
                names.append(f"{block.name}, true against false")
            else:
                names.append(f"{block.name}, per unit")
        return tuple(names)

    @cached_property
    def to_units(self) -> Floats:
        """The linear map from coefficients of z to those in the units of the columns.

        Shape (width, width). The constant is then for numbers 0, flags false and first levels.

        A number x has ``z = (2 x - low - high) / (high - low)``. A level of a category has the
        score of its corner, and its coefficient is the difference from that of the first level.
        """
        to_units = np.zeros((self.width, self.width))
        to_units[0, 0] = 1
        for block in self.blocks:
            if isinstance(block.kind, Category):
                corners = simplex(block.width + 1)
                to_units[0, block.entries] = corners[0]
                to_units[block.entries, block.entries] = corners[1:] - corners[0]
                continue
            low, high = ends(block.kind)
            to_units[0, block.first] = -(low + high) / (high - low)
            to_units[block.first, block.first] = 2 / (high - low)
        return to_units

    def spans(self) -> Floats:
        """Return how much each coefficient's column may vary, in its units, shape (width,)."""
        spans = np.ones(self.width)
        for block in self.blocks:
            if not isinstance(block.kind, Category):
                low, high = ends(block.kind)
                spans[block.first] = high - low
        return spans

    def largest_score(self, coefficients: Floats) -> float:
        """Return the largest possible ``abs(z @ coefficients)``."""
        largest = abs(float(coefficients[0]))
        for block in self.blocks:
            block_coefficients = coefficients[block.entries]
            if isinstance(block.kind, Category):
                scores_of_levels = simplex(block.width + 1) @ block_coefficients
                largest += float(np.abs(scores_of_levels).max())
            else:
                largest += abs(float(block_coefficients[0]))
        return largest

    def columns_along(self, direction: Floats) -> list[str]:
        """Return columns by their loadings in a unit vector, the largest first.

        Columns with less than a third of the largest loading are left out.
        """
        loadings = {CONSTANT: abs(float(direction[0]))}
        for block in self.blocks:
            loadings[block.name] = float(np.linalg.norm(direction[block.entries]))
        largest = max(loadings.values())
        by_loading = sorted(loadings, key=lambda name: -loadings[name])
        return [name for name in by_loading if loadings[name] > largest / 3]


def simplex(levels: int) -> Floats:
    """Return the corners of a regular simplex of length 1, shape (levels, levels - 1).

    They are scaled Helmert contrasts: entry k - 1 compares level k with all levels before it. Of
    two levels they are -1 and 1.
    """
    contrasts = np.zeros((levels, levels - 1))
    for level in range(1, levels):
        length = sqrt(level * (level + 1))
        contrasts[:level, level - 1] = -1 / length
        contrasts[level, level - 1] = level / length
    return contrasts * sqrt(levels / (levels - 1))
