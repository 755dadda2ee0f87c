"""Share of verdicts that claim a difference on labels of noise.

    python -m dpmesh_papers.studies.noise_labels 200

Each table has its own shape: 1 to 10 sites, 60 to 400 records, labels drawn apart from the columns.
An interval of 95% may claim a difference in 1 of 20 tables; more than 18 of 200 would then happen
once in 220 times.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np

import dpmesh as dm


def verdict(seed: int) -> str:
    """Return what is claimed of one table of noise."""
    draw = np.random.default_rng(seed)
    sites = int(draw.choice([1, 2, 3, 5, 10]))
    records = int(draw.integers(60, 400))
    x = draw.uniform(-1, 1, (records, int(draw.integers(1, 8))))
    site = draw.integers(sites, size=records)
    share = draw.uniform(0.2, 0.8)
    epsilon = float(draw.choice([1.0, 2.0, 8.0]))
    model: dm.sklearn.PrivateClassifier | dm.sklearn.PrivateRegressor
    if seed % 4:
        y = (draw.random(records) < share).astype(float)
        model = dm.sklearn.PrivateClassifier(epsilon, random_state=seed)
    else:
        y = draw.uniform(-1, 1, records)
        model = dm.sklearn.PrivateRegressor(epsilon, random_state=seed)
    result = dm.sklearn.evaluate(model, x, y, groups=site).verdict
    is_split = result.claim == "inconclusive" and any(result.sites)
    return "some sites" if is_split else str(result.claim)


def main(tables: int) -> None:
    """Print how many verdicts are which."""
    counts = Counter(verdict(seed) for seed in range(tables))
    for claim, count in counts.most_common():
        print(f"{claim:<20}{count:>4}")
    claimed = sum(counts[name] for name in ("better", "worse", "some sites"))
    print(f"{claimed} of {tables} tables of noise claim a difference")


if __name__ == "__main__":
    main(int(sys.argv[1]))
