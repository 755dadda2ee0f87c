"""Rows drawn from released two-way tables, and how far the tables of these rows are from the true.

Everything here follows from released numbers, and costs nothing more:

1. one-way margins, the best means of what all tables say of a column;
2. each table, shrunk towards independence by what its noise explains, with these margins;
3. the tree of the largest mutual information (Chow and Liu), from which twice as many rows are
   drawn;
4. weights of these rows that bring all tables near (raking: the log-linear model of all pairs on
   the drawn rows), and rows drawn by them.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from io import StringIO
from math import floor, pi, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmesh._core import __version__
from dpmesh._table import Table as Shown
from dpmesh._validate import integer
from dpmesh.statistics.bins import Floats
from dpmesh.statistics.two_way import NO_DATA, BinnedColumn, PairTables
from dpmesh.tables.table import Table

Places = npt.NDArray[np.int64]
"""The cell of each value, by row and column."""

Pair = tuple[int, int]
"""Numbers of two columns, the smaller one first."""

TwoWayTables = Mapping[Pair, Floats]
"""Counts of the cells of each pair of columns, those of the first in rows."""

MARGIN_PASSES = 30
"""Passes of iterative proportional fitting of a table to its margins."""

RAKE_PASSES = 15
LAST_PASSES = 5
"""Passes of raking over all tables, and how many of them are gentle: the last ones."""

STRONG = 0.7
GENTLE = 0.4
"""Exponents of the factors of a pass of raking, and of a gentle one."""

LEAST_FACTOR = 0.2
LARGEST_FACTOR = 5.0
"""Smallest and largest factor of a weight in one pass, before its exponent."""

TINY = 1e-9
"""Added to the counts of a fitted table, and their least sum: no margin is 0."""

_LEAST_SHARE = 1e-12
"""Smaller shares count as this where they divide."""


def projected(counts: Floats, total: float) -> Floats:
    """Return the nearest counts that are not negative and add up to the total.

    They are ``max(count - c, 0)``. If the k largest counts remain positive, c is ``(their sum -
    total) / k``; k is the largest number for which the k-th count exceeds this c (Duchi et al.,
    2008).
    """
    falling = np.sort(counts.ravel())[::-1]
    shifts = (np.cumsum(falling) - total) / np.arange(1, falling.size + 1)  # c for each k
    last_positive = int(np.flatnonzero(falling > shifts)[-1])
    return np.asarray(np.maximum(counts - shifts[last_positive], 0))


def margins_of(tables: TwoWayTables, sizes: Sequence[int], records: int) -> list[Floats]:
    """Return the counts of each column: means of what its tables say, weighted by their noise.

    The count of a cell is the sum of a row of a table, of as many noisy counts as the other column
    has cells: its weight is one over their number.
    """
    sums = [np.zeros(size) for size in sizes]
    weights = np.zeros(len(sizes))
    for (a, b), counts in tables.items():
        sums[a] += counts.sum(axis=1) / sizes[b]
        weights[a] += 1 / sizes[b]
        sums[b] += counts.sum(axis=0) / sizes[a]
        weights[b] += 1 / sizes[a]
    return [projected(total / weight, records) for total, weight in zip(sums, weights, strict=True)]


class Fitted(NamedTuple):
    """A table near the noisy one, with given margins.

    Attributes
    ----------
    table
        Counts that are not negative.
    dependence
        The share of the squared distance from independence that the noise does not explain.
    """

    table: Floats
    dependence: float


def fitted(counts: Floats, rows: Floats, columns: Floats, records: int, noise: float) -> Fitted:
    """Return a table with these margins, shrunk to independence by what the noise explains.

    The interaction is what is left of the counts beyond independence, with all its margins 0: ``(r
    - 1) (c - 1)`` degrees of freedom. Noise alone has the expected squared sum ``noise^2 (r - 1)
    (c - 1)``; the interaction is multiplied with the remaining share of its squared sum (as by
    James and Stein). The margins are then met by iterative proportional fitting.

    Parameters
    ----------
    counts
        Noisy counts, shape (r, c).
    rows, columns
        The margins, shapes (r,) and (c,).
    records
        The public number of records.
    noise
        Standard deviation of the noise in each count.
    """
    independent = np.outer(rows, columns) / records
    interaction = counts - independent
    interaction = interaction - interaction.mean(axis=1, keepdims=True)
    interaction = interaction - interaction.mean(axis=0, keepdims=True)
    squared_sum = float(np.square(interaction).sum())
    degrees = (counts.shape[0] - 1) * (counts.shape[1] - 1)
    dependence = 0.0
    if squared_sum > 0:
        dependence = max(0.0, 1 - noise**2 * degrees / squared_sum)
    table = projected(independent + interaction * dependence, records) + TINY
    for _ in range(MARGIN_PASSES):
        row_factors = rows / np.maximum(table.sum(axis=1), TINY)
        table = table * row_factors[:, np.newaxis]
        column_factors = columns / np.maximum(table.sum(axis=0), TINY)
        table = table * column_factors
    return Fitted(table, dependence)


def information(table: Floats) -> float:
    """Return the mutual information of a table, in nats."""
    shares = table / table.sum()
    independent = shares.sum(axis=1, keepdims=True) * shares.sum(axis=0, keepdims=True)
    is_positive = shares > 0
    ratios = shares[is_positive] / independent[is_positive]
    return float((shares[is_positive] * np.log(ratios)).sum())


def tree_of(tables: TwoWayTables, columns: int) -> list[tuple[int, int]]:
    """Return the tree of the largest mutual information, as (parent, child) of each edge.

    It grows from column 0 by the edge of the largest information that leads out of it (the
    algorithm of Prim); a parent comes before its children.
    """
    weights = {pair: information(table) for pair, table in tables.items()}
    in_tree = {0}
    edges = []
    while len(in_tree) < columns:
        leading_out = [
            (first, second)
            for first, second in weights
            if (first in in_tree) != (second in in_tree)
        ]
        first, second = max(leading_out, key=lambda pair: (weights[pair], pair))
        if first in in_tree:
            parent, child = first, second
        else:
            parent, child = second, first
        edges.append((parent, child))
        in_tree.add(child)
    return edges


def table_between(tables: TwoWayTables, parent: int, child: int) -> Floats:
    """Return the table of two columns, the first of them in rows."""
    if (parent, child) in tables:
        return tables[parent, child]
    return np.asarray(tables[child, parent].T)


def drawn_from_tree(
    tree: Sequence[tuple[int, int]],
    tables: TwoWayTables,
    margins: Sequence[Floats],
    rows: int,
    draw: np.random.Generator,
) -> Places:
    """Return rows drawn from the distribution of a tree, shape (rows, columns).

    The root is drawn by its margin, and each child given the cell of its parent.
    """
    places = np.zeros((rows, len(margins)), np.int64)
    root = tree[0][0]
    root_shares = margins[root] / margins[root].sum()
    places[:, root] = draw.choice(len(margins[root]), rows, p=root_shares)
    for parent, child in tree:
        table = table_between(tables, parent, child)
        row_sums = np.maximum(table.sum(axis=1, keepdims=True), _LEAST_SHARE)
        cumulative_shares = np.cumsum(table / row_sums, axis=1)  # of the child, by parent's cell
        last_cell = cumulative_shares.shape[1] - 1
        coins = draw.random(rows)
        for parent_cell, shares in enumerate(cumulative_shares):
            is_in_cell = places[:, parent] == parent_cell
            child_cells = np.searchsorted(shares, coins[is_in_cell], side="left")
            places[is_in_cell, child] = np.minimum(child_cells, last_cell)
    return places


def raked(
    rows: Places,
    tables: TwoWayTables,
    sizes: Sequence[int],
    on_pass: Callable[[], object] | None = None,
) -> Floats:
    """Return weights of rows that bring all two-way tables near the fitted ones, of sum 1.

    For one table after another, the weights of the rows in a cell are multiplied with the cell's
    target share over its present one, to a power below 1 so that noisy tables do not fight.

    Parameters
    ----------
    rows
        The cells of drawn rows, shape (rows, columns).
    tables
        The fitted tables.
    sizes
        Number of cells of each column.
    on_pass
        Called after each pass over all tables.
    """
    weights = np.full(len(rows), 1.0 / len(rows))
    targets = {pair: table.ravel() / table.sum() for pair, table in tables.items()}
    cells_of_rows = {
        (first, second): rows[:, first] * sizes[second] + rows[:, second]
        for first, second in tables
    }
    for rake_pass in range(RAKE_PASSES):
        power = STRONG
        if rake_pass >= RAKE_PASSES - LAST_PASSES:
            power = GENTLE
        for pair, target in targets.items():
            cells = cells_of_rows[pair]
            present = np.bincount(cells, weights, len(target))
            ratios = np.where(present > 0, target / np.maximum(present, _LEAST_SHARE), 1.0)
            factors = np.clip(ratios, LEAST_FACTOR, LARGEST_FACTOR) ** power
            weights = weights * factors[cells]
            weights = weights / weights.sum()
        if on_pass is not None:
            on_pass()
    return weights


def resampled(rows: Places, weights: Floats, count: int, draw: np.random.Generator) -> Places:
    """Return `count` rows drawn by their weights: each as often as its share, rounded down or up.

    This is systematic sampling: equally spaced marks from a random start choose the rows in whose
    part of the cumulated weights they lie.
    """
    marks = (np.arange(count) + draw.random()) / count
    row_of_mark = np.searchsorted(np.cumsum(weights), marks)
    row_of_mark = np.minimum(row_of_mark, len(rows) - 1)
    return np.asarray(draw.permutation(rows[row_of_mark]))


class PairError(NamedTuple):
    """Error bound of a two-way table of drawn rows, against the table of all records.

    Attributes
    ----------
    pair
        The columns.
    bound
        The usual bound of the total variation: in expectation, under assumptions that the docs
        state, without a level of confidence.
    estimate
        A heuristic estimate of the total variation.
    shows_dependence
        Whether independence of the two columns is further away than the bound.
    """

    pair: str
    bound: float
    estimate: float
    shows_dependence: bool


def error_of(name: str, noisy: Floats, drawn: Floats, records: int, noise: float) -> PairError:
    """Return the error of one table from released numbers.

    A released table has m cells, whose shares p have noise n of deviation s each. Let d be the
    squared distance of the drawn shares q from the released ones, less the noise's ``m s^2``.

    Drawn shares may follow a part f of the noise, from 0 to 1: ``q = p + f n + r``, with r
    independent of n. Then, on average over n,

        |q - (p + n)|^2 = (1 - f)^2 m s^2 + |r|^2,     so that d = (f^2 - 2 f) m s^2 + |r|^2,
        |q - p|^2       = f^2 m s^2 + |r|^2            = d + 2 f m s^2  <=  d + 2 m s^2.

    By the inequality of Cauchy and Schwarz, shares at a squared distance D have a total variation
    of at most ``sqrt(m D) / 2``. The bound has ``D = d + 2 m s^2``, for f = 1. The estimate takes
    ``D = d + m s^2 / 4``, for f = 1/8, a guess, and normal differences in all cells, whose mean
    absolute value is ``sqrt(2 / pi)`` of their deviation: ``sqrt(2 / pi) sqrt(m D) / 2``.

    Parameters
    ----------
    name
        Names of both columns.
    noisy
        The released counts.
    drawn
        Shares of drawn rows.
    records
        The public number of records.
    noise
        Standard deviation of the noise in each count.
    """
    cells = noisy.size
    share_noise = noise / records
    squared_distance = float(np.square(noisy / records - drawn).sum())
    without_noise = max(squared_distance - cells * share_noise**2, 0.0)  # d
    bound = 0.5 * sqrt(cells * (without_noise + 2 * cells * share_noise**2))
    estimate = 0.5 * sqrt(2 / pi) * sqrt(cells * without_noise + cells**2 * share_noise**2 / 4)
    independent = np.outer(drawn.sum(axis=1), drawn.sum(axis=0))
    dependence = float(np.abs(drawn - independent).sum()) / 2  # total variation from independence
    return PairError(
        pair=name,
        bound=min(bound, 1.0),
        estimate=min(estimate, 1.0),
        shows_dependence=dependence > bound,
    )


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Rows drawn from released tables. They are no data: see `text`.

    Parameters
    ----------
    tables
        The released tables.
    places
        The cell of each value, shape (rows, columns).
    errors
        How far each two-way table may be from that of all records.
    seed
        Of the draw: with the same version of dpmesh it gives the same rows on one platform.
    """

    tables: PairTables
    places: Places
    errors: tuple[PairError, ...]
    seed: int
    text: str = NO_DATA

    @cached_property
    def table(self) -> Table:
        """The rows: numbers uniform in their bins, None where a value is missing."""
        draw = np.random.default_rng([self.seed, 1])
        names = tuple(column.name for column in self.tables.columns)
        columns = tuple(
            values_of(column, places, draw)
            for column, places in zip(self.tables.columns, self.places.T, strict=True)
        )
        return Table(names, columns)

    def to_csv(self) -> str:
        """Return the rows as CSV with a header; missing values are empty."""
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.table.names or ())
        writer.writerows(zip(*self.table.columns, strict=True))
        return text.getvalue()

    def shown(self) -> Shown:
        """Return the errors of all pairs as a table."""
        rows = [
            [
                error.pair,
                f"{100 * error.estimate:.1f}%",
                f"{100 * error.bound:.1f}%",
                "yes" if error.shows_dependence else "cannot be shown",
            ]
            for error in self.errors
        ]
        heads = ["total variation from the true table", "estimate", "usual bound", "dependence"]
        return Shown(heads, rows)

    def as_dict(self) -> dict[str, Any]:
        """Return what must stand beside drawn rows, in plain types."""
        return {
            "text": self.text,
            "rows": len(self.places),
            "records": self.tables.records,
            "seed": self.seed,
            "version": __version__,
            "errors": [error._asdict() for error in self.errors],
        }


def values_of(
    column: BinnedColumn, places: Places, draw: np.random.Generator
) -> npt.NDArray[np.object_]:
    """Return values for cells of a column: of numbers and dates uniform in their bins.

    The cell after the last one is of missing values, None. `places` has the shape (rows,).
    """
    coins = draw.random(len(places))
    if column.values:
        values = np.array([*column.values, None], dtype=object)
        return np.asarray(values[places])
    edges = np.array(column.edges)
    bins = len(edges) - 1
    bin_of_row = np.minimum(places, bins - 1)
    low = edges[bin_of_row]
    drawn = low + (edges[bin_of_row + 1] - low) * coins
    result = np.empty(len(places), dtype=object)
    for row, number in enumerate(drawn.tolist()):
        if column.is_date:
            result[row] = str(date.fromordinal(floor(number)))
        else:
            result[row] = float(f"{number:.9g}")
    result[places == bins] = None
    return result


def synthesize(
    released: PairTables, rows: int, seed: int = 0, on_pass: Callable[[], object] | None = None
) -> Synthetic:
    """Draw rows from released two-way tables.

    Parameters
    ----------
    released
        The tables.
    rows
        Number of rows to draw, at least 1; the privacy guarantee does not depend on it.
    seed
        Seed of the public coins that draw the rows, at least 0 and below 2**63.
    on_pass
        Called after each of the `RAKE_PASSES` over all tables, to show progress.

    Returns
    -------
    The drawn rows, with an error bound for each of their two-way tables.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    integer("rows", rows, at_least=1, below=2**31)
    integer("seed", seed, at_least=0, below=2**63)
    draw = np.random.default_rng([seed, 0])
    noisy_tables = released.tables
    sizes = released.sizes
    records = released.records
    margins = margins_of(noisy_tables, sizes, records)
    fitted_tables = {
        (a, b): fitted(counts, margins[a], margins[b], records, released.noise).table
        for (a, b), counts in noisy_tables.items()
    }
    candidates = drawn_from_tree(
        tree_of(fitted_tables, len(sizes)),
        fitted_tables,
        margins,
        rows=2 * max(records, rows),
        draw=draw,
    )
    weights = raked(candidates, fitted_tables, sizes, on_pass)
    places = resampled(candidates, weights, rows, draw)
    errors = []
    for (a, b), counts in noisy_tables.items():
        cells = places[:, a] * sizes[b] + places[:, b]
        drawn_counts = np.bincount(cells, minlength=counts.size).reshape(counts.shape)
        name = f"{released.columns[a].name} and {released.columns[b].name}"
        errors.append(error_of(name, counts, drawn_counts / rows, records, released.noise))
    return Synthetic(tables=released, places=places, errors=tuple(errors), seed=seed)
