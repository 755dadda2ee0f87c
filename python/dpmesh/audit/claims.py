"""Privacy guarantees as bounds on tests that distinguish two neighbouring datasets.

A test guesses for each run in which of two datasets it ran: "positive" for one, "negative" for its
neighbour. A guarantee bounds its true positive rate by its false positive rate:

    (epsilon, delta):   TPR <= e^epsilon FPR + delta
    mu-Gaussian:        TPR <= Phi(Phi^-1(FPR) + mu)              (Dong, Roth, Su 2022)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from math import exp, hypot, inf
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy import special

from dpmesh._epsilons import rounded_up
from dpmesh._validate import every, fail, instance, non_negative, probability
from dpmesh.accounting import analytic_gaussian_noise_to_sensitivity, gdp_epsilon
from dpmesh.accounting._pairs import GAUSSIAN
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release

Rates = npt.NDArray[np.float64]


class Claim(Protocol):
    """Interface of privacy claims that an audit can test.

    A claim bounds the true positive rate (TPR) of every test that distinguishes two neighbouring
    datasets, given its false positive rate (FPR). The *level* of a claim is its parameter: epsilon
    of an `EpsilonClaim`, mu of a `GaussianClaim`.

    Examples
    --------
    >>> import dpmesh as dm
    >>> mechanism = dm.noise.Gaussian(2.0)
    >>> sensitivity = dm.noise.Sensitivity(1.0, "l2", "numbers between 0 and 1")
    >>> found = dm.audit.audit_mechanism(mechanism, sensitivity, runs=1000, delta=1e-5)
    >>> found.claim
    GaussianClaim(mu=0.5, delta=1e-05)
    """

    @property
    def level(self) -> float:
        """Epsilon or mu."""

    def largest_tpr(self, fpr: Rates) -> Rates:
        """Return the largest true positive rates that the guarantee allows at these false ones."""

    def smallest_level(self, tpr: Rates, fpr: Rates) -> Rates:
        """Return the least level at which the guarantee allows tests with these rates, fpr > 0."""

    def in_words(self, level: float, shown: Callable[[float], str] = rounded_up) -> str:
        """Return the guarantee in words, at another level that is rounded by `shown`."""


@dataclass(frozen=True)
class EpsilonClaim:
    """The claim of (epsilon, delta)-DP.

    Parameters
    ----------
    epsilon
        Finite, at least 0.
    delta
        In [0, 1).

    Raises
    ------
    ValueError
        If `epsilon` is negative or not finite, or `delta` is outside [0, 1).

    Examples
    --------
    >>> import dpmesh as dm
    >>> print(f"{dm.audit.EpsilonClaim(1.0).largest_tpr(0.1):.3f}")
    0.272
    """

    epsilon: float
    _: KW_ONLY
    delta: float = 0.0

    def __post_init__(self) -> None:
        every(self, non_negative, "epsilon")
        every(self, probability, "delta", one=False)

    @property
    def level(self) -> float:
        """The parameter epsilon."""
        return self.epsilon

    def largest_tpr(self, fpr: Rates) -> Rates:
        """Return e^epsilon FPR + delta, at most 1."""
        ratio = exp(min(self.epsilon, 700.0))  # avoids overflow; the product exceeds 1 before that
        return np.minimum(ratio * fpr + self.delta, 1.0)

    def smallest_level(self, tpr: Rates, fpr: Rates) -> Rates:
        """Return ln((TPR - delta) / FPR), at least 0."""
        return np.log(np.maximum(tpr - self.delta, fpr) / fpr)

    def in_words(self, level: float, shown: Callable[[float], str] = rounded_up) -> str:
        """Return the guarantee in words, at another epsilon that is rounded by `shown`."""
        return f"epsilon = {shown(level)} at delta = {rounded_up(self.delta)}"


@dataclass(frozen=True)
class GaussianClaim:
    """The claim of mu-Gaussian DP (Dong, Roth and Su 2022).

    Neighbouring datasets are no easier to distinguish than N(0, 1) and N(mu, 1). The claim implies
    (epsilon, delta)-DP at every delta.

    Parameters
    ----------
    mu
        Parameter of Gaussian DP, finite, at least 0.
    delta
        Delta in [0, 1) at which to print epsilon; it does not change the claim.

    Raises
    ------
    ValueError
        If `mu` is negative or not finite, or `delta` is outside [0, 1).

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.audit.GaussianClaim(1.0, delta=1e-5).in_words(1.0)
    'mu = 1 (epsilon = 4.37718 at delta = 1e-05)'
    """

    mu: float
    _: KW_ONLY
    delta: float = 0.0

    def __post_init__(self) -> None:
        every(self, non_negative, "mu")
        every(self, probability, "delta", one=False)

    @property
    def level(self) -> float:
        """The parameter mu."""
        return self.mu

    def largest_tpr(self, fpr: Rates) -> Rates:
        """Return Phi(Phi^-1(FPR) + mu)."""
        return np.asarray(special.ndtr(special.ndtri(fpr) + self.mu))

    def smallest_level(self, tpr: Rates, fpr: Rates) -> Rates:
        """Return Phi^-1(TPR) - Phi^-1(FPR), at least 0."""
        below_one = np.minimum(fpr, np.nextafter(1, 0))
        level = special.ndtri(np.maximum(tpr, below_one)) - special.ndtri(below_one)
        return np.asarray(level)

    def in_words(self, level: float, shown: Callable[[float], str] = rounded_up) -> str:
        """Return the guarantee in words, at another mu that is rounded by `shown`."""
        epsilon = gdp_epsilon(delta=self.delta, mu=level) if self.delta > 0 else inf
        return (
            f"mu = {shown(level)} (epsilon = {shown(epsilon)} at delta = {rounded_up(self.delta)})"
        )


def claim_of(plan: Plan, delta: float = 0.0) -> Claim:
    """Return the claim of a plan: mu-GDP for Gaussian noise without sampling, else epsilon.

    The adversary of the claim sees all messages, and knows no noise that partners share. Under
    secure aggregation, where sites add shares of Gaussian noise, mu is the parameter of Gaussian DP
    with the plan's epsilon at `delta`.

    Parameters
    ----------
    plan
        Planned releases, such as ``algorithm.plan(rounds)``.
    delta
        In [0, 1).

    Raises
    ------
    ValueError
        If `delta` is out of range, or the plan claims nothing (epsilon is infinite).

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.audit.claim_of(dm.GradientDescent(records=100, noise_multiplier=10.0).plan(4))
    GaussianClaim(mu=0.34641016151377546, delta=0.0)
    """
    instance("plan", plan, "a Plan, such as algorithm.plan(rounds)", Plan)
    compositions = plan.compositions(colluding=0)
    if all(_is_gaussian(release) for releases in compositions for release in releases):
        return GaussianClaim(max(map(_joint_mu, compositions)), delta=delta)
    epsilon = plan.cost(delta).epsilon
    if epsilon == inf:
        fail("delta", "one at which the plan has a finite epsilon, or more noise", delta)
    if delta > 0 and all(_is_sum(release) for release in plan.touching):
        noise = analytic_gaussian_noise_to_sensitivity(target_epsilon=epsilon, target_delta=delta)
        return GaussianClaim(1 / noise, delta=delta)
    return EpsilonClaim(epsilon, delta=delta)


def _joint_mu(releases: Sequence[Release]) -> float:
    """Return mu of Gaussian releases together."""
    return hypot(*(1 / release.noise_to_sensitivity for release in releases))


def _is_gaussian(release: Release) -> bool:
    exact = release.mechanism.losses is GAUSSIAN and release.mechanism.spacing == 0
    return exact and not release.mechanism.is_joint and _uses_all_units(release)


def _is_sum(release: Release) -> bool:
    return release.mechanism.sums is not None and _uses_all_units(release)


def _uses_all_units(release: Release) -> bool:
    """Return True if no unit is left out by sampling."""
    return release.sampling is None or release.sampling.rate == 1
