"""Measure the accuracy that whitening by a private second moment adds to private centering.

    python -m dpmesh_papers.studies.second_moment [TASK ..]

Private centering subtracts a noisy mean of all sites' records before learning. Here the centered
records, scaled to norm 1, are also whitened by their noisy second moment. Its noise uses a part of
the same budget. With mu the parameter of Gaussian differential privacy of all releases together,
each release has a share of mu^2. Two designs are compared with centering alone:

- ``full``: share `STAGE_SHARE` (a tenth) for the moment; divide by the square roots of its
  eigenvalues;
- ``half``: share 0.03; divide by the fourth roots.

Eigenvalues below the noise count as large as the noise. `dpmesh.algorithms.FirstStage` is ``full``
along the largest axes alone, where `dpmesh.defaults` says so.

Sensitivity: to replace a record x of norm 1 moves the upper triangle of the sum of x x^T, its
off-diagonals times sqrt 2, by at most sqrt 2. A secure sum is assumed in which 1 site may collude.
Each split learns from three quarters of 80% of the training records and is tested on the last
quarter: the publisher's test records and the other 20% are never used. Results go to
``docs/results/second-moment.csv``, and as text to ``second-moment.txt``. Set DPMESH_DATA.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits

import dpmesh as dm
from dpmesh import accounting
from dpmesh.defaults import Sizes, choose
from dpmesh.defaults.rule import STAGE_SHARE
from dpmesh.tables.features import centred, unit
from dpmesh_papers._scaffold import Row, interval
from dpmesh_papers.public_tables import COVERTYPE_RANGES, extremes
from dpmesh_papers.studies.results import read_rows, write_rows

DELTA = 1e-5
DESIGNS = {"mean alone": (0.0, 0.0), "full": (STAGE_SHARE, 0.5), "half": (0.03, 0.25)}
"""Share of mu^2 for the second moment, and the power of its eigenvalues to divide by, by design."""

USED_SHARE = 0.8
"""Share of the training records that this study uses."""

LEARNING_SHARE = 0.75
"""Share of the used records that a split learns from; the rest tests the model."""


class Table(NamedTuple):
    """Records of a task, and their partition among sites."""

    columns: Any
    """Shape (records, columns)."""
    labels: Any
    """Shape (records,)."""
    ranges: Any
    """Public ranges of the columns, as `dpmesh.sklearn.PrivateClassifier` accepts them."""
    sites: int
    """Number of sites."""


def digits() -> Table:
    """Return scikit-learn's digits."""
    x, y = load_digits(return_X_y=True)
    return Table(columns=x, labels=y, ranges=(0, 16), sites=10)


def tumours() -> Table:
    """Return scikit-learn's table of breast cancer, by the ranges of its columns."""
    x, y = load_breast_cancer(return_X_y=True)
    return Table(columns=x, labels=y, ranges=extremes(x), sites=5)


def forest() -> Table:
    """Return 50,000 records of Covertype, by its published ranges."""
    data = dm.data.covertype(7)
    data = data.take(np.random.default_rng(0).permutation(data.records)[:50_000])
    columns = np.asarray(data.features)
    return Table(columns=columns, labels=data.labels, ranges=COVERTYPE_RANGES, sites=4)


def images() -> Table:
    """Return the training images of MNIST."""
    data = dm.data.mnist("train")
    return Table(columns=np.asarray(data.features), labels=data.labels, ranges=(0, 1), sites=10)


class Task(NamedTuple):
    """A data set, its epsilons and its measured designs."""

    load: Callable[[], Table]
    features: str = "columns"
    """Features that are learned from, as `dpmesh.sklearn.PrivateClassifier` names them."""
    epsilons: tuple[float, ...] = (1.0, 2.0, 4.0)
    splits: int = 5
    designs: tuple[str, ...] = tuple(DESIGNS)
    """Names of the measured designs, out of `DESIGNS`; "mean alone" is always among them."""


TASKS = {
    "digits": Task(digits),
    "breast cancer": Task(tumours),
    "covertype": Task(forest, "hats+cosines", (1.0,)),
    "mnist": Task(images, epsilons=(1.0, 4.0), splits=3, designs=("mean alone", "full")),
    "mnist scattering": Task(images, "scattering", (1.0,)),
}


def main(*names: str) -> None:
    """Measure the named tasks, by default all; write their rows and the earlier rows of others."""
    rows = [row for row in read_rows("second-moment") if row["task"] not in (names or TASKS)]
    for name in names or TASKS:
        task = TASKS[name]
        table = task.load()
        data = encoded(table, task.features)
        for epsilon in task.epsilons:
            accuracies_of_design = accuracies(data, table.sites, epsilon, task)
            for design, percent in accuracies_of_design.items():
                gains = percent - accuracies_of_design["mean alone"]
                row = {
                    "task": name,
                    "epsilon": epsilon,
                    "design": design,
                    "splits": task.splits,
                    "accuracy": round(float(percent.mean()), 2),
                    "gain": round(float(gains.mean()), 2),
                    "interval": round(interval(gains), 2),
                }
                rows.append(row)
                print(row, flush=True)
        write_rows("second-moment", rows, as_text(rows))


def encoded(table: Table, features: str) -> dm.Dataset:
    """Return the records of a table by these features, as `PrivateClassifier` encodes them."""
    classifier = dm.sklearn.PrivateClassifier(
        1.0, ranges=table.ranges, features=features, classes=np.unique(table.labels), random_state=0
    )
    site_of_record = np.arange(len(table.labels)) % table.sites
    return classifier._encoded_problem(table.columns, table.labels, site_of_record).problem.train


def as_text(rows: list[Row]) -> str:
    """Return a table: a line per task and epsilon, a column per design."""
    lines = [
        "Accuracy (%) with a first stage of the mean alone, and what a second moment adds to it",
        "(points, with half of the 95% interval over splits of the training records; delta 1e-5,",
        "replace one record, a secure sum in which 1 site may collude).",
        "",
        f"{'task':<18}{'epsilon':>8}{'splits':>8}{'mean alone':>12}{'full':>17}{'half':>17}",
    ]
    row_of_cell = {(row["task"], row["epsilon"], row["design"]): row for row in rows}
    for task, epsilon in dict.fromkeys((task, epsilon) for task, epsilon, _ in row_of_cell):
        alone = row_of_cell[task, epsilon, "mean alone"]
        gains = [
            _gain_in_words(row_of_cell.get((task, epsilon, design))) for design in ("full", "half")
        ]
        lines.append(
            f"{task:<18}{epsilon:>8g}{alone['splits']:>8}{alone['accuracy']:>12.2f}"
            f"{gains[0]:>17}{gains[1]:>17}"
        )
    return "\n".join(lines) + "\n"


def _gain_in_words(row: Row | None) -> str:
    """Return the gain of a design with its interval; "-" if it was not measured."""
    if row is None:
        return "-"
    return f"{row['gain']:+.2f} +- {row['interval']:.2f}"


def accuracies(data: dm.Dataset, sites: int, epsilon: float, task: Task) -> dict[str, np.ndarray]:
    """Return the test accuracies (%) of each design, shape (splits,)."""
    order = np.random.default_rng(99).permutation(data.records)
    used_records = order[: int(USED_SHARE * data.records)]
    mu = 1 / accounting.analytic_gaussian_noise_to_sensitivity(
        target_epsilon=epsilon, target_delta=DELTA
    )
    percent: dict[str, list[float]] = {design: [] for design in task.designs}
    for seed in range(task.splits):
        generator = np.random.default_rng(seed)
        training, test = np.split(
            generator.permutation(used_records), [int(LEARNING_SHARE * len(used_records))]
        )
        stage = Stage.release(data.take(training), sites, mu, generator)
        for design in task.designs:
            share, power = DESIGNS[design]
            train_set, test_set = (
                stage.transformed(data.take(part), share, power) for part in (training, test)
            )
            mu_of_learning = mu * sqrt(1 - STAGE_SHARE - share)
            accuracy = learn(train_set, test_set, sites, mu_of_learning, seed)
            percent[design].append(100 * accuracy)
    return {design: np.array(values) for design, values in percent.items()}


class Stage(NamedTuple):
    """Private centering of one split, and what its designs share.

    They share the records, the noisy mean, and the noise of the second moment before it is scaled,
    so that their differences are paired.

    Attributes
    ----------
    centre
        Noisy mean of the training records, shape (columns,).
    moment
        Mean of u u^T over the training records u, centered and of norm 1, without noise; shape
        (columns, columns).
    standard_noise
        Noise of the second moment for a scale of 1, shape (columns, columns).
    strength
        Noise scale of a mean of sensitivity c with share w of mu^2 is c / (sqrt(w) * strength).
    """

    centre: np.ndarray
    moment: np.ndarray
    standard_noise: np.ndarray
    strength: float

    @classmethod
    def release(
        cls, train: dm.Dataset, sites: int, mu: float, generator: np.random.Generator
    ) -> Stage:
        """Draw the noise of the mean and of the second moment.

        Parameters
        ----------
        train
            Training records of norm at most 1.
        sites
            Number of sites. Each adds 1 / sites of the variance, and a colluding site knows its own
            noise: the others' noise, (sites - 1) / sites of the variance, must suffice.
        mu
            Parameter of Gaussian differential privacy of all releases together.
        generator
            Source of the noise.
        """
        x = np.asarray(train.features)
        columns = x.shape[1]
        strength = mu * len(x) * sqrt((sites - 1) / sites)
        mean_noise = 2 / (sqrt(STAGE_SHARE) * strength)
        centre = x.mean(axis=0) + mean_noise * generator.standard_normal(columns)
        directions = unit(x - centre)
        moment = directions.T @ directions / len(directions)
        return cls(centre, moment, _symmetric_noise(columns, generator), strength)

    def transformed(self, records: dm.Dataset, share: float, power: float) -> dm.Dataset:
        """Return centered records, whitened by the second moment if it has a share of mu^2.

        Parameters
        ----------
        records
            Records, for training or test.
        share
            Share of mu^2 for the second moment; 0 for centering alone.
        power
            Power of the moment's eigenvalues to divide by.
        """
        rows = np.asarray(records.features) - self.centre
        if share > 0:
            moment_noise = sqrt(2) / (sqrt(share) * self.strength)
            noisy_moment = self.moment + moment_noise * self.standard_noise
            rows = unit(rows) @ _whitening(noisy_moment, moment_noise, power)
        return dm.Dataset(centred(rows, np.zeros(len(self.centre))), records.labels)


def _symmetric_noise(dim: int, generator: np.random.Generator) -> np.ndarray:
    """Return symmetric noise, shape (dim, dim): deviation 1 on the diagonal, else 1 / sqrt 2.

    Off-diagonals are released times sqrt 2 with noise of deviation 1, and divided again.
    """
    triangle = np.triu(generator.standard_normal((dim, dim)), 1) / sqrt(2)
    return triangle + triangle.T + np.diag(generator.standard_normal(dim))


def _whitening(moment: np.ndarray, noise_scale: float, power: float) -> np.ndarray:
    """Return the symmetric matrix that divides by a power of the moment's eigenvalues.

    Eigenvalues below about the largest eigenvalue of the noise count as large as that. The matrix
    leaves the largest axis of the moment as it is.
    """
    eigenvalues, axes = np.linalg.eigh(moment)  # ascending
    largest_of_noise = noise_scale * sqrt(2 * len(eigenvalues))
    eigenvalues = np.maximum(eigenvalues, largest_of_noise)
    return (axes * (eigenvalues[-1] / eigenvalues) ** power) @ axes.T


def learn(train: dm.Dataset, test: dm.Dataset, sites: int, mu: float, seed: int) -> float:
    """Learn by secure aggregation with the settings of `dpmesh.defaults`; return the test accuracy.

    The accuracy is a share. Learning alone is mu-GDP, with noise of this seed.
    """
    problem = dm.LinearProblem(
        train,
        tuple(np.array_split(np.arange(train.records), sites)),
        "softmax",
        classes=int(max(train.labels.max(), test.labels.max())) + 1,
        test=test,
        feature_norm=1.0,
    )
    sizes = Sizes(
        nodes=sites,
        fewest_records=problem.fewest_records,
        total_records=train.records,
        dim=problem.dim,
    )
    epsilon = float(accounting.gdp_epsilon(delta=DELTA, mu=mu))
    choice = choose(sizes, epsilon=epsilon, delta=DELTA, algorithm="secure")
    run = dm.simulate(
        choice.algorithm,
        problem,
        rounds=choice.rounds,
        key=dm.Key.seeded(seed),
        metrics=dm.Metrics([], progress=False),
        delta=DELTA,
    )
    return float(problem.accuracy(run.released)[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
