"""Whether sharing paid: the one verdict on scores beside baselines, with 95% intervals.

Splits of one table overlap, so that the mean of K of them is less certain than that of K
independent ones. With a share h of the records held out, the variance of paired differences is
multiplied by 1 / K + h / (1 - h) (Nadeau and Bengio, "Inference for the generalization error",
Machine Learning 52, 2003), and no difference counts as finer than one test record. The interval of
the mean over all sites is Student's. How many sites are beaten, each by itself, is Holm's procedure
at 5% for all of them together. What is not clearly better than chance beats nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr, stdtrit

from dpmesh._epsilons import as_given
from dpmesh._ragged import Flags, Indices, Numbers
from dpmesh._table import Table
from dpmesh._validate import fail
from dpmesh.run.baselines import Baselines
from dpmesh.run.measures import Measures, shown, shown_difference

__all__ = ["LEAST", "Difference", "Verdict", "clearly", "difference", "interval"]

LEAST = 5
"""Fewest splits or runs for a verdict."""

LEVEL = 0.05
"""Rate of false alarms of an interval."""

Claim = Literal["better", "worse", "no clear difference", "at chance"]


class Difference(NamedTuple):
    """The mean of paired differences, its 95% interval, and its p-value.

    Examples
    --------
    >>> import numpy as np
    >>> from dpmesh.run.verdict import difference
    >>> found = difference(np.array([0.05, 0.04, 0.06, 0.05, 0.05]), held_out=0.25)
    >>> bool(found.low > 0)
    True
    """

    mean: float
    low: float
    high: float
    p: float

    @property
    def sign(self) -> int:
        """1 or -1 where the interval does not cover 0, else 0."""
        return (self.low > 0) - (self.high < 0)


def difference(values: npt.ArrayLike, *, held_out: float, resolution: float = 0.0) -> Difference:
    """Return the interval of a mean of paired differences over splits that overlap.

    Parameters
    ----------
    values
        One for each split, shape (splits,), at least 2.
    held_out
        Share of the records that a split holds out, in [0, 1).
    resolution
        The standard deviation of the values counts as at least so large.
    """
    found = np.asarray(values, np.float64)
    spread = max(float(found.std(ddof=1)), resolution)
    return interval(float(found.mean()), spread, len(found), held_out=held_out)


def interval(mean: float, spread: float, count: int, *, held_out: float) -> Difference:
    """Return the interval of a mean of differences, from their number and standard deviation."""
    error = max(spread, 1e-12) * sqrt(1 / count + held_out / (1 - held_out))
    half = float(stdtrit(count - 1, 1 - LEVEL / 2)) * error
    p = 2 * float(stdtr(count - 1, -abs(mean) / error))
    return Difference(mean, mean - half, mean + half, p)


def clearly(p: Sequence[float]) -> Flags:
    """Return which of several differences are clear, for all together: Holm's procedure at 5%."""
    found = np.zeros(len(p), np.bool_)
    for place, which in enumerate(np.argsort(p)):
        if p[which] > LEVEL / (len(p) - place):
            break
        found[which] = True
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Verdict:
    """Scores of a federation over splits or runs, beside its baselines on the same test records.

    Parameters
    ----------
    measured
        What the federation's released models reach in each split, by measure.
    beside
        The baselines of each split.
    epsilon
        What a run cost; None without privacy.
    unit
        What was repeated: ``"split"`` or ``"run"``.

    Raises
    ------
    ValueError
        If there is no split, or not one baseline for each, or sites or measures differ.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> X = np.random.default_rng(0).uniform(-1, 1, size=(300, 2))
    >>> model = dm.sklearn.PrivateClassifier(4.0, ranges=(-1, 1), classes=[False, True])
    >>> found = dm.sklearn.evaluate(model, X, X[:, 0] > 0, groups=np.arange(300) % 3, splits=1)
    >>> found.verdict.metric
    'accuracy'
    """

    measured: Sequence[Measures]
    beside: Sequence[Baselines]
    epsilon: float | None
    unit: str = "split"

    def __post_init__(self) -> None:
        if not self.measured or len(self.measured) != len(self.beside):
            fail("measured", "as many as there are baselines, at least 1", len(self.measured))
        if len({(len(one.alone), *one.measures) for one in self.beside}) > 1:
            fail("beside", "the same sites and measures in each", "others")

    @cached_property
    def baselines(self) -> Baselines:
        """The means of the baselines."""

        def mean(found: Sequence[Baselines]) -> Baselines:
            private = [one.alone_private for one in found if one.alone_private is not None]
            some = min(map(len, private), default=0)
            return replace(
                found[0],
                chance=float(np.mean([one.chance for one in found])),
                alone=np.mean([one.alone for one in found], axis=0),
                alone_private=np.mean([p[:some] for p in private], axis=0) if private else None,
                pooled=float(np.mean([one.pooled for one in found])),
            )

        others = {n: mean([one.others[n] for one in self.beside]) for n in self.beside[0].others}
        return replace(mean(self.beside), others=others)

    @property
    def metric(self) -> str:
        """The measure that the verdict is about: accuracy, or R²."""
        return self.beside[0].metric

    @property
    def score(self) -> float:
        """The federation's mean score, in `metric`."""
        return self.mean(self.metric)

    def mean(self, measure: str) -> float:
        """Return the federation's mean in any measure; NaN if it was not taken."""
        return float(np.mean([one.get(measure, np.nan) for one in self.measured]))

    @property
    def decides(self) -> bool:
        """Whether there are splits enough for a verdict."""
        return len(self.measured) >= LEAST

    @property
    def interval(self) -> Difference:
        """The federation's mean score with its 95% interval; needs 2 splits."""
        return self._interval(np.array([one[self.metric] for one in self.measured]))

    @cached_property
    def gain(self) -> Difference:
        """The federation less the mean of the sites alone; needs 2 splits."""
        return self._against(self._alone.mean(axis=1))

    @cached_property
    def sites(self) -> Indices:
        """1 for a site that the federation clearly beats, -1 if it clearly loses, else 0."""
        found = [self._against(own) for own in self._alone.T]
        signs = np.sign([one.mean for one in found]).astype(np.int64)
        signs *= clearly([one.p for one in found])
        allowed = (signs > 0) & self._learned | (signs < 0) & self._sites_learned
        return np.where(allowed, signs, 0)

    @property
    def claim(self) -> Claim | None:
        """What can be said of the federation beside a site alone; None if too few splits."""
        if not self.decides:
            return None
        if not (self._learned or self._sites_learned):
            return "at chance"
        if self.gain.sign > 0 and self._learned:
            return "better"
        return "worse" if self.gain.sign < 0 and self._sites_learned else "no clear difference"

    @property
    def sentence(self) -> str:
        """What can be said, in a sentence or two."""
        at = "Without privacy" if self.epsilon is None else f"At epsilon {as_given(self.epsilon)}"
        alone = self.baselines.alone
        one = len(alone) == 1
        who = "the model of this one site" if one else "the federation"
        others = "one without privacy" if one else "sites working alone without privacy"
        mean = "" if one else " on average"
        levels = f"{self._shown(self.score)} against {self._shown(float(alone.mean()))}{mean}"
        chance = f"chance {self._shown(self.baselines.chance)}"
        levels = levels if self.metric == "accuracy" else f"{self.metric} {levels}"
        if self.claim is None:
            count = len(self.measured)
            few = f"{count} {self.unit}{'s' * (count > 1)} give{'s' * (count == 1)} no verdict"
            said = f"{at} {who} reaches {levels}, {others} ({chance})."
            return f"{said} {few}: that takes {LEAST}."
        interval = shown_difference(self.metric, self.gain.low, self.gain.high)
        facts = f"{levels} (95% interval of the difference: {interval}; {chance})"
        if self.claim == "at chance":
            verb = "is" if one else "are"
            return f"{at} {who} is at chance, and so {verb} {others}: {facts}."
        if self.claim == "no clear difference":
            begin = f"{at} there is no clear difference between {who} and {others}: {facts}."
        else:
            begin = f"{at} {who} does {self.claim} than {others}: {facts}."
        more = [] if self._learned else [f"{who[0].upper()}{who[1:]} is at chance."]
        if self.claim == "worse" and not one:
            more.append("Sharing does not pay here.")
        return " ".join([begin, *more, *self._by_site(), *self._by_label()])

    def _by_site(self) -> list[str]:
        """Return how many sites the federation beats, if it does."""
        count, better, worse = len(self.sites), (self.sites > 0).sum(), (self.sites < 0).sum()
        said = [f"better than {better} of {count}"] if better else []
        said += [f"worse than {worse} of {count}"] if worse else []
        return [f"Site by site it is {' and '.join(said)}."] if said and count > 1 else []

    def _by_label(self) -> list[str]:
        """Return on which labels the federation does better than sites alone, where there are."""
        each = {name: one for name, one in self.beside[0].others.items() if "accuracy (" in name}
        found = [
            self._interval(
                np.array([own[name] for own in self.measured])
                - np.array([one.others[name].alone.mean() for one in self.beside])
            )
            for name in each
        ]
        clear = clearly([one.p for one in found])
        said = []
        for word, sign in (("better", 1), ("worse", -1)):
            own = [
                name.removeprefix("accuracy (").removesuffix(")")
                for name, one, is_clear in zip(each, found, clear, strict=True)
                if is_clear and one.mean * sign > 0
            ]
            said += [f"{word} on {len(own)} of {len(each)} ({', '.join(own)})"] if own else []
        return [f"Label by label it is {' and '.join(said)}."] if said else []

    def rows(self) -> list[tuple[str, list[float], list[str]]]:
        """Return names, mean scores in each measure, and what tables show of them."""
        at = "without privacy" if self.epsilon is None else f"epsilon {as_given(self.epsilon)}"
        every = [*self.baselines.measures.values()]
        own: list[Any] = [self.mean(one.metric) for one in every]
        private = [one.alone_private for one in every if one.alone_private is not None]
        chance, pooled = [one.chance for one in every], [one.pooled for one in every]
        named: list[tuple[str, list[Any]]] = [("chance", chance)]
        if len(self.baselines.alone) == 1:
            named += [(f"the model, {at}", own), ("without privacy", pooled)]
        else:
            named.append(("one site alone, without privacy", [one.alone for one in every]))
            if private and (budget := self.baselines.epsilon) is not None:
                named.append((f"one site alone, epsilon {as_given(budget)}", private))
            named.append((f"the federation, {at}", own))
            named.append(("all records pooled, without privacy", pooled))
        return [self._row(name, [np.asarray(one) for one in found]) for name, found in named]

    def _row(self, name: str, found: list[Numbers]) -> tuple[str, list[float], list[str]]:
        means = [float(one.mean()) for one in found]
        texts = [shown(m, mean) for m, mean in zip(self.baselines.measures, means, strict=True)]
        if found[0].ndim:
            low, high = self._shown(float(found[0].min())), self._shown(float(found[0].max()))
            texts[0] += f" (worst {low}, best {high})"
        return name, means, texts

    @property
    def heads(self) -> list[str]:
        """Heads of the columns of `rows`: what was repeated, and the measures."""
        count, tested = len(self.measured), self.baselines.tested
        of = f" of {tested} test records" if tested else ""
        return [f"{count} {self.unit}{'s' * (count > 1)}{of}", *self.baselines.measures]

    @property
    def table(self) -> Table:
        """The means of the federation and all baselines, one line each."""
        return Table(self.heads, [[name, *texts] for name, _, texts in self.rows()])

    @cached_property
    def _learned(self) -> bool:
        """Whether the federation is clearly better than chance."""
        return self._against(np.array([one.chance for one in self.beside])).sign > 0

    @cached_property
    def _sites_learned(self) -> bool:
        """Whether the sites alone are, on average."""
        chance = np.array([one.chance for one in self.beside])
        return self._interval(self._alone.mean(axis=1) - chance).sign > 0

    @property
    def _alone(self) -> Numbers:
        """Shape (splits, sites)."""
        return np.stack([one.alone for one in self.beside])

    def _against(self, others: Numbers) -> Difference:
        return self._interval(np.array([one[self.metric] for one in self.measured]) - others)

    def _interval(self, differences: Numbers) -> Difference:
        of = self.beside[0]
        finest = 1 / of.tested if of.tested and self.metric == "accuracy" else 0.0
        return difference(differences, held_out=of.held_out, resolution=finest)

    def _shown(self, value: float) -> str:
        return shown(self.metric, value)
