"""Coverage of statistics' intervals: ``python -m benches.statistics_coverage 1000``.

Records are drawn from a population with replacement, so that the truth is known. Kaplan-Meier
curves are compared with the times of events that censoring hides. The last line of a setting is the
share of tables without a difference whose log-rank test has p <= 0.05. Results go to
``docs/results/statistics-coverage.csv``.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import product
from typing import Any

import numpy as np

import dpmesh as dm
from benches.results import keep
from dpmesh.statistics import Correlation, Histogram, Mean, Quantiles, Survival, TwoWay

RANGES = {
    "age": {"range": [18, 110], "missing": True},
    "bmi": [12, 50],
    "cost": [0, 50],
    "stage": ["I", "II", "III"],
    "arm": ["a", "b"],
    "months": [0, 60],
    "died": {"flag": True},
}
BINS = 10


def population(size: int = 200_000) -> dict[str, np.ndarray]:
    """Return the columns of all persons, and the months to events that are not censored."""
    draw = np.random.default_rng(0)
    age = np.clip(draw.normal(62, 13, size), 18, 110)
    bmi = np.clip(18 + 0.12 * age + draw.normal(0, 5, size), 12, 50)
    to_event = draw.exponential(45, size)
    left = draw.uniform(5, 120, size)
    return {
        "age": np.where(draw.random(size) < 0.1, np.nan, age),
        "bmi": bmi,
        "cost": np.clip(draw.lognormal(1.5, 1, size), 0, 50),
        "stage": draw.choice(["I", "II", "III"], size, p=[0.6, 0.3, 0.1]),
        "arm": draw.choice(["a", "b"], size),
        "months": np.minimum(to_event, left),
        "died": (to_event <= left).astype(float),
        "to_event": to_event,
    }


def truths(people: dict[str, np.ndarray], records: int) -> dict[str, float]:
    """Return what the rows of the answers estimate."""
    age = people["age"][~np.isnan(people["age"])]
    found = {}
    for name, values in (("age", age), ("bmi", people["bmi"]), ("cost", people["cost"])):
        found[f"{name}, mean"] = values.mean()
        found[f"{name}, variance"] = values.var()
        for q in (0.25, 0.5, 0.75):
            label = "median" if q == 0.5 else f"{q:.4g} quantile"
            found[f"{name}: {label}"] = float(np.quantile(values, q))
    found["age, count"] = records * len(age) / len(people["age"])
    for stage, arm in product(RANGES["stage"], RANGES["arm"]):
        both = (people["stage"] == stage) & (people["arm"] == arm)
        found[f"stage {stage}, arm {arm}"] = records * both.mean()
    for stage in RANGES["stage"]:
        found[f"stage: {stage}"] = records * (people["stage"] == stage).mean()
    found["bmi and cost"] = np.corrcoef(people["bmi"], people["cost"])[0, 1]
    whole = ~np.isnan(people["age"])
    found["age and bmi"] = np.corrcoef(age, people["bmi"][whole])[0, 1]
    for mark in np.arange(1, BINS + 1) * 60 / BINS:
        for arm in "ab":
            found[f"arm {arm}, months {mark:.4g}"] = (people["to_event"] > mark).mean()
    return found


def questions() -> list[list[Any]]:
    """Return what is asked together, call by call."""
    return [
        [Mean("age", "bmi", "cost")],
        [Histogram("stage"), TwoWay("stage", "arm")],
        [Quantiles("age"), Quantiles("cost")],
        [Correlation("age", "bmi"), Correlation("bmi", "cost")],
        [Survival("months", "died", "arm", bins=BINS)],
    ]


def covered(runs: int, records: int, epsilon: float) -> dict[str, tuple[int, int]]:
    """Return for each statistic how many intervals cover, and of how many."""
    people, draw = population(), np.random.default_rng(1)
    truth = truths(people, records)
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for _ in range(runs):
        some = draw.integers(len(people["bmi"]), size=records)
        table = {name: column[some] for name, column in people.items()}
        site = draw.integers(5, size=records)
        for asked in questions():
            found = dm.statistics.ask(asked, table, site, ranges=RANGES, epsilon=epsilon)
            for question, answer in zip(asked, found.answers, strict=True):
                kind = type(question).__name__
                for row in answer.rows:
                    name = row.name if row.name in truth else f"{answer.title}: {row.name}"
                    name = name.replace(", count:", ":")
                    if name not in truth or not np.isfinite(row.estimate) or row.noise == 0:
                        continue
                    of = f"{kind}: {row.name.rpartition(', ')[2]}" if kind == "Mean" else kind
                    counts[of][0] += row.low <= truth[name] <= row.high
                    counts[of][1] += 1
                if answer.p_value is not None:
                    counts["log-rank, p <= 0.05"][0] += answer.p_value <= 0.05
                    counts["log-rank, p <= 0.05"][1] += 1
    return {name: (hits, of) for name, (hits, of) in counts.items()}


def main(runs: int) -> None:
    """Print and write the shares."""
    rows = []
    for records, epsilon in ((500, 1.0), (5000, 1.0), (5000, 0.3)):
        for name, (hits, of) in covered(runs, records, epsilon).items():
            own = {"statistic": name, "records": records, "epsilon": epsilon, "runs": runs}
            rows.append(own | {"intervals": of, "share": f"{hits / of:.3f}"})
            print(*rows[-1].values(), sep="\t", flush=True)
    if runs >= 1000:
        keep("statistics-coverage", rows)


if __name__ == "__main__":
    main(int(sys.argv[1]))
