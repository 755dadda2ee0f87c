"""Forecast of the accuracy of a federation, simulated on public data of its shape.

The data are those that ship with scikit-learn. A training set of the requested shape is drawn from
three quarters of them, repeatedly where there are too few records. Features are replaced by as many
random projections as requested, or joined by columns of random numbers. It is an estimate of the
effect of the noise, and no promise: the difficulty of the real task is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from math import ceil

import numpy as np
import numpy.typing as npt

import dpmesh as dm
import dpmesh.run.baselines as baselines
from dpmesh._epsilons import as_given
from dpmesh._extras import needed_by
from dpmesh._validate import fail, integer, positive
from dpmesh.defaults import Choice, Method, Sizes, choose
from dpmesh.defaults.rule import Noise
from dpmesh.keys import Key, Purpose, generator
from dpmesh.run.measures import shown_difference
from dpmesh.run.verdict import LEAST, Claim, Difference, Verdict, difference
from dpmesh.tables import Columns

__all__ = ["Forecast", "Level", "ReserveCost", "forecast", "public_data", "reserve_cost"]

RUNS = LEAST
"""Number of runs of each setting, the fewest for a verdict, each with fresh noise and records."""

TEST_SHARE = 0.25
"""Share of the public data that is held out for testing."""

RECORD_FACTORS = (0.25, 1.0, 4.0)
"""Numbers of records that are compared, as multiples of the requested number."""

MOST_RECORDS = 200_000
"""Most records of all sites together that are simulated."""

MOST_FEATURES = 2_000
"""Most features of a simulated record."""

Labelled = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]
"""Features, shape (records, features), and classes 0, 1, .., shape (records,)."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """Accuracy on one data set at one number of records: means of `RUNS` runs.

    Parameters
    ----------
    data
        Name of the data set.
    records
        Number of records of each site.
    chance, alone, pooled
        Accuracy of the majority-class baseline, of single-site models (mean over the sites), and of
        the non-private centralized baseline, as in `dm.baselines.Baselines`.
    federation, spread
        Mean and standard deviation of the federation's accuracy.
    claim
        Claim of `dpmesh.run.verdict.Verdict` against single sites without privacy.
    own_gain
        95% interval of the gain of sites on test records like their own.
    no_site_gains
        True if no site gains on test records like its own.
    """

    data: str
    records: int
    chance: float
    alone: float
    federation: float
    spread: float
    pooled: float
    claim: Claim | None
    own_gain: tuple[float, float]
    no_site_gains: bool


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A forecast of a federation's accuracy.

    Parameters
    ----------
    sites, records, features, classes
        Shape of the federation; `records` is the number of each site.
    epsilon, delta
        Privacy budget of one training.
    choice
        Algorithm that `dpmesh.defaults.choose` returns for this shape.
    levels
        Accuracy for each data set and number of records.
    """

    sites: int
    records: int
    features: int
    classes: int
    epsilon: float
    delta: float
    choice: Choice
    levels: tuple[Level, ...]

    @property
    def asked(self) -> list[Level]:
        """Levels at the requested number of records, one for each data set."""
        return [level for level in self.levels if level.records == self.records]

    @property
    def sentence(self) -> str:
        """The forecast in one or two sentences."""
        accuracies = [level.federation for level in self.asked]
        low = f"{min(accuracies):.0%}"
        high = f"{max(accuracies):.0%}"
        expected = low
        if low != high:
            expected = f"{low} to {high}"
        claims = [level.claim for level in self.asked]
        counts = [
            f"{claims.count(claim)} of {len(claims)}: {claim}" for claim in dict.fromkeys(claims)
        ]
        comparison = "Against single sites without privacy, on the public data sets"
        text = f"Expect about {expected}. {comparison}, {'; '.join(counts)}."
        losing = sum(level.no_site_gains for level in self.asked)
        if losing:
            losses = f"on {losing} of {len(claims)} data sets no site gains"
            text = f"{text} On records like its own, {losses}: do not join for these."
        return text

    def __str__(self) -> str:
        algorithm = self.choice.algorithm
        name = type(getattr(algorithm, "algorithm", algorithm)).__name__
        aggregation = "gossip"
        if self.choice.sums_gradients:
            aggregation = "secure aggregation"
        lines = [
            f"{self.sites} sites of {self.records} records, {self.features} features, "
            f"{self.classes} classes, epsilon {as_given(self.epsilon)} at delta "
            f"{as_given(self.delta)}, by {aggregation} ({name})",
            "",
            f"{'public data':<24}{'records':>8}{'majority':>10}{'single':>8}{'federation':>16}"
            f"{'central':>9}  {'against single sites':<22}gain on a site's own records",
        ]
        for level in self.levels:
            mean = f"{level.federation:.1%} ± {100 * level.spread:.1f}"
            lines.append(
                f"{level.data:<24}{level.records:>8}{level.chance:>10.1%}{level.alone:>8.1%}"
                f"{mean:>16}{level.pooled:>9.1%}  {level.claim or '-':<22}"
                f"{shown_difference('accuracy', *level.own_gain)}"
            )
        return "\n".join([*lines, "", self.sentence])


def forecast(
    *,
    sites: int,
    records: int,
    features: int,
    epsilon: float,
    delta: float = 1e-5,
    classes: int = 2,
    algorithm: Method | None = None,
    noise: Noise | None = None,
    colluding: int = 1,
    key: Key | None = None,
    on_run: Callable[[], object] | None = None,
) -> Forecast:
    """Simulate federations of this shape on public data, also with fewer and with more records.

    Parameters
    ----------
    sites
        Number of sites.
    records
        Number of records of each site.
    features
        Number of features of a record.
    epsilon, delta
        Privacy budget of one training.
    classes
        Number of classes, from 2 to 10.
    algorithm, noise, colluding
        As in `dpmesh.defaults.choose`.
    key
        Key of the records and the noise, by default a new one. Nothing here is private.
    on_run
        Called after each of the `runs_of_forecast`, to show progress.

    Raises
    ------
    ValueError
        If a number is out of its range.
    ModuleNotFoundError
        If scikit-learn is not installed (extra ``data``), which has the data.
    """
    integer("classes", classes, at_least=1)
    _check_shape(sites, records, features)
    positive("epsilon", epsilon)
    draw = generator(Key.generate() if key is None else key, Purpose.SPLIT)

    def chosen(problem: dm.LinearProblem) -> Choice:
        return choose(
            Sizes.of(problem),
            epsilon=epsilon,
            delta=delta,
            algorithm=algorithm,
            noise=noise,
            colluding=colluding,
        )

    levels = []
    choice = None
    seeds = draw.integers(2**62, size=RUNS)
    for name, data in public_data(classes).items():
        for count in _compared(sites, records):
            # All counts have the same seeds, so that levels differ by their records alone.
            generators = [np.random.default_rng(seed) for seed in seeds]
            problems = [_problem(data, sites, count, features, split) for split in generators]
            levels.append(_level(name, count, problems, chosen, draw, on_run))
            if count == records:
                choice = chosen(problems[0])
    assert choice is not None
    return Forecast(
        sites=sites,
        records=records,
        features=features,
        classes=classes,
        epsilon=epsilon,
        delta=delta,
        choice=choice,
        levels=tuple(levels),
    )


def runs_of_forecast(sites: int, records: int, classes: int = 2) -> int:
    """Return the number of runs of a forecast."""
    return RUNS * len(_compared(sites, records)) * len(public_data(classes))


def _compared(sites: int, records: int) -> list[int]:
    """Return the numbers of records of a site that are simulated."""
    counts = []
    for factor in RECORD_FACTORS:
        count = max(1, round(factor * records))
        if factor == 1 or (count != records and sites * count <= MOST_RECORDS):
            counts.append(count)
    return counts


PAIRS = 20
"""Pairs of runs of a comparison, enough to detect about half a point of accuracy."""


@dataclass(frozen=True, kw_only=True)
class ReserveCost:
    """Accuracy on one public data set, with and without a reserve for lost sites.

    The reserve is a number of sums beside those of the rounds, for attempts at a sum that fail when
    a site drops out. It is charged to the privacy budget, so that each sum has more noise.

    Parameters
    ----------
    data
        Name of the data set.
    accuracy, without
        Mean accuracy with the reserve and without it, over pairs of runs on the same records.
    difference
        Difference within a pair, with its 95% interval.
    """

    data: str
    accuracy: float
    without: float
    difference: Difference

    def __str__(self) -> str:
        interval = shown_difference("accuracy", self.difference.low, self.difference.high)
        levels = f"{self.accuracy:.1%} with it, {self.without:.1%} without"
        return f"on {self.data}: {levels} (difference {interval})"


def reserve_cost(
    *,
    sites: int,
    records: int,
    features: int,
    epsilon: float,
    delta: float = 1e-5,
    classes: int = 2,
    colluding: int = 1,
    dropouts: int = 1,
    reserve: int | None = None,
    key: Key | None = None,
    on_pair: Callable[[], object] | None = None,
) -> list[ReserveCost]:
    """Simulate on public data how much accuracy a reserve for lost sites costs.

    See `ReserveCost` for the reserve.

    Parameters
    ----------
    sites, records, features, epsilon, delta, classes, key
        As in `forecast`.
    colluding, dropouts, reserve
        As in `dpmesh.defaults.choose`.
    on_pair
        Called after each pair of runs, of which each public data set has `PAIRS`, to show progress.

    Raises
    ------
    ValueError
        If a number is out of its range.
    ModuleNotFoundError
        If scikit-learn is not installed (extra ``data``), which has the data.
    """
    _check_shape(sites, records, features)
    draw = generator(Key.generate() if key is None else key, Purpose.SPLIT)
    costs = []
    for name, data in public_data(classes).items():
        pairs = []
        for seed in draw.integers(2**62, size=PAIRS):
            problem = _problem(data, sites, records, features, np.random.default_rng(seed))
            scores = []
            for most_lost, extra_sums in ((dropouts, reserve), (0, None)):
                choice = choose(
                    Sizes.of(problem),
                    epsilon=epsilon,
                    delta=delta,
                    algorithm="secure",
                    colluding=colluding,
                    dropouts=most_lost,
                    reserve=extra_sums,
                )
                run = _run(problem, choice, np.random.default_rng(seed))
                scores.append(baselines.measured(problem, run.released)["accuracy"])
            pairs.append(scores)
            if on_pair is not None:
                on_pair()
        accuracies = np.array(pairs)
        costs.append(
            ReserveCost(
                data=name,
                accuracy=float(accuracies[:, 0].mean()),
                without=float(accuracies[:, 1].mean()),
                difference=difference(accuracies[:, 0] - accuracies[:, 1], held_out=TEST_SHARE),
            )
        )
    return costs


def _check_shape(sites: int, records: int, features: int) -> None:
    """Fail unless a federation of this shape can be simulated in reasonable time."""
    integer("sites", sites, at_least=1)
    integer("records", records, at_least=1)
    integer("features", features, at_least=1)
    if features > MOST_FEATURES:
        fail("features", f"at most {MOST_FEATURES}, so that a simulation ends soon", features)
    if sites * records > MOST_RECORDS:
        limit = f"at most {MOST_RECORDS} records of all sites together"
        fail("records", f"{limit}; accuracy hardly changes beyond", sites * records)


def public_data(classes: int) -> dict[str, Labelled]:
    """Return the public data sets with this number of classes, by name.

    Raises
    ------
    ValueError
        If `classes` is not from 2 to 10.
    """
    integer("classes", classes, at_least=2, below=11)
    with needed_by("a forecast"):
        datasets = import_module("sklearn.datasets")
    x, y = datasets.load_digits(return_X_y=True)
    if classes == 2:
        return {
            "digits, even or odd": (x, y % 2),
            "breast cancer": datasets.load_breast_cancer(return_X_y=True),
        }
    in_classes = y < classes
    datasets_by_name = {f"digits, {classes} classes": (x[in_classes], y[in_classes])}
    if classes == 3:
        datasets_by_name["wine"] = datasets.load_wine(return_X_y=True)
    return datasets_by_name


def _problem(
    data: Labelled, sites: int, records: int, features: int, draw: np.random.Generator
) -> dm.LinearProblem:
    """Return a problem of this shape with i.i.d. sites; a quarter of the data is for testing."""
    x, y = data
    x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-9)
    if features < x.shape[1]:
        x = x @ draw.normal(size=(x.shape[1], features)) / np.sqrt(features)
    else:
        x = np.hstack([x, draw.normal(size=(len(x), features - x.shape[1]))])
    ends = np.stack([np.quantile(x, 0.01, axis=0), np.quantile(x, 0.99, axis=0)], axis=1)
    ends[:, 1] += 1e-6
    x = Columns.of(ends.tolist(), range(features)).encode(list(x.T)).features
    order = draw.permutation(len(y))
    tested, training = np.split(order, [int(TEST_SHARE * len(y))])
    count = sites * records
    repeats = ceil(count / len(training))
    shuffled = np.concatenate([draw.permutation(training) for _ in range(repeats)])
    selected = shuffled[:count]
    train = dm.Dataset(x[selected], y[selected])
    test = dm.Dataset(x[tested], y[tested])
    parts = tuple(np.array_split(draw.permutation(count), sites))
    return dm.LinearProblem(train, parts, "softmax", test=test, classes=int(y.max()) + 1)


def _level(
    name: str,
    records: int,
    problems: list[dm.LinearProblem],
    chosen: Callable[[dm.LinearProblem], Choice],
    draw: np.random.Generator,
    on_run: Callable[[], object] | None,
) -> Level:
    """Run the chosen algorithm once on each problem, and compare it with the baselines."""
    choice = chosen(problems[0])
    runs = []
    for problem in problems:
        runs.append(_run(problem, choice, draw))
        if on_run is not None:
            on_run()
    pairs = [*zip(problems, runs, strict=True)]
    measured = [baselines.measured(problem, run.released) for problem, run in pairs]
    beside = [replace(baselines.compute(problem), held_out=TEST_SHARE) for problem in problems]
    populations = [baselines.population_of(problem, run.released) for problem, run in pairs]
    verdict = Verdict(
        measured=measured, beside=beside, epsilon=None, unit="run", populations=populations
    )
    own_gain = verdict.own_gain
    assert own_gain is not None
    accuracies = [scores["accuracy"] for scores in verdict.measured]
    return Level(
        data=name,
        records=records,
        chance=verdict.baselines.chance,
        alone=float(verdict.baselines.alone.mean()),
        federation=verdict.score,
        spread=float(np.std(accuracies, ddof=1)),
        pooled=verdict.baselines.pooled,
        claim=verdict.claim,
        own_gain=(own_gain.low, own_gain.high),
        no_site_gains=verdict.no_site_gains,
    )


def _run(problem: dm.LinearProblem, choice: Choice, draw: np.random.Generator) -> dm.Run:
    """Simulate one run with a new key."""
    key = Key.seeded(int(draw.integers(2**62)))
    return dm.simulate(
        choice.algorithm,
        problem,
        choice.topology,
        rounds=choice.rounds,
        metrics=dm.Metrics([], progress=False),
        key=key,
        delta=1e-5,  # of the run's report alone, which a forecast does not show
    )
