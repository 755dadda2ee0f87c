"""Coverage of statistics' intervals: ``python -m dpmesh_papers.studies.statistics_coverage 1000``.

Records are drawn from a population with replacement, so that the truth is known. Kaplan-Meier
curves are compared with the times of events that censoring hides. Age in years, visits and months
are whole numbers, most of them on an edge of a bin. The last two lines of a setting are the shares
of tables without a difference whose log-rank test has p <= 0.05. Results go to
``docs/results/statistics-coverage.*``; the table is that of ``docs/statistics.md``.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

import dpmesh as dm
from dpmesh.statistics import Correlation, Histogram, Mean, Quantiles, Question, Survival, TwoWay
from dpmesh_papers._scaffold import Row
from dpmesh_papers.studies.results import markdown_table, write_rows

People = Mapping[str, np.ndarray]

RANGES = {
    "age": {"range": [18, 110], "missing": True},
    "years": [18, 110],
    "visits": [0, 30],
    "bmi": [12, 50],
    "cost": [0, 50],
    "stage": ["I", "II", "III"],
    "arm": ["a", "b"],
    "months": [0, 60],
    "died": {"flag": True},
    "whole_months": [0, 60],
    "died_by": {"flag": True},
}
BINS = 10
SETTINGS = ((500, 1.0), (5000, 1.0), (5000, 0.3))


def population(size: int = 200_000) -> dict[str, np.ndarray]:
    """Return the columns of all persons, and the months to events that are not censored."""
    draw = np.random.default_rng(0)
    age = np.clip(draw.normal(62, 13, size), 18, 110)
    bmi = np.clip(18 + 0.12 * age + draw.normal(0, 5, size), 12, 50)
    to_event = draw.exponential(45, size)
    censoring = draw.uniform(5, 120, size)
    cost = np.clip(draw.lognormal(1.5, 1, size), 0, 50)
    return {
        "age": np.where(draw.random(size) < 0.1, np.nan, age),
        "years": np.floor(age),
        "visits": np.minimum(np.floor(cost), 30),
        "bmi": bmi,
        "cost": cost,
        "stage": draw.choice(["I", "II", "III"], size, p=[0.6, 0.3, 0.1]),
        "arm": draw.choice(["a", "b"], size),
        "months": np.minimum(to_event, censoring),
        "died": (to_event <= censoring).astype(float),
        "whole_months": np.ceil(np.minimum(to_event, censoring)),
        "died_by": (to_event <= censoring).astype(float),
        "to_event": to_event,
    }


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question, the name of its line in the table, and what its rows estimate.

    Parameters
    ----------
    line
        The name of the line; of the log-rank test ``log-rank`` follows.
    question
        What is asked.
    truths
        The truth of each row by its name, for so many records of the population.
    """

    line: str
    question: Question
    truths: Callable[[People, int], dict[str, float]]


def means(people: People, records: int) -> dict[str, float]:
    """Return what the rows of `Mean` estimate."""
    truth = {}
    for name in ("age", "bmi", "cost"):
        values = people[name][~np.isnan(people[name])]
        truth[f"{name}, count"] = records * len(values) / len(people[name])
        truth[f"{name}, mean"] = float(values.mean())
        truth[f"{name}, variance"] = float(values.var())
    return truth


def stages(people: People, records: int) -> dict[str, float]:
    """Return the expected number of records in each stage."""
    return {
        stage: records * float((people["stage"] == stage).mean()) for stage in ("I", "II", "III")
    }


def pairs(people: People, records: int) -> dict[str, float]:
    """Return the expected number of records in each stage and arm."""
    truth = {}
    for stage, arm in product(("I", "II", "III"), "ab"):
        in_cell = (people["stage"] == stage) & (people["arm"] == arm)
        truth[f"stage {stage}, arm {arm}"] = records * float(in_cell.mean())
    return truth


def visits(people: People, records: int) -> dict[str, float]:
    """Return the expected number of records in each bin of three visits."""
    truth = {}
    edges = range(0, 31, 3)
    for low, high in pairwise(edges):
        last = high == edges[-1]
        within = (people["visits"] >= low) & (people["visits"] < high + last)
        end = "]" if last else ")"
        truth[f"[{low}, {high}{end}"] = records * float(within.mean())
    return truth


def quantiles_of(column: str) -> Callable[[People, int], dict[str, float]]:
    """Return the function that returns the quartiles of a column."""

    def truths(people: People, _records: int) -> dict[str, float]:
        values = people[column][~np.isnan(people[column])]
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), method="inverted_cdf")
        return {"0.25 quantile": low, "median": middle, "0.75 quantile": high}

    return truths


def correlations(people: People, _records: int) -> dict[str, float]:
    """Return the correlations of two pairs of columns."""
    is_complete = ~np.isnan(people["age"])
    return {
        "age and bmi": np.corrcoef(people["age"][is_complete], people["bmi"][is_complete])[0, 1],
        "bmi and cost": np.corrcoef(people["bmi"], people["cost"])[0, 1],
    }


def survival_of(column: str) -> Callable[[People, int], dict[str, float]]:
    """Return the function that returns the shares that live longer than each edge."""

    def truths(people: People, _records: int) -> dict[str, float]:
        truth = {}
        for mark in np.arange(1, BINS + 1) * 60 // BINS:
            for arm in "ab":
                truth[f"arm {arm}, {column} {mark}"] = float((people["to_event"] > mark).mean())
        return truth

    return truths


CALLS: tuple[tuple[Asked, ...], ...] = (
    (Asked(line="Mean", question=Mean("age", "bmi", "cost"), truths=means),),
    (
        Asked(line="Histogram", question=Histogram("stage"), truths=stages),
        Asked(line="TwoWay", question=TwoWay("stage", "arm"), truths=pairs),
    ),
    (Asked(line="Histogram, whole numbers", question=Histogram("visits"), truths=visits),),
    (
        Asked(line="Quantiles", question=Quantiles("age"), truths=quantiles_of("age")),
        Asked(line="Quantiles", question=Quantiles("cost"), truths=quantiles_of("cost")),
    ),
    (
        Asked(
            line="Quantiles, whole numbers",
            question=Quantiles("years", bins=92),
            truths=quantiles_of("years"),
        ),
        Asked(
            line="Quantiles, whole numbers",
            question=Quantiles("visits", bins=30),
            truths=quantiles_of("visits"),
        ),
    ),
    (
        Asked(line="Correlation", question=Correlation("age", "bmi"), truths=correlations),
        Asked(line="Correlation", question=Correlation("bmi", "cost"), truths=correlations),
    ),
    (
        Asked(
            line="Survival",
            question=Survival("months", "died", "arm", bins=BINS),
            truths=survival_of("months"),
        ),
    ),
    (
        Asked(
            line="Survival, whole numbers",
            question=Survival("whole_months", "died_by", "arm", bins=BINS),
            truths=survival_of("whole_months"),
        ),
    ),
)
"""What is asked together, call by call."""


def questions() -> list[list[Question]]:
    """Return what is asked together, call by call."""
    return [[case.question for case in call] for call in CALLS]


def covered(runs: int, records: int, epsilon: float) -> dict[str, tuple[int, int]]:
    """Return for each line how many intervals cover, and of how many."""
    people = population()
    draw = np.random.default_rng(1)
    hits: defaultdict[str, int] = defaultdict(int)
    intervals: defaultdict[str, int] = defaultdict(int)
    truths = {case: case.truths(people, records) for call in CALLS for case in call}
    for _ in range(runs):
        chosen = draw.integers(len(people["bmi"]), size=records)
        table = {name: column[chosen] for name, column in people.items()}
        site = draw.integers(5, size=records)
        for call in CALLS:
            questions_of_call = [case.question for case in call]
            result = dm.statistics.ask(
                questions_of_call, table, site, ranges=RANGES, epsilon=epsilon
            )
            for case, answer in zip(call, result.answers, strict=True):
                for row in answer.rows:
                    truth = truths[case].get(row.name)
                    if truth is None or not np.isfinite(row.estimate) or row.noise == 0:
                        continue
                    line = case.line
                    if line == "Mean":
                        line = f"Mean: {row.name.rpartition(', ')[2]}"
                    hits[line] += row.low <= truth <= row.high
                    intervals[line] += 1
                if answer.p_value is not None:
                    line = f"{case.line}: log-rank, p <= 0.05"
                    hits[line] += answer.p_value <= 0.05
                    intervals[line] += 1
    return {line: (hits[line], intervals[line]) for line in intervals}


def page(rows: list[Row]) -> str:
    """Return the table of docs/statistics.md."""
    lines = dict.fromkeys(str(row["statistic"]) for row in rows)
    cells: dict[tuple[str, str], str] = {}
    heads = []
    for records, epsilon in SETTINGS:
        head = f"{records} records, epsilon {epsilon:g}"
        heads.append(head)
        for row in rows:
            if (row["records"], row["epsilon"]) == (records, epsilon):
                share = f"{100 * float(str(row['share'])):.1f}% of {row['intervals']}"
                cells[str(row["statistic"]), head] = share
    return markdown_table(
        ["share of intervals that cover", *heads],
        [[line, *(cells.get((line, head), "none") for head in heads)] for line in lines],
    )


def main(runs: int) -> None:
    """Print the shares; write them from 400 runs on."""
    rows: list[Row] = []
    for records, epsilon in SETTINGS:
        for line, (hits, intervals) in covered(runs, records, epsilon).items():
            rows.append(
                {
                    "statistic": line,
                    "records": records,
                    "epsilon": epsilon,
                    "runs": runs,
                    "intervals": intervals,
                    "share": f"{hits / intervals:.3f}",
                }
            )
            print(*rows[-1].values(), sep="\t", flush=True)
    if runs >= 400:
        write_rows("statistics-coverage", rows, page(rows))


if __name__ == "__main__":
    main(int(sys.argv[1]))
