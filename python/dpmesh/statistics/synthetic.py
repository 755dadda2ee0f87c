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
Pair = tuple[int, int]
TwoWayTables = Mapping[Pair, Floats]

MARGIN_PASSES, RAKE_PASSES, LAST_PASSES = 30, 15, 5
STRONG, GENTLE = 0.7, 0.4
"""Exponents of a pass of raking, and of the last ones."""

LEAST_FACTOR, LARGEST_FACTOR = 0.2, 5.0
"""Of a weight in one pass."""

TINY = 1e-9


def projected(counts: Floats, total: float) -> Floats:
    """Return the nearest counts that are not negative and add up to the total."""
    falling = np.sort(counts.ravel())[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, falling.size + 1)
    last = int(np.flatnonzero(falling > excess)[-1])
    return np.asarray(np.maximum(counts - excess[last], 0))


def margins_of(tables: TwoWayTables, sizes: Sequence[int], records: int) -> list[Floats]:
    """Return the counts of each column: means of what its tables say, weighted by their noise."""
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
    kept
        The share of what is not independent that the noise does not explain.
    """

    table: Floats
    kept: float


def fitted(counts: Floats, rows: Floats, columns: Floats, records: int, noise: float) -> Fitted:
    """Return a table with these margins, shrunk to independence by what the noise explains."""
    independent = np.outer(rows, columns) / records
    rest = counts - independent
    rest = rest - rest.mean(axis=1, keepdims=True)
    rest = rest - rest.mean(axis=0, keepdims=True)
    signal = float(np.square(rest).sum())
    degrees = (counts.shape[0] - 1) * (counts.shape[1] - 1)
    kept = max(0.0, 1 - noise**2 * degrees / signal) if signal > 0 else 0.0
    result = projected(independent + rest * kept, records) + TINY
    for _ in range(MARGIN_PASSES):
        result = result * (rows / np.maximum(result.sum(axis=1), TINY))[:, np.newaxis]
        result = result * (columns / np.maximum(result.sum(axis=0), TINY))
    return Fitted(result, kept)


def information(table: Floats) -> float:
    """Return the mutual information of a table, in nats."""
    shares = table / table.sum()
    independent = shares.sum(axis=1, keepdims=True) * shares.sum(axis=0, keepdims=True)
    held = shares > 0
    return float((shares[held] * np.log(shares[held] / independent[held])).sum())


def tree_of(tables: TwoWayTables, columns: int) -> list[Pair]:
    """Return the tree of the largest mutual information: from a column to the next, in turn."""
    weights = {pair: information(table) for pair, table in tables.items()}
    seen, tree = {0}, list[Pair]()
    while len(seen) < columns:
        edges = [pair for pair in weights if (pair[0] in seen) != (pair[1] in seen)]
        a, b = max(edges, key=lambda pair: (weights[pair], pair))
        known, new = (a, b) if a in seen else (b, a)
        tree.append((known, new))
        seen.add(new)
    return tree


def table_between(tables: TwoWayTables, known: int, new: int) -> Floats:
    """Return the table of two columns, the first of them in rows."""
    return tables[known, new] if (known, new) in tables else tables[new, known].T


def drawn_from_tree(
    tree: Sequence[Pair],
    tables: TwoWayTables,
    margins: Sequence[Floats],
    rows: int,
    draw: np.random.Generator,
) -> Places:
    """Return rows drawn from the distribution of a tree, shape (rows, columns)."""
    result = np.zeros((rows, len(margins)), np.int64)
    root = tree[0][0]
    result[:, root] = draw.choice(len(margins[root]), rows, p=margins[root] / margins[root].sum())
    for known, new in tree:
        table = table_between(tables, known, new)
        shares = np.cumsum(table / np.maximum(table.sum(axis=1, keepdims=True), 1e-12), axis=1)
        coins = draw.random(rows)
        for place in range(len(shares)):
            here = result[:, known] == place
            chosen = np.searchsorted(shares[place], coins[here], side="left")
            result[here, new] = np.minimum(chosen, shares.shape[1] - 1)
    return result


def raked(
    rows: Places,
    tables: TwoWayTables,
    sizes: Sequence[int],
    on_pass: Callable[[], object] | None = None,
) -> Floats:
    """Return weights of rows that bring all two-way tables near the fitted ones, of sum 1."""
    weights = np.full(len(rows), 1.0 / len(rows))
    targets = {pair: table.ravel() / table.sum() for pair, table in tables.items()}
    cells = {(a, b): rows[:, a] * sizes[b] + rows[:, b] for a, b in tables}
    for nth in range(RAKE_PASSES):
        power = STRONG if nth < RAKE_PASSES - LAST_PASSES else GENTLE
        for pair, target in targets.items():
            held = np.bincount(cells[pair], weights, len(target))
            factors = np.where(held > 0, target / np.maximum(held, 1e-12), 1.0)
            factors = np.clip(factors, LEAST_FACTOR, LARGEST_FACTOR) ** power
            weights = weights * factors[cells[pair]]
            weights = weights / weights.sum()
        if on_pass is not None:
            on_pass()
    return weights


def resampled(rows: Places, weights: Floats, count: int, draw: np.random.Generator) -> Places:
    """Return rows drawn by their weights: each as often as its share, rounded down or up."""
    marks = (np.arange(count) + draw.random()) / count
    chosen = np.minimum(np.searchsorted(np.cumsum(weights), marks), len(rows) - 1)
    return np.asarray(draw.permutation(rows[chosen]))


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

    Parameters
    ----------
    name
        Of the pair.
    noisy
        The released counts.
    drawn
        Shares of drawn rows.
    records
        The public number of records.
    noise
        Standard deviation of the noise in each count.
    """
    cells, spread = noisy.size, noise / records
    squared = float(np.square(noisy / records - drawn).sum())
    beyond = max(squared - cells * spread**2, 0.0)
    bound = 0.5 * sqrt(cells * (beyond + 2 * cells * spread**2))
    estimate = 0.5 * sqrt(2 / pi) * sqrt(cells * beyond + cells**2 * spread**2 / 4)
    independent = np.outer(drawn.sum(axis=1), drawn.sum(axis=0))
    apart = float(np.abs(drawn - independent).sum()) / 2
    return PairError(name, min(bound, 1.0), min(estimate, 1.0), apart > bound)


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
            values_of(column, self.places[:, nth], draw)
            for nth, column in enumerate(self.tables.columns)
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
    """Return values for cells of a column: of numbers uniform in their bins."""
    coins = draw.random(len(places))
    if column.values:
        values = np.array([*column.values, None], dtype=object)
        return np.asarray(values[places])
    edges = np.array(column.edges)
    bins = len(edges) - 1
    inside = np.minimum(places, bins - 1)
    drawn = edges[inside] + (edges[inside + 1] - edges[inside]) * coins
    result = np.empty(len(places), dtype=object)
    for nth, value in enumerate(drawn.tolist()):
        result[nth] = (
            str(date.fromordinal(floor(value))) if column.is_date else float(f"{value:.9g}")
        )
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
        How many rows, at least 1: any number costs the same.
    seed
        Of public coins.
    on_pass
        Called after each of the `RAKE_PASSES` over all tables, to show progress.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    integer("rows", rows, at_least=1, below=2**31)
    integer("seed", seed, at_least=0, below=2**63)
    draw = np.random.default_rng([seed, 0])
    noisy, sizes, records = released.tables, released.sizes, released.records
    margins = margins_of(noisy, sizes, records)
    near = {
        (a, b): fitted(counts, margins[a], margins[b], records, released.noise).table
        for (a, b), counts in noisy.items()
    }
    pool = 2 * max(records, rows)
    candidates = drawn_from_tree(tree_of(near, len(sizes)), near, margins, pool, draw)
    weights = raked(candidates, near, sizes, on_pass)
    places = resampled(candidates, weights, rows, draw)
    errors = []
    for (a, b), counts in noisy.items():
        cells = places[:, a] * sizes[b] + places[:, b]
        drawn = np.bincount(cells, minlength=counts.size).reshape(counts.shape) / rows
        name = f"{released.columns[a].name} and {released.columns[b].name}"
        errors.append(error_of(name, counts, drawn, records, released.noise))
    return Synthetic(tables=released, places=places, errors=tuple(errors), seed=seed)
