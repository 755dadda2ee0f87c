"""What `PrivateClassifier` learns by its defaults: the table of docs/estimators.md.

    python -m benches.estimators_table [keys]    # set DPMESH_DATA for forest cover and MNIST

One split of each data set, means over keys; the constants of `dpmesh.defaults` are the same for
all. A site alone and pooled records are without privacy.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

import dpmesh as dm

EPSILONS = (1.0, 2.0, 4.0, 8.0)


class Data(NamedTuple):
    """A table with the site of each record, and what is public of its columns."""

    name: str
    x: Any
    y: Any
    site: Any
    ranges: Any
    keys: int


def two_classes_each(y: Any) -> Any:
    """Ten sites: half of a class and half of the next one each."""
    return (y + np.random.default_rng(0).integers(2, size=len(y))) % 10


def alike(records: int, sites: int) -> Any:
    """Sites of records at random, nearly as many at each."""
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
    columns = columns if isinstance(columns, np.ndarray) else columns.toarray()
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
        some = order[:count]
        name = f"MNIST, {count:,} records"
        yield ready(name, x[some], y[some], alike(count, 10), (0, 1), min(keys, most))


def main(keys: int = 10) -> None:
    """Print accuracies in percent: gossip / secure sum at each epsilon, alone, pooled."""
    for data in tables(keys):
        cells = []
        for epsilon in EPSILONS:
            means = []
            for algorithm in ("gossip", "secure"):
                scores = []
                for key in range(data.keys):
                    model = dm.sklearn.PrivateClassifier(
                        epsilon=epsilon, ranges=data.ranges, algorithm=algorithm, random_state=key
                    )
                    out = np.random.default_rng(1).random(len(data.y)) < 0.25
                    model.fit(data.x[~out], data.y[~out], groups=data.site[~out])
                    scores.append(model.score(data.x[out], data.y[out]))
                means.append(f"{100 * np.mean(scores):.0f} ({100 * np.std(scores):.0f})")
            cells.append(" / ".join(means))
        print(f"| {data.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
