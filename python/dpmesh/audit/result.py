"""Results of statistical audits: lower confidence bounds next to the claims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmesh._epsilons import rounded_down
from dpmesh._html import InNotebooks
from dpmesh._validate import integer
from dpmesh.audit.claims import Claim
from dpmesh.audit.contrast import contrast, unseen_scores
from dpmesh.audit.statistics import Tally, best_threshold, count, lower_bound


class Observations(NamedTuple):
    """Observations of many runs: a score of each, and numbers that it published.

    Attributes
    ----------
    scores
        Shape (runs,).
    numbers
        Shape (runs, numbers).
    """

    scores: npt.NDArray[np.float64]
    numbers: npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class AuditResult(InNotebooks):
    """Result of an audit: a lower confidence bound on the privacy loss, beside the claim.

    Parameters
    ----------
    claim
        The audited claim.
    lower_bound
        Lower confidence bound on the privacy parameter of the claim: epsilon at its delta for an
        `EpsilonClaim`, mu for a `GaussianClaim`.
    confidence
        Confidence level of the bound, in (0, 1).
    method
        Description of the audit, in words.
    most
        Largest lower bound that an audit of this size can find, if its test makes no error.

    Examples
    --------
    >>> import dpmesh as dm
    >>> mechanism = dm.noise.Gaussian(2.0)
    >>> sensitivity = dm.noise.Sensitivity(1.0, "l2", "numbers between 0 and 1")
    >>> key = dm.Key.seeded(0)
    >>> result = dm.audit.audit_mechanism(mechanism, sensitivity, runs=1000, delta=1e-5, key=key)
    >>> result.violated
    False
    """

    claim: Claim
    lower_bound: float
    confidence: float
    method: str
    most: float

    @property
    def violated(self) -> bool:
        """True if the lower bound exceeds the claim, which refutes the claim."""
        return self.lower_bound > self.claim.level

    @property
    def sentence(self) -> str:
        """The result in one line, to be quoted."""
        least = self.claim.in_words(self.lower_bound, rounded_down)
        verdict = "no violation of the claimed"
        if self.violated:
            verdict = "which refutes the claim of"
        return (
            f"An audit ({self.method}) found at least {least}, with confidence "
            f"{rounded_down(self.confidence)}: {verdict} {self.claim.in_words(self.claim.level)}."
        )

    @property
    def weak(self) -> bool:
        """True if the lower bound is below half of the claimed epsilon or mu."""
        return self.lower_bound < self.claim.level / 2

    def __str__(self) -> str:
        verdict = "violated"
        if not self.violated:
            verdict = "no violation found (an audit cannot prove the claim)"
            if self.weak:
                verdict += "; weak: it shows less than half of what is claimed"
        lines = (
            f"audit     {self.method}",
            f"claim     {self.claim.in_words(self.claim.level)}",
            f"measured  at least {self.claim.in_words(self.lower_bound, rounded_down)}, "
            f"with confidence {rounded_down(self.confidence)}",
            f"limit     at most {self.claim.in_words(self.most, rounded_down)} could be shown",
            f"verdict   {verdict}",
        )
        return "\n".join(lines)


def tell_apart(
    claim: Claim,
    observe: Callable[[bool], Observations],
    *,
    runs: int,
    confidence: float,
    subject: str,
) -> AuditResult:
    """Return the result of a test that distinguishes runs on two datasets by a score.

    Pilot runs choose the score and its threshold, and fresh runs evaluate the test. The score is
    the observed score, or a contrast (linear combination) of the observed numbers if the contrast
    refutes the claim by more in the pilot runs. The choice raises no false alarms, since the fresh
    runs are independent of it.

    Parameters
    ----------
    claim
        The guarantee.
    observe
        Called with True for one dataset and False for its neighbour; returns the observations of
        `runs` new runs on it.
    runs
        At least 1.
    confidence
        In (0, 1).
    subject
        Name of the audited algorithm or mechanism, for the result.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    runs = integer("runs", runs, at_least=1)
    pilot_positives = observe(True)
    pilot_negatives = observe(False)
    score_test = _best_test(claim, pilot_positives.scores, pilot_negatives.scores, confidence)
    contrast_test = _best_test(
        claim, *unseen_scores(pilot_positives.numbers, pilot_negatives.numbers), confidence
    )
    fresh_positives = observe(True)
    fresh_negatives = observe(False)
    if contrast_test.level > max(score_test.level, claim.level):
        distinguisher = "a contrast of what was seen, and a threshold,"
        score = contrast(pilot_positives.numbers, pilot_negatives.numbers)
        tally = count(
            contrast_test.threshold, score(fresh_positives.numbers), score(fresh_negatives.numbers)
        )
    else:
        distinguisher = "a threshold"
        tally = count(score_test.threshold, fresh_positives.scores, fresh_negatives.scores)
    method = (
        f"2 x {runs} runs of {subject}; distinguished by {distinguisher} from as many pilot runs"
    )
    return proved(claim, tally, confidence=confidence, method=method)


def proved(claim: Claim, tally: Tally, *, confidence: float, method: str) -> AuditResult:
    """Return the result of an audit from the outcomes of its test.

    Parameters
    ----------
    claim
        The audited claim.
    tally
        Outcomes of a test that was chosen before these runs.
    confidence
        Confidence level of the bound, in (0, 1).
    method
        Description of the audit.
    """
    perfect_tally = tally._replace(true_positives=tally.positives, false_positives=0)
    return AuditResult(
        claim=claim,
        lower_bound=lower_bound(claim, tally, confidence),
        confidence=confidence,
        method=method,
        most=lower_bound(claim, perfect_tally, confidence),
    )


class _Test(NamedTuple):
    """A threshold, and the level that it shows in the pilot runs from which it comes."""

    threshold: float
    level: float


def _best_test(
    claim: Claim,
    positives: npt.NDArray[np.float64],
    negatives: npt.NDArray[np.float64],
    confidence: float,
) -> _Test:
    """Return the best threshold on scores of pilot runs, shape (runs,) each."""
    threshold = best_threshold(claim, positives, negatives, confidence)
    tally = count(threshold, positives, negatives)
    return _Test(threshold, lower_bound(claim, tally, confidence))
