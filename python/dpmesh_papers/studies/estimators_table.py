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
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

import dpmesh as dm
from dpmesh_papers.studies.results import write_rows

EPSILONS = (1.0, 2.0, 4.0, 8.0)
METHODS = ("gossip", "secure")
"""Values of `algorithm`: gossip without a server, and secure aggregation."""

TEST_SHARE = 0.25
FOREST_RECORDS = 581_012
MNIST_RECORDS = 60_000


class PartitionedTable(NamedTuple):
    """A data set with the site of each record, and the public ranges of its columns."""

    name: str
    """Name in the table of results, with the number of sites."""
    x: Any
    """Columns, shape (records, columns)."""
    y: Any
    """Labels, shape (records,)."""
    site: Any
    """Site of each record, shape (records,)."""
    ranges: Any
    """Public ranges of the columns, as `dpmesh.sklearn.PrivateClassifier` accepts them."""
    keys: int
    """Number of fits of each cell."""


def two_classes_per_site(y: Any) -> Any:
    """Return the site of each record: half of class c goes to site c, half to site c + 1 mod 10."""
    return (y + np.random.default_rng(0).integers(2, size=len(y))) % 10


def evenly_spread(records: int, sites: int) -> Any:
    """Return the site of each record, at random, with sites of equal size up to one record."""
    return np.random.default_rng(0).permutation(np.arange(records) % sites)


def data_sets(keys: int) -> Iterator[PartitionedTable]:
    """Yield the data sets with at most `keys` fits a cell; large ones have fewer."""

    def partitioned(
        name: str, x: Any, y: Any, site: Any, ranges: Any = None, fits: int = keys
    ) -> PartitionedTable:
        x = np.asarray(x, np.float64)
        if ranges is None:
            ranges = list(zip(x.min(axis=0), x.max(axis=0), strict=True))
        full_name = f"{name}, {len(set(site))} sites"
        return PartitionedTable(full_name, x, np.asarray(y), site, ranges, fits)

    x, y = load_breast_cancer(return_X_y=True)
    site = evenly_spread(len(y), 5)
    ten_columns = x[:, :10]
    wide_ranges = [(0, 3 * largest) for largest in ten_columns.max(axis=0)]
    name = "breast cancer, 10 columns, wide ranges"
    yield partitioned(name, ten_columns, y, site, wide_ranges)
    yield partitioned("breast cancer, 30 columns", x, y, site)
    x, y = load_digits(return_X_y=True)
    yield partitioned("digits, two a site", x, y, two_classes_per_site(y), (0, 16))
    yield partitioned("digits, even or odd", x, y % 2, evenly_spread(len(y), 16), (0, 16))
    sample = np.random.default_rng(0).permutation(FOREST_RECORDS)[:3_000]
    cover = dm.data.covertype(2).take(sample)
    columns = cover.features
    if not isinstance(columns, np.ndarray):
        columns = columns.toarray()
    is_constant = columns.min(axis=0) == columns.max(axis=0)
    varied = columns[:, ~is_constant]
    yield partitioned("forest cover, 2 classes", varied, cover.labels, evenly_spread(3_000, 10))
    x, y = load_wine(return_X_y=True)
    yield partitioned("wine", x, y, evenly_spread(len(y), 3))
    x, y = load_iris(return_X_y=True)
    yield partitioned("iris", x, y, evenly_spread(len(y), 3))
    images = dm.data.mnist("train")
    order = np.random.default_rng(0).permutation(MNIST_RECORDS)
    x, y = np.asarray(images.features), np.asarray(images.labels)
    for count, most_fits in ((8_000, 3), (40_000, 1)):
        subset = order[:count]
        site = evenly_spread(count, 10)
        name, fits = f"MNIST, {count:,} records", min(keys, most_fits)
        yield partitioned(name, x[subset], y[subset], site, (0, 1), fits)


def main(keys: int = 10) -> None:
    """Measure, print and write the accuracy of each cell, in percent."""
    rows: list[dict[str, Any]] = []
    for data in data_sets(keys):
        is_test = np.random.default_rng(1).random(len(data.y)) < TEST_SHARE
        for epsilon in EPSILONS:
            for method in METHODS:
                scores = [accuracy(data, is_test, epsilon, method, key) for key in range(data.keys)]
                deviation = np.nan
                if data.keys > 1:
                    deviation = np.std(scores, ddof=1)
                row = {
                    "data": data.name,
                    "epsilon": epsilon,
                    "method": method,
                    "keys": data.keys,
                    "accuracy": round(float(np.mean(scores)), 2),
                    "deviation": round(float(deviation), 2),
                }
                rows.append(row)
                print(row, flush=True)
    write_rows("estimators", rows, as_text(rows))


def accuracy(
    data: PartitionedTable, is_test: np.ndarray, epsilon: float, method: Any, key: int
) -> float:
    """Fit on the training records with noise of seed `key`; return the test accuracy in percent."""
    model = dm.sklearn.PrivateClassifier(
        epsilon=epsilon, ranges=data.ranges, algorithm=method, random_state=key
    )
    model.fit(data.x[~is_test], data.y[~is_test], groups=data.site[~is_test])
    return 100 * float(model.score(data.x[is_test], data.y[is_test]))


def as_text(rows: list[dict[str, Any]]) -> str:
    """Return a table of accuracies: a line per data set, a column "gossip / secure" per epsilon."""
    lines = [
        "Test accuracy (%) by gossip / under a secure sum, and in brackets the standard deviation",
        "over the keys: the noise is drawn anew, the split and the sites are not.",
        "",
        f"{'data':<48}{'keys':>4}" + "".join(f"{f'epsilon {e:g}':>19}" for e in EPSILONS),
    ]
    by_cell = {(row["data"], row["epsilon"], row["method"]): row for row in rows}
    for name, keys in dict.fromkeys((row["data"], row["keys"]) for row in rows):
        cells = []
        for epsilon in EPSILONS:
            cells_of_methods = [by_cell[name, epsilon, method] for method in METHODS]
            texts = (f"{row['accuracy']:.0f} ({row['deviation']:.0f})" for row in cells_of_methods)
            cells.append(f"{' / '.join(texts).replace(' (nan)', ''):>19}")
        lines.append(f"{name:<48}{keys:>4}" + "".join(cells))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
