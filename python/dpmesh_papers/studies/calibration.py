"""Totals of regressions with and without calibration: ``.. studies.calibration 5``.

The number is that of random splits of each table into five sites, training and test records; 0
draws nothing. Tables: the diabetes data of scikit-learn, doctor visits and affairs of statsmodels,
Covertype (a sample: elevation, and the skewed distance to points of fire), drawn counts, and drawn
hospital stays. Off and on have the same splits. Results go to ``docs/results/calibration.*``, the
table of ``docs/estimator_recipes.md``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import dpmesh as dm
from dpmesh_papers._scaffold import Row
from dpmesh_papers.studies.results import markdown_table, write_rows

Records = tuple[np.ndarray, np.ndarray]
"""Columns and targets."""

SITES = 5
TESTED = 0.25
EPSILONS = (0.3, 1.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A table with the public range of its target.

    Parameters
    ----------
    name
        Name of the line.
    records
        Returns columns and targets.
    top
        Upper end of the target's range; the lower end is 0.
    counts
        True if Poisson regression learns the target, too.
    """

    name: str
    records: Callable[[], Records]
    top: float
    counts: bool = False


def diabetes() -> Records:
    """Return the 442 records of scikit-learn."""
    from sklearn.datasets import load_diabetes

    table = load_diabetes(scaled=False)
    return table.data, table.target


def visits() -> Records:
    """Return visits to a doctor, of the RAND health insurance experiment."""
    import statsmodels.api as sm

    table = sm.datasets.randhie.load_pandas()
    return table.exog.to_numpy(float), table.endog.to_numpy(float)


def affairs() -> Records:
    """Return the affairs of Fair (1978), a skewed number."""
    import statsmodels.api as sm

    table = sm.datasets.fair.load_pandas()
    return table.exog.to_numpy(float), table.endog.to_numpy(float)


def forest(target: int) -> Callable[[], Records]:
    """Return a sample of Covertype, of which one number is to be predicted from nine others."""

    def records() -> Records:
        features = dm.data.covertype(7).features
        sample = np.random.default_rng(0).permutation(len(features))[:20_000]
        columns = np.asarray(features[sample, :10], float)
        return np.delete(columns, target, axis=1), columns[:, target]

    return records


def drawn_counts() -> Records:
    """Return counts with more spread than Poisson's."""
    draw = np.random.default_rng(0)
    z = draw.uniform(-1, 1, (12_000, 4))
    rate = 2.9 * np.exp(0.6 * z[:, 0] - 0.4 * z[:, 1] - 0.12)
    return z, draw.negative_binomial(0.7, 0.7 / (0.7 + rate)).astype(float)


def stays() -> Records:
    """Return days in hospital, with a tail to the right."""
    draw = np.random.default_rng(1)
    z = draw.uniform(-1, 1, (6_000, 3))
    return z, 2 + 2 * z[:, 0] + z[:, 1] + draw.exponential(3 + 2 * z[:, 2])


TASKS = (
    Task(name="diabetes", records=diabetes, top=350),
    Task(name="doctor visits", records=visits, top=30, counts=True),
    Task(name="affairs", records=affairs, top=20, counts=True),
    Task(name="forest: elevation", records=forest(0), top=4_000),
    Task(name="forest: distance to fire", records=forest(9), top=7_500),
    Task(name="drawn counts", records=drawn_counts, top=30, counts=True),
    Task(name="hospital stays", records=stays, top=40),
)


def line(task: Task, method: str, learned: str, epsilon: float, splits: int) -> Row:
    """Return R2 and the error of the total: without calibration, with it, and by the rule.

    Parameters
    ----------
    task
        The table.
    method
        The estimator's `algorithm`.
    learned
        ``"counts"`` for Poisson regression, ``"numbers"`` for a linear one.
    epsilon
        Budget of a fit.
    splits
        Number of splits into training and test records.
    """
    columns, targets = task.records()
    targets = np.clip(targets, 0, task.top)
    lows, highs = columns.min(axis=0) - 1e-6, columns.max(axis=0) + 1e-6  # public in this study
    pairs = zip(lows.tolist(), highs.tolist(), strict=True)
    ranges = {place: [low, high] for place, (low, high) in enumerate(pairs)}
    target_range: tuple[float, float] | None = (0, task.top)
    counts: float | None = None
    if learned == "counts":
        target_range = None
        counts = task.top
    scores: dict[bool | None, list[float]] = {False: [], True: [], None: []}
    errors: dict[bool | None, list[float]] = {False: [], True: [], None: []}
    for split in range(splits):
        draw = np.random.default_rng(split)
        order = draw.permutation(len(targets))
        test, train = np.split(order, [int(TESTED * len(order))])
        sites = draw.integers(SITES, size=len(train))
        for calibrate in scores:
            model = dm.sklearn.PrivateRegressor(
                epsilon,
                ranges=ranges,
                algorithm=method,
                calibrate=calibrate,
                random_state=split,
                target_range=target_range,
                counts=counts,
            )
            model.fit(columns[train], targets[train], groups=sites)
            scores[calibrate].append(model.score(columns[test], targets[test]))
            predicted = float(model.predict(columns[test]).sum())
            errors[calibrate].append(predicted / float(targets[test].sum()) - 1)
    rule = model.model_.calibration is not None
    row: Row = {"table": task.name, "records": len(targets), "learned": learned}
    row |= {"method": method, "epsilon": epsilon, "splits": splits, "rule": rule}
    for name, calibrate in (("off", False), ("on", True), ("by rule", None)):
        row[f"R2 {name}"] = round(float(np.mean(scores[calibrate])), 4)
        row[f"total {name}"] = round(float(np.mean(errors[calibrate])), 4)
    return row


def page(rows: list[Row]) -> str:
    """Return the table of docs/estimator_recipes.md."""
    heads = ["table", "learned", "sites", "epsilon", "R2 off", "R2 on", "total off", "total on"]
    heads += ["by default"]
    lines = [
        [
            f"{row['table']} ({row['records']:,})",
            row["learned"],
            row["method"],
            f"{row['epsilon']:g}",
            *(f"{row[name]:.3f}" for name in ("R2 off", "R2 on")),
            *(f"{100 * row[name]:+.1f}%" for name in ("total off", "total on")),
            "on" if row["rule"] else "off",
        ]
        for row in rows
    ]
    return markdown_table(heads, lines)


def main(splits: int) -> None:
    """Print the lines; write them from 5 splits on."""
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    for task in TASKS:
        for learned in ("numbers", "counts")[: 1 + task.counts]:
            for method in ("secure", "gossip"):
                for epsilon in EPSILONS:
                    rows.append(line(task, method, learned, epsilon, splits))
                    print(*rows[-1].values(), sep="\t", flush=True)
    if splits >= 5:
        write_rows("calibration", rows, page(rows))


if __name__ == "__main__":
    main(int(sys.argv[1]))
