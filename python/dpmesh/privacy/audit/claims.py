"""Privacy guarantees as bounds on tests that tell two neighbouring datasets apart.

A test says of each run in which of two worlds it happened: "positive" in the one, "negative" in the
neighbouring one. A guarantee bounds its true positive rate by its false positive rate:

    (epsilon, delta):   TPR <= e^epsilon FPR + delta
    mu-Gaussian:        TPR <= Phi(Phi^-1(FPR) + mu)              (Dong, Roth, Su 2022)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy import special

from dpmesh._validate import non_negative, probability

Rates = npt.NDArray[np.float64]


class Claim(Protocol):
    """A guarantee of some level: the number, epsilon or mu, that says how much it lets through."""

    @property
    def level(self) -> float:
        """Epsilon or mu."""
        ...

    def largest_tpr(self, fpr: Rates) -> Rates:
        """Return the largest true positive rate that the guarantee allows at these false ones."""
        ...

    def smallest_level(self, tpr: Rates, fpr: Rates) -> Rates:
        """Return the level from which on the guarantee allows tests with these rates, fpr > 0."""
        ...


@dataclass(frozen=True)
class EpsilonClaim:
    """(epsilon, delta)-differential privacy.

    Raises
    ------
    ValueError
        If `epsilon` is negative or not finite, or `delta` is outside [0, 1).
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        non_negative("epsilon", self.epsilon)
        probability("delta", self.delta, one=False)

    @property
    def level(self) -> float:
        """Epsilon."""
        return self.epsilon

    def largest_tpr(self, fpr: Rates) -> Rates:
        """Return e^epsilon FPR + delta, at most 1."""
        return np.minimum(exp(self.epsilon) * fpr + self.delta, 1.0)

    def smallest_level(self, tpr: Rates, fpr: Rates) -> Rates:
        """Return ln((TPR - delta) / FPR), at least 0."""
        return np.log(np.maximum(tpr - self.delta, fpr) / fpr)

    def __str__(self) -> str:
        return f"epsilon = {self.epsilon:.6g} at delta = {self.delta:g}"


@dataclass(frozen=True)
class GaussianClaim:
    """mu-Gaussian differential privacy: no easier to tell apart than N(0, 1) and N(mu, 1).

    Raises
    ------
    ValueError
        If `mu` is negative or not finite.
    """

    mu: float

    def __post_init__(self) -> None:
        non_negative("mu", self.mu)

    @property
    def level(self) -> float:
        """Mu."""
        return self.mu

    def largest_tpr(self, fpr: Rates) -> Rates:
        """Return Phi(Phi^-1(FPR) + mu)."""
        return np.asarray(special.ndtr(special.ndtri(fpr) + self.mu))

    def smallest_level(self, tpr: Rates, fpr: Rates) -> Rates:
        """Return Phi^-1(TPR) - Phi^-1(FPR), at least 0."""
        below_one = np.minimum(fpr, np.nextafter(1, 0))
        level = special.ndtri(np.maximum(tpr, below_one)) - special.ndtri(below_one)
        return np.asarray(level)

    def __str__(self) -> str:
        return f"mu = {self.mu:.6g}, Gaussian differential privacy"
