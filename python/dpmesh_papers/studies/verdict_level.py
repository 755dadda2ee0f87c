"""Measure how often verdicts claim a difference where there is none.

    python -m dpmesh_papers.studies.verdict_level RUNS

A `dpmesh.run.verdict.Verdict` compares a federation with models of single sites on several
populations of test records. Each of the RUNS evaluations of a setting draws a table and splits it
ten times into training and test records. The two compared models are its *arms*.

In the exchangeable settings both arms are the same learner (least squares with noise in the
weights), with two independent noises. Each claimed difference is then a false one, and its share is
the level of the test. In the setting "labels of noise" labels are independent of the columns; one
arm learns from all records with noise, the other from the records of each site without. From 1,000
runs on, results go to ``docs/results/verdict-level.*``, a table of ``docs/verdicts.md``.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpmesh.run.baselines import Baselines
from dpmesh.run.populations import Population, RareClass
from dpmesh.run.verdict import Verdict
from dpmesh.sklearn.evaluation import draw_test_records
from dpmesh_papers._scaffold import Row
from dpmesh_papers.studies.results import markdown_table, write_rows

Numbers = np.ndarray
"""Numbers or flags."""

SPLITS = 10
TEST_SHARE = 0.25
FEWEST_RUNS_KEPT = 1_000
"""Least runs with which results are written."""
COLUMNS = 4
MAJORITY_LOG_ODDS = 0.8
"""Log-odds of a label where all columns are 0, so that one class is rarer."""
POPULATIONS = ("all sites' records", "own records", "worst site", "rarest class")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A kind of table with two arms.

    Parameters
    ----------
    name
        Name of the line.
    records, sites
        Number of records and of sites.
    signal
        Weight of the columns in the log-odds of the label; 0 for labels of noise.
    noise
        Standard deviation of the noise in each weight.
    """

    name: str
    records: int
    sites: int
    signal: float
    noise: float

    @property
    def is_exchangeable(self) -> bool:
        """True if both arms are one learner with two keys."""
        return self.signal > 0


SETTINGS = (
    Setting(name="one learner, two keys", records=400, sites=4, signal=2.0, noise=0.05),
    Setting(name="the same, more noise", records=400, sites=4, signal=2.0, noise=0.3),
    Setting(name="the same, larger table", records=2_000, sites=8, signal=1.0, noise=0.1),
    Setting(name="labels of noise", records=400, sites=4, signal=0.0, noise=0.05),
)


def fit(x: Numbers, y: Numbers, noise: float, generator: np.random.Generator) -> Numbers:
    """Return ridge regression weights for labels -1 and 1, plus noise of this deviation."""
    ridge = np.eye(x.shape[1])
    fitted = np.linalg.solve(x.T @ x + ridge, x.T @ (2.0 * y - 1))
    return np.asarray(fitted + noise * generator.standard_normal(len(fitted)))


class Table(NamedTuple):
    """Records of all sites.

    Attributes
    ----------
    x
        Columns, the first of which is constant, shape (records, 1 + `COLUMNS`).
    y
        Labels, shape (records,).
    site
        Site of each record, shape (records,).
    """

    x: Numbers
    y: Numbers
    site: Numbers


def draw_table(setting: Setting, generator: np.random.Generator) -> Table:
    """Draw a table whose labels follow a logistic model of the first two columns."""
    columns = generator.uniform(-1, 1, (setting.records, COLUMNS))
    x = np.concatenate([np.ones((setting.records, 1)), columns], axis=1)
    log_odds = MAJORITY_LOG_ODDS + setting.signal * (columns[:, 0] - columns[:, 1])
    y = generator.random(setting.records) < 1 / (1 + np.exp(-log_odds))
    return Table(x, y, generator.integers(setting.sites, size=setting.records))


class Comparison(NamedTuple):
    """Scores of both arms on one split, as a `Verdict` has them.

    Attributes
    ----------
    accuracy
        Accuracy of the federation.
    baselines, population
        Scores of the single sites, and of both arms on parts of the test records.
    """

    accuracy: float
    baselines: Baselines
    population: Population


def compare(
    setting: Setting, table: Table, test: Numbers, generator: np.random.Generator
) -> Comparison:
    """Fit both arms on one split.

    `test` is True for the test records, shape (records,).
    """
    x, y, site = table
    train = ~test
    federation = fit(x[train], y[train], setting.noise, generator)
    if setting.is_exchangeable:
        second_arm = fit(x[train], y[train], setting.noise, generator)
        single_sites = [second_arm] * setting.sites
    else:
        single_sites = []
        for number in range(setting.sites):
            on_site = train & (site == number)
            single_sites.append(fit(x[on_site], y[on_site], 0.0, generator))
    # rows are models of single sites, columns are test records
    correct = (x[test] @ federation > 0) == y[test]
    correct_of_sites = np.array([(x[test] @ model > 0) == y[test] for model in single_sites])
    own_records = np.array([site[test] == number for number in range(setting.sites)])
    accuracies_on_own = [
        is_correct[is_own].mean()
        for is_correct, is_own in zip(correct_of_sites, own_records, strict=True)
    ]
    rarer_label = y[train].mean() < 0.5
    rare = y[test] == rarer_label
    accuracy = float(correct.mean())
    baselines = Baselines(
        metric="accuracy",
        majority_class=float(max(y[test].mean(), 1 - y[test].mean())),
        single_sites=correct_of_sites.mean(axis=1),
        centralized=accuracy,
        tested=int(test.sum()),
        held_out=TEST_SHARE,
    )
    population = Population(
        federation=np.array([correct[is_own].mean() for is_own in own_records]),
        single_sites=np.array(accuracies_on_own),
        tested=own_records.sum(axis=1),
        rare=RareClass(
            name="rare",
            federation=float(correct[rare].mean()),
            single_site=float(correct_of_sites[:, rare].mean(axis=1).mean()),
            tested=int(rare.sum()),
        ),
    )
    return Comparison(accuracy, baselines, population)


def evaluate(setting: Setting, generator: np.random.Generator) -> Verdict:
    """Draw a table, fit both arms on each split, and return the verdict on their accuracies."""
    table = draw_table(setting, generator)
    split_generator = np.random.RandomState(int(generator.integers(2**31)))
    comparisons = []
    for _ in range(SPLITS):
        test = draw_test_records(table.site, TEST_SHARE, split_generator, classes=table.y)
        comparisons.append(compare(setting, table, test, generator))
    return Verdict(
        measured=[{"accuracy": comparison.accuracy} for comparison in comparisons],
        baselines_by_split=[comparison.baselines for comparison in comparisons],
        epsilon=None,
        populations=[comparison.population for comparison in comparisons],
    )


def measure(setting: Setting, runs: int, seed: int) -> Row:
    """Return the shares of verdicts with a difference, by population, and of "better"."""
    generator = np.random.default_rng(seed)
    differences: Counter[str] = Counter()
    judged_count: Counter[str] = Counter()
    better = 0
    for _ in range(runs):
        verdict = evaluate(setting, generator)
        better += verdict.claim == "better"
        gains = (verdict.gain, verdict.local_gain, verdict.worst_site, verdict.rarest_class)
        for name, gain in zip(POPULATIONS, gains, strict=True):
            if gain is not None:
                judged_count[name] += 1
                differences[name] += gain.sign != 0
    row: Row = {"setting": setting.name, "exchangeable": setting.is_exchangeable, "runs": runs}
    for name in POPULATIONS:
        row[name] = round(differences[name] / max(judged_count[name], 1), 4)
    row["better"] = round(better / runs, 4)
    return row


def page(rows: list[Row]) -> str:
    """Return the table of docs/verdicts.md."""
    heads = ["setting", "evaluations", *POPULATIONS, "word *better*"]
    lines = [
        [
            row["setting"],
            f"{row['runs']:,}",
            *(f"{100 * row[name]:.1f}%" if row["exchangeable"] else "" for name in POPULATIONS),
            f"{100 * row['better']:.1f}%",
        ]
        for row in rows
    ]
    return markdown_table(heads, lines)


def main(runs: int) -> None:
    """Measure and print each setting; write the rows from 1,000 evaluations on."""
    rows: list[Row] = []
    for seed, setting in enumerate(SETTINGS):
        rows.append(measure(setting, runs, seed))
        print(*rows[-1].values(), sep="\t", flush=True)
    if runs >= FEWEST_RUNS_KEPT:
        write_rows("verdict-level", rows, page(rows))


if __name__ == "__main__":
    main(int(sys.argv[1]))
