"""Accuracy of `PrivateClassifier` by its defaults: the table of docs/learning_rates.md.

    python -m dpmesh_papers.studies.estimators_table [keys]

Forest cover and MNIST need DPMESH_DATA.

One split of each data set, means over keys; the constants of `dpmesh.defaults` are the same for
all. Results go to ``docs/results/estimators.csv``, and as text beside it.
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


class Data(NamedTuple):
    """A table with the site of each record, and what is public of its columns."""

    name: str
    x: Any
    y: Any
    site: Any
    ranges: Any
    keys: int


def two_classes_each(y: Any) -> Any:
    """Return the site of each record: of ten, each has half of a class and half of the next."""
    return (y + np.random.default_rng(0).integers(2, size=len(y))) % 10


def alike(records: int, sites: int) -> Any:
    """Return the site of each record, drawn at random, nearly as many at each site."""
    return np.random.default_rng(0).permutation(np.arange(records) % sites)


def tables(keys: int) -> Iterator[Data]:
    """Yield the data sets; ranges are those of the published columns."""

    def ready(name: str, x: Any, y: Any, site: Any, ranges: Any = None, most: int = keys) -> Data:
        x = np.asarray(x, np.float64)
        if ranges is None:
            ranges = list(zip(x.min(axis=0), x.max(axis=0), strict=True))
        return Data(f"{name}, {len(set(site))} sites", x, np.asarray(y), site, ranges, most)

    x, y = load_breast_cancer(return_X_y=True)
    wide = [(0, 3 * high) for high in x[:, :10].max(axis=0)]
    yield ready("breast cancer, 10 columns, wide ranges", x[:, :10], y, alike(len(y), 5), wide)
    yield ready("breast cancer, 30 columns", x, y, alike(len(y), 5))
    x, y = load_digits(return_X_y=True)
    yield ready("digits, two a site", x, y, two_classes_each(y), (0, 16))
    yield ready("digits, even or odd", x, y % 2, alike(len(y), 16), (0, 16))
    cover = dm.data.covertype(2).take(np.random.default_rng(0).permutation(581_012)[:3_000])
    columns = cover.features
    if not isinstance(columns, np.ndarray):
        columns = columns.toarray()
    varied = columns[:, columns.min(axis=0) < columns.max(axis=0)]
    yield ready("forest cover, 2 classes", varied, cover.labels, alike(3_000, 10))
    x, y = load_wine(return_X_y=True)
    yield ready("wine", x, y, alike(len(y), 3))
    x, y = load_iris(return_X_y=True)
    yield ready("iris", x, y, alike(len(y), 3))
    images = dm.data.mnist("train")
    order = np.random.default_rng(0).permutation(60_000)
    x, y = np.asarray(images.features), np.asarray(images.labels)
    for count, most in ((8_000, 3), (40_000, 1)):
        subset = order[:count]
        name = f"MNIST, {count:,} records"
        yield ready(name, x[subset], y[subset], alike(count, 10), (0, 1), min(keys, most))


def main(keys: int = 10) -> None:
    """Print and write the accuracy of each cell, in percent."""
    rows: list[dict[str, Any]] = []
    for data in tables(keys):
        is_test = np.random.default_rng(1).random(len(data.y)) < 0.25
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


def accuracy(data: Any, is_test: np.ndarray, epsilon: float, method: Any, key: int) -> float:
    """Return the accuracy of one fit on the test records, in percent."""
    model = dm.sklearn.PrivateClassifier(
        epsilon=epsilon, ranges=data.ranges, algorithm=method, random_state=key
    )
    model.fit(data.x[~is_test], data.y[~is_test], groups=data.site[~is_test])
    return 100 * float(model.score(data.x[is_test], data.y[is_test]))


def as_text(rows: list[dict[str, Any]]) -> str:
    """Return a table: by gossip / under a secure sum, each with its deviation over the keys."""
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
