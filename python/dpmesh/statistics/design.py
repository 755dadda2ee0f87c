"""The design of a regression: coding of its terms (independent variables), and units.

`Design.rows` codes each record as a vector z, by public ranges alone. The first entry is the
constant 1. A number is mapped linearly from its range to [-1, 1]. A flag is -1 or 1. A category
with m levels is a corner of a regular simplex in m - 1 dimensions, of length 1. So the squared
length of z is at most 1 + the number of columns, for any number of levels. `Design.to_units`
converts coefficients of z to the units of the columns.
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
        Name of the column.
    kind
        Public range of the column.
    first, width
        Index of the column's first entry in z, and number of its entries.
    """

    name: str
    kind: Kind
    first: int
    width: int

    @property
    def entries(self) -> slice:
        """Indices of the column's entries in z."""
        return slice(self.first, self.first + self.width)


@dataclass(frozen=True, kw_only=True)
class Design:
    """The terms of a regression with their public ranges.

    Parameters
    ----------
    kinds
        Public range of each term's column, by name, in order.
    """

    kinds: Mapping[str, Kind]

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The entries of each column in z, after the constant."""
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
        """Number p of entries of a record's vector z, and of coefficients."""
        return 1 + sum(block.width for block in self.blocks)

    @property
    def radius(self) -> float:
        """Largest L2 norm R of z."""
        return sqrt(1 + len(self.kinds))

    @property
    def has_categories(self) -> bool:
        """True if a term is a category."""
        return any(isinstance(kind, Category) for kind in self.kinds.values())

    @property
    def may_be_missing(self) -> bool:
        """True if a record may lack the value of a term."""
        return any(kind.may_be_missing for kind in self.kinds.values())

    def present(self, columns: Columns) -> Floats:
        """Return 1 for records that have all terms, else 0, shape (records,)."""
        present_by_term = [columns[name].present for name in self.kinds]
        return np.asarray(np.all(present_by_term, axis=0), np.float64)

    def rows(self, columns: Columns) -> Floats:
        """Return z of each record, shape (records, width); zeros if a term is missing."""
        has_all_terms = self.present(columns)
        rows = np.zeros((len(has_all_terms), self.width))
        rows[:, 0] = 1
        for block in self.blocks:
            column = columns[block.name]
            if isinstance(block.kind, Category):
                corners = simplex(block.width + 1)
                no_category = np.zeros(block.width)  # at the place after the last category
                corners = np.vstack([corners, no_category])
                rows[:, block.entries] = corners[column.places]
            else:
                rows[:, block.first] = column.z
        return rows * has_all_terms[:, np.newaxis]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the coefficients in the units of the columns (`to_units`), shape (width,)."""
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
        """Linear map from coefficients of z to coefficients in the units of the columns.

        Shape (width, width). In these units the constant is the score of a record whose numbers are
        0, flags false and categories their first levels. The coefficient of another level is the
        difference from the first level. A number x has ``z = (2 x - low - high) / (high - low)``.
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
        """Return the width of the public range of each coefficient's number, shape (width,).

        It is 1 for a flag, for levels of categories, and for the constant.
        """
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
        """Return the names of the columns with the largest loadings in a unit vector, in order.

        The loading of a column is the L2 norm of its entries. Columns with less than a third of the
        largest loading are left out.

        Parameters
        ----------
        direction
            Unit vector, shape (width,).
        """
        loadings = {CONSTANT: abs(float(direction[0]))}
        for block in self.blocks:
            loadings[block.name] = float(np.linalg.norm(direction[block.entries]))
        largest = max(loadings.values())
        by_loading = sorted(loadings, key=lambda name: -loadings[name])
        return [name for name in by_loading if loadings[name] > largest / 3]


def simplex(levels: int) -> Floats:
    """Return the corners of a regular simplex, each of L2 norm 1, shape (levels, levels - 1).

    They are scaled Helmert contrasts: entry k - 1 compares level k with all levels before it. The
    corners of two levels are -1 and 1.
    """
    contrasts = np.zeros((levels, levels - 1))
    for level in range(1, levels):
        length = sqrt(level * (level + 1))
        contrasts[:level, level - 1] = -1 / length
        contrasts[level, level - 1] = level / length
    return contrasts * sqrt(levels / (levels - 1))
