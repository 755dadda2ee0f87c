"""Number of runs with which an audit can find a fault of a given size."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from dpmesh.audit.claims import Claim, Rates
from dpmesh.audit.statistics import rate_limits

_SCORES = np.linspace(-1.0, 7.0, 161)


class Curve(NamedTuple):
    """True and false positive rates of the tests with different thresholds."""

    tpr: Rates
    fpr: Rates


def gaussian_curve(mu: float) -> Curve:
    """Return the curve of the best tests between N(0, 1) and N(mu, 1)."""
    return _curve(stats.norm, mu)


def laplace_curve(epsilon: float) -> Curve:
    """Return the curve of the best tests between Laplace noise of scale 1 around 0 and epsilon."""
    return _curve(stats.laplace, epsilon)


def _curve(noise: Any, shift: float) -> Curve:
    return Curve(noise.sf(_SCORES - shift), noise.sf(_SCORES))


def power(claim: Claim, truth: Curve, runs: int, confidence: float = 0.95) -> float:
    """Return the probability that `runs` runs refute a claim, with the best test of `truth`.

    Parameters
    ----------
    claim
        What is claimed.
    truth
        What tests can really achieve.
    runs
        Runs in each of the two datasets, with a threshold chosen beforehand.
    confidence
        Of the lower bound, in (0, 1).
    """
    lower, upper = rate_limits(np.arange(runs + 1), runs, (1 - confidence) / 2)
    # for each number of false positives, how many true ones refute the claim
    enough = np.searchsorted(lower, claim.largest_tpr(upper), side="right")
    best = 0.0
    for tpr, fpr in zip(*truth, strict=True):
        likely = stats.binom.ppf((1e-9, 1 - 1e-9), runs, fpr).astype(int)
        false = np.arange(likely[0], likely[1] + 1)
        refuted = stats.binom.sf(enough[false] - 1, runs, tpr)
        best = max(best, float(stats.binom.pmf(false, runs, fpr) @ refuted))
    return best


def runs_needed(
    claim: Claim, truth: Curve, *, confidence: float = 0.95, target_power: float = 0.95
) -> int:
    """Return how many runs on each dataset refute with probability `target_power`, within 2%.

    Parameters
    ----------
    claim, truth, confidence
        See `power`.
    target_power
        In (0, 1).
    """

    def refutes(runs: int) -> bool:
        return power(claim, truth, runs, confidence) >= target_power

    too_few = 1
    enough = 2
    while not refutes(enough):
        too_few = enough
        enough = 2 * enough
    while enough > 1.02 * too_few + 1:
        middle = (too_few + enough) // 2
        if refutes(middle):
            enough = middle
        else:
            too_few = middle
    return enough
