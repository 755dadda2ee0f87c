"""Level of verdicts: ``python -m dpmesh_papers.studies.verdict_level 1000``.

The number is that of evaluations of each setting. An evaluation draws a table, splits it ten times
into training and test records, and compares two arms by `dpmesh.run.verdict.Verdict`. In the
exchangeable settings both arms are the same learner, least squares with noise in the weights, with
keys of their own: every word for a difference is then a false one. In the setting of noise the
labels say nothing, and one arm learns from all records with noise, the other from single sites
without. Results go to ``docs/results/verdict-level.*``, a table of ``docs/verdicts.md``.
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
SHARE = 0.25
COLUMNS = 4
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


def weights(x: Numbers, y: Numbers, noise: float, draw: np.random.Generator) -> Numbers:
    """Return the weights of least squares, with noise of this standard deviation."""
    ridge = np.eye(x.shape[1])
    fitted = np.linalg.solve(x.T @ x + ridge, x.T @ (2.0 * y - 1))
    return np.asarray(fitted + noise * draw.standard_normal(len(fitted)))


def evaluation(setting: Setting, draw: np.random.Generator) -> Verdict:
    """Return the verdict about two arms on one table."""
    records = setting.records
    sites = setting.sites
    columns = draw.uniform(-1, 1, (records, COLUMNS))
    x = np.concatenate([np.ones((records, 1)), columns], axis=1)
    log_odds = 0.8 + setting.signal * (columns[:, 0] - columns[:, 1])
    y = draw.random(records) < 1 / (1 + np.exp(-log_odds))
    owners = draw.integers(sites, size=records)
    split_draw = np.random.RandomState(int(draw.integers(2**31)))
    measured = []
    baselines = []
    populations = []
    for _ in range(SPLITS):
        test = draw_test_records(owners, SHARE, split_draw, classes=y)
        train = ~test
        federation = weights(x[train], y[train], setting.noise, draw)
        if setting.is_exchangeable:
            second_key = weights(x[train], y[train], setting.noise, draw)
            single_sites = [second_key] * sites
        else:
            single_sites = []
            for site in range(sites):
                of_site = train & (owners == site)
                single_sites.append(weights(x[of_site], y[of_site], 0.0, draw))
        correct = (x[test] @ federation > 0) == y[test]
        correct_alone = [(x[test] @ model > 0) == y[test] for model in single_sites]
        own_records = [owners[test] == site for site in range(sites)]
        rare = y[test] == (y[train].mean() < 0.5)
        measured.append({"accuracy": float(correct.mean())})
        baselines.append(
            Baselines(
                metric="accuracy",
                majority_class=float(max(y[test].mean(), 1 - y[test].mean())),
                single_sites=np.array([is_correct.mean() for is_correct in correct_alone]),
                centralized=float(correct.mean()),
                tested=int(test.sum()),
                held_out=SHARE,
            )
        )
        populations.append(
            Population(
                federation=np.array([correct[is_own].mean() for is_own in own_records]),
                single_sites=np.array(
                    [
                        is_correct[is_own].mean()
                        for is_correct, is_own in zip(correct_alone, own_records, strict=True)
                    ]
                ),
                tested=np.array([int(is_own.sum()) for is_own in own_records]),
                rare=RareClass(
                    name="rare",
                    federation=float(correct[rare].mean()),
                    single_site=float(
                        np.mean([is_correct[rare].mean() for is_correct in correct_alone])
                    ),
                    tested=int(rare.sum()),
                ),
            )
        )
    return Verdict(
        measured=measured, baselines_by_split=baselines, epsilon=None, populations=populations
    )


def line(setting: Setting, runs: int, seed: int) -> Row:
    """Return how often a verdict calls each population different, and its headline better."""
    draw = np.random.default_rng(seed)
    differs: Counter[str] = Counter()
    judged: Counter[str] = Counter()
    better = 0
    for _ in range(runs):
        verdict = evaluation(setting, draw)
        better += verdict.claim == "better"
        gains = (verdict.gain, verdict.own_gain, verdict.worst_site, verdict.rarest_class)
        for name, gain in zip(POPULATIONS, gains, strict=True):
            if gain is not None:
                judged[name] += 1
                differs[name] += gain.sign != 0
    row: Row = {"setting": setting.name, "exchangeable": setting.is_exchangeable, "runs": runs}
    for name in POPULATIONS:
        row[name] = round(differs[name] / max(judged[name], 1), 4)
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
    """Print the lines; write them from 1,000 evaluations on."""
    rows: list[Row] = []
    for seed, setting in enumerate(SETTINGS):
        rows.append(line(setting, runs, seed))
        print(*rows[-1].values(), sep="\t", flush=True)
    if runs >= 1_000:
        write_rows("verdict-level", rows, page(rows))


if __name__ == "__main__":
    main(int(sys.argv[1]))
