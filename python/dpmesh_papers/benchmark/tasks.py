"""Tasks of the benchmark: real data, as several sites have them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from importlib import import_module
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

import dpmesh.demo as demo
from dpmesh.data import (
    Dataset,
    breast_cancer,
    covertype,
    mnist,
    random_projection,
    rcv1,
    scattering,
    shakespeare,
    shards,
    train_test_split,
    unit_norm,
)
from dpmesh.data.partition import iid
from dpmesh.data.preprocessing import with_constant
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import LinearProblem
from dpmesh.tables import Columns
from dpmesh_papers.benchmark.paper_settings import PAPER_TASKS
from dpmesh_papers.benchmark.task import Task, in_double_precision
from dpmesh_papers.public_tables import (
    COVERTYPE_AREAS,
    COVERTYPE_RANGES,
    extremes,
    wilderness_areas,
)

if TYPE_CHECKING:
    import pandas as pd

SITES_OF_TUMOURS = (38, 62, 83, 95, 149)
"""Records of the five sites of the task on breast cancer, which count as public."""

MARRIAGE_RANGES: dict[str, Any] = {
    "rate_marriage": (1, 5),
    "age": (17.5, 42),
    "yrs_married": (0.5, 23),
    "children": (0, 5.5),
    "educ": (9, 20),
    "occupation": {"categories": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]},
    "occupation_husb": {"categories": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]},
}
"""Codes of the questionnaire, as statsmodels describes its table `fair`."""

VOTER_RANGES: dict[str, Any] = {
    "TVnews": (0, 7),
    "selfLR": (1, 7),
    "ClinLR": (1, 7),
    "DoleLR": (1, 7),
    "age": (18, 100),
    "educ": (1, 7),
    "income": (1, 24),
}
"""Codes of the questionnaire, as statsmodels describes its table `anes96`; days and years."""

HELD_OUT = 0.25
"""Share of the records that a split holds out, where the publisher has no test records."""

WINDOW = 4
"""Characters before the one that the task on Shakespeare learns."""


def _digits(key: Key, _: int | None, *, federation: int) -> LinearProblem:
    """Return a federation of the demo: two classes at each site, or sites that are alike."""
    return [*demo.problems(key).values()][federation]


def _tumours(key: Key, _: int | None) -> LinearProblem:
    records = breast_cancer()
    x = np.asarray(records.features)
    published_ranges = extremes(x)  # in scikit-learn's description
    columns = Columns.of(published_ranges, range(x.shape[1]))
    encoded = replace(records, features=columns.encode([*x.T]).features)
    train, test = _split(encoded, key)
    ends = np.cumsum(SITES_OF_TUMOURS)
    return _softmax(train, test, tuple(np.split(np.arange(ends[-1]), ends[:-1])))


def _forest(key: Key, most_records: int | None, *, features: str = "columns") -> LinearProblem:
    records = covertype(7)
    order = generator(key, Purpose.SPLIT).permutation(records.records)
    records = records.take(order[:most_records])
    x = np.asarray(records.features)
    columns = Columns.of(COVERTYPE_RANGES, range(x.shape[1]), features=features)
    encoded = replace(records, features=columns.encode([*x.T]).features)
    return _at_sites(encoded, wilderness_areas(x), key, site_names=range(COVERTYPE_AREAS))


def _images(
    key: Key, most_records: int | None, *, nodes: int, wavelets: bool = False
) -> LinearProblem:
    train, test = mnist("train"), mnist("test")
    draw = generator(key, Purpose.SPLIT)
    train = train.take(draw.permutation(train.records)[:most_records])
    if wavelets:
        train = _scattered(train)
        test = _scattered(test)
    train, test = (
        unit_norm(with_constant(unit_norm(in_double_precision(part)))) for part in (train, test)
    )
    return _softmax(train, test, iid(train, nodes, draw, equal_sizes=True))


def _scattered(images: Dataset) -> Dataset:
    """Return scattering features of images in 800 random directions, which are public."""
    directions = generator(Key.seeded(0), Purpose.INIT)
    return random_projection(scattering(images, (28, 28)), 800, directions)


def _news(key: Key, most_records: int | None) -> LinearProblem:
    train, test = (unit_norm(in_double_precision(rcv1(part))) for part in ("train", "test"))
    draw = generator(key, Purpose.SPLIT)
    train = train.take(draw.permutation(train.records)[:most_records])
    return _softmax(train, test, shards(train, 10, draw, shards_per_node=2))


def _roles(key: Key, most_records: int | None) -> LinearProblem:
    """Return four characters of a play, one-hot, with the next one as label; a node is a role."""
    characters = shakespeare(window=WINDOW, stride=WINDOW, least_records=25)
    draw = generator(key, Purpose.SPLIT)
    records = characters.train.records
    is_chosen = np.isin(np.arange(records), draw.permutation(records)[:most_records])
    parts = (part[is_chosen[part]] for part in characters.partition)
    classes = len(characters.alphabet)
    return _softmax(
        _one_hot(characters.train, classes),
        _one_hot(characters.test, classes),
        tuple(part for part in parts if len(part)),
        classes=classes,
    )


def _one_hot(windows: Dataset, characters: int) -> Dataset:
    """Return windows of `WINDOW` characters as sparse vectors of norm 1."""
    places = np.asarray(windows.features).astype(int) + characters * np.arange(WINDOW)
    row_starts = WINDOW * np.arange(windows.records + 1)
    values = np.full(places.size, 1 / sqrt(WINDOW), np.float32)
    shape = windows.records, WINDOW * characters
    x = sparse.csr_array((values, places.ravel(), row_starts), shape=shape)
    return replace(windows, features=x)


def _marriages(key: Key, _: int | None) -> LinearProblem:
    table = _statsmodels_table("fair")
    has_affairs = (table["affairs"].to_numpy() > 0).astype(np.int64)
    records = Dataset(_encoded(table, MARRIAGE_RANGES), has_affairs)
    return _at_sites(records, table["religious"].to_numpy(), key, site_names=range(1, 5))


def _voters(key: Key, _: int | None) -> LinearProblem:
    table = _statsmodels_table("anes96")
    votes = table["vote"].to_numpy().astype(np.int64)
    train, test = _split(Dataset(_encoded(table, VOTER_RANGES), votes), key)
    return _softmax(train, test, iid(train, 4, generator(key, Purpose.SPLIT), equal_sizes=True))


def _statsmodels_table(name: str) -> pd.DataFrame:
    """Return a table that statsmodels ships."""
    module: Any = import_module(f"statsmodels.datasets.{name}")
    table: pd.DataFrame = module.load_pandas().data
    return table


def _encoded(table: pd.DataFrame, ranges: dict[str, Any]) -> np.ndarray:
    """Return the columns that have ranges as features of norm at most 1."""
    columns = Columns.of(ranges, [*ranges])
    encoded = columns.encode([table[name].to_numpy() for name in ranges])
    return np.asarray(encoded.features)


def _split(records: Dataset, key: Key) -> tuple[Dataset, Dataset]:
    """Return training and test records, at random."""
    draw = generator(key, Purpose.SPLIT)
    shuffled = records.take(draw.permutation(records.records))
    return train_test_split(shuffled, HELD_OUT, draw)


def _at_sites(
    records: Dataset, sites: np.ndarray, key: Key, *, site_names: Iterable[int]
) -> LinearProblem:
    """Split records, and partition those for training by their sites, in the order of the names.

    `sites` has the name of each record's site, shape (records,).
    """
    features_and_site = np.c_[np.asarray(records.features), sites]
    train, test = _split(replace(records, features=features_and_site), key)
    training_sites = train.features[:, -1]
    train, test = (replace(part, features=part.features[:, :-1]) for part in (train, test))
    return _softmax(
        train, test, tuple(np.flatnonzero(training_sites == name) for name in site_names)
    )


def _softmax(
    train: Dataset, test: Dataset, parts: tuple[np.ndarray, ...], classes: int | None = None
) -> LinearProblem:
    """Return softmax regression; labels -1 and 1 become classes 0 and 1."""
    if train.labels.min() < 0:
        train, test = (part.relabelled(lambda sign: (sign > 0) * 1) for part in (train, test))
    if classes is None:
        classes = int(train.labels.max()) + 1
    return LinearProblem(train, parts, "softmax", test=test, classes=classes)


TASKS = {
    "digits-by-class": Task(
        title="digits, two classes at each of 10 sites",
        make=partial(_digits, federation=0),
        held_out=HELD_OUT,
        tuned_on=True,
    ),
    "digits-alike": Task(
        title="even or odd digits, 16 sites that are alike",
        make=partial(_digits, federation=1),
        held_out=HELD_OUT,
        tuned_on=True,
    ),
    "breast-cancer": Task(
        title="malignant or benign tumours, 5 sites",
        make=_tumours,
        held_out=HELD_OUT,
        tuned_on=True,
    ),
    "covertype": Task(
        title="seven kinds of forest, by wilderness area (4 sites)",
        make=_forest,
        data="covtype",
        featured=partial(_forest, features="hats+cosines"),
        held_out=HELD_OUT,
        tuned_on=True,
    ),
    "mnist-10": Task(title="MNIST, 10 nodes", make=partial(_images, nodes=10), data="mnist"),
    "mnist-10-scattering": Task(
        title="MNIST by scattering features, 10 nodes",
        make=partial(_images, nodes=10, wavelets=True),
        data="mnist",
    ),
    "mnist-64": Task(title="MNIST, 64 nodes", make=partial(_images, nodes=64), data="mnist"),
    "rcv1": Task(title="news in two groups of topics, 10 sites by topic", make=_news, data="rcv1"),
    "shakespeare": Task(
        title="the next character, by role", make=_roles, data="shakespeare", unit="user"
    ),
    "marriages": Task(
        title="affairs in marriages, by religiousness (4 sites)", make=_marriages, held_out=HELD_OUT
    ),
    "voters": Task(title="Clinton or Dole, 4 sites", make=_voters, held_out=HELD_OUT),
    **PAPER_TASKS,
}
"""All tasks by name."""
