"""Families of generalized linear models, with the constants of their sensitivity.

A record has coded terms z (`dpmesh.statistics.design`) of L2 norm at most R, and a target y. At
given coefficients it has a residual r and a weight w, which the family defines. Its gradient is
g = r z, its Hessian H = w z z', and the outer product of its gradient J = r^2 z z'. A symmetric
matrix is the vector of its upper triangle, with off-diagonal entries times sqrt(2), so that the L2
norm is the Frobenius norm. The vector of a record is

    v = (g, H sqrt(kappa) / R, J sqrt(lam) / R)

where a Poisson regression measures counts in units of their bound M. For any coefficients, the L2
distance of two such vectors is at most D R: the proofs are in docs/privacy/regression.md. The class
attributes `kappa`, `lam` and `distance` of a family are kappa, lam and D.
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

The noise of the last step stays in the coefficients. Later steps correct the noise of earlier
steps, which thus need small shares. The shares were chosen by hand. In a trial (the first
three-column settings of docs/privacy/regression.md at epsilon 1, 100 runs each) equal shares gave
intervals 1.6 to 2 times as wide. A share of 75% for the last step gave intervals 7% to 13%
narrower, with about the same coverage. It was not tried on collinear columns or rare events, where
the steps converge late.
"""

LARGEST_EXPONENT = 700.0
"""Largest exponent for which the exponential function surely does not overflow."""

STEEPEST = 30.0
"""Largest possible score of a fit that is shown. Larger scores are taken for separation: the terms
nearly determine the outcome, with probabilities within 1e-13 of 0 or 1 (exp(-30) = 9.4e-14)."""


class Family(ABC):
    """A generalized linear model that is fitted by Newton steps."""

    name: ClassVar[str]
    """Name of the family in options and answers."""

    scale: ClassVar[str]
    """Quantity whose difference a coefficient is, in words, such as log odds."""

    ratio: ClassVar[str]
    """Meaning of the exponential of a coefficient, in words, such as an odds ratio."""

    kappa: ClassVar[float]
    """kappa: the Hessian H has the weight ``sqrt(kappa) / R`` in a record's vector."""

    lam: ClassVar[float]
    """lambda: the outer products J have the weight ``sqrt(lam) / R`` in a record's vector."""

    distance: ClassVar[float]
    """D: the L2 sensitivity over R, the largest distance of two records' vectors."""

    norm: ClassVar[float]
    """Largest L2 norm of a record's vector, over R."""

    largest_weight: ClassVar[float]
    """Largest weight w of a record, in units of the target's bound M."""

    skew_of_constant: ClassVar[float | None]
    """Third over second derivative of the log likelihood by the constant, at the mean.

    None if it is estimated from the release of the first round.
    """

    @abstractmethod
    def check(self, target: str, kind: Kind) -> None:
        """Raise a `ValueError` unless the target has a range of the right kind."""

    @abstractmethod
    def bound(self, kind: Kind) -> float:
        """Return the largest target, M."""

    @abstractmethod
    def residuals_and_weights(
        self, scores: Floats, targets: Floats, bound: float
    ) -> tuple[Floats, Floats]:
        """Return residual r and weight w of each record, over the bound M, shape (records,) each.

        Parameters
        ----------
        scores
            Scores ``z @ coefficients``, shape (records,).
        targets
            Targets in [0, bound], shape (records,).
        bound
            The largest target, M.
        """

    @staticmethod
    def targets(column: Column) -> Floats:
        """Return the targets clipped to their range, shape (records,); 0 for a missing target."""
        low, high = ends(column.kind)
        return np.clip(np.nan_to_num(column.numbers, nan=0.0), low, high)


@dataclass(frozen=True)
class Logistic(Family):
    """Logistic regression: log odds of a flag are linear in the terms.

    The target y is 0 or 1, so that the residual r determines the weight: w = |r| (1 - |r|). The L2
    sensitivity of the whole vector v of a record (see the module) is 2 R, like the sensitivity of
    its gradient alone. So Hessian and outer products need no further epsilon.
    """

    name = "logistic"
    scale = "log odds"
    ratio = "odds ratio"
    kappa = 16.0
    lam = 0.25
    distance = 2.0
    norm = 1.14659
    largest_weight = 0.25
    skew_of_constant = None

    def check(self, target: str, kind: Kind) -> None:
        """Raise a `ValueError` unless the target is a flag."""
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
    """Poisson regression: log expected counts are linear in the terms, and clipped at the bound."""

    name = "poisson"
    scale = "log rate"
    ratio = "rate ratio"
    kappa = 1.0
    lam = 0.25
    distance = sqrt(5)
    norm = 1.5
    largest_weight = 1.0
    skew_of_constant = 1.0

    def check(self, target: str, kind: Kind) -> None:
        """Raise a `ValueError` unless the target is a number whose range starts at 0."""
        if not isinstance(kind, Number) or ends(kind)[0] != 0:
            example = "such as [0, 10]"
            expected = f"counts in a range that begins at 0, {example}, for a Poisson regression"
            fail(target, expected, f"{{{kind.toml}}}")

    def bound(self, kind: Kind) -> float:
        """Return the high end of the range."""
        return ends(kind)[1]

    def residuals_and_weights(
        self, scores: Floats, targets: Floats, bound: float
    ) -> tuple[Floats, Floats]:
        """Return (y - m) / M and m / M, where m is the expected count, clipped at M.

        The weight of a record is 0 if its expected count is M or more, where the clipped m is
        constant.
        """
        means = np.exp(np.minimum(scores, LARGEST_EXPONENT))
        weights = np.where(means < bound, means, 0.0) / bound
        return (targets - np.minimum(means, bound)) / bound, weights


FAMILIES: dict[str, Family] = {family.name: family for family in (Logistic(), Poisson())}
"""Families that are fitted by Newton steps, by name."""

LINEAR = "linear"
"""Name of linear regression, which is fitted from second moments."""


def family_of(target: str, kind: Kind) -> str:
    """Return the name of the default family: logistic for a flag, linear for a number.

    Raises
    ------
    ValueError
        If the target is a category or a date.
    """
    if isinstance(kind, (Category, Dates)):
        expected = "a flag or a number as the target of a regression"
        fail(target, expected, f"{{{kind.toml}}}")
    if isinstance(kind, Flag):
        return Logistic.name
    return LINEAR
