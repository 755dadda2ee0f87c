"""Measure the coverage of private confidence intervals of regressions and hazard ratios.

    python -m dpmesh_papers.studies.regression_coverage RUNS

A `Setting` is a model, a distribution of records, a number of records and an epsilon. Each run
draws new records, answers the question from noisy sums, and checks which 95% intervals contain the
true value. The noise is Gaussian, with the standard deviation of secure aggregation among five
sites. An answer without estimates (too much noise) does not count towards coverage; ``shown`` is
the share of runs with estimates.

The true coefficients are those of the same model, fitted without noise to at least 800,000 records
and to at least 48 times as many as a run has. The variance of the true value is then at most 1/48
of the sampling variance of a run. Some models are wrong on purpose; their true value is the best
fit to the population. A hazard ratio is a parameter of the simulated times.

From 100 runs on, the results go to ``docs/results/regression-coverage.*`` after each setting, with
the number of runs and the commit. A stopped program continues where it ended: it measures again
only settings whose row has another number of runs or another commit. The table is in
``docs/privacy/regression.md``.
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
from dpmesh_papers._output import provenance
from dpmesh_papers._scaffold import Row
from dpmesh_papers.studies.results import markdown_table, read_rows, write_rows

Table = dict[str, np.ndarray]
"""Columns by name, each of shape (records,)."""

Sampler = Callable[[int, np.random.Generator], Table]
"""Draws a number of records."""

SettingKey = tuple[str, int, float]
"""Name, records of a run, and epsilon of a setting."""

RoundSum = Callable[[int, list[NoisyTotal]], np.ndarray]
"""Returns the exact sum of round t, from the noisy totals of the rounds before it."""

PREDICTORS = "abcdefgh"
"""Names of the columns of numbers."""

PUBLIC_RANGES = {**{name: [-1, 1] for name in PREDICTORS}, "y": {"flag": True}}
RESULT = "regression-coverage"
LEAST_COVERAGE = 0.935
"""Least coverage of a column, by the runs, with which the page claims 95%."""

FEWEST_SHOWN = 0.25
"""Least share of runs with estimates with which the page claims any coverage."""

SITES = 5
DELTA = 1e-5
POPULATION = 200_000
"""Records of one fit without noise; the truth is the mean of several fits."""

LEAST_POPULATIONS = 4
POPULATION_OVER_RECORDS = 48
FEWEST_RUNS_KEPT = 100
"""Least runs with which results are written."""

NEWTON_STEPS = 40
LONGEST_STEP = 2.0
"""Length to which a longer Newton step of the fit without noise is cut."""

CONVERGED_STEP = 1e-10
"""Length of a Newton step at which the fit without noise ends."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """A model, a distribution of records, and the size and budget of a run.

    Parameters
    ----------
    name
        Name in the table. The seed depends on it.
    question
        The regression, or the survival curves whose hazard ratio is measured.
    ranges
        Public ranges of the columns, as `dpmesh.statistics.ask` accepts them.
    sample
        Draws records.
    records
        Number of records of a run, over all sites.
    epsilon
        Budget of a run; its delta is `DELTA`.
    hazard_ratio
        The true hazard ratio; None for a regression, whose truth is fitted to a population.
    """

    name: str
    question: Regression | Survival
    ranges: dict[str, Any]
    sample: Sampler
    records: int
    epsilon: float
    hazard_ratio: float | None = None

    @property
    def key(self) -> SettingKey:
        """Name, records and epsilon, which no other setting has."""
        return self.name, self.records, self.epsilon

    @property
    def cost(self) -> tuple[bool, int]:
        """Sort key by computing time: hazard ratios last, as each run simulates a test."""
        return self.hazard_ratio is not None, self.records

    @property
    def seed(self) -> list[int]:
        """Seed of records and noise; it depends on this setting alone, not on the others."""
        return [self.records, round(1000 * self.epsilon), *self.name.encode()]


def uniform_columns(n: int, generator: np.random.Generator, columns: int = 3) -> Table:
    """Return columns of n independent numbers, uniform in [-1, 1]."""
    return {name: generator.uniform(-1, 1, n) for name in PREDICTORS[:columns]}


def linear_predictor(columns: Table, coefficients: tuple[float, ...]) -> np.ndarray:
    """Return constant + slopes * columns; the first coefficient is the constant."""
    constant, *slopes = coefficients
    terms = [slope * columns[name] for slope, name in zip(slopes, PREDICTORS, strict=False)]
    return np.asarray(constant + np.sum(terms, axis=0))


def bernoulli(probability: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return 1 with these probabilities, else 0."""
    return (generator.random(len(probability)) < probability).astype(float)


def sigmoid(log_odds: np.ndarray) -> np.ndarray:
    """Return the probabilities of these log odds."""
    return np.asarray(1 / (1 + np.exp(-log_odds)))


def logistic(*coefficients: float) -> Sampler:
    """Return a sampler of records whose flag y follows a logistic model."""

    def sample(n: int, generator: np.random.Generator) -> Table:
        columns = uniform_columns(n, generator, len(coefficients) - 1)
        probability = sigmoid(linear_predictor(columns, coefficients))
        return {**columns, "y": bernoulli(probability, generator)}

    return sample


def misspecified(n: int, generator: np.random.Generator) -> Table:
    """Draw records whose log odds are a step function of a column and of a product of columns."""
    columns = uniform_columns(n, generator)
    probability_by_step = 0.15 + 0.3 * (columns["c"] > 0)
    probability = np.where(columns["a"] * columns["b"] > 0.2, 0.9, probability_by_step)
    return {**columns, "y": bernoulli(probability, generator)}


def collinear(spread: float) -> Sampler:
    """Return a sampler of a logistic model in which column c is b plus noise of this deviation."""

    def sample(n: int, generator: np.random.Generator) -> Table:
        columns = uniform_columns(n, generator)
        columns["c"] = np.clip(columns["b"] + generator.normal(0, spread, n), -1, 1)
        probability = sigmoid(linear_predictor(columns, USUAL))
        return {**columns, "y": bernoulli(probability, generator)}

    return sample


def with_levels(n: int, generator: np.random.Generator) -> Table:
    """Draw records of a logistic model with a number, a flag, and a category of three levels."""
    columns = {
        "a": generator.uniform(-1, 1, n),
        "f": generator.integers(0, 2, n).astype(float),
        "s": generator.choice(["I", "II", "III"], n, p=[0.5, 0.3, 0.2]),
    }
    level_effect = np.select([columns["s"] == "II", columns["s"] == "III"], [0.5, -0.7], 0.0)
    probability = sigmoid(-0.3 + columns["a"] + 0.6 * columns["f"] + level_effect)
    return {**columns, "y": bernoulli(probability, generator)}


def counts(largest: int, *coefficients: float, overdispersed: bool = False) -> Sampler:
    """Return a sampler of Poisson counts, cut at the largest; gamma rates if overdispersed."""

    def sample(n: int, generator: np.random.Generator) -> Table:
        columns = uniform_columns(n, generator)
        rate = np.exp(linear_predictor(columns, coefficients))
        if overdispersed:
            rate = rate * generator.gamma(2, 0.5, n)  # of mean 1
        return {**columns, "y": np.minimum(generator.poisson(rate), largest).astype(float)}

    return sample


def linear(unequal_spread: bool) -> Sampler:
    """Return a sampler of numbers y with normal errors, whose deviation may depend on column a."""

    def sample(n: int, generator: np.random.Generator) -> Table:
        columns = uniform_columns(n, generator)
        deviation = np.full(n, 0.15)
        if unequal_spread:
            deviation = 0.05 + 0.25 * np.abs(columns["a"])
        mean = linear_predictor(columns, (0.1, 0.3, -0.2, 0.0))
        return {**columns, "y": np.clip(mean + generator.normal(0, deviation), -1, 1)}

    return sample


def trial(hazard_ratio: float, shape: float) -> Sampler:
    """Return a sampler of a trial of two arms, with Weibull times and uniform censoring."""

    def sample(n: int, generator: np.random.Generator) -> Table:
        arm = generator.integers(0, 2, n)
        rate = 1.2 * np.where(arm == 1, hazard_ratio, 1.0)
        event_time = (generator.exponential(1, n) / rate) ** (1 / shape)
        censoring_time = generator.uniform(0.2, 2.5, n)
        died = (event_time <= censoring_time).astype(int)
        return {"time": np.minimum(event_time, censoring_time), "died": died, "arm": arm}

    return sample


THREE_COLUMNS = Regression("y", "a", "b", "c")
EIGHT_COLUMNS = Regression("y", *PREDICTORS)
POISSON = Regression("y", "a", "b", "c", family="poisson")
TRIAL_RANGES = {"time": [0, 1], "died": {"flag": True}, "arm": {"flag": True}}
LEVEL_RANGES = {**PUBLIC_RANGES, "f": {"flag": True}, "s": ["I", "II", "III"]}


def logistic_setting(
    name: str, sample: Sampler, records: int, epsilon: float, question: Regression = THREE_COLUMNS
) -> Setting:
    """Return a setting of a logistic regression on columns of numbers."""
    return Setting(
        name=name,
        question=question,
        ranges=PUBLIC_RANGES,
        sample=sample,
        records=records,
        epsilon=epsilon,
    )


def poisson_setting(
    name: str, largest: int, sample: Sampler, records: int, epsilon: float
) -> Setting:
    """Return a setting of a Poisson regression on three numbers, with counts up to the largest."""
    return Setting(
        name=name,
        question=POISSON,
        ranges={**PUBLIC_RANGES, "y": [0, largest]},
        sample=sample,
        records=records,
        epsilon=epsilon,
    )


def linear_setting(name: str, unequal_spread: bool, records: int, epsilon: float) -> Setting:
    """Return a setting of a linear regression on three numbers."""
    return Setting(
        name=name,
        question=THREE_COLUMNS,
        ranges={**PUBLIC_RANGES, "y": [-1, 1]},
        sample=linear(unequal_spread),
        records=records,
        epsilon=epsilon,
    )


def trial_setting(records: int, epsilon: float, hazard_ratio: float, shape: float) -> Setting:
    """Return a setting of the hazard ratio of two arms."""
    return Setting(
        name=f"hazard ratio {hazard_ratio:g}, Weibull shape {shape:g}",
        question=Survival("time", "died", "arm"),
        ranges=TRIAL_RANGES,
        sample=trial(hazard_ratio, shape),
        records=records,
        epsilon=epsilon,
        hazard_ratio=hazard_ratio,
    )


# Coefficients: the constant, then a slope for each of the columns a, b, c ..
USUAL = (-0.5, 1.5, -1.0, 0.5)
FIVE_WITHOUT_EFFECT = (*USUAL, 0.0, 0.0, 0.0, 0.0, 0.0)
EVENTS_3_PERCENT = (-3.9, 1.0, -1.0, 0.5)
EVENTS_1_PERCENT = (-5.1, 1.0, -1.0, 0.5)
STRONG_EFFECTS = (-2.0, 7.0, -5.0, 3.0)
COUNTS_AROUND_1 = (0.3, 0.5, -0.3, 0.0)
COUNTS_OFTEN_10 = (1.6, 1.2, -0.8, 0.0)
RARE_COUNTS = (-3.0, 0.8, -0.5, 0.0)
OVERDISPERSED = counts(10, *COUNTS_AROUND_1, overdispersed=True)
SETTINGS = (
    logistic_setting("logistic", logistic(*USUAL), 30_000, 0.3),
    logistic_setting("logistic", logistic(*USUAL), 10_000, 1.0),
    logistic_setting("logistic", logistic(*USUAL), 3_000, 1.0),
    logistic_setting("logistic", logistic(*USUAL), 1_500, 1.0),
    logistic_setting("logistic", logistic(*USUAL), 1_000, 1.0),
    logistic_setting(
        "logistic, 8 columns", logistic(*FIVE_WITHOUT_EFFECT), 20_000, 1.0, EIGHT_COLUMNS
    ),
    logistic_setting(
        "logistic, 8 columns", logistic(*FIVE_WITHOUT_EFFECT), 10_000, 1.0, EIGHT_COLUMNS
    ),
    logistic_setting("logistic, misspecified", misspecified, 10_000, 1.0),
    logistic_setting("logistic, misspecified", misspecified, 100_000, 4.0),
    logistic_setting("logistic, 7% events", logistic(-3.0, 1.5, -1.0, 0.5), 10_000, 1.0),
    logistic_setting("logistic, 3% events", logistic(*EVENTS_3_PERCENT), 20_000, 1.0),
    logistic_setting("logistic, 3% events", logistic(*EVENTS_3_PERCENT), 10_000, 1.0),
    logistic_setting("logistic, 1% events", logistic(*EVENTS_1_PERCENT), 100_000, 1.0),
    logistic_setting("logistic, 1% events", logistic(*EVENTS_1_PERCENT), 50_000, 4.0),
    logistic_setting("logistic, strong effects", logistic(*STRONG_EFFECTS), 20_000, 4.0),
    logistic_setting("logistic, strong effects", logistic(*STRONG_EFFECTS), 10_000, 4.0),
    logistic_setting("logistic, collinear", collinear(0.15), 50_000, 1.0),
    logistic_setting("logistic, collinear", collinear(0.15), 20_000, 2.0),
    logistic_setting("logistic, collinear", collinear(0.15), 20_000, 1.0),
    logistic_setting("logistic, collinear", collinear(0.15), 10_000, 1.0),
    logistic_setting("logistic, equal columns", collinear(0.0), 20_000, 1.0),
    Setting(
        name="logistic, flag and levels",
        question=Regression("y", "a", "f", "s"),
        ranges=LEVEL_RANGES,
        sample=with_levels,
        records=5_000,
        epsilon=1.0,
    ),
    poisson_setting("Poisson, to 10", 10, counts(10, *COUNTS_AROUND_1), 30_000, 1.0),
    poisson_setting("Poisson, to 10", 10, counts(10, *COUNTS_AROUND_1), 15_000, 2.0),
    poisson_setting("Poisson, often at the bound", 10, counts(10, *COUNTS_OFTEN_10), 20_000, 4.0),
    poisson_setting("Poisson, often at the bound", 10, counts(10, *COUNTS_OFTEN_10), 15_000, 1.0),
    poisson_setting("Poisson, mean 0.05, to 4", 4, counts(4, *RARE_COUNTS), 100_000, 4.0),
    poisson_setting("Poisson, overdispersed", 10, OVERDISPERSED, 20_000, 4.0),
    poisson_setting("Poisson, overdispersed", 10, OVERDISPERSED, 100_000, 4.0),
    linear_setting("linear", False, 3_000, 1.0),
    linear_setting("linear, unequal spread", True, 10_000, 1.0),
    linear_setting("linear, unequal spread", True, 100_000, 4.0),
    trial_setting(500, 1.0, 0.6, 1.0),
    trial_setting(1_000, 1.0, 0.6, 1.0),
    trial_setting(1_000, 1.0, 1.0, 1.0),
    trial_setting(5_000, 1.0, 0.6, 1.0),
    trial_setting(5_000, 0.3, 0.6, 1.0),
    trial_setting(20_000, 1.0, 0.6, 1.0),
    trial_setting(5_000, 1.0, 0.6, 0.5),
    trial_setting(5_000, 1.0, 2.5, 1.5),
)


def population_coefficients(setting: Setting, generator: np.random.Generator) -> np.ndarray:
    """Fit the model without noise to large samples, and return the mean coefficients.

    Shape (terms,), in the units of the columns.
    """
    assert isinstance(setting.question, Regression)
    questions = questions_about([setting.question], setting.ranges)
    model = setting.question._method(questions.kinds)
    populations = math.ceil(POPULATION_OVER_RECORDS * setting.records / POPULATION)
    fits = []
    for _ in range(max(LEAST_POPULATIONS, populations)):
        columns, _ = read_columns(questions, as_table(setting.sample(POPULATION, generator)))
        if isinstance(model, Moments):
            terms, target = model.design.rows(columns), columns["y"]
            fits.append(np.linalg.lstsq(terms, target.z, rcond=None)[0])
        else:
            fits.append(newton_fit(model, columns))
    return np.asarray(model.design.to_units @ np.mean(fits, axis=0))


def newton_fit(model: Newton, columns: dict[str, Column]) -> np.ndarray:
    """Return the maximum-likelihood coefficients of the coded terms, by Newton's method."""
    terms, target = model.design.rows(columns), columns["y"]
    largest_target = model.family.bound(model.kind)
    targets = model.family.targets(target)
    coefficients = np.zeros(terms.shape[1])
    for _ in range(NEWTON_STEPS):
        residuals, weights = model.family.residuals_and_weights(
            terms @ coefficients, targets, largest_target
        )
        hessian = (terms.T * weights) @ terms
        gradient = terms.T @ residuals
        step = np.linalg.lstsq(hessian, gradient, rcond=1e-9)[0]
        length = float(np.linalg.norm(step))
        coefficients = coefficients + step * min(1.0, LONGEST_STEP / length)
        if length < CONVERGED_STEP:
            break
    return coefficients


@dataclass(kw_only=True)
class NewtonSums:
    """Exact sums over records of a logistic or Poisson regression, by products of matrices.

    They equal the sums of the vectors of `dpmesh.statistics.regression.Newton`, up to rounding (a
    test compares them), in a fifth of the time.

    Parameters
    ----------
    model
        The regression, with its coded columns.
    factors
        Factor of a record's vector in each round, shape (rounds,).
    rows
        The coded terms of each record, shape (records, width); zeros where a value is missing.
    targets
        The target of each record, shape (records,).
    coefficients
        Coefficients of the coded terms after the Newton steps so far, shape (width,).
    """

    model: Newton
    factors: tuple[float, ...]
    rows: np.ndarray
    targets: np.ndarray
    coefficients: np.ndarray

    @classmethod
    def start(cls, questions: Questions, model: Newton, columns: dict[str, Column]) -> NewtonSums:
        """Return the sums over these records, at coefficients of 0."""
        target = columns[model.target]
        return cls(
            model=model,
            factors=tuple(part.factor for (part,) in questions.parts),  # a part is one question's
            rows=model.design.rows(columns) * target.present[:, np.newaxis],
            targets=model.family.targets(target),
            coefficients=np.zeros(model.design.width),
        )

    def sum_in_round(self, t: int, totals: list[NoisyTotal]) -> np.ndarray:
        """Return the sum of the records' vectors in round t, after a Newton step from round t - 1.

        Call it once for each round, in order; `totals` has the noisy totals of rounds 0 to t - 1.
        """
        family = self.model.family
        if t > 0:
            released = totals[-1]
            factor = self.factors[t - 1]
            unscaled = NoisyTotal(released.total / factor, released.noise / factor)
            self.coefficients = rounded(self.coefficients + self.model.step_of(unscaled).move)
        residuals, weights = family.residuals_and_weights(
            self.rows @ self.coefficients, self.targets, family.bound(self.model.kind)
        )
        radius = self.model.design.radius
        gradient = self.rows.T @ residuals
        hessian = self.rows.T @ (weights[:, np.newaxis] * self.rows)
        parts = [gradient, triangle_of(hessian) * math.sqrt(family.kappa) / radius]
        is_last_round = t == len(self.model.shares) - 1
        if is_last_round:
            gradients = residuals[:, np.newaxis] * self.rows
            outer_products = gradients.T @ gradients
            parts.append(triangle_of(outer_products) * math.sqrt(family.lam) / radius)
        return np.concatenate(parts) * self.factors[t]


def triangle_of(matrix: np.ndarray) -> np.ndarray:
    """Return the upper triangle of a symmetric matrix, off-diagonals times sqrt(2).

    Its Euclidean norm is the Frobenius norm of the matrix.
    """
    first, second = np.triu_indices(len(matrix))
    return np.asarray(matrix[first, second] * np.where(first == second, 1.0, math.sqrt(2)))


def round_sums(setting: Setting, questions: Questions, columns: dict[str, Column]) -> RoundSum:
    """Return the function that computes the exact sum of each round on these records."""
    if isinstance(setting.question, Regression):
        model = setting.question._method(questions.kinds)
        if isinstance(model, Newton):
            return NewtonSums.start(questions, model, columns).sum_in_round

    def sum_in_round(t: int, totals: list[NoisyTotal]) -> np.ndarray:
        return np.asarray(questions.vectors(columns, t, totals).sum(axis=0))

    return sum_in_round


def simulate_answer(
    setting: Setting,
    questions: Questions,
    noise_scales: tuple[float, ...],
    generator: np.random.Generator,
) -> Answer:
    """Draw records, add Gaussian noise to the sum of each round, and return the answer.

    `noise_scales` has the standard deviation of each number of a total, for each round.
    """
    columns, _ = read_columns(questions, as_table(setting.sample(setting.records, generator)))
    sum_in_round = round_sums(setting, questions, columns)
    totals: list[NoisyTotal] = []
    for t, (length, scale) in enumerate(zip(questions.lengths, noise_scales, strict=True)):
        total = sum_in_round(t, totals) + scale * generator.standard_normal(length)
        totals.append(NoisyTotal(total, scale))
    all_totals = np.concatenate([released.total for released in totals])
    (answer,) = questions.answers(all_totals, noise_scales, setting.records)
    return answer


def measure(setting: Setting, runs: int) -> Row:
    """Return the coverage and the widths of the intervals of one setting.

    ``covered`` is the share of intervals that contain the true value, over all columns; ``worst``
    is the share of the column that is covered least often. ``half_width`` is the median half width
    of an interval, and ``of_noise`` its part by the noise alone: means over columns without the
    constant. All four are empty if no run had estimates.
    """
    generator = np.random.default_rng(setting.seed)
    questions = questions_about([setting.question], setting.ranges)
    is_regression = setting.hazard_ratio is None
    if is_regression:
        true_values = population_coefficients(setting, generator)
    else:
        true_values = np.array([setting.hazard_ratio])
    algorithm = questions.algorithm.for_budget(
        epsilon=setting.epsilon, delta=DELTA, sites=SITES, records=setting.records, **questions.sums
    )
    covered, half_widths, noise_widths = [], [], []
    for _ in range(runs):
        answer = simulate_answer(setting, questions, algorithm.noise_scales, generator)
        rows = answer.rows if is_regression else answer.ratios
        if any(np.isnan(row.estimate) for row in rows):
            continue
        pairs = zip(rows, true_values, strict=True)
        covered.append([row.low <= true_value <= row.high for row, true_value in pairs])
        half_widths.append([(row.high - row.low) / 2 for row in rows])
        noise_widths.append([row.noise for row in rows])
    result: Row = {
        "setting": setting.name,
        "records": setting.records,
        "epsilon": setting.epsilon,
        "runs": runs,
        "shown": round(len(covered) / runs, 4),
    }
    if not covered:
        return result | dict.fromkeys(("covered", "worst", "half_width", "of_noise"), "")
    coverage_of_columns = np.mean(covered, axis=0)
    slopes = slice(1, None) if is_regression else slice(None)  # a regression's first is constant
    return result | {
        "covered": round(float(coverage_of_columns.mean()), 4),
        "worst": round(float(coverage_of_columns.min()), 4),
        "half_width": f"{np.median(half_widths, axis=0)[slopes].mean():.3g}",
        "of_noise": f"{np.median(noise_widths, axis=0)[slopes].mean():.3g}",
    }


NO_NUMBER = ("", None)
"""A number of a row without estimates: as measured, and as read back from the file."""


def percent(share: object) -> str:
    """Return a share in percent; a dash if there were no estimates."""
    if share in NO_NUMBER:
        return "-"
    return f"{100 * float(str(share)):.1f}%"


def three_digits(width: object) -> str:
    """Return a width with three digits; a dash if there were no estimates."""
    if width in NO_NUMBER:
        return "-"
    return f"{float(str(width)):.3g}"


def page(rows: list[Row]) -> str:
    """Return the table of docs/privacy/regression.md, and the lines below it."""
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
    return f"{markdown_table(heads, lines)}\n{exceptions(rows)}\n"


def exceptions(rows: list[Row]) -> str:
    """Return two lines of text: the settings in which no coverage of 95%, or none, is claimed."""
    seldom_shown = [row for row in rows if row["shown"] < FEWEST_SHOWN]
    often_shown = [row for row in rows if row not in seldom_shown]
    low_coverage = [row for row in often_shown if row["worst"] < LEAST_COVERAGE]
    low_texts = [f"{in_words(row)}, {percent(row['worst'])}" for row in low_coverage]
    text = f"95% is not claimed where the worst column is under {percent(LEAST_COVERAGE)}"
    text = f"{text}: {'; '.join(low_texts) or 'none'}."
    names = "; ".join(map(in_words, seldom_shown)) or "none"
    return f"{text}\nNothing is claimed where fewer than a quarter are shown: {names}."


def in_words(row: Row) -> str:
    """Return name, records and epsilon of a row's setting as text."""
    return f"{row['setting']}, {row['records']:,} records, epsilon {row['epsilon']:g}"


def key_of(row: Row) -> SettingKey:
    """Return the key of a row's setting."""
    return row["setting"], row["records"], row["epsilon"]


def main(runs: int) -> None:
    """Measure and print each setting, fast settings first; write the rows from 100 runs on."""
    commit = provenance()["commit"]
    rows = {key_of(row): row for row in read_rows(RESULT)}
    for setting in sorted(SETTINGS, key=lambda setting: setting.cost):
        earlier = rows.get(setting.key)
        is_current = earlier is not None and (earlier["runs"], earlier["commit"]) == (runs, commit)
        if is_current:
            continue
        rows[setting.key] = measure(setting, runs) | {"commit": commit}
        print(*rows[setting.key].values(), sep="\t", flush=True)
        if runs >= FEWEST_RUNS_KEPT:
            rows_in_order = [rows[setting.key] for setting in SETTINGS if setting.key in rows]
            write_rows(RESULT, rows_in_order, page(rows_in_order))


if __name__ == "__main__":
    main(int(sys.argv[1]))
