"""Measure the balanced accuracy of a rare class, with and without public class shares.

    python -m dpmesh_papers.studies.rare_classes

Tables of 4 columns at 5 sites are drawn, whose label is positive in 3 records of 100. The private
classifier is told these shares ("stated") or not. Results go to ``docs/results/rare-classes.csv``,
and as text to ``rare-classes.txt``, a table of docs/estimator_recipes.md.
"""

from __future__ import annotations

import warnings
from itertools import product

import numpy as np

import dpmesh as dm
from dpmesh_papers._scaffold import Row
from dpmesh_papers.studies.results import markdown_table, write_rows

SHARES = {"no": 0.97, "yes": 0.03}
"""Share of each class among the records."""

SITES = 5


def balanced_accuracies(
    records: int, epsilon: float, seed: int, *, stated: bool
) -> tuple[float, float]:
    """Draw a table and fit it; return balanced accuracies, as shares.

    They are of the private federation, and of the centralized baseline without privacy.
    """
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1, 1, (records, 4))
    score = x[:, 0] + 0.6 * x[:, 1] + generator.normal(0, 0.25, records)
    y = np.where(score > np.quantile(score, SHARES["no"]), "yes", "no")
    class_shares = SHARES if stated else None
    model = dm.sklearn.PrivateClassifier(
        epsilon, classes=[*SHARES], class_shares=class_shares, random_state=seed
    )
    evaluation = dm.sklearn.evaluate(model, x, y, groups=np.arange(records) % SITES, splits=1)
    pooled = evaluation.baselines.measures["balanced accuracy"].centralized
    return evaluation.verdict.mean("balanced accuracy"), pooled


def main(tables: int = 5) -> None:
    """Measure, print and write means over tables, in percent."""
    warnings.simplefilter("ignore")
    rows = []
    for records, epsilon, stated in product((3_000, 20_000), (1.0, 4.0), (False, True)):
        scores = [
            balanced_accuracies(records, epsilon, seed, stated=stated) for seed in range(tables)
        ]
        federated, pooled = 100 * np.mean(scores, axis=0)
        row = {
            "records": records,
            "epsilon": epsilon,
            "stated": stated,
            "tables": tables,
            "federation": float(federated),
            "pooled": float(pooled),
        }
        rows.append(row)
        print(row, flush=True)
    write_rows("rare-classes", rows, as_text(rows))


def as_text(rows: list[Row]) -> str:
    """Return the page's table: a cell is without / with stated shares."""
    lines = []
    for unstated, stated in zip(rows[::2], rows[1::2], strict=True):
        lines.append(
            [
                f"{unstated['records']:,}",
                f"{unstated['epsilon']:g}",
                "none / stated",
                f"{unstated['federation']:.0f} / {stated['federation']:.0f}",
                f"{unstated['pooled']:.0f} / {stated['pooled']:.0f}",
            ]
        )
    return markdown_table(
        ["records", "epsilon", "shares", "federation", "pooled, without privacy"], lines
    )


if __name__ == "__main__":
    main()
