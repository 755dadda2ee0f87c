"""Fits of estimators on tables, and answers to statistical questions: a user's waiting times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits

import dpmesh as dm
from benches.measure import Case
from dpmesh_papers.studies.statistics_coverage import RANGES, population, questions

SITES = 10


def fit(x: np.ndarray, y: np.ndarray, features: str, most: float) -> Case:
    """Return a fit by a secure sum of all sites, noise included."""
    site = np.arange(len(y)) % SITES
    model = dm.sklearn.PrivateClassifier(
        epsilon=2, ranges=(x.min(), x.max()), features=features, random_state=0
    )
    name = f"fit of {x.shape[0]:,} x {x.shape[1]}, {features}"
    return Case(name, lambda: model.fit(x, y, groups=site), most=most, rounds=5)


def answers(records: int) -> Case:
    """Return all questions of the coverage study, about one table."""
    people = population()
    draw = np.random.default_rng(1)
    chosen = draw.integers(len(people["bmi"]), size=records)
    site = draw.integers(SITES, size=records)
    table = {name: column[chosen] for name, column in people.items()}

    def run() -> None:
        for question in questions():
            dm.statistics.ask(question, table, site, ranges=RANGES, epsilon=1.0)

    return Case(f"{len(questions())} questions about {records:,} records", run, rounds=5)


def cases() -> Iterator[Case]:
    digits, labels = load_digits(return_X_y=True)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(40_000, 54)).clip(-3, 3)
    y = (x[:, 0] + draw.normal(size=len(x)) > 0).astype(int)
    yield fit(digits, labels, "columns", 0.04)
    yield fit(x, y, "columns", 5.0)
    yield fit(x[:4_000], y[:4_000], "hats+cosines", 5.0)
    yield answers(10_000)
