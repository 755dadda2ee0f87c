"""What a statistical audit found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmesh._validate import integer
from dpmesh.privacy.audit.claims import Claim
from dpmesh.privacy.audit.statistics import best_threshold, count, lower_bound
from dpmesh.privacy.shown import rounded_down


@dataclass(frozen=True)
class AuditResult:
    """A lower confidence bound, next to the claim.

    Parameters
    ----------
    claim
        The guarantee.
    lower_bound
        Bound on the level of the true guarantee: in the claim's terms, epsilon or mu.
    confidence
        Probability with which the bound holds.
    method
        How the bound was found.
    """

    claim: Claim
    lower_bound: float
    confidence: float
    method: str

    @property
    def violated(self) -> bool:
        """Whether the claim is refuted, at this confidence."""
        return self.lower_bound > self.claim.level

    def __str__(self) -> str:
        verdict = "violated" if self.violated else "consistent, which proves nothing"
        return "\n".join(
            (
                f"audit     {self.method}",
                f"claim     {self.claim.at(self.claim.level)}",
                f"measured  at least {self.claim.at(self.lower_bound, rounded_down)}, "
                f"with confidence {rounded_down(self.confidence)}",
                f"verdict   {verdict}",
            )
        )


def tell_apart(
    claim: Claim,
    scores: Callable[[bool], npt.NDArray[np.float64]],
    *,
    runs: int,
    confidence: float,
    what: str,
) -> AuditResult:
    """Return what the best threshold on a score proves: found on pilot runs, tested on fresh ones.

    Parameters
    ----------
    claim
        The guarantee.
    scores
        Called with True for the positive world and False for the negative one; returns the scores
        of `runs` new runs in it.
    runs
        At least 1.
    confidence
        In (0, 1).
    what
        What was run, for the result.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    runs = integer("runs", runs, at_least=1)
    threshold = best_threshold(claim, scores(True), scores(False), confidence)
    tally = count(threshold, scores(True), scores(False))
    return AuditResult(
        claim,
        lower_bound(claim, tally, confidence),
        confidence,
        f"2 x {runs} runs of {what}; told apart by a threshold from as many pilot runs",
    )
