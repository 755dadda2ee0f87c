"""Measure how calibration changes the predicted totals and the R2 of private regressions.

    python -m dpmesh_papers.studies.calibration SPLITS

Clipped gradients make predictions of skewed targets too low in total. `PrivateRegressor` can
correct this by *calibration*: one more noisy sum within the same budget, and a linear map of the
predictions (see `dpmesh.tables.calibration`). Each table is split SPLITS times (at least once) at
random into training records at five sites and test records. Each split is fitted without
calibration ("off"), with it ("on"), and by the default rule, which decides from public sizes.

Tables: diabetes (scikit-learn), doctor visits and affairs (statsmodels), Covertype (a sample:
elevation, and the skewed distance to points of fire), and two drawn tables: counts and hospital
stays. Covertype needs DPMESH_DATA. From 5 splits on, results go to ``docs/results/calibration.*``,
the table of ``docs/estimator_recipes.md``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

import dpmesh as dm
from dpmesh.defaults import Method
from dpmesh_papers._scaffold import Row
from dpmesh_papers.public_tables import extremes
from dpmesh_papers.studies.results import markdown_table, write_rows

Records = tuple[np.ndarray, np.ndarray]
"""Columns, shape (records, columns), and targets, shape (records,)."""

SITES = 5
TEST_SHARE = 0.25
EPSILONS = (0.3, 1.0, 4.0)
METHODS: tuple[Method, ...] = ("secure", "gossip")
FOREST_RECORDS = 20_000
FEWEST_SPLITS_KEPT = 5
"""Least splits with which results are written."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A table with the public range of its target.

    Parameters
    ----------
    name
        Name in the table of results.
    load
        Returns columns and targets.
    largest
        Upper end of the target's public range; the lower end is 0. Larger targets are clipped.
    is_count
        True if the target is also learned by Poisson regression, not only by linear regression.
    """

    name: str
    load: Callable[[], Records]
    largest: float
    is_count: bool = False


def diabetes() -> Records:
    """Return the 442 records of scikit-learn."""
    from sklearn.datasets import load_diabetes

    table = load_diabetes(scaled=False)
    return table.data, table.target


def visits() -> Records:
    """Return yearly visits to a doctor, from the RAND health insurance experiment."""
    import statsmodels.api as sm

    table = sm.datasets.randhie.load_pandas()
    return table.exog.to_numpy(float), table.endog.to_numpy(float)


def affairs() -> Records:
    """Return the survey on affairs of Fair (1978); the target is a skewed number."""
    import statsmodels.api as sm

    table = sm.datasets.fair.load_pandas()
    return table.exog.to_numpy(float), table.endog.to_numpy(float)


def forest(target: int) -> Callable[[], Records]:
    """Return a loader of a Covertype sample: column `target` is predicted from nine others."""

    def load() -> Records:
        features = dm.data.covertype(7).features
        sample = np.random.default_rng(0).permutation(len(features))[:FOREST_RECORDS]
        columns = np.asarray(features[sample, :10], float)
        return np.delete(columns, target, axis=1), columns[:, target]

    return load


def drawn_counts() -> Records:
    """Draw 12,000 records: four columns, and negative binomial counts that depend on two of them.

    The counts are more dispersed than Poisson counts.
    """
    generator = np.random.default_rng(0)
    columns = generator.uniform(-1, 1, (12_000, 4))
    mean = 2.9 * np.exp(0.6 * columns[:, 0] - 0.4 * columns[:, 1] - 0.12)
    return columns, generator.negative_binomial(0.7, 0.7 / (0.7 + mean)).astype(float)


def hospital_stays() -> Records:
    """Draw days in hospital with an exponential, right-skewed error."""
    generator = np.random.default_rng(1)
    columns = generator.uniform(-1, 1, (6_000, 3))
    days = 2 + 2 * columns[:, 0] + columns[:, 1] + generator.exponential(3 + 2 * columns[:, 2])
    return columns, days


TASKS = (
    Task(name="diabetes", load=diabetes, largest=350),
    Task(name="doctor visits", load=visits, largest=30, is_count=True),
    Task(name="affairs", load=affairs, largest=20, is_count=True),
    Task(name="forest: elevation", load=forest(0), largest=4_000),
    Task(name="forest: distance to fire", load=forest(9), largest=7_500),
    Task(name="drawn counts", load=drawn_counts, largest=30, is_count=True),
    Task(name="hospital stays", load=hospital_stays, largest=40),
)

CALIBRATIONS: dict[str, bool | None] = {"off": False, "on": True, "by rule": None}
"""Values of `calibrate`, by their names in the columns of results."""


def measure(task: Task, method: Method, learned: str, epsilon: float, splits: int) -> Row:
    """Return mean R2 and mean relative error of the predicted total, for each calibration.

    Parameters
    ----------
    task
        The table.
    method
        The estimator's `algorithm`.
    learned
        ``"counts"`` for Poisson regression, ``"numbers"`` for linear regression.
    epsilon
        Budget of a fit.
    splits
        Number of splits into training and test records, at least 1.
    """
    columns, targets = task.load()
    targets = np.clip(targets, 0, task.largest)
    ranges = ranges_around(columns)
    target_range: tuple[float, float] | None = (0, task.largest)
    largest_count: float | None = None
    if learned == "counts":
        target_range = None
        largest_count = task.largest
    scores: dict[str, list[float]] = {name: [] for name in CALIBRATIONS}
    errors: dict[str, list[float]] = {name: [] for name in CALIBRATIONS}
    for split in range(splits):
        generator = np.random.default_rng(split)
        order = generator.permutation(len(targets))
        test, train = np.split(order, [int(TEST_SHARE * len(order))])
        sites = generator.integers(SITES, size=len(train))
        for name, calibrate in CALIBRATIONS.items():
            model = dm.sklearn.PrivateRegressor(
                epsilon,
                ranges=ranges,
                algorithm=method,
                calibrate=calibrate,
                random_state=split,
                target_range=target_range,
                counts=largest_count,
            )
            model.fit(columns[train], targets[train], groups=sites)
            scores[name].append(model.score(columns[test], targets[test]))
            predicted_total = float(model.predict(columns[test]).sum())
            errors[name].append(predicted_total / float(targets[test].sum()) - 1)
    # The last fit was by the rule, which depends on public sizes alone: the same in each split.
    calibrated_by_rule = model.model_.calibration is not None
    row: Row = {
        "table": task.name,
        "records": len(targets),
        "learned": learned,
        "method": method,
        "epsilon": epsilon,
        "splits": splits,
        "rule": calibrated_by_rule,
    }
    for name in CALIBRATIONS:
        row[f"R2 {name}"] = round(float(np.mean(scores[name])), 4)
        row[f"total {name}"] = round(float(np.mean(errors[name])), 4)
    return row


def ranges_around(columns: np.ndarray) -> dict[int, list[float]]:
    """Return a range slightly wider than the values of each column, as if it were public."""
    return {
        number: [low - 1e-6, high + 1e-6] for number, (low, high) in enumerate(extremes(columns))
    }


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
    """Measure and print each row; write the rows from 5 splits on."""
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    for task in TASKS:
        kinds_of_target = ["numbers"]
        if task.is_count:
            kinds_of_target.append("counts")
        for learned, method, epsilon in product(kinds_of_target, METHODS, EPSILONS):
            rows.append(measure(task, method, learned, epsilon, splits))
            print(*rows[-1].values(), sep="\t", flush=True)
    if splits >= FEWEST_SPLITS_KEPT:
        write_rows("calibration", rows, page(rows))


if __name__ == "__main__":
    main(int(sys.argv[1]))
