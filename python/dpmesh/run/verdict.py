"""Comparison of a federation with its baselines over several splits or runs: a `Verdict`.

The comparison is of paired differences, federation less single site, over K splits of the records
into training and test records. Splits of one table overlap, so that their mean is less certain than
a mean of K independent differences. With a share h of the records held out, the variance of the
mean is the variance of the differences times 1 / K + h / (1 - h) (Nadeau and Bengio, "Inference for
the generalization error", Machine Learning 52, 2003). The correction is heuristic; a study with
random labels checks its rate of false alarms. Intervals are Student's, at 95%. A standard deviation
of less than one test record counts as one test record.

One test is stated beforehand, the *headline test*: the mean difference over the test records of all
sites, in the main measure. Its outcome (*claim*) is *better*, *worse* or *inconclusive*. All other
tests, site by site and label by label, share Holm's procedure at 5%. A federation that is not
significantly above the trivial predictor is never *better*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # its submodules are imported on first use

from dpmesh._epsilons import as_given
from dpmesh._ragged import Flags, Indices, Numbers
from dpmesh._table import Table
from dpmesh._validate import fail
from dpmesh.run.baselines import Baselines
from dpmesh.run.measures import Measures, shown, shown_difference, shown_width
from dpmesh.run.populations import FEWEST_TESTED, Population

__all__ = [
    "FEW",
    "LEAST",
    "Difference",
    "PopulationRow",
    "Verdict",
    "difference",
    "holm_significant",
    "interval",
]

LEAST = 5
"""Smallest number of splits or runs for a verdict."""

FEW = 10
"""Number of splits or runs below which a verdict notes that there are few."""

LEVEL = 0.05
"""Significance level of intervals and tests."""

OWN_RECORDS = "each site's own records"
"""Test records of each site, scored for itself."""

WORST_SITE = "worst-served site"
"""Test records of the site where the federation scores lowest."""

RAREST_CLASS = "rarest class"
"""Test records of the class with the fewest training records."""

LEAST_SPREAD = 1e-12
"""Smallest standard deviation of differences, so that equal differences have a p-value."""

Claim = Literal["better", "worse", "inconclusive"]
"""Outcome of the headline test."""


class Difference(NamedTuple):
    """Mean of paired differences, with its 95% interval and its p-value.

    Attributes
    ----------
    mean
        Mean difference.
    low, high
        Ends of the 95% interval of the mean.
    p
        Two-sided p-value of a mean of 0.

    Examples
    --------
    >>> import numpy as np
    >>> from dpmesh.run.verdict import difference
    >>> gain = difference(np.array([0.05, 0.04, 0.06, 0.05, 0.05]), held_out=0.25)
    >>> bool(gain.low > 0)
    True
    """

    mean: float
    low: float
    high: float
    p: float

    @property
    def detectable(self) -> float:
        """Half the width of the interval: smaller differences would not be significant."""
        return (self.high - self.low) / 2

    @property
    def sign(self) -> int:
        """1 or -1, the sign of the mean, if the interval excludes 0; else 0."""
        return (self.low > 0) - (self.high < 0)


class PopulationRow(NamedTuple):
    """Scores of the federation and of non-private single sites on a part of the test records.

    Attributes
    ----------
    name
        Name of the population of test records.
    measure
        Accuracy, R² or recall.
    federation, single_site
        Mean scores of the federation and of single sites.
    gain
        Federation less single site, with its interval; None with fewer than 2 splits.
    word
        Claim of the headline test, or counts of sites; empty if the row has an interval only.
    """

    name: str
    measure: str
    federation: float
    single_site: float
    gain: Difference | None
    word: str = ""


def difference(values: npt.ArrayLike, *, held_out: float, resolution: float = 0.0) -> Difference:
    """Return the 95% interval of the mean of paired differences over overlapping splits.

    Parameters
    ----------
    values
        Difference in each split, shape (splits,), at least 2.
    held_out
        Share h of the records that a split holds out, in [0, 1); 0 for independent differences.
    resolution
        Smallest standard deviation: a smaller one is replaced by it.
    """
    differences = np.asarray(values, np.float64)
    spread = max(float(differences.std(ddof=1)), resolution)
    return interval(float(differences.mean()), spread, len(differences), held_out=held_out)


def interval(mean: float, spread: float, count: int, *, held_out: float) -> Difference:
    """Return the 95% interval and the p-value of a mean of paired differences.

    Parameters
    ----------
    mean
        Mean of the differences.
    spread
        Standard deviation of the differences.
    count
        Number of differences, at least 2.
    held_out
        Share h of the records that a split holds out, in [0, 1): see the docstring of the module.
    """
    standard_error = max(spread, LEAST_SPREAD) * sqrt(1 / count + held_out / (1 - held_out))
    degrees_of_freedom = count - 1
    quantile = float(scipy.special.stdtrit(degrees_of_freedom, 1 - LEVEL / 2))
    half_width = quantile * standard_error
    p = 2 * float(scipy.special.stdtr(degrees_of_freedom, -abs(mean) / standard_error))
    return Difference(mean, mean - half_width, mean + half_width, p)


def holm_significant(p: Sequence[float]) -> Flags:
    """Return which p-values are significant under Holm's procedure at 5%, shape (tests,)."""
    is_significant = np.zeros(len(p), np.bool_)
    for rank, test in enumerate(np.argsort(p)):
        if p[test] > LEVEL / (len(p) - rank):
            break
        is_significant[test] = True
    return is_significant


def counted(signs: Indices, better: str, worse: str) -> str:
    """Return the numbers of sites with a significant gain, no significance and a loss, in words.

    `signs` has 1, 0 or -1 for each site; `better` and `worse` are the words before the counts.
    """

    def in_words(count: int) -> str:
        if count == 0:
            return "none"
        return str(count)

    sites = len(signs)
    better_sites = int((signs > 0).sum())
    worse_sites = int((signs < 0).sum())
    undecided_sites = sites - better_sites - worse_sites
    wins = in_words(better_sites)
    if better_sites > 0:
        wins = f"{better_sites} of {sites} sites"
    losses = in_words(worse_sites)
    return f"{better} {wins}, inconclusive for {in_words(undecided_sites)}, {worse} {losses}"


def _plural(word: str, count: int) -> str:
    """Return a word in the plural if the count is above 1."""
    if count > 1:
        return f"{word}s"
    return word


@dataclass(frozen=True, kw_only=True, eq=False)
class Verdict:
    """Scores of a federation over splits or runs, with its baselines on the same test records.

    Parameters
    ----------
    measured
        Scores of the federation's released models in each split, by measure.
    baselines_by_split
        Baselines of each split, on the same test records.
    epsilon
        Epsilon of a run; None without privacy.
    unit
        Unit of repetition: ``"split"`` or ``"run"``.
    populations
        Scores on each site's own test records and on the rarest class, one for each split; empty
        if they were not measured.
    protects, adversary
        Unit of privacy and adversary, for the columns of tables; empty for tables without them.

    Raises
    ------
    ValueError
        If there is no split, the numbers of splits differ, or sites or measures differ.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> X = np.random.default_rng(0).uniform(-1, 1, size=(300, 2))
    >>> model = dm.sklearn.PrivateClassifier(4.0, ranges=(-1, 1), classes=[False, True])
    >>> sites = np.arange(300) % 3
    >>> evaluation = dm.sklearn.evaluate(model, X, X[:, 0] > 0, groups=sites, splits=1)
    >>> evaluation.verdict.metric
    'accuracy'
    """

    measured: Sequence[Measures]
    baselines_by_split: Sequence[Baselines]
    epsilon: float | None
    unit: str = "split"
    populations: Sequence[Population] = ()
    protects: str = ""
    adversary: str = ""

    def __post_init__(self) -> None:
        if self.populations and len(self.populations) != len(self.measured):
            fail("populations", "one for each split, or none", len(self.populations))
        if not self.measured or len(self.measured) != len(self.baselines_by_split):
            fail("measured", "as many as there are baselines, at least 1", len(self.measured))
        if (
            len(
                {
                    (len(baselines.single_sites), *baselines.measures)
                    for baselines in self.baselines_by_split
                }
            )
            > 1
        ):
            fail("baselines_by_split", "the same sites and measures in each", "others")

    @cached_property
    def baselines(self) -> Baselines:
        """The baselines, averaged over the splits or runs."""
        further = {
            metric: _mean_baselines(
                [baselines.others[metric] for baselines in self.baselines_by_split]
            )
            for metric in self.baselines_by_split[0].others
        }
        return replace(_mean_baselines(self.baselines_by_split), others=further)

    @property
    def metric(self) -> str:
        """Name of the main measure: accuracy, balanced accuracy or R²."""
        return self.baselines_by_split[0].metric

    @property
    def score(self) -> float:
        """The federation's mean score, in `metric`."""
        return self.mean(self.metric)

    def mean(self, measure: str) -> float:
        """Return the federation's mean in a measure; NaN if it was not measured."""
        return float(np.mean([measures.get(measure, np.nan) for measures in self.measured]))

    @property
    def decides(self) -> bool:
        """True if there are enough splits for a verdict."""
        return len(self.measured) >= LEAST

    @property
    def interval(self) -> Difference:
        """The federation's mean score with its 95% interval; needs 2 splits."""
        return self._interval(np.array([measures[self.metric] for measures in self.measured]))

    @cached_property
    def gain(self) -> Difference:
        """The federation's score less the mean score of single sites; needs 2 splits."""
        return self._against(self._single_site_scores.mean(axis=1))

    @cached_property
    def sites(self) -> Indices:
        """Signs by site on all sites' records, shape (sites,).

        1 if the federation is significantly better than the site's model, -1 if worse, else 0.
        """
        signs = self._significant["sites"]
        if not self._learned:
            signs = np.minimum(signs, 0)  # no claim *better* at the level of the trivial predictor
        if not self._sites_learned:
            signs = np.maximum(signs, 0)  # the same for single sites
        return signs

    @cached_property
    def local_sites(self) -> Indices:
        """Signs by site on the site's own test records, shape (sites,).

        1 if the federation is significantly better than the site's model, -1 if worse, else 0.
        """
        return self._significant["own records"]

    @cached_property
    def local_gain(self) -> Difference | None:
        """Mean gain over sites, each on its own test records; None without populations.

        Needs 2 splits.
        """
        if not self.populations:
            return None
        return self._interval(self._local_differences.mean(axis=1))

    @cached_property
    def worst_site(self) -> Difference | None:
        """The gain at the site where the federation scores lowest, chosen on the other splits.

        None if a site has too few test records, or there are too few splits.
        """
        scores = self._worst_scores
        if scores is None:
            return None
        return self._interval(scores[:, 0] - scores[:, 1])

    @cached_property
    def _worst_scores(self) -> Numbers | None:
        """Scores, in each split, of federation and single site at the other splits' worst site.

        Shape (splits, 2); None if a site has too few test records, or there are too few splits.
        """
        if len(self.populations) < LEAST:
            return None
        fewest_tested = min(int(population.tested.min()) for population in self.populations)
        if fewest_tested < FEWEST_TESTED:
            return None
        federation = np.stack([population.federation for population in self.populations])
        scores = []
        for split, population in enumerate(self.populations):
            worst = int(np.delete(federation, split, axis=0).mean(axis=0).argmin())
            scores.append([population.federation[worst], population.single_sites[worst]])
        return np.array(scores)

    @property
    def no_site_gains(self) -> bool:
        """True if no site gains on its own test records, and a site or the mean of sites loses."""
        if self.local_gain is None or not self.decides or (self.local_sites > 0).any():
            return False
        return bool((self.local_sites < 0).any()) or self.local_gain.sign < 0

    @cached_property
    def rarest_class(self) -> Difference | None:
        """The gain in recall of the rarest class; None if it has too few test records."""
        recalls = [population.rare for population in self.populations]
        if len(recalls) < 2:
            return None
        gains = []
        for recall in recalls:
            if recall is None or recall.tested < FEWEST_TESTED:
                return None
            gains.append(recall.federation - recall.single_site)
        return self._interval(np.array(gains))

    @cached_property
    def rows_by_population(self) -> list[PopulationRow]:
        """Scores of the federation and of single sites on each evaluated part of the test records.

        The row of all sites' records has the claim of the headline test. The row of each site's own
        records has counts of sites after Holm's procedure. Other rows have an interval only.
        """
        metric = self.metric
        gain = self.gain if len(self.measured) > 1 else None
        single_site = float(self.baselines.single_sites.mean())
        name = "all sites' records"
        word = self.claim or ""
        rows = [PopulationRow(name, metric, self.score, single_site, gain, word)]
        if not self.populations or self._is_single:
            return rows
        federation = float(
            np.mean([population.federation.mean() for population in self.populations])
        )
        single = float(np.mean([population.single_sites.mean() for population in self.populations]))
        gains = self._population_gains
        counts = ""
        if self.decides:
            better = int((self.local_sites > 0).sum())
            worse = int((self.local_sites < 0).sum())
            undecided = len(self.local_sites) - better - worse
            counts = f"better at {better}, inconclusive for {undecided}, worse at {worse}"
        name = OWN_RECORDS
        rows.append(PopulationRow(name, metric, federation, single, gains.get(name), counts))
        if WORST_SITE in gains and self._worst_scores is not None:
            federation, single = self._worst_scores.mean(axis=0).tolist()
            name = WORST_SITE
            rows.append(PopulationRow(name, metric, federation, single, gains[name]))
        if RAREST_CLASS in gains:
            recalls = [
                population.rare for population in self.populations if population.rare is not None
            ]
            federation = float(np.mean([recall.federation for recall in recalls]))
            single = float(np.mean([recall.single_site for recall in recalls]))
            name = f"{RAREST_CLASS}, {recalls[0].name}"
            rows.append(PopulationRow(name, "recall", federation, single, gains[RAREST_CLASS]))
        return rows

    @property
    def population_table(self) -> Table:
        """`rows_by_population` as a table; what has too few test records or splits is named."""
        heads = ["evaluated on", "measure", "federation", "single site", "95% interval", "joining"]
        lines = [self._population_line(row) for row in self.rows_by_population]
        shown_names = {row.name.partition(",")[0] for row in self.rows_by_population}
        if self.decides and self.populations and len(self.baselines.single_sites) > 1:
            too_few = f"too few test records (under {FEWEST_TESTED})"
            for name in (WORST_SITE, RAREST_CLASS):
                if name == RAREST_CLASS and self.populations[0].rare is None:
                    continue  # a regression, or several labels: there is no rarest class
                if name not in shown_names:
                    lines.append([name, "-", "-", "-", "-", too_few])
        return Table(heads, lines)

    def _population_line(self, row: PopulationRow) -> list[str]:
        """Return a row of `population_table`: dashes where nothing is known."""
        word = row.word
        if not word:
            word = "-" if self.decides else f"takes {LEAST} {self.unit}s"
        return [
            row.name,
            row.measure,
            shown(self._unit_of(row), row.federation),
            shown(self._unit_of(row), row.single_site),
            "-" if row.gain is None else self._between(row),
            word,
        ]

    def _unit_of(self, row: PopulationRow) -> str:
        """Return the measure by whose form a score is shown: recall is a share, as accuracy is."""
        if row.measure == "recall":
            return "accuracy"
        return row.measure

    def _between(self, row: PopulationRow) -> str:
        assert row.gain is not None
        return shown_difference(self._unit_of(row), row.gain.low, row.gain.high)

    @cached_property
    def _population_gains(self) -> dict[str, Difference]:
        """Mean gains on records other than those of all sites, where they can be judged."""
        if len(self.measured) < 2 or self._is_single:
            return {}
        gains = {
            OWN_RECORDS: self.local_gain,
            WORST_SITE: self.worst_site,
            RAREST_CLASS: self.rarest_class,
        }
        return {name: gain for name, gain in gains.items() if gain is not None}

    @property
    def claim(self) -> Claim | None:
        """Outcome of the headline test; None if there are too few splits."""
        if not self.decides:
            return None
        if self.gain.sign > 0 and self._learned:
            return "better"
        if self.gain.sign < 0 and self._sites_learned:
            return "worse"
        return "inconclusive"

    @property
    def sentence(self) -> str:
        """The verdict in a few sentences."""
        if self.claim is None:
            return self._no_verdict()
        sentences = [self._headline(self.claim), *self._doubts()]
        if self.claim == "worse" and not self._is_single:
            sentences.append("Joining does not pay on all sites' records.")
        return " ".join([*sentences, *self._by_site(), *self._by_own(), *self._by_label()])

    def _no_verdict(self) -> str:
        """Return both scores, and the number of splits that a verdict needs."""
        subject, rival = self._subjects
        count = len(self.measured)
        repeats = f"{count} {self.unit}s give no verdict"
        if count == 1:
            repeats = f"1 {self.unit} gives no verdict"
        scores = (
            f"{self._budget} {subject} reaches {self._levels}, {rival} ({self._trivial_level})."
        )
        return f"{scores} {repeats}: that takes {LEAST}."

    def _headline(self, claim: Claim) -> str:
        """Return the outcome of the headline test in a sentence."""
        subject, rival = self._subjects
        interval = shown_difference(self.metric, self.gain.low, self.gain.high)
        context = f"95% interval of the difference: {interval}; {self._trivial_level}{self._few}"
        facts = f"{self._levels} ({context})"
        if claim != "inconclusive":
            return f"{self._budget} {subject} is {claim} than {rival}: {facts}."
        comparison = f"{self._budget} the comparison of {subject} with {rival} is inconclusive"
        unseen = shown_width(self.metric, self.gain.detectable)
        return f"{comparison}: {facts}. Differences under {unseen} would not have been seen."

    def _doubts(self) -> list[str]:
        """Return a sentence for each side that is not significantly above the trivial predictor."""
        doubts = []
        if not self._learned:
            subject, _ = self._subjects
            sentence_start = f"{subject[0].upper()}{subject[1:]}"
            doubts.append(f"{sentence_start} is not significantly above the {self.trivial}.")
        if not self._sites_learned:
            rival = "Single sites are not"
            if self._is_single:
                rival = "One without privacy is not"
            doubts.append(f"{rival} significantly above the {self.trivial}.")
        return doubts

    @property
    def _is_single(self) -> bool:
        """True if there is only one site, and so no federation."""
        return len(self.baselines.single_sites) == 1

    @property
    def _subjects(self) -> tuple[str, str]:
        """Names of the private model and of its rival."""
        if self._is_single:
            return "the model of this one site", "one without privacy"
        return "the federation", "single sites without privacy"

    @property
    def _budget(self) -> str:
        """The epsilon at the start of a sentence."""
        if self.epsilon is None:
            return "Without privacy"
        return f"At epsilon {as_given(self.epsilon)}"

    @property
    def _levels(self) -> str:
        """Both mean scores in words."""
        single_site = float(self.baselines.single_sites.mean())
        levels = f"{self._shown(self.score)} against {self._shown(single_site)}"
        if not self._is_single:
            levels = f"{levels} on average"
        if self.metric != "accuracy":
            levels = f"{self.metric} {levels}"
        return levels

    @property
    def _trivial_level(self) -> str:
        """The trivial predictor and its mean score."""
        return f"{self.trivial} {self._shown(self.baselines.majority_class)}"

    @property
    def trivial(self) -> str:
        """The name of the trivial predictor."""
        if self.metric == "R²":
            return "mean"
        return "majority class"

    @property
    def _few(self) -> str:
        count = len(self.measured)
        if count < FEW:
            return f"; few {self.unit}s: {count}"
        return ""

    def _by_site(self) -> list[str]:
        """Return the comparison with each single site on all sites' records, in a sentence."""
        count = len(self.sites)
        if count == 1:
            return []
        above = int((self._single_site_scores.mean(axis=0) < self.score).sum())
        words = counted(self.sites, "significantly better than", "worse than")
        return [f"Site by site it is {words}; its mean is above {above} of {count}."]

    def _by_own(self) -> list[str]:
        """Return the gain of sites on their local records, and whether to join for it."""
        if self.local_gain is None or len(self.local_sites) == 1:
            return []
        interval = shown_difference(self.metric, self.local_gain.low, self.local_gain.high)
        words = counted(self.local_sites, "significantly better at", "worse at")
        sentences = [
            f"On each site's own records it is {words} "
            f"(95% interval of the mean difference: {interval})."
        ]
        if self.no_site_gains:
            advice = "On records like its own no site gains: do not join for these."
            if self.claim == "better":
                advice += " What joining brings is a model for the records of all sites."
            sentences.append(advice)
        return sentences

    def _by_label(self) -> list[str]:
        """Return the labels on which the federation differs significantly, in a sentence."""
        signs = self._significant["labels"]
        if not signs.any():
            return []
        names = [name.removeprefix("accuracy (").removesuffix(")") for name in self._labels]
        clauses = []
        for word, sign in (("better", 1), ("worse", -1)):
            chosen = [
                name
                for name, significance in zip(names, signs, strict=True)
                if significance == sign
            ]
            if chosen:
                clauses.append(f"{word} on {len(chosen)} of {len(names)} ({', '.join(chosen)})")
        return [f"Label by label it is significantly {' and '.join(clauses)}."]

    @cached_property
    def _labels(self) -> list[str]:
        """Names of the measures of single labels."""
        return [name for name in self.baselines_by_split[0].others if "accuracy (" in name]

    @cached_property
    def _local_differences(self) -> Numbers:
        """The gain of each site on its own test records, shape (splits, sites)."""
        return np.stack(
            [population.federation - population.single_sites for population in self.populations]
        )

    @cached_property
    def _significant(self) -> dict[str, Indices]:
        """Signs of significant differences by family of tests, under one Holm procedure.

        The families are ``"sites"``, ``"own records"`` and ``"labels"``; the headline test is not
        among them.
        """
        families: dict[str, list[Difference]] = {
            "sites": [self._against(scores) for scores in self._single_site_scores.T],
            "own records": [],
            "labels": [],
        }
        if self.populations:
            tested = np.min([population.tested for population in self.populations], axis=0)
            families["own records"] = [
                self._interval(column, tested=max(int(count), 1))
                for column, count in zip(self._local_differences.T, tested, strict=True)
            ]
        for name in self._labels:
            federation = np.array([measures[name] for measures in self.measured])
            single_site = np.array(
                [
                    baselines.others[name].single_sites.mean()
                    for baselines in self.baselines_by_split
                ]
            )
            families["labels"].append(self._interval(federation - single_site))
        all_differences = [difference for family in families.values() for difference in family]
        significant = holm_significant([difference.p for difference in all_differences])
        directions = np.sign([difference.mean for difference in all_differences]).astype(np.int64)
        signs = directions * significant
        signs_by_family = {}
        first = 0
        for name, family in families.items():
            last = first + len(family)
            signs_by_family[name] = signs[first:last]
            first = last
        return signs_by_family

    def rows(self) -> list[tuple[str, list[float], list[str]]]:
        """Return the rows of `table`: each method's name, mean scores and the texts of its cells.

        Scores and texts have an entry for each measure, the main one first.
        """
        budget = "without privacy"
        if self.epsilon is not None:
            budget = f"epsilon {as_given(self.epsilon)}"
        by_measure = [*self.baselines.measures.values()]
        federation = [self.mean(baselines.metric) for baselines in by_measure]
        trivial = [baselines.majority_class for baselines in by_measure]
        centralized = [baselines.centralized for baselines in by_measure]
        if self._is_single:
            return [
                self._row(self.trivial, trivial),
                self._row(f"the model, {budget}", federation),
                self._row("without privacy", centralized),
            ]
        single_sites = [baselines.single_sites for baselines in by_measure]
        rows = [
            self._row(self.trivial, trivial),
            self._row("single site, without privacy", single_sites),
        ]
        private = [
            baselines.private_single_sites
            for baselines in by_measure
            if baselines.private_single_sites is not None
        ]
        single_site_epsilon = self.baselines.epsilon
        if private and single_site_epsilon is not None:
            name = f"single site, epsilon {as_given(single_site_epsilon)}"
            rows.append(self._row(name, private))
        rows.append(self._row(f"the federation, {budget}", federation))
        rows.append(self._row("centralized, without privacy", centralized))
        return rows

    def _row(
        self, name: str, scores: Sequence[float] | Sequence[Numbers]
    ) -> tuple[str, list[float], list[str]]:
        """Return one of `rows` from its scores in each measure.

        A score is a number, or an array with one for each site: the first text then also names the
        worst and the best site's.
        """
        means = [float(np.mean(score)) for score in scores]
        texts = [
            shown(measure, mean)
            for measure, mean in zip(self.baselines.measures, means, strict=True)
        ]
        main_scores = np.asarray(scores[0])
        if main_scores.ndim > 0:
            worst = self._shown(float(main_scores.min()))
            best = self._shown(float(main_scores.max()))
            texts[0] += f" (worst {worst}, best {best})"
        return name, means, texts

    @property
    def heads(self) -> list[str]:
        """Headings of the columns of `rows`: the number of splits or runs, and the measures."""
        count = len(self.measured)
        tested = self.baselines.tested
        records = f" of {tested} test records" if tested else ""
        return [f"{count} {_plural(self.unit, count)}{records}", *self.baselines.measures]

    @property
    def table(self) -> Table:
        """The means of the federation and all baselines, one line each."""
        rows = [[name, *texts] for name, _, texts in self.rows()]
        if not self.protects:
            return Table(self.heads, rows)
        heads = [*self.heads, "unit", "adversary"]
        return Table(heads, [[*row, *self._protected(row[0])] for row in rows])

    def _protected(self, name: str) -> tuple[str, str]:
        """Return unit and adversary of a row of a table; dashes where it has no guarantee."""
        if "epsilon" not in name:
            return "-", "-"
        if name.startswith("single site"):
            return self.protects, "sees all releases"
        return self.protects, self.adversary

    @cached_property
    def _learned(self) -> bool:
        """True if the federation is significantly above the trivial predictor."""
        return self._against(self._trivial_scores).sign > 0

    @cached_property
    def _sites_learned(self) -> bool:
        """True if single-site models beat the trivial predictor on average."""
        mean_single_site = self._single_site_scores.mean(axis=1)
        return self._interval(mean_single_site - self._trivial_scores).sign > 0

    @property
    def _trivial_scores(self) -> Numbers:
        """Score of the trivial predictor in each split, shape (splits,)."""
        return np.array([baselines.majority_class for baselines in self.baselines_by_split])

    @property
    def _single_site_scores(self) -> Numbers:
        """Score of each non-private single-site model in each split, shape (splits, sites)."""
        return np.stack([baselines.single_sites for baselines in self.baselines_by_split])

    def _against(self, rival: Numbers) -> Difference:
        """Return the federation less a rival's scores, shape (splits,), with its interval."""
        federation = np.array([measures[self.metric] for measures in self.measured])
        return self._interval(federation - rival)

    def _interval(self, differences: Numbers, *, tested: int | None = None) -> Difference:
        """Return the interval of paired differences; their spread is at least one test record.

        `tested` is the number of test records; None for that of all sites together.
        """
        baselines = self.baselines_by_split[0]
        records = baselines.tested if tested is None else tested
        one_record = 0.0
        if records and "accuracy" in self.metric:
            one_record = 1 / records
        return difference(differences, held_out=baselines.held_out, resolution=one_record)

    def _shown(self, value: float) -> str:
        """Return a score in the main measure as text."""
        return shown(self.metric, value)


def _mean_baselines(splits: Sequence[Baselines]) -> Baselines:
    """Return the means over splits.

    Where splits have different numbers of private single-site scores, the mean is over the first
    of them, as many as every split has.
    """
    private = [
        baselines.private_single_sites
        for baselines in splits
        if baselines.private_single_sites is not None
    ]
    private_single_sites = None
    if private:
        fewest = min(map(len, private))
        private_single_sites = np.mean([scores[:fewest] for scores in private], axis=0)
    return replace(
        splits[0],
        majority_class=float(np.mean([baselines.majority_class for baselines in splits])),
        single_sites=np.mean([baselines.single_sites for baselines in splits], axis=0),
        private_single_sites=private_single_sites,
        centralized=float(np.mean([baselines.centralized for baselines in splits])),
    )
