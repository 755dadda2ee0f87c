"""Tasks of the benchmark: real data, as several sites have them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

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
from dpmesh_papers.benchmark.task import Task

SITES_OF_TUMOURS = (38, 62, 83, 95, 149)
"""Records of the five sites of the task on breast cancer, which count as public."""

FOREST_RANGES: tuple[Any, ...] = (
    (1859, 3858),
    (0, 360),
    (0, 66),
    (0, 1397),
    (-173, 601),
    (0, 7117),
    *3 * [(0, 254)],
    (0, 7173),
    *44 * [{"flag": True}],
)
"""Published ranges of Covertype's columns."""

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


def _digits(key: Key, _: int | None, *, which: int) -> LinearProblem:
    return [*demo.problems(key).values()][which]


def _tumours(key: Key, _: int | None) -> LinearProblem:
    records = breast_cancer()
    x = np.asarray(records.features)
    published = [*zip(x.min(axis=0), x.max(axis=0), strict=True)]  # in scikit-learn's description
    columns = Columns.of(published, range(x.shape[1]))
    encoded = replace(records, features=columns.encode([*x.T]).features)
    train, test = _split(encoded, key, None)
    ends = np.cumsum(SITES_OF_TUMOURS)
    return _softmax(train, test, tuple(np.split(np.arange(ends[-1]), ends[:-1])))


def _forest(key: Key, most: int | None, *, features: str = "columns") -> LinearProblem:
    records = covertype(7)
    records = records.take(generator(key, Purpose.SPLIT).permutation(records.records)[:most])
    x = np.asarray(records.features)
    area = x[:, 10:14].argmax(axis=1)
    columns = Columns.of(FOREST_RANGES, range(x.shape[1]), features=features)
    encoded = replace(records, features=np.c_[columns.encode([*x.T]).features, area])
    train, test = _split(encoded, key, None)
    areas = train.features[:, -1]
    train, test = (replace(part, features=part.features[:, :-1]) for part in (train, test))
    return _softmax(train, test, tuple(np.flatnonzero(areas == place) for place in range(4)))


def _images(key: Key, most: int | None, *, nodes: int, wavelets: bool = False) -> LinearProblem:
    train, test = mnist("train"), mnist("test")
    draw = generator(key, Purpose.SPLIT)
    train = train.take(draw.permutation(train.records)[:most])
    if wavelets:  # directions that everybody knows
        public = Key.seeded(0)
        train, test = (
            random_projection(scattering(part, (28, 28)), 800, generator(public, Purpose.INIT))
            for part in (train, test)
        )
    train, test = (unit_norm(with_constant(unit_norm(_wide(part)))) for part in (train, test))
    return _softmax(train, test, iid(train, nodes, draw, equal_sizes=True))


def _news(key: Key, most: int | None) -> LinearProblem:
    train, test = (unit_norm(_wide(rcv1(part))) for part in ("train", "test"))
    draw = generator(key, Purpose.SPLIT)
    train = train.take(draw.permutation(train.records)[:most])
    return _softmax(train, test, shards(train, 10, draw, shards_per_node=2))


def _roles(key: Key, most: int | None) -> LinearProblem:
    characters = shakespeare(window=4, stride=4, least_records=25)
    size = len(characters.alphabet)
    draw = generator(key, Purpose.SPLIT)
    records = characters.train.records
    chosen = np.isin(np.arange(records), draw.permutation(records)[:most])
    parts = tuple(part[chosen[part]] for part in characters.partition if chosen[part].any())

    def one_hot(part: Dataset) -> Dataset:
        places = np.asarray(part.features).astype(int) + size * np.arange(4)
        starts = 4 * np.arange(part.records + 1)
        halves = np.full(places.size, 0.5, np.float32)  # four of them have norm 1
        shape = part.records, 4 * size
        x = sparse.csr_array((halves, places.ravel(), starts), shape=shape)
        return replace(part, features=x)

    return _softmax(one_hot(characters.train), one_hot(characters.test), parts, classes=size)


def _marriages(key: Key, _: int | None) -> LinearProblem:
    table = _packaged("fair")
    features = Columns.of(MARRIAGE_RANGES, [*MARRIAGE_RANGES])
    encoded = features.encode([table[name].to_numpy() for name in MARRIAGE_RANGES]).features
    faith = table["religious"].to_numpy()[:, np.newaxis]
    labels = (table["affairs"].to_numpy() > 0).astype(np.int64)
    train, test = _split(Dataset(np.c_[encoded, faith], labels), key, None)
    sites = train.features[:, -1]
    train, test = (replace(part, features=part.features[:, :-1]) for part in (train, test))
    return _softmax(train, test, tuple(np.flatnonzero(sites == level) for level in range(1, 5)))


def _voters(key: Key, _: int | None) -> LinearProblem:
    table = _packaged("anes96")
    features = Columns.of(VOTER_RANGES, [*VOTER_RANGES])
    encoded = features.encode([table[name].to_numpy() for name in VOTER_RANGES]).features
    labels = table["vote"].to_numpy().astype(np.int64)
    train, test = _split(Dataset(np.asarray(encoded), labels), key, None)
    return _softmax(train, test, iid(train, 4, generator(key, Purpose.SPLIT), equal_sizes=True))


def _packaged(name: str) -> Any:
    """Return a table that statsmodels ships, as pandas has it."""
    from importlib import import_module

    return import_module(f"statsmodels.datasets.{name}").load_pandas().data


def _wide(records: Dataset) -> Dataset:
    """Return records in float64: float32 rounds models too coarsely for many records' noise."""
    return replace(records, features=records.features.astype(np.float64))


def _split(records: Dataset, key: Key, most: int | None) -> tuple[Dataset, Dataset]:
    draw = generator(key, Purpose.SPLIT)
    return train_test_split(records.take(draw.permutation(records.records)[:most]), HELD_OUT, draw)


def _softmax(
    train: Dataset, test: Dataset, parts: tuple[np.ndarray, ...], classes: int | None = None
) -> LinearProblem:
    if train.labels.min() < 0:
        train, test = (part.relabelled(lambda sign: (sign > 0) * 1) for part in (train, test))
    if classes is None:
        classes = int(train.labels.max()) + 1
    return LinearProblem(train, parts, "softmax", test=test, classes=classes)


TASKS = {
    "digits-by-class": Task(
        title="digits, two classes at each of 10 sites",
        make=partial(_digits, which=0),
        held_out=HELD_OUT,
        tuned_on=True,
    ),
    "digits-alike": Task(
        title="even or odd digits, 16 sites that are alike",
        make=partial(_digits, which=1),
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
