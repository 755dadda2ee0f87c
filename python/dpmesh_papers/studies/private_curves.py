"""Private survival curves, and accuracy over epsilon.

    python -m dpmesh_papers.studies.private_curves

The curves of 2,000 drawn patients at five sites go to ``docs/results/survival.csv``; accuracies are
those of ``dpmesh reproduce tables``. Both figures are drawn from these files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

import dpmesh as dm
from dpmesh.plots import COLOURS
from dpmesh.statistics import Survival, ask
from dpmesh_papers._output import checkout
from dpmesh_papers._scaffold import pick
from dpmesh_papers.studies.results import read_rows, write_rows

DOCS = checkout() / "docs"
EPSILONS = (0.5, 2.0)
ARMS = {"standard": 40.0, "new": 60.0}
"""Mean months to the event."""

RANGES = {"arm": [*ARMS], "months": [0, 60], "died": {"flag": True}}
RECORDS = 2000
SITES = 5
BINS = 20


def patients() -> dict[str, np.ndarray]:
    """Return drawn patients, of whom some leave early."""
    draw = np.random.default_rng(0)
    arm = draw.choice([*ARMS], RECORDS)
    to_event = draw.exponential(np.array([ARMS[patient_arm] for patient_arm in arm]))
    censoring = draw.uniform(5, 100, RECORDS)
    return {"arm": arm, "months": np.minimum(to_event, censoring), "died": to_event <= censoring}


def exact(table: dict[str, np.ndarray], arm: str, months: float) -> float:
    """Return the Kaplan-Meier estimate of all times as they are, without privacy."""
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
    """Write the curves at each epsilon, with their 95% intervals."""
    table = patients()
    site = np.arange(RECORDS) % SITES
    question = Survival("months", "died", by="arm", bins=BINS)
    rows: list[dict[str, Any]] = []
    for epsilon in EPSILONS:
        key = dm.Key.seeded(int(10 * epsilon))
        (answer,) = ask(question, table, site, ranges=RANGES, epsilon=epsilon, key=key).answers
        rows_of_arms = np.split(np.array(answer.rows, object), len(ARMS))
        for arm, arm_rows in zip(ARMS, rows_of_arms, strict=True):
            for number, row in enumerate(arm_rows, start=1):
                months = 60 * number / BINS
                rows.append(
                    {
                        "epsilon": epsilon,
                        "arm": arm,
                        "months": months,
                        "estimate": round(row[1], 4),
                        "low": round(row[4], 4),
                        "high": round(row[5], 4),
                        "exact": round(exact(table, arm, months), 4),
                    }
                )
    write_rows("survival", rows)


def survival(rows: list[Any], path: Path) -> None:
    """Draw a panel for each epsilon: the private curves with their bands, and those without."""
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


def _column(rows: list[Any], name: str) -> np.ndarray:
    """Return one number of each row."""
    return np.array([row[name] for row in rows])


def accuracies(rows: list[Any], path: Path) -> None:
    """Draw accuracy over epsilon of each task, by the rule and from columns alone."""
    tasks = [*dict.fromkeys(row["task"] for row in rows if row["epsilon"] > 1)]
    figure, axes = plt.subplots(1, len(tasks), figsize=(8, 3), layout="constrained", sharey=True)
    for ax, task in zip(axes, tasks, strict=True):
        for method, colour in zip(("secure", "gossip"), COLOURS, strict=False):
            for features, style in (("by the rule", "o-"), ("columns alone", "x:")):
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
    survival(read_rows("survival"), DOCS / "images" / "survival.png")
    accuracies(read_rows("tables"), DOCS / "images" / "accuracy_over_epsilon.png")


if __name__ == "__main__":
    main()
