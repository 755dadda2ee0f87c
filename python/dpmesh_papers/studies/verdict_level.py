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

import numpy as np

from dpmesh.run.baselines import Baselines
from dpmesh.run.populations import Population, RareClass
from dpmesh.run.verdict import Verdict
from dpmesh.sklearn.evaluation import draw_test_records
from dpmesh_papers._scaffold import Row
from dpmesh_papers.studies.results import markdown_table, write_rows

Numbers = np.ndarray

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


def evaluate(setting: Setting, generator: np.random.Generator) -> Verdict:
    """Draw a table, fit both arms on each split, and return the verdict on their accuracies."""
    records = setting.records
    sites = setting.sites
    columns = generator.uniform(-1, 1, (records, COLUMNS))
    x = np.concatenate([np.ones((records, 1)), columns], axis=1)
    log_odds = MAJORITY_LOG_ODDS + setting.signal * (columns[:, 0] - columns[:, 1])
    y = generator.random(records) < 1 / (1 + np.exp(-log_odds))
    owners = generator.integers(sites, size=records)
    split_generator = np.random.RandomState(int(generator.integers(2**31)))
    measured = []
    baselines = []
    populations = []
    for _ in range(SPLITS):
        test = draw_test_records(owners, TEST_SHARE, split_generator, classes=y)
        train = ~test
        federation = fit(x[train], y[train], setting.noise, generator)
        if setting.is_exchangeable:
            second_arm = fit(x[train], y[train], setting.noise, generator)
            single_sites = [second_arm] * sites
        else:
            single_sites = []
            for site in range(sites):
                on_site = train & (owners == site)
                single_sites.append(fit(x[on_site], y[on_site], 0.0, generator))
        correct = (x[test] @ federation > 0) == y[test]
        correct_of_single_sites = [(x[test] @ model > 0) == y[test] for model in single_sites]
        own_records = [owners[test] == site for site in range(sites)]
        rarer_label = y[train].mean() < 0.5
        rare = y[test] == rarer_label
        measured.append({"accuracy": float(correct.mean())})
        baselines.append(
            Baselines(
                metric="accuracy",
                majority_class=float(max(y[test].mean(), 1 - y[test].mean())),
                single_sites=np.array(
                    [is_correct.mean() for is_correct in correct_of_single_sites]
                ),
                centralized=float(correct.mean()),
                tested=int(test.sum()),
                held_out=TEST_SHARE,
            )
        )
        populations.append(
            Population(
                federation=np.array([correct[is_own].mean() for is_own in own_records]),
                single_sites=np.array(
                    [
                        is_correct[is_own].mean()
                        for is_correct, is_own in zip(
                            correct_of_single_sites, own_records, strict=True
                        )
                    ]
                ),
                tested=np.array([int(is_own.sum()) for is_own in own_records]),
                rare=RareClass(
                    name="rare",
                    federation=float(correct[rare].mean()),
                    single_site=float(
                        np.mean([is_correct[rare].mean() for is_correct in correct_of_single_sites])
                    ),
                    tested=int(rare.sum()),
                ),
            )
        )
    return Verdict(
        measured=measured, baselines_by_split=baselines, epsilon=None, populations=populations
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
        gains = (verdict.gain, verdict.own_gain, verdict.worst_site, verdict.rarest_class)
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
