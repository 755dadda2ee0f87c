"""Count verdicts that claim a difference on labels of pure noise.

    python -m dpmesh_papers.studies.noise_labels TABLES

Each table has its own shape: 1 to 10 sites, 60 to 400 records, labels independent of the columns.
A 95% interval may claim a difference in 1 of 20 tables. More than 18 claims in 200 tables would
then happen with probability 1/220. The counts are printed only.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np

import dpmesh as dm


def claim(seed: int) -> str:
    """Draw a table, evaluate a private model on it, and return the verdict's claim.

    Three of four seeds have classes, the others numbers. The claim is "some sites" where the
    verdict is inconclusive on average, but not for each site.
    """
    generator = np.random.default_rng(seed)
    sites = int(generator.choice([1, 2, 3, 5, 10]))
    records = int(generator.integers(60, 400))
    x = generator.uniform(-1, 1, (records, int(generator.integers(1, 8))))
    site = generator.integers(sites, size=records)
    positive_share = generator.uniform(0.2, 0.8)
    epsilon = float(generator.choice([1.0, 2.0, 8.0]))
    model: dm.sklearn.PrivateClassifier | dm.sklearn.PrivateRegressor
    is_classification = seed % 4 != 0
    if is_classification:
        y = (generator.random(records) < positive_share).astype(float)
        model = dm.sklearn.PrivateClassifier(epsilon, random_state=seed)
    else:
        y = generator.uniform(-1, 1, records)
        model = dm.sklearn.PrivateRegressor(epsilon, random_state=seed)
    verdict = dm.sklearn.evaluate(model, x, y, groups=site).verdict
    if verdict.claim == "inconclusive" and any(verdict.sites):
        return "some sites"
    return str(verdict.claim)


def main(tables: int) -> None:
    """Print the number of verdicts with each claim."""
    counts = Counter(claim(seed) for seed in range(tables))
    for name, count in counts.most_common():
        print(f"{name:<20}{count:>4}")
    claimed = sum(counts[name] for name in ("better", "worse", "some sites"))
    print(f"{claimed} of {tables} tables of noise claim a difference")


if __name__ == "__main__":
    main(int(sys.argv[1]))
