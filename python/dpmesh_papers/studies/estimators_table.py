"""Measure the accuracy of `dpmesh.sklearn.PrivateClassifier` with its default settings.

    python -m dpmesh_papers.studies.estimators_table [KEYS]

Each data set is split once into training and test records, and once among sites. A cell is a data
set, an epsilon and an algorithm; its accuracy is the mean over KEYS fits (default 10), each with
fresh noise. No setting is chosen per data set: all use the constants of `dpmesh.defaults`. Public
ranges of columns are taken from the data, as if they had been published.

Forest cover and MNIST need DPMESH_DATA. Results go to ``docs/results/estimators.csv``, and as text
to ``estimators.txt``, which docs/learning_rates.md shows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

import dpmesh as dm
from dpmesh.defaults import Method
from dpmesh_papers._scaffold import Row, kinds, only, pick
from dpmesh_papers.public_tables import (
    Sites,
    evenly_spread,
    extremes,
    two_classes_per_site,
    varying_columns,
)
from dpmesh_papers.studies.results import write_rows

EPSILONS = (1.0, 2.0, 4.0, 8.0)
METHODS: tuple[Method, ...] = ("gossip", "secure")
"""Values of `algorithm`: gossip without a server, and secure aggregation."""

TEST_SHARE = 0.25
FOREST_RECORDS = 581_012
MNIST_RECORDS = 60_000

Ranges: TypeAlias = tuple[float, float] | list[tuple[float, float]]
"""One range of all columns, or one of each."""


class PartitionedTable(NamedTuple):
    """A data set with the site of each record, and the public ranges of its columns.

    Attributes
    ----------
    name
        Name in the table of results, with the number of sites.
    x
        Columns, shape (records, columns).
    y
        Labels, shape (records,).
    site
        Site of each record, shape (records,).
    ranges
        Public ranges of the columns, as `dpmesh.sklearn.PrivateClassifier` accepts them.
    keys
        Number of fits of each cell.
    """

    name: str
    x: npt.NDArray[np.float64]
    y: npt.NDArray[Any]
    site: Sites
    ranges: Ranges
    keys: int


def data_sets(keys: int) -> Iterator[PartitionedTable]:
    """Yield the data sets with at most `keys` fits a cell; large ones have fewer."""

    def partitioned(
        name: str,
        x: npt.NDArray[Any],
        y: npt.NDArray[Any],
        site: Sites,
        ranges: Ranges | None = None,
        fits: int = keys,
    ) -> PartitionedTable:
        x = np.asarray(x, np.float64)
        if ranges is None:
            ranges = extremes(x)
        full_name = f"{name}, {len(set(site))} sites"
        return PartitionedTable(full_name, x, np.asarray(y), site, ranges, fits)

    x, y = load_breast_cancer(return_X_y=True)
    site = evenly_spread(len(y), 5)
    ten_columns = x[:, :10]
    wide_ranges = [(0.0, 3 * largest) for _, largest in extremes(ten_columns)]
    name = "breast cancer, 10 columns, wide ranges"
    yield partitioned(name, ten_columns, y, site, wide_ranges)
    yield partitioned("breast cancer, 30 columns", x, y, site)
    x, y = load_digits(return_X_y=True)
    yield partitioned("digits, two a site", x, y, two_classes_per_site(y), (0, 16))
    yield partitioned("digits, even or odd", x, y % 2, evenly_spread(len(y), 16), (0, 16))
    sample = np.random.default_rng(0).permutation(FOREST_RECORDS)[:3_000]
    forest = dm.data.covertype(2).take(sample)
    columns = varying_columns(forest)
    yield partitioned("forest cover, 2 classes", columns, forest.labels, evenly_spread(3_000, 10))
    x, y = load_wine(return_X_y=True)
    yield partitioned("wine", x, y, evenly_spread(len(y), 3))
    x, y = load_iris(return_X_y=True)
    yield partitioned("iris", x, y, evenly_spread(len(y), 3))
    images = dm.data.mnist("train")
    order = np.random.default_rng(0).permutation(MNIST_RECORDS)
    for records, most_fits in ((8_000, 3), (40_000, 1)):
        subset = images.take(order[:records])
        yield partitioned(
            f"MNIST, {records:,} records",
            np.asarray(subset.features),
            np.asarray(subset.labels),
            evenly_spread(records, 10),
            (0, 1),
            min(keys, most_fits),
        )


def main(keys: int = 10) -> None:
    """Measure, print and write the accuracy of each cell, in percent."""
    rows: list[Row] = []
    for table in data_sets(keys):
        is_test = np.random.default_rng(1).random(len(table.y)) < TEST_SHARE
        for epsilon, method in product(EPSILONS, METHODS):
            percent = [accuracy(table, is_test, epsilon, method, key) for key in range(table.keys)]
            deviation = np.nan
            if table.keys > 1:
                deviation = float(np.std(percent, ddof=1))
            row = {
                "data": table.name,
                "epsilon": epsilon,
                "method": method,
                "keys": table.keys,
                "accuracy": round(float(np.mean(percent)), 2),
                "deviation": round(deviation, 2),
            }
            rows.append(row)
            print(row, flush=True)
    write_rows("estimators", rows, as_text(rows))


def accuracy(
    table: PartitionedTable,
    is_test: npt.NDArray[np.bool_],
    epsilon: float,
    method: Method,
    key: int,
) -> float:
    """Fit on the training records with noise of seed `key`; return the test accuracy in percent."""
    model = dm.sklearn.PrivateClassifier(
        epsilon=epsilon, ranges=table.ranges, algorithm=method, random_state=key
    )
    is_training = ~is_test
    model.fit(table.x[is_training], table.y[is_training], groups=table.site[is_training])
    return 100 * float(model.score(table.x[is_test], table.y[is_test]))


def as_text(rows: list[Row]) -> str:
    """Return a table of accuracies: a line per data set, a column "gossip / secure" per epsilon."""
    lines = [
        "Test accuracy (%) by gossip / under a secure sum, and in brackets the standard deviation",
        "over the keys: the noise is drawn anew, the split and the sites are not.",
        "",
        f"{'data':<48}{'keys':>4}" + "".join(f"{f'epsilon {e:g}':>19}" for e in EPSILONS),
    ]
    for name in kinds(rows, "data"):
        rows_of_table = pick(rows, data=name)
        cells = ""
        for epsilon in EPSILONS:
            texts = [
                accuracy_in_words(only(rows_of_table, epsilon=epsilon, method=method))
                for method in METHODS
            ]
            cells += f"{' / '.join(texts):>19}"
        lines.append(f"{name:<48}{rows_of_table[0]['keys']:>4}{cells}")
    return "\n".join(lines) + "\n"


def accuracy_in_words(row: Row) -> str:
    """Return the accuracy of a row in percent, and its deviation in brackets if there is one."""
    if np.isnan(row["deviation"]):
        return f"{row['accuracy']:.0f}"
    return f"{row['accuracy']:.0f} ({row['deviation']:.0f})"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
