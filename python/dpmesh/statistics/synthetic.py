"""Synthetic records, drawn from the noisy two-way tables of `Pairs`, with error bounds.

All is post-processing of released tables, and needs no further epsilon. The steps of `synthesize`:

1. `margins_of`: estimate the margin of each column from all tables, weighted by their noise.
2. `fit_table`: shrink each table towards independence by the share that noise explains, and fit it
   to the margins.
3. `tree_of`, `draw_from_tree`: find the spanning tree of the largest mutual information (Chow and
   Liu), and draw candidate rows from its distribution.
4. `rake`, `resample`: weight the candidates so that all two-way tables agree (raking, a log-linear
   model of all pairs), and draw the rows by these weights.
5. `error_of`: bound the total variation between the tables of the rows and of all records.

A *place* is the index of a value's cell (category or bin) in its column.
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
"""Index of the cell of each value, shape (rows, columns) or (rows,)."""

Pair = tuple[int, int]
"""Indices of two columns, the smaller one first."""

TwoWayTables = Mapping[Pair, Floats]
"""Counts by cell of each pair of columns: first column in rows, second in columns."""

CANDIDATES_PER_ROW = 2
"""Number of candidate rows for each record, or for each synthetic row if there are more of them."""

MARGIN_PASSES = 30
"""Number of passes of iterative proportional fitting of a table to its margins."""

RAKE_PASSES = 15
LAST_PASSES = 5
"""Number of passes of raking over all tables, and of the last passes with a smaller exponent."""

STRONG = 0.7
GENTLE = 0.4
"""Exponents of the factors of raking: in the first passes, and in the last passes."""

LEAST_FACTOR = 0.2
LARGEST_FACTOR = 5.0
"""Smallest and largest factor of a weight for one table in a pass, before the exponent."""

TINY = 1e-9
"""Constant that is added to the counts of a fitted table, and smallest divisor of its margins."""

_LEAST_SHARE = 1e-12
"""Smallest divisor where shares are divided."""


def project(counts: Floats, total: float) -> Floats:
    """Return the nearest counts (in L2 norm) that are not negative and add up to the total.

    They are ``max(count - c, 0)`` for a shift c. If the k largest counts remain positive, c is
    ``(their sum - total) / k``; k is the largest number for which the k-th count exceeds c (Duchi
    et al., 2008).
    """
    falling = np.sort(counts.ravel())[::-1]
    shifts = (np.cumsum(falling) - total) / np.arange(1, falling.size + 1)  # c for each k
    last_positive = int(np.flatnonzero(falling > shifts)[-1])
    return np.asarray(np.maximum(counts - shifts[last_positive], 0))


def margins_of(tables: TwoWayTables, sizes: Sequence[int], records: int) -> list[Floats]:
    """Estimate the counts of each column's cells from all its tables, by inverse-variance weights.

    In one table, the count of a cell is the sum of a row: as many noisy counts as the other column
    has cells. So the weight of this estimate is one over that number. The counts of a column are
    not negative, and add up to the number of records.

    Parameters
    ----------
    tables
        Noisy two-way tables.
    sizes
        Number of cells of each column.
    records
        Public number of records.
    """
    sums = [np.zeros(size) for size in sizes]
    weights = np.zeros(len(sizes))
    for (a, b), counts in tables.items():
        sums[a] += counts.sum(axis=1) / sizes[b]
        weights[a] += 1 / sizes[b]
        sums[b] += counts.sum(axis=0) / sizes[a]
        weights[b] += 1 / sizes[a]
    return [project(total / weight, records) for total, weight in zip(sums, weights, strict=True)]


class Fitted(NamedTuple):
    """A smoothed two-way table with given margins.

    Attributes
    ----------
    table
        Counts, none negative, shape (r, c).
    dependence
        Share of the squared distance from independence that noise does not explain, in [0, 1].
    """

    table: Floats
    dependence: float


def fit_table(counts: Floats, rows: Floats, columns: Floats, records: int, noise: float) -> Fitted:
    """Shrink a noisy table towards independence, and fit it to margins.

    The *interaction* is the difference between the counts and independence, centered so that its
    margins are 0. It has ``(r - 1) (c - 1)`` degrees of freedom. Noise alone has the expected
    squared sum ``noise^2 (r - 1) (c - 1)``. The interaction is multiplied with the remaining share
    of its squared sum, as by James and Stein. Iterative proportional fitting then establishes the
    margins.

    Parameters
    ----------
    counts
        Noisy counts, shape (r, c).
    rows, columns
        The margins: counts of the first and of the second column, shapes (r,) and (c,).
    records
        Public number of records.
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
    table = project(independent + interaction * dependence, records) + TINY
    for _ in range(MARGIN_PASSES):
        row_factors = rows / np.maximum(table.sum(axis=1), TINY)
        table = table * row_factors[:, np.newaxis]
        column_factors = columns / np.maximum(table.sum(axis=0), TINY)
        table = table * column_factors
    return Fitted(table, dependence)


def information(table: Floats) -> float:
    """Return the mutual information of the two columns of a table, in nats."""
    shares = table / table.sum()
    independent = shares.sum(axis=1, keepdims=True) * shares.sum(axis=0, keepdims=True)
    is_positive = shares > 0
    ratios = shares[is_positive] / independent[is_positive]
    return float((shares[is_positive] * np.log(ratios)).sum())


def tree_of(tables: TwoWayTables, columns: int) -> list[tuple[int, int]]:
    """Return the spanning tree of columns with the largest mutual information (Prim's algorithm).

    Parameters
    ----------
    tables
        Two-way tables of all pairs of columns.
    columns
        Number of columns.

    Returns
    -------
    The edges (parent, child), as indices of columns. Column 0 is the root; the edge to a parent
    comes before the edges to its children.
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
    """Return the table of two columns, with the parent's cells in rows."""
    if (parent, child) in tables:
        return tables[parent, child]
    return np.asarray(tables[child, parent].T)


def draw_from_tree(
    tree: Sequence[tuple[int, int]],
    tables: TwoWayTables,
    margins: Sequence[Floats],
    rows: int,
    draw: np.random.Generator,
) -> Places:
    """Draw rows from the distribution of a tree; return their places, shape (rows, columns).

    The root is drawn by its margin, and each child from its distribution given the parent's cell.

    Parameters
    ----------
    tree
        Edges (parent, child), as of `tree_of`.
    tables
        Fitted two-way tables.
    margins
        Counts of each column's cells.
    rows
        Number of rows to draw.
    draw
        Random generator.
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


def rake(
    rows: Places,
    tables: TwoWayTables,
    sizes: Sequence[int],
    on_pass: Callable[[], object] | None = None,
) -> Floats:
    """Return weights of rows, of sum 1, whose weighted two-way tables are near the fitted tables.

    A pass visits each table in turn. It multiplies the weights of the rows in a cell with
    (target share / present share) ** exponent. The exponent is below 1, so that contradictory noisy
    tables converge to a compromise.

    Parameters
    ----------
    rows
        Places of the candidate rows, shape (rows, columns).
    tables
        Fitted two-way tables.
    sizes
        Number of cells of each column.
    on_pass
        Function without arguments, called after each pass over all tables.
    """
    weights = np.full(len(rows), 1.0 / len(rows))
    targets = {pair: table.ravel() / table.sum() for pair, table in tables.items()}
    cells_of_rows = {
        (first, second): rows[:, first] * sizes[second] + rows[:, second]
        for first, second in tables
    }
    for rake_pass in range(RAKE_PASSES):
        exponent = STRONG
        if rake_pass >= RAKE_PASSES - LAST_PASSES:
            exponent = GENTLE
        for pair, target in targets.items():
            cells = cells_of_rows[pair]
            present = np.bincount(cells, weights, len(target))
            ratios = np.where(present > 0, target / np.maximum(present, _LEAST_SHARE), 1.0)
            factors = np.clip(ratios, LEAST_FACTOR, LARGEST_FACTOR) ** exponent
            weights = weights * factors[cells]
            weights = weights / weights.sum()
        if on_pass is not None:
            on_pass()
    return weights


def resample(rows: Places, weights: Floats, count: int, draw: np.random.Generator) -> Places:
    """Draw `count` rows by weight with systematic sampling, in random order.

    Equally spaced marks in (0, 1) from a random start choose the rows in whose part of the
    cumulative weights they lie. So each row is drawn ``count * weight`` times, rounded down or up.
    """
    marks = (np.arange(count) + draw.random()) / count
    row_of_mark = np.searchsorted(np.cumsum(weights), marks)
    row_of_mark = np.minimum(row_of_mark, len(rows) - 1)
    return np.asarray(draw.permutation(rows[row_of_mark]))


class PairError(NamedTuple):
    """Error of a two-way table of synthetic rows against the table of all records.

    Attributes
    ----------
    pair
        Names of both columns, as text.
    bound
        Bound of the total variation, in [0, 1]: in expectation, under assumptions that
        docs/synthetic_tables.md states, without a level of confidence.
    estimate
        Heuristic estimate of the total variation, in [0, 1].
    shows_dependence
        True if the synthetic table is further from independence, in total variation, than `bound`.
    """

    pair: str
    bound: float
    estimate: float
    shows_dependence: bool


def error_of(name: str, noisy: Floats, drawn: Floats, records: int, noise: float) -> PairError:
    """Return the error of one two-way table of synthetic rows, from released numbers alone.

    The true table has m cells with shares p. The released shares are p + n, with noise n of
    standard deviation s in each cell. Let q be the synthetic shares, and
    ``d = |q - (p + n)|^2 - m s^2``.

    Synthetic shares may follow a part f of the noise, from 0 to 1: ``q = p + f n + r``, with r
    independent of n. Then, on average over n,

        |q - (p + n)|^2 = (1 - f)^2 m s^2 + |r|^2,     so that d = (f^2 - 2 f) m s^2 + |r|^2,
        |q - p|^2       = f^2 m s^2 + |r|^2            = d + 2 f m s^2  <=  d + 2 m s^2.

    By the Cauchy-Schwarz inequality, shares at a squared distance D have a total variation of at
    most ``sqrt(m D) / 2``. The bound has ``D = d + 2 m s^2``, for f = 1. The estimate assumes
    f = 1/8 (a guess), so that ``D = d + m s^2 / 4``, and normal differences in all cells. The mean
    absolute value of these is ``sqrt(2 / pi)`` of their standard deviation, so that the estimate is
    ``sqrt(2 / pi) sqrt(m D) / 2``.

    Parameters
    ----------
    name
        Names of both columns, as text.
    noisy
        Released counts of the table, shape (cells, cells).
    drawn
        Shares of the synthetic rows by cell, in the same shape.
    records
        Public number of records.
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
    """Synthetic rows, drawn from released tables. They are not data: see `text`.

    Parameters
    ----------
    tables
        The released two-way tables.
    places
        Index of the cell of each value, shape (rows, columns).
    errors
        Error of each two-way table of the rows, against the table of all records.
    seed
        Seed of the draw. The same seed, version of dpmesh and platform give the same rows.
    text
        Caution that must accompany the rows.
    """

    tables: PairTables
    places: Places
    errors: tuple[PairError, ...]
    seed: int
    text: str = NO_DATA

    @cached_property
    def table(self) -> Table:
        """The rows as a table. A number is uniform in its bin; a missing value is None."""
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
        """Return the errors of all pairs of columns as a table to print."""
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
        """Return the facts that must accompany the rows, without the rows, in plain types."""
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
    """Draw values of a column in given cells, shape (rows,).

    Numbers and dates are uniform in their bins. A missing value is None.

    Parameters
    ----------
    column
        The column.
    places
        Index of each value's cell, shape (rows,). The index after the last category or bin is for
        missing values.
    draw
        Random generator.
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
    """Draw synthetic rows from released two-way tables.

    This is post-processing: the guarantee of the release does not change.

    Parameters
    ----------
    released
        The released two-way tables.
    rows
        Number of rows to draw, at least 1.
    seed
        Seed of the random draws, at least 0 and below 2**63. It need not be secret.
    on_pass
        Function without arguments, called after each of the `RAKE_PASSES` passes over all tables,
        to show progress.

    Returns
    -------
    The synthetic rows, with an error bound for each of their two-way tables.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    integer("rows", rows, at_least=1, below=2**31)
    integer("seed", seed, at_least=0, below=2**63)
    draw = np.random.default_rng([seed, 0])  # values within bins are drawn from [seed, 1]
    noisy_tables = released.tables
    sizes = released.sizes
    records = released.records
    margins = margins_of(noisy_tables, sizes, records)
    fitted_tables = {
        (a, b): fit_table(counts, margins[a], margins[b], records, released.noise).table
        for (a, b), counts in noisy_tables.items()
    }
    candidates = draw_from_tree(
        tree_of(fitted_tables, len(sizes)),
        fitted_tables,
        margins,
        rows=CANDIDATES_PER_ROW * max(records, rows),
        draw=draw,
    )
    weights = rake(candidates, fitted_tables, sizes, on_pass)
    places = resample(candidates, weights, rows, draw)
    errors = []
    for (a, b), counts in noisy_tables.items():
        cells = places[:, a] * sizes[b] + places[:, b]
        drawn_counts = np.bincount(cells, minlength=counts.size).reshape(counts.shape)
        name = f"{released.columns[a].name} and {released.columns[b].name}"
        errors.append(error_of(name, counts, drawn_counts / rows, records, released.noise))
    return Synthetic(tables=released, places=places, errors=tuple(errors), seed=seed)
