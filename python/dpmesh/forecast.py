"""Forecast of the accuracy of a federation, simulated on public data of its shape.

`forecast` is the function of ``dpmesh forecast``; `reserve_cost` of ``dpmesh contract make``.

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

__all__ = ["Forecast", "ForecastRow", "ReserveCost", "forecast", "public_data", "reserve_cost"]

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

CONSTANT_COLUMN = 1e-9
"""Added to standard deviations, so that a constant column divides by no 0."""

LEAST_RANGE = 1e-6
"""Added to upper ends of ranges, so that a constant column has no empty range."""

Labelled = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]
"""Features, shape (records, features), and classes 0, 1, .., shape (records,)."""


@dataclass(frozen=True, kw_only=True)
class ForecastRow:
    """Accuracy on one public data set at one number of records: means over `RUNS` runs.

    Parameters
    ----------
    data
        Name of the data set.
    records
        Number of records of each site.
    majority_class, single_site, centralized
        Accuracy of the majority-class baseline, of non-private single-site models (mean over the
        sites), and of the non-private centralized baseline. See `dpmesh.run.baselines.Baselines`.
    federation, spread
        Mean and standard deviation, over the runs, of the federation's accuracy.
    claim
        Outcome of the comparison with non-private single-site models: ``"better"``, ``"worse"`` or
        ``"inconclusive"``. See `dpmesh.run.verdict.Verdict`.
    local_gain
        95% interval (low, high) of the gain of the federation over the single sites: the difference
        of accuracies, as fractions, on test records with each site's label distribution.
    no_site_gains
        True if joining gains nothing on these test records: no site is significantly better, and
        either a site is significantly worse or the mean difference is.
    """

    data: str
    records: int
    majority_class: float
    single_site: float
    federation: float
    spread: float
    centralized: float
    claim: Claim | None
    local_gain: tuple[float, float]
    no_site_gains: bool


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A forecast of a federation's accuracy.

    Parameters
    ----------
    sites, records, features, classes
        Shape of the federation: number of sites, of records of each site, of features of a
        record, and of classes.
    epsilon, delta
        Privacy budget of one training.
    choice
        Algorithm that `dpmesh.defaults.choose` returns for this shape.
    rows
        Accuracy on each data set at each number of records: a quarter, once and four times
        `records`, without those above the limit of a simulation.
    """

    sites: int
    records: int
    features: int
    classes: int
    epsilon: float
    delta: float
    choice: Choice
    rows: tuple[ForecastRow, ...]

    @property
    def rows_at_records(self) -> list[ForecastRow]:
        """Rows at the requested number of records, one for each data set."""
        return [row for row in self.rows if row.records == self.records]

    @property
    def sentence(self) -> str:
        """The forecast in one or two sentences."""
        rows = self.rows_at_records
        accuracies = [row.federation for row in rows]
        low = f"{min(accuracies):.0%}"
        high = f"{max(accuracies):.0%}"
        expected = low
        if low != high:
            expected = f"{low} to {high}"
        claims = [row.claim for row in rows]
        distinct_claims = dict.fromkeys(claims)
        counts = [f"{claims.count(claim)} of {len(claims)}: {claim}" for claim in distinct_claims]
        comparison = "Against single sites without privacy, on the public data sets"
        text = f"Expect about {expected}. {comparison}, {'; '.join(counts)}."
        losing = sum(row.no_site_gains for row in rows)
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
        for row in self.rows:
            mean = f"{row.federation:.1%} ± {100 * row.spread:.1f}"
            lines.append(
                f"{row.data:<24}{row.records:>8}{row.majority_class:>10.1%}{row.single_site:>8.1%}"
                f"{mean:>16}{row.centralized:>9.1%}  {row.claim or '-':<22}"
                f"{shown_difference('accuracy', *row.local_gain)}"
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
        """Return the algorithm, rounds and network for a problem of this shape."""
        return choose(
            Sizes.of(problem),
            epsilon=epsilon,
            delta=delta,
            algorithm=algorithm,
            noise=noise,
            colluding=colluding,
        )

    rows = []
    choice = None
    seeds = draw.integers(2**62, size=RUNS)
    for name, data in public_data(classes).items():
        for count in _record_counts(sites, records):
            # All counts have the same seeds, so that rows differ by their records alone.
            generators = [np.random.default_rng(seed) for seed in seeds]
            problems = [_problem(data, sites, count, features, split) for split in generators]
            rows.append(_row(name, count, problems, chosen, draw, on_run))
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
        rows=tuple(rows),
    )


def runs_of_forecast(sites: int, records: int, classes: int = 2) -> int:
    """Return the number of runs that `forecast` simulates with these arguments.

    Parameters
    ----------
    sites
        Number of sites.
    records
        Number of records of each site.
    classes
        Number of classes.
    """
    return RUNS * len(_record_counts(sites, records)) * len(public_data(classes))


def _record_counts(sites: int, records: int) -> list[int]:
    """Return the numbers of records of a site to simulate: multiples of the requested number."""
    counts = []
    for factor in RECORD_FACTORS:
        count = max(1, round(factor * records))
        if factor == 1 or (count != records and sites * count <= MOST_RECORDS):
            counts.append(count)
    return counts


PAIRS = 20
"""Pairs of runs of `reserve_cost`, enough to detect about half a point of accuracy."""


@dataclass(frozen=True, kw_only=True)
class ReserveCost:
    """Accuracy on one public data set, with and without a reserve for lost sites.

    Under secure aggregation a sum fails when a site drops out, and is repeated with new noise. The
    reserve is the number of sums in addition to the rounds that the privacy budget covers. A larger
    reserve makes the noise of each sum larger. Runs without the reserve tolerate no dropouts.

    Parameters
    ----------
    data
        Name of the data set.
    with_reserve, without_reserve
        Mean accuracy with and without the reserve, over `PAIRS` pairs of runs; both runs of a pair
        have the same records.
    difference
        Mean difference within a pair, with its 95% interval.
    """

    data: str
    with_reserve: float
    without_reserve: float
    difference: Difference

    def __str__(self) -> str:
        interval = shown_difference("accuracy", self.difference.low, self.difference.high)
        accuracies = f"{self.with_reserve:.1%} with it, {self.without_reserve:.1%} without"
        return f"on {self.data}: {accuracies} (difference {interval})"


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
            with_reserve = (dropouts, reserve)
            without_reserve = (0, None)
            for most_lost, extra_sums in (with_reserve, without_reserve):
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
                with_reserve=float(accuracies[:, 0].mean()),
                without_reserve=float(accuracies[:, 1].mean()),
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
    """Return a problem of this shape with i.i.d. sites; `TEST_SHARE` of the data is for testing.

    Columns are standardized, projected or joined by random columns to the number of features, and
    clipped to ranges from their 1% to their 99% quantile.
    """
    x, y = data
    x = (x - x.mean(axis=0)) / (x.std(axis=0) + CONSTANT_COLUMN)
    if features < x.shape[1]:
        x = x @ draw.normal(size=(x.shape[1], features)) / np.sqrt(features)
    else:
        x = np.hstack([x, draw.normal(size=(len(x), features - x.shape[1]))])
    ranges = np.stack([np.quantile(x, 0.01, axis=0), np.quantile(x, 0.99, axis=0)], axis=1)
    ranges[:, 1] += LEAST_RANGE
    x = Columns.of(ranges.tolist(), range(features)).encode(list(x.T)).features
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


def _row(
    name: str,
    records: int,
    problems: list[dm.LinearProblem],
    chosen: Callable[[dm.LinearProblem], Choice],
    draw: np.random.Generator,
    on_run: Callable[[], object] | None,
) -> ForecastRow:
    """Run the algorithm once on each of `RUNS` problems, and compare it with their baselines."""
    choice = chosen(problems[0])
    runs = []
    for problem in problems:
        runs.append(_run(problem, choice, draw))
        if on_run is not None:
            on_run()
    pairs = [*zip(problems, runs, strict=True)]
    measured = [baselines.measured(problem, run.released) for problem, run in pairs]
    baselines_by_run = [
        replace(baselines.compute(problem), held_out=TEST_SHARE) for problem in problems
    ]
    populations = [baselines.population_of(problem, run.released) for problem, run in pairs]
    verdict = Verdict(
        measured=measured,
        baselines_by_split=baselines_by_run,
        epsilon=None,
        unit="run",
        populations=populations,
    )
    local_gain = verdict.local_gain
    assert local_gain is not None  # populations are given
    accuracies = [scores["accuracy"] for scores in verdict.measured]
    return ForecastRow(
        data=name,
        records=records,
        majority_class=verdict.baselines.majority_class,
        single_site=float(verdict.baselines.single_sites.mean()),
        federation=verdict.score,
        spread=float(np.std(accuracies, ddof=1)),
        centralized=verdict.baselines.centralized,
        claim=verdict.claim,
        local_gain=(local_gain.low, local_gain.high),
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
