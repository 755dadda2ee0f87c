"""Sums over records that regressions need, and the sensitivity of these sums.

A record with coded terms z, of length at most R, and target y has a residual r and a weight w. Its
gradient is g = r z, its part of the Hessian H = w z z', and the outer product of its gradient
J = r^2 z z'. Matrices are upper triangles with off-diagonals times sqrt 2, whose lengths are
Frobenius norms. A Newton step releases the sum of

    v = (g, H sqrt(kappa) / R, J sqrt(lam) / R)

where a Poisson regression measures counts in units of their bound M. Two such vectors are at most
D R apart, for any coefficients: the proofs are in docs/privacy/regression.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np

from dpmesh._validate import fail
from dpmesh.statistics.bins import Floats, ends
from dpmesh.statistics.geometry import Column
from dpmesh.tables.kinds import Category, Dates, Flag, Kind, Number

NEWTON_SHARES = (0.03, 0.03, 0.04, 0.06, 0.10, 0.20, 0.54)
"""Shares of the budget of a logistic or Poisson regression, by round; they add up to 1.

The noise of the last step stays in the coefficients; that of earlier steps is corrected by later
ones, so that these need little. Chosen by hand. In a trial (the first three-column settings of
docs/privacy/regression.md at epsilon 1, 100 runs each) equal shares gave intervals 1.6 to 2 times
as wide; 75% for the last step gave intervals 7% to 13% narrower, with about the same coverage, but
was not tried on collinear columns or rare events, where the steps come to rest late.
"""

LARGEST_EXPONENT = 700.0
"""Up to here the exponential function does not overflow."""

STEEPEST = 30.0
"""Scores beyond this are taken for separation: the terms nearly determine the outcome.

Their probability is within 1e-13 of 0 or 1: exp(-30) = 9.4e-14.
"""


class Family(ABC):
    """A generalized linear model that is fitted by Newton steps."""

    name: ClassVar[str]
    scale: ClassVar[str]
    """Quantity whose difference a coefficient is, in words, such as log odds."""

    ratio: ClassVar[str]
    """Meaning of the exponential of a coefficient, in words, such as an odds ratio."""

    kappa: ClassVar[float]
    """kappa: the Hessian H has the weight ``sqrt(kappa) / R`` in a released vector."""

    lam: ClassVar[float]
    """lambda: the outer products J have the weight ``sqrt(lam) / R`` in a released vector."""

    distance: ClassVar[float]
    """D: the largest distance of two records' vectors, over R."""

    norm: ClassVar[float]
    """Largest length of a record's vector, over R."""

    heaviest: ClassVar[float]
    """Largest weight w of a record, in units of the target's bound."""

    skew_of_constant: ClassVar[float | None]
    """Third over second derivative of the log likelihood by the constant, at the mean.

    None if the release shows it.
    """

    @abstractmethod
    def check(self, target: str, kind: Kind) -> None:
        """Fail unless the target has a range of the right kind."""

    @abstractmethod
    def bound(self, kind: Kind) -> float:
        """Return the largest target, M."""

    @abstractmethod
    def residuals_and_weights(
        self, scores: Floats, targets: Floats, bound: float
    ) -> tuple[Floats, Floats]:
        """Return r and w of each record, in units of the bound.

        Parameters
        ----------
        scores
            ``z @ coefficients``, shape (records,).
        targets
            In [0, bound], shape (records,).
        bound
            The largest target, M.
        """

    @staticmethod
    def targets(column: Column) -> Floats:
        """Return the targets within their range, 0 where there is none."""
        low, high = ends(column.kind)
        return np.clip(np.nan_to_num(column.numbers, nan=0.0), low, high)


@dataclass(frozen=True)
class Logistic(Family):
    """Logistic regression: log odds of a flag are linear in the terms.

    Here w = abs(r) (1 - abs(r)), since y is 0 or 1: Hessian and outer products are free beside the
    gradient, whose sensitivity is 2 R by itself.
    """

    name = "logistic"
    scale = "log odds"
    ratio = "odds ratio"
    kappa = 16.0
    lam = 0.25
    distance = 2.0
    norm = 1.14659
    heaviest = 0.25
    skew_of_constant = None

    def check(self, target: str, kind: Kind) -> None:
        """Fail unless the target is a flag."""
        if not isinstance(kind, Flag):
            expected = "a flag for a logistic regression (declare {flag = true})"
            fail(target, expected, f"{{{kind.toml}}}")

    def bound(self, kind: Kind) -> float:
        """Return 1."""
        return 1.0

    def residuals_and_weights(
        self, scores: Floats, targets: Floats, bound: float
    ) -> tuple[Floats, Floats]:
        """Return y - q and q (1 - q), where q is the probability."""
        finite_scores = np.clip(scores, -LARGEST_EXPONENT, LARGEST_EXPONENT)
        probability = 1 / (1 + np.exp(-finite_scores))
        return targets - probability, probability * (1 - probability)


@dataclass(frozen=True)
class Poisson(Family):
    """Poisson regression: log expected counts are linear in the terms, and cut off at the bound."""

    name = "poisson"
    scale = "log rate"
    ratio = "rate ratio"
    kappa = 1.0
    lam = 0.25
    distance = sqrt(5)
    norm = 1.5
    heaviest = 1.0
    skew_of_constant = 1.0

    def check(self, target: str, kind: Kind) -> None:
        """Fail unless the target is a number from 0 on."""
        if not isinstance(kind, Number) or ends(kind)[0] != 0:
            example = "such as [0, 10]"
            expected = f"counts in a range that begins at 0, {example}, for a Poisson regression"
            fail(target, expected, f"{{{kind.toml}}}")

    def bound(self, kind: Kind) -> float:
        """Return the top of the range."""
        return ends(kind)[1]

    def residuals_and_weights(
        self, scores: Floats, targets: Floats, bound: float
    ) -> tuple[Floats, Floats]:
        """Return (y - m) / M and m / M, where m is the expected count, at most M; w = 0 at M."""
        means = np.exp(np.minimum(scores, LARGEST_EXPONENT))
        weights = np.where(means < bound, means, 0.0) / bound
        return (targets - np.minimum(means, bound)) / bound, weights


FAMILIES: dict[str, Family] = {family.name: family for family in (Logistic(), Poisson())}
"""Those that are fitted by Newton steps, by name."""

LINEAR = "linear"


def family_of(target: str, kind: Kind) -> str:
    """Return the family that fits the kind of a target: flags logistic, numbers linear."""
    if isinstance(kind, (Category, Dates)):
        expected = "a flag or a number as the target of a regression"
        fail(target, expected, f"{{{kind.toml}}}")
    if isinstance(kind, Flag):
        return Logistic.name
    return LINEAR
