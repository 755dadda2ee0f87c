"""Rare classes with and without public shares: ``python -m dpmesh_papers.studies.rare_classes``.

Tables of 4 columns at 5 sites, whose label is positive in 3 records of 100. Results go to
``docs/results/rare-classes.csv``, and as the page's table beside it.
"""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import numpy as np

import dpmesh as dm
from dpmesh_papers.studies.results import markdown_table, write_rows

SHARES = {"no": 0.97, "yes": 0.03}


def balanced(records: int, epsilon: float, seed: int, *, stated: bool) -> tuple[float, float]:
    """Return the balanced accuracy of a federation, and of pooled records without privacy."""
    draw = np.random.default_rng(seed)
    x = draw.uniform(-1, 1, (records, 4))
    score = x[:, 0] + 0.6 * x[:, 1] + draw.normal(0, 0.25, records)
    y = np.where(score > np.quantile(score, SHARES["no"]), "yes", "no")
    model = dm.sklearn.PrivateClassifier(
        epsilon, classes=[*SHARES], class_shares=SHARES if stated else None, random_state=seed
    )
    evaluation = dm.sklearn.evaluate(model, x, y, groups=np.arange(records) % 5, splits=1)
    pooled = evaluation.baselines.measures["balanced accuracy"].centralized
    return evaluation.verdict.mean("balanced accuracy"), pooled


def main(tables: int = 5) -> None:
    """Keep the means over tables, in percent."""
    warnings.simplefilter("ignore")
    rows = []
    for records, epsilon, stated in product((3_000, 20_000), (1.0, 4.0), (False, True)):
        scores = [balanced(records, epsilon, s, stated=stated) for s in range(tables)]
        federated, pooled = 100 * np.mean(scores, axis=0)
        rows.append({"records": records, "epsilon": epsilon, "stated": stated, "tables": tables})
        rows[-1] |= {"federation": float(federated), "pooled": float(pooled)}
        print(rows[-1], flush=True)
    write_rows("rare-classes", rows, as_text(rows))


def as_text(rows: list[dict[str, Any]]) -> str:
    """Return the page's table: without / with stated shares."""
    lines = []
    for inferred_row, stated_row in zip(rows[::2], rows[1::2], strict=True):
        cells = [
            f"{inferred_row[name]:.0f} / {stated_row[name]:.0f}"
            for name in ("federation", "pooled")
        ]
        lines.append(
            [
                f"{inferred_row['records']:,}",
                f"{inferred_row['epsilon']:g}",
                "none / stated",
                *cells,
            ]
        )
    return markdown_table(
        ["records", "epsilon", "shares", "federation", "pooled, without privacy"], lines
    )


if __name__ == "__main__":
    main()
