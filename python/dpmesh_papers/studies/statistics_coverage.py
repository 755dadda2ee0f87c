"""Measure the coverage of the intervals of private statistics.

    python -m dpmesh_papers.studies.statistics_coverage RUNS

Each run draws records with replacement from a simulated population, whose true values are known,
and asks all questions of `CALLS`. A row of the results is the share of 95% intervals that contain
the true value. Kaplan-Meier curves are compared with event times before censoring. Age in years,
visits and months are whole numbers, most of them on an edge of a bin.

Rows named "log-rank" are of another kind: the arms do not differ, and the row is the share of
log-rank tests with p <= 0.05. From 400 runs on, results go to
``docs/results/statistics-coverage.*``, the table of ``docs/statistics_accuracy.md``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

import dpmesh as dm
from dpmesh.statistics import Correlation, Histogram, Mean, Quantiles, Question, Survival, TwoWay
from dpmesh.statistics.answers import Answer
from dpmesh_papers._scaffold import Row
from dpmesh_papers.studies.results import markdown_table, write_rows

People = Mapping[str, np.ndarray]
"""Columns of the population by name, each of shape (people,)."""

TrueValues = Callable[[People, int], dict[str, float]]
"""Returns true values by the names of an answer's rows, for a number of records."""

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
LAST_MONTH = 60
SETTINGS = ((500, 1.0), (5000, 1.0), (5000, 0.3))
"""Number of records, and epsilon of a call."""

SITES = 5
FEWEST_RUNS_KEPT = 400
"""Least runs with which results are written."""


def population(size: int = 200_000) -> dict[str, np.ndarray]:
    """Draw the columns of all people; ``event_time`` is in months, without censoring."""
    generator = np.random.default_rng(0)
    age = np.clip(generator.normal(62, 13, size), 18, 110)
    bmi = np.clip(18 + 0.12 * age + generator.normal(0, 5, size), 12, 50)
    event_time = generator.exponential(45, size)
    censoring = generator.uniform(5, 120, size)
    cost = np.clip(generator.lognormal(1.5, 1, size), 0, 50)
    return {
        "age": np.where(generator.random(size) < 0.1, np.nan, age),
        "years": np.floor(age),
        "visits": np.minimum(np.floor(cost), 30),
        "bmi": bmi,
        "cost": cost,
        "stage": generator.choice(["I", "II", "III"], size, p=[0.6, 0.3, 0.1]),
        "arm": generator.choice(["a", "b"], size),
        "months": np.minimum(event_time, censoring),
        "died": (event_time <= censoring).astype(float),
        "whole_months": np.ceil(np.minimum(event_time, censoring)),
        "died_by": (event_time <= censoring).astype(float),
        "event_time": event_time,
    }


@dataclass(frozen=True, kw_only=True)
class Case:
    """A question, its name in the results, and the true values of its answer.

    Parameters
    ----------
    name
        Name of the row of results. A log-rank test gets a second row.
    question
        A question of `dpmesh.statistics`.
    true_values
        Returns the true values; rows of the answer without one are not counted.
    """

    name: str
    question: Question
    true_values: TrueValues


def means(people: People, records: int) -> dict[str, float]:
    """Return the expected counts, the means and the variances of three columns."""
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
    edges = range(0, 31, 3)  # ten bins of the public range [0, 30]
    for low, high in pairwise(edges):
        is_last = high == edges[-1]
        if is_last:  # the last bin includes its upper edge
            within = (people["visits"] >= low) & (people["visits"] <= high)
            end = "]"
        else:
            within = (people["visits"] >= low) & (people["visits"] < high)
            end = ")"
        truth[f"[{low}, {high}{end}"] = records * float(within.mean())
    return truth


def quantiles_of(column: str) -> TrueValues:
    """Return the function that returns the quartiles of a column."""

    def true_values(people: People, _records: int) -> dict[str, float]:
        values = people[column][~np.isnan(people[column])]
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), method="inverted_cdf")
        return {"0.25 quantile": low, "median": middle, "0.75 quantile": high}

    return true_values


def correlations(people: People, _records: int) -> dict[str, float]:
    """Return the correlations of two pairs of columns."""
    is_complete = ~np.isnan(people["age"])
    return {
        "age and bmi": np.corrcoef(people["age"][is_complete], people["bmi"][is_complete])[0, 1],
        "bmi and cost": np.corrcoef(people["bmi"], people["cost"])[0, 1],
    }


def survival_of(column: str) -> TrueValues:
    """Return the function that returns the share without the event after each edge, in each arm."""

    def true_values(people: People, _records: int) -> dict[str, float]:
        truth = {}
        for mark in np.arange(1, BINS + 1) * LAST_MONTH // BINS:
            for arm in "ab":
                truth[f"arm {arm}, {column} {mark}"] = float((people["event_time"] > mark).mean())
        return truth

    return true_values


CALLS: tuple[tuple[Case, ...], ...] = (
    (Case(name="Mean", question=Mean("age", "bmi", "cost"), true_values=means),),
    (
        Case(name="Histogram", question=Histogram("stage"), true_values=stages),
        Case(name="TwoWay", question=TwoWay("stage", "arm"), true_values=pairs),
    ),
    (Case(name="Histogram, whole numbers", question=Histogram("visits"), true_values=visits),),
    (
        Case(name="Quantiles", question=Quantiles("age"), true_values=quantiles_of("age")),
        Case(name="Quantiles", question=Quantiles("cost"), true_values=quantiles_of("cost")),
    ),
    (
        Case(
            name="Quantiles, whole numbers",
            question=Quantiles("years", bins=92),
            true_values=quantiles_of("years"),
        ),
        Case(
            name="Quantiles, whole numbers",
            question=Quantiles("visits", bins=30),
            true_values=quantiles_of("visits"),
        ),
    ),
    (
        Case(name="Correlation", question=Correlation("age", "bmi"), true_values=correlations),
        Case(name="Correlation", question=Correlation("bmi", "cost"), true_values=correlations),
    ),
    (
        Case(
            name="Survival",
            question=Survival("months", "died", "arm", bins=BINS),
            true_values=survival_of("months"),
        ),
    ),
    (
        Case(
            name="Survival, whole numbers",
            question=Survival("whole_months", "died_by", "arm", bins=BINS),
            true_values=survival_of("whole_months"),
        ),
    ),
)
"""Cases by call of `dpmesh.statistics.ask`: the questions of a call share its epsilon."""


def questions() -> list[list[Question]]:
    """Return the questions of each call."""
    return [[case.question for case in call] for call in CALLS]


def count_covered(runs: int, records: int, epsilon: float) -> dict[str, tuple[int, int]]:
    """Return the number of intervals that contain the true value, and of all, by row of results.

    For log-rank tests: the number of tests with p <= 0.05, and of all.
    """
    people = population()
    generator = np.random.default_rng(1)
    true_values = {case: case.true_values(people, records) for call in CALLS for case in call}
    covered: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for _ in range(runs):
        sample = generator.integers(len(people["bmi"]), size=records)
        table = {name: column[sample] for name, column in people.items()}
        site = generator.integers(SITES, size=records)
        for call in CALLS:
            asked = [case.question for case in call]
            result = dm.statistics.ask(asked, table, site, ranges=RANGES, epsilon=epsilon)
            for case, answer in zip(call, result.answers, strict=True):
                for name, is_covered in outcomes(case, answer, true_values[case]):
                    covered[name] += is_covered
                    counted[name] += 1
    return {name: (covered[name], counted[name]) for name in counted}


def outcomes(
    case: Case, answer: Answer, true_values: dict[str, float]
) -> Iterator[tuple[str, bool]]:
    """Yield row of results and outcome for each interval, and for the log-rank test if any.

    An interval's outcome is True if it contains the true value, a test's if p <= 0.05.
    """
    for row in answer.rows:
        true_value = true_values.get(row.name)
        is_estimated = np.isfinite(row.estimate) and row.noise != 0
        if true_value is None or not is_estimated:
            continue
        name = case.name
        if name == "Mean":  # counts, means and variances have a row each
            name = f"Mean: {row.name.rpartition(', ')[2]}"
        yield name, bool(row.low <= true_value <= row.high)
    if answer.p_value is not None:
        yield f"{case.name}: log-rank, p <= 0.05", bool(answer.p_value <= 0.05)


def page(rows: list[Row]) -> str:
    """Return the table of docs/statistics_accuracy.md."""
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
    """Measure and print the shares of each setting; write them from 400 runs on."""
    rows: list[Row] = []
    for records, epsilon in SETTINGS:
        for name, (covered, intervals) in count_covered(runs, records, epsilon).items():
            rows.append(
                {
                    "statistic": name,
                    "records": records,
                    "epsilon": epsilon,
                    "runs": runs,
                    "intervals": intervals,
                    "share": f"{covered / intervals:.3f}",
                }
            )
            print(*rows[-1].values(), sep="\t", flush=True)
    if runs >= FEWEST_RUNS_KEPT:
        write_rows("statistics-coverage", rows, page(rows))


if __name__ == "__main__":
    main(int(sys.argv[1]))
