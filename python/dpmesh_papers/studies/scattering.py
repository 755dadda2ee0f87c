"""Measure accuracy on MNIST with the estimator's scattering features.

    python -m dpmesh_papers.studies.scattering [DIVISIONS]

All 60,000 training images at ten sites, epsilon 1 by secure aggregation in which 1 site may
collude; accuracy on the 10,000 test images. Each division draws the partition among sites and the
noise anew; images are encoded once. Set DPMESH_DATA. Results go to ``docs/results/scattering.csv``.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np

import dpmesh as dm
from dpmesh.defaults import Sizes
from dpmesh_papers._scaffold import Row
from dpmesh_papers.studies.results import write_rows

SITES = 10


def main(divisions: int = 5) -> None:
    """Measure, print and write the test accuracy of each division, in percent."""
    train, test = dm.data.mnist("train"), dm.data.mnist("test")
    classifier = dm.sklearn.PrivateClassifier(
        1.0, ranges=(0, 1), classes=range(10), features="scattering", random_state=0
    )
    sites = np.arange(train.records) % SITES
    encoded = classifier._encoded_problem(np.asarray(train.features), train.labels, sites)
    test_columns = [*np.asarray(test.features).T]
    test_features = encoded.columns.encode(test_columns).features
    scattered = replace(encoded.problem, test=dm.Dataset(test_features, test.labels))
    rows: list[Row] = []
    for seed in range(divisions):
        order = np.random.default_rng(seed).permutation(train.records)
        problem = replace(scattered, partition=tuple(order.reshape(SITES, -1)))
        choice = classifier._choose_settings(Sizes.of(problem))
        start = time.process_time()
        run = dm.simulate(
            choice.algorithm,
            problem,
            rounds=choice.rounds,
            key=dm.Key.seeded(seed),
            delta=classifier.delta,
            metrics=dm.Metrics([], progress=False),
        )
        accuracy = 100 * float(problem.accuracy(run.released).mean())
        seconds = round(time.process_time() - start, 1)
        rows.append({"seed": seed, "rounds": choice.rounds, "accuracy": round(accuracy, 2)})
        print(
            rows[-1],
            f"{seconds} processor seconds",
            f"epsilon {run.privacy.epsilon:.4f}",
            flush=True,
        )
    write_rows("scattering", rows)
    accuracies = [row["accuracy"] for row in rows]
    print(f"mean {np.mean(accuracies):.2f}, standard deviation {np.std(accuracies, ddof=1):.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
