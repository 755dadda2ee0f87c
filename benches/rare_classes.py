"""Rare classes with and without public shares: ``python -m benches.rare_classes``.

Tables of 4 columns at 5 sites, whose label is positive in 3 records of 100.
"""

from __future__ import annotations

import warnings

import numpy as np

import dpmesh as dm

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
    found = dm.sklearn.evaluate(model, x, y, groups=np.arange(records) % 5, splits=1)
    pooled = found.baselines.measures["balanced accuracy"].pooled
    return found.verdict.mean("balanced accuracy"), pooled


def main(tables: int = 5) -> None:
    """Print the means over tables, in percent."""
    warnings.simplefilter("ignore")
    print("records  epsilon  shares   federation  pooled")
    for records in (3_000, 20_000):
        for epsilon in (1.0, 4.0):
            for stated in (False, True):
                found = [balanced(records, epsilon, s, stated=stated) for s in range(tables)]
                own, pooled = 100 * np.mean(found, axis=0)
                word = "stated" if stated else "none"
                print(f"{records:>7}  {epsilon:>7g}  {word:<6}  {own:>10.0f}  {pooled:>6.0f}")


if __name__ == "__main__":
    main()
