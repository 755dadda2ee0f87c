"""Coverage of regressions: ``python -m dpmesh_papers.studies.regression_coverage 1000``.

Hazard ratios are among them. Records are drawn anew in each run. The truth of a regression are the
coefficients of the same model without noise on at least 800,000 records, and on 48 times as many
as a run has: the error of the truth is then at most 1/48 of the variance of sampling. Models that
are wrong are among them. Noise is Gaussian, of the scale that the secure sums of five sites have.
Coverage is of what is shown. Results go to ``docs/results/regression-coverage.*`` after each
setting, each line with its runs and its commit. A run that was stopped goes on from there, and a
line stays until it is measured again. The table is that of ``docs/privacy/regression.md``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmesh.algorithms.adaptive_sums import NoisyTotal
from dpmesh.statistics import Regression, Survival
from dpmesh.statistics.answers import Answer
from dpmesh.statistics.ask import Questions, questions_about, read_columns
from dpmesh.statistics.geometry import Column
from dpmesh.statistics.regression import Moments, Newton, rounded
from dpmesh.tables import as_table
from dpmesh_papers._output import made
from dpmesh_papers._scaffold import Row
from dpmesh_papers.studies.results import keep, kept, table

Table = dict[str, np.ndarray]
Draw = Callable[[int, np.random.Generator], Table]
Key = tuple[str, int, float]

NAMES = "abcdefgh"
BOX = {**{name: [-1, 1] for name in NAMES}, "y": {"flag": True}}
RESULT = "regression-coverage"
LEAST_COVERAGE, FEWEST_SHOWN = 0.935, 0.25
SITES, DELTA = 5, 1e-5
POPULATION, LEAST_POPULATIONS = 200_000, 4
POPULATION_OVER_RECORDS = 48


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """A model, its records, and a budget.

    Parameters
    ----------
    name
        Of the line.
    question
        What is asked.
    ranges
        Of its columns.
    draw
        Returns records.
    records, epsilon
        Of a run.
    truth
        The true hazard ratio; None for a regression, whose truth is computed.
    """

    name: str
    question: Regression | Survival
    ranges: dict[str, Any]
    draw: Draw
    records: int
    epsilon: float
    truth: float | None = None

    @property
    def key(self) -> Key:
        """What tells it from the others."""
        return self.name, self.records, self.epsilon

    @property
    def cost(self) -> tuple[bool, int]:
        """What orders settings by their time: hazard ratios simulate a test in each run."""
        return self.truth is not None, self.records

    @property
    def seed(self) -> list[int]:
        """The seed of its records and noise, from what it is: other settings do not change it."""
        return [self.records, round(1000 * self.epsilon), *self.name.encode()]


def box(n: int, draw: np.random.Generator, columns: int = 3) -> Table:
    """Return independent numbers in [-1, 1]."""
    return {name: draw.uniform(-1, 1, n) for name in NAMES[:columns]}


def scores(columns: Table, coefficients: tuple[float, ...]) -> np.ndarray:
    """Return the linear predictor of a constant and one column for each other coefficient."""
    constant, *slopes = coefficients
    parts = [b * columns[name] for b, name in zip(slopes, NAMES, strict=False)]
    return np.asarray(constant + np.sum(parts, axis=0))


def flags(share: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Return 1 with these probabilities, else 0."""
    return (draw.random(len(share)) < share).astype(float)


def logistic(*coefficients: float) -> Draw:
    """Return records whose flag has these log odds."""

    def records(n: int, draw: np.random.Generator) -> Table:
        columns = box(n, draw, len(coefficients) - 1)
        share = 1 / (1 + np.exp(-scores(columns, coefficients)))
        return {**columns, "y": flags(share, draw)}

    return records


def misspecified(n: int, draw: np.random.Generator) -> Table:
    """Return records whose log odds are steps and a product, no line."""
    columns = box(n, draw)
    share = np.where(columns["a"] * columns["b"] > 0.2, 0.9, 0.15 + 0.3 * (columns["c"] > 0))
    return {**columns, "y": flags(share, draw)}


def collinear(spread: float) -> Draw:
    """Return records of which one column determines another up to this spread."""

    def records(n: int, draw: np.random.Generator) -> Table:
        columns = box(n, draw)
        columns["c"] = np.clip(columns["b"] + draw.normal(0, spread, n), -1, 1)
        share = 1 / (1 + np.exp(-scores(columns, USUAL)))
        return {**columns, "y": flags(share, draw)}

    return records


def with_levels(n: int, draw: np.random.Generator) -> Table:
    """Return records with a number, a flag, and a category of three levels."""
    columns = {"a": draw.uniform(-1, 1, n), "f": draw.integers(0, 2, n).astype(float)}
    columns["s"] = draw.choice(["I", "II", "III"], n, p=[0.5, 0.3, 0.2])
    effect = np.select([columns["s"] == "II", columns["s"] == "III"], [0.5, -0.7], 0.0)
    share = 1 / (1 + np.exp(-(-0.3 + columns["a"] + 0.6 * columns["f"] + effect)))
    return {**columns, "y": flags(share, draw)}


def counts(top: int, *coefficients: float, spread: bool = False) -> Draw:
    """Return records with counts up to a bound, with or without extra dispersion."""

    def records(n: int, draw: np.random.Generator) -> Table:
        columns = box(n, draw)
        rate = np.exp(scores(columns, coefficients))
        if spread:
            rate = rate * draw.gamma(2, 0.5, n)
        return {**columns, "y": np.minimum(draw.poisson(rate), top).astype(float)}

    return records


def linear(unequal: bool) -> Draw:
    """Return records with a number, of equal or unequal spread."""

    def records(n: int, draw: np.random.Generator) -> Table:
        columns = box(n, draw)
        spread = 0.05 + 0.25 * np.abs(columns["a"]) if unequal else np.full(n, 0.15)
        middle = scores(columns, (0.1, 0.3, -0.2, 0.0))
        return {**columns, "y": np.clip(middle + draw.normal(0, spread), -1, 1)}

    return records


def trial(ratio: float, shape: float) -> Draw:
    """Return followed persons of two arms with Weibull times."""

    def records(n: int, draw: np.random.Generator) -> Table:
        arm = draw.integers(0, 2, n)
        rate = 1.2 * np.where(arm == 1, ratio, 1.0)
        life = (draw.exponential(1, n) / rate) ** (1 / shape)
        leaves = draw.uniform(0.2, 2.5, n)
        died = (life <= leaves).astype(int)
        return {"time": np.minimum(life, leaves), "died": died, "arm": arm}

    return records


ABC = Regression("y", "a", "b", "c")
EIGHT = Regression("y", *NAMES)
COUNTS = Regression("y", "a", "b", "c", family="poisson")
TIMED = {"time": [0, 1], "died": {"flag": True}, "arm": {"flag": True}}
LEVELS = {**BOX, "f": {"flag": True}, "s": ["I", "II", "III"]}


def of_box(
    name: str, draw: Draw, records: int, epsilon: float, question: Regression = ABC
) -> Setting:
    """Return a logistic regression on numbers."""
    return Setting(
        name=name, question=question, ranges=BOX, draw=draw, records=records, epsilon=epsilon
    )


def of_counts(name: str, top: int, draw: Draw, records: int, epsilon: float) -> Setting:
    """Return a Poisson regression on three numbers."""
    ranges = {**BOX, "y": [0, top]}
    return Setting(
        name=name, question=COUNTS, ranges=ranges, draw=draw, records=records, epsilon=epsilon
    )


def of_numbers(name: str, unequal: bool, records: int, epsilon: float) -> Setting:
    """Return a linear regression on three numbers."""
    ranges = {**BOX, "y": [-1, 1]}
    return Setting(
        name=name,
        question=ABC,
        ranges=ranges,
        draw=linear(unequal),
        records=records,
        epsilon=epsilon,
    )


def of_trial(records: int, epsilon: float, ratio: float, shape: float) -> Setting:
    """Return a hazard ratio of two arms."""
    return Setting(
        name=f"hazard ratio {ratio:g}, Weibull shape {shape:g}",
        question=Survival("time", "died", "arm"),
        ranges=TIMED,
        draw=trial(ratio, shape),
        records=records,
        epsilon=epsilon,
        truth=ratio,
    )


USUAL = (-0.5, 1.5, -1.0, 0.5)
FIVE_WITHOUT_EFFECT = (*USUAL, 0.0, 0.0, 0.0, 0.0, 0.0)
EVENTS_3, EVENTS_1 = (-3.9, 1.0, -1.0, 0.5), (-5.1, 1.0, -1.0, 0.5)
STRONG = (-2.0, 7.0, -5.0, 3.0)
AROUND_1, OFTEN_10, RARE = (0.3, 0.5, -0.3, 0.0), (1.6, 1.2, -0.8, 0.0), (-3.0, 0.8, -0.5, 0.0)
OVERDISPERSED = counts(10, *AROUND_1, spread=True)
SETTINGS = (
    of_box("logistic", logistic(*USUAL), 30_000, 0.3),
    of_box("logistic", logistic(*USUAL), 10_000, 1.0),
    of_box("logistic", logistic(*USUAL), 3_000, 1.0),
    of_box("logistic", logistic(*USUAL), 1_500, 1.0),
    of_box("logistic", logistic(*USUAL), 1_000, 1.0),
    of_box("logistic, 8 columns", logistic(*FIVE_WITHOUT_EFFECT), 20_000, 1.0, EIGHT),
    of_box("logistic, 8 columns", logistic(*FIVE_WITHOUT_EFFECT), 10_000, 1.0, EIGHT),
    of_box("logistic, misspecified", misspecified, 10_000, 1.0),
    of_box("logistic, misspecified", misspecified, 100_000, 4.0),
    of_box("logistic, 7% events", logistic(-3.0, 1.5, -1.0, 0.5), 10_000, 1.0),
    of_box("logistic, 3% events", logistic(*EVENTS_3), 20_000, 1.0),
    of_box("logistic, 3% events", logistic(*EVENTS_3), 10_000, 1.0),
    of_box("logistic, 1% events", logistic(*EVENTS_1), 100_000, 1.0),
    of_box("logistic, 1% events", logistic(*EVENTS_1), 50_000, 4.0),
    of_box("logistic, strong effects", logistic(*STRONG), 20_000, 4.0),
    of_box("logistic, strong effects", logistic(*STRONG), 10_000, 4.0),
    of_box("logistic, collinear", collinear(0.15), 50_000, 1.0),
    of_box("logistic, collinear", collinear(0.15), 20_000, 2.0),
    of_box("logistic, collinear", collinear(0.15), 20_000, 1.0),
    of_box("logistic, collinear", collinear(0.15), 10_000, 1.0),
    of_box("logistic, equal columns", collinear(0.0), 20_000, 1.0),
    Setting(
        name="logistic, flag and levels",
        question=Regression("y", "a", "f", "s"),
        ranges=LEVELS,
        draw=with_levels,
        records=5_000,
        epsilon=1.0,
    ),
    of_counts("Poisson, to 10", 10, counts(10, *AROUND_1), 30_000, 1.0),
    of_counts("Poisson, to 10", 10, counts(10, *AROUND_1), 15_000, 2.0),
    of_counts("Poisson, often at the bound", 10, counts(10, *OFTEN_10), 20_000, 4.0),
    of_counts("Poisson, often at the bound", 10, counts(10, *OFTEN_10), 15_000, 1.0),
    of_counts("Poisson, mean 0.05, to 4", 4, counts(4, *RARE), 100_000, 4.0),
    of_counts("Poisson, overdispersed", 10, OVERDISPERSED, 20_000, 4.0),
    of_counts("Poisson, overdispersed", 10, OVERDISPERSED, 100_000, 4.0),
    of_numbers("linear", False, 3_000, 1.0),
    of_numbers("linear, unequal spread", True, 10_000, 1.0),
    of_numbers("linear, unequal spread", True, 100_000, 4.0),
    of_trial(500, 1.0, 0.6, 1.0),
    of_trial(1_000, 1.0, 0.6, 1.0),
    of_trial(1_000, 1.0, 1.0, 1.0),
    of_trial(5_000, 1.0, 0.6, 1.0),
    of_trial(5_000, 0.3, 0.6, 1.0),
    of_trial(20_000, 1.0, 0.6, 1.0),
    of_trial(5_000, 1.0, 0.6, 0.5),
    of_trial(5_000, 1.0, 2.5, 1.5),
)


def estimand(setting: Setting, draw: np.random.Generator) -> np.ndarray:
    """Return the coefficients that the population gives under the model, in the columns' units."""
    assert isinstance(setting.question, Regression)
    about = questions_about([setting.question], setting.ranges)
    fitted = setting.question._fitted(about.kinds)
    fits = []
    populations = math.ceil(POPULATION_OVER_RECORDS * setting.records / POPULATION)
    for _ in range(max(LEAST_POPULATIONS, populations)):
        columns, _ = read_columns(about, as_table(setting.draw(POPULATION, draw)))
        rows, target = fitted.design.rows(columns), columns["y"]
        if isinstance(fitted, Moments):
            fits.append(np.linalg.lstsq(rows, target.z, rcond=None)[0])
            continue
        bound = fitted.family.bound(fitted.kind)
        targets, coefficients = fitted.family.targets(target), np.zeros(rows.shape[1])
        for _ in range(40):
            residuals, weights = fitted.family.residuals_and_weights(
                rows @ coefficients, targets, bound
            )
            hessian, gradient = (rows.T * weights) @ rows, rows.T @ residuals
            step = np.linalg.lstsq(hessian, gradient, rcond=1e-9)[0]
            length = float(np.linalg.norm(step))
            coefficients = coefficients + step * min(1.0, 2 / length)
            if length < 1e-10:
                break
        fits.append(coefficients)
    return np.asarray(fitted.design.to_units @ np.mean(fits, axis=0))


@dataclass(kw_only=True)
class NewtonSums:
    """The sums of a logistic or Poisson regression, by products of matrices.

    They are those of the records' vectors, which a test compares, in a fifth of the time.

    Parameters
    ----------
    fitted, factor
        The regression, and what its vectors are multiplied with in each round.
    rows, targets
        The terms and the target of each record, zeros where a value is missing.
    coefficients
        Those after the steps so far.
    """

    fitted: Newton
    factor: tuple[float, ...]
    rows: np.ndarray
    targets: np.ndarray
    coefficients: np.ndarray

    @classmethod
    def of(cls, about: Questions, fitted: Newton, columns: dict[str, Column]) -> NewtonSums:
        """Return the sums of these records."""
        target = columns[fitted.target]
        return cls(
            fitted=fitted,
            factor=tuple(part.factor for (part,) in about.parts),
            rows=fitted.design.rows(columns) * target.present[:, np.newaxis],
            targets=fitted.family.targets(target),
            coefficients=np.zeros(fitted.design.width),
        )

    def in_round(self, t: int, totals: list[NoisyTotal]) -> np.ndarray:
        """Return the sum of the vectors of round t; rounds are in their order."""
        fitted, family = self.fitted, self.fitted.family
        if t > 0:
            last, factor = totals[-1], self.factor[t - 1]
            step = fitted.step_of(NoisyTotal(last.total / factor, last.noise / factor))
            self.coefficients = rounded(self.coefficients + step.move)
        residuals, weights = family.residuals_and_weights(
            self.rows @ self.coefficients, self.targets, family.bound(fitted.kind)
        )
        radius = fitted.design.radius
        hessian = self.rows.T @ (weights[:, np.newaxis] * self.rows)
        parts = [self.rows.T @ residuals, triangle_of(hessian) * math.sqrt(family.kappa) / radius]
        if t == len(fitted.shares) - 1:
            scores = residuals[:, np.newaxis] * self.rows
            parts.append(triangle_of(scores.T @ scores) * math.sqrt(family.lam) / radius)
        return np.concatenate(parts) * self.factor[t]


def triangle_of(matrix: np.ndarray) -> np.ndarray:
    """Return the upper triangle of a symmetric matrix, off-diagonals times sqrt(2)."""
    first, second = np.triu_indices(len(matrix))
    return np.asarray(matrix[first, second] * np.where(first == second, 1.0, math.sqrt(2)))


def sums_of(
    setting: Setting, about: Questions, columns: dict[str, Column]
) -> Callable[[int, list[NoisyTotal]], np.ndarray]:
    """Return what gives the sum of each round, given the totals before it."""
    if isinstance(setting.question, Regression):
        fitted = setting.question._fitted(about.kinds)
        if isinstance(fitted, Newton):
            return NewtonSums.of(about, fitted, columns).in_round

    def summed(t: int, totals: list[NoisyTotal]) -> np.ndarray:
        return np.asarray(about.vectors(columns, t, totals).sum(axis=0))

    return summed


def answered(
    setting: Setting, about: Questions, noises: tuple[float, ...], draw: np.random.Generator
) -> Answer:
    """Return an answer about fresh records, from sums with Gaussian noise."""
    columns, _ = read_columns(about, as_table(setting.draw(setting.records, draw)))
    sum_in_round = sums_of(setting, about, columns)
    totals: list[NoisyTotal] = []
    for t, (length, noise) in enumerate(zip(about.lengths, noises, strict=True)):
        total = sum_in_round(t, totals) + noise * draw.standard_normal(length)
        totals.append(NoisyTotal(total, noise))
    all_totals = np.concatenate([released.total for released in totals])
    (answer,) = about.answers(all_totals, noises, setting.records)
    return answer


def covered(setting: Setting, runs: int) -> Row:
    """Return the line of a setting."""
    draw = np.random.default_rng(setting.seed)
    about = questions_about([setting.question], setting.ranges)
    truth = np.array([setting.truth])
    if setting.truth is None:
        truth = estimand(setting, draw)
    algorithm = about.algorithm.for_budget(
        epsilon=setting.epsilon, delta=DELTA, sites=SITES, records=setting.records, **about.sums
    )
    hits, halves, noises = [], [], []
    for _ in range(runs):
        answer = answered(setting, about, algorithm.noise_scales, draw)
        rows = answer.rows if setting.truth is None else answer.ratios
        if any(np.isnan(row.estimate) for row in rows):
            continue
        hits.append([row.low <= b <= row.high for row, b in zip(rows, truth, strict=True)])
        halves.append([(row.high - row.low) / 2 for row in rows])
        noises.append([row.noise for row in rows])
    line: Row = {
        "setting": setting.name,
        "records": setting.records,
        "epsilon": setting.epsilon,
        "runs": runs,
        "shown": round(len(hits) / runs, 4),
    }
    if not hits:
        return line | dict.fromkeys(("covered", "worst", "half_width", "of_noise"), "")
    shares = np.mean(hits, axis=0)
    last = slice(1, None) if len(truth) > 1 else slice(None)
    return line | {
        "covered": round(float(shares.mean()), 4),
        "worst": round(float(shares.min()), 4),
        "half_width": f"{np.median(halves, axis=0)[last].mean():.3g}",
        "of_noise": f"{np.median(noises, axis=0)[last].mean():.3g}",
    }


def percent(share: object) -> str:
    """Return a share in percent; a dash if nothing was shown."""
    return f"{100 * float(str(share)):.1f}%" if share != "" else "-"


def three_digits(half: object) -> str:
    """Return half of an interval; a dash if nothing was shown."""
    return f"{float(str(half)):.3g}" if half != "" else "-"


def page(rows: list[Row]) -> str:
    """Return the table of docs/privacy/regression.md."""
    heads = ["setting", "records", "epsilon", "runs", "shown", "coverage", "worst column"]
    heads += ["half width", "of it noise"]
    lines = [
        [
            row["setting"],
            f"{row['records']:,}",
            f"{row['epsilon']:g}",
            f"{row['runs']:,}",
            *(percent(row[name]) for name in ("shown", "covered", "worst")),
            *(three_digits(row[name]) for name in ("half_width", "of_noise")),
        ]
        for row in rows
    ]
    return f"{table(heads, lines)}\n{restricted(rows)}\n"


def restricted(rows: list[Row]) -> str:
    """Return the settings in which 95% is not claimed, in words."""
    few = [row for row in rows if row["shown"] < FEWEST_SHOWN]
    low = [row for row in rows if row not in few and row["worst"] < LEAST_COVERAGE]
    lines = [f"{in_words(row)}, {percent(row['worst'])}" for row in low]
    text = f"95% is not claimed where the worst column is under {percent(LEAST_COVERAGE)}"
    text = f"{text}: {'; '.join(lines) or 'none'}."
    names = "; ".join(map(in_words, few))
    return f"{text}\nNothing is claimed where fewer than a quarter are shown: {names or 'none'}."


def in_words(row: Row) -> str:
    """Return a setting in words."""
    return f"{row['setting']}, {row['records']:,} records, epsilon {row['epsilon']:g}"


def key_of(row: Row) -> Key:
    """Return the setting of a line."""
    return row["setting"], row["records"], row["epsilon"]


def main(runs: int) -> None:
    """Print the lines, those that take least time first; write them from 100 runs on."""
    commit = made()["commit"]
    rows = {key_of(row): row for row in kept(RESULT)}
    for setting in sorted(SETTINGS, key=lambda setting: setting.cost):
        earlier = rows.get(setting.key)
        if earlier is not None and (earlier["runs"], earlier["commit"]) == (runs, commit):
            continue
        rows[setting.key] = covered(setting, runs) | {"commit": commit}
        print(*rows[setting.key].values(), sep="\t", flush=True)
        if runs >= 100:
            in_order = [rows[setting.key] for setting in SETTINGS if setting.key in rows]
            keep(RESULT, in_order, page(in_order))


if __name__ == "__main__":
    main(int(sys.argv[1]))
