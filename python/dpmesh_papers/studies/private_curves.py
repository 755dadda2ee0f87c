"""Measure and draw private survival curves, and draw accuracy over epsilon.

    python -m dpmesh_papers.studies.private_curves

Kaplan-Meier curves of 2,000 simulated patients at five sites go to ``docs/results/survival.csv``.
Accuracies are read from ``docs/results/tables.csv``, which ``dpmesh reproduce tables`` writes. Two
figures in docs/images are drawn from these files.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import dpmesh as dm
from dpmesh.plots import COLOURS
from dpmesh.statistics import Survival, ask
from dpmesh_papers._output import checkout
from dpmesh_papers._scaffold import Row, kinds, pick
from dpmesh_papers.studies.results import read_rows, write_rows
from dpmesh_papers.tables import RULE, WITHOUT

DOCS = checkout() / "docs"
EPSILONS = (0.5, 2.0)
ARMS = {"standard": 40.0, "new": 60.0}
"""Mean months to the event, by arm of the trial."""

LAST_MONTH = 60
"""End of the public range of times, and of the curves."""

RANGES = {"arm": [*ARMS], "months": [0, LAST_MONTH], "died": {"flag": True}}
RECORDS = 2000
SITES = 5
BINS = 20


def patients() -> dict[str, np.ndarray]:
    """Return simulated patients with exponential times to the event and uniform censoring."""
    generator = np.random.default_rng(0)
    arm = generator.choice([*ARMS], RECORDS)
    event_time = generator.exponential(np.array([ARMS[patient_arm] for patient_arm in arm]))
    censoring_time = generator.uniform(5, 100, RECORDS)
    return {
        "arm": arm,
        "months": np.minimum(event_time, censoring_time),
        "died": event_time <= censoring_time,
    }


def kaplan_meier(table: dict[str, np.ndarray], arm: str, months: float) -> float:
    """Return the non-private Kaplan-Meier estimate of the share without the event after months."""
    in_arm = table["arm"] == arm
    time = table["months"][in_arm]
    died = table["died"][in_arm]
    survival = 1.0
    for event_time in np.unique(time[died & (time <= months)]):
        events = (time[died] == event_time).sum()
        at_risk = (time >= event_time).sum()
        survival *= 1 - events / at_risk
    return float(survival)


def measure() -> None:
    """Write the private curves at each epsilon with 95% intervals, and the non-private ones."""
    table = patients()
    site = np.arange(RECORDS) % SITES
    question = Survival("months", "died", by="arm", bins=BINS)
    rows: list[Row] = []
    for epsilon in EPSILONS:
        key = dm.Key.seeded(int(10 * epsilon))
        (answer,) = ask(question, table, site, ranges=RANGES, epsilon=epsilon, key=key).answers
        points = product(ARMS, range(1, BINS + 1))  # rows are ordered by arm, then by time
        for (arm, bin_number), row in zip(points, answer.rows, strict=True):
            months = LAST_MONTH * bin_number / BINS
            rows.append(
                {
                    "epsilon": epsilon,
                    "arm": arm,
                    "months": months,
                    "estimate": round(row.estimate, 4),
                    "low": round(row.low, 4),
                    "high": round(row.high, 4),
                    "exact": round(kaplan_meier(table, arm, months), 4),
                }
            )
    write_rows("survival", rows)


def draw_survival(rows: list[Row], path: Path) -> None:
    """Draw a panel for each epsilon: private curves with intervals, and non-private curves."""
    figure, axes = plt.subplots(
        1, len(EPSILONS), figsize=(8, 3.2), layout="constrained", sharey=True
    )
    for ax, epsilon in zip(axes, EPSILONS, strict=True):
        for arm, colour in zip(ARMS, COLOURS, strict=False):
            arm_rows = pick(rows, epsilon=epsilon, arm=arm)
            months = _column(arm_rows, "months")
            low = _column(arm_rows, "low")
            high = _column(arm_rows, "high")
            ax.step(months, _column(arm_rows, "estimate"), where="post", color=colour, label=arm)
            ax.fill_between(months, low, high, step="post", color=colour, alpha=0.2)
            ax.step(months, _column(arm_rows, "exact"), ":", where="post", color=colour)
        ax.set_title(f"epsilon {epsilon:g}")
        ax.set_xlabel("months")
    axes[0].set_ylabel("share without the event")
    axes[0].legend(frameon=False, title="dotted: no privacy", fontsize="small")
    figure.savefig(path, dpi=120)


def _column(rows: list[Row], name: str) -> np.ndarray:
    """Return the values of one column, shape (rows,)."""
    return np.array([row[name] for row in rows])


def draw_accuracies(rows: list[Row], path: Path) -> None:
    """Draw a panel for each task: accuracy over epsilon, with default features and with columns."""
    tasks = kinds((row for row in rows if row["epsilon"] > 1), "task")  # at several epsilons
    figure, axes = plt.subplots(1, len(tasks), figsize=(8, 3), layout="constrained", sharey=True)
    for ax, task in zip(axes, tasks, strict=True):
        for method, colour in zip(("secure", "gossip"), COLOURS, strict=False):
            for features, style in ((RULE, "o-"), (WITHOUT, "x:")):
                method_rows = pick(rows, task=task, method=method, features=features)
                epsilons = _column(method_rows, "epsilon")
                ax.errorbar(
                    epsilons,
                    _column(method_rows, "accuracy"),
                    _column(method_rows, "interval"),
                    fmt=style,
                    color=colour,
                    label=f"{method}, {features}",
                )
        ax.set_xscale("log", base=2)
        ax.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        ax.set_title(task, fontsize="medium")
        ax.set_xlabel("epsilon")
    axes[0].set_ylabel("accuracy (%)")
    axes[-1].legend(frameon=False, fontsize="x-small")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure the curves, and draw both figures from the results."""
    measure()
    draw_survival(read_rows("survival"), DOCS / "images" / "survival.png")
    draw_accuracies(read_rows("tables"), DOCS / "images" / "accuracy_over_epsilon.png")


if __name__ == "__main__":
    main()
