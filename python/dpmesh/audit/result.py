"""What a statistical audit found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class Seen(NamedTuple):
    """What was seen in runs: a score of each, shape (runs,), and numbers, shape (runs, numbers)."""

    scores: npt.NDArray[np.float64]
    numbers: npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class AuditResult(InNotebooks):
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
    most
        The largest lower bound that this audit could have found, if nothing hid the difference.

    Examples
    --------
    >>> import dpmesh as dm
    >>> mechanism = dm.noise.Gaussian(2.0)
    >>> sensitivity = dm.noise.Sensitivity(1.0, "l2", "numbers between 0 and 1")
    >>> key = dm.Key.seeded(0)
    >>> found = dm.audit.audit_mechanism(mechanism, sensitivity, runs=1000, delta=1e-5, key=key)
    >>> found.violated
    False
    """

    claim: Claim
    lower_bound: float
    confidence: float
    method: str
    most: float

    @property
    def violated(self) -> bool:
        """Whether the claim is refuted, at this confidence."""
        return self.lower_bound > self.claim.level

    @property
    def sentence(self) -> str:
        """What was found in one line, to be quoted."""
        least = self.claim.at(self.lower_bound, rounded_down)
        verdict = "which refutes the claim of" if self.violated else "no violation of the claimed"
        return (
            f"An audit ({self.method}) found at least {least}, with confidence "
            f"{rounded_down(self.confidence)}: {verdict} {self.claim.at(self.claim.level)}."
        )

    @property
    def weak(self) -> bool:
        """Whether it shows so little that a guarantee twice as bad might have passed."""
        return self.lower_bound < self.claim.level / 2

    def __str__(self) -> str:
        verdict = "violated"
        if not self.violated:
            verdict = "no violation found (an audit cannot prove the claim)"
            if self.weak:
                verdict += "; weak: it shows less than half of what is claimed"
        return "\n".join(
            (
                f"audit     {self.method}",
                f"claim     {self.claim.at(self.claim.level)}",
                f"measured  at least {self.claim.at(self.lower_bound, rounded_down)}, "
                f"with confidence {rounded_down(self.confidence)}",
                f"limit     at most {self.claim.at(self.most, rounded_down)} could be shown",
                f"verdict   {verdict}",
            )
        )


def tell_apart(
    claim: Claim, look: Callable[[bool], Seen], *, runs: int, confidence: float, what: str
) -> AuditResult:
    """Return what the best threshold on a score proves: found on pilot runs, tested on fresh ones.

    The score is the one given, or the contrast of the numbers seen, if this refutes the claim by
    more in the pilot runs. A correct algorithm gains no false alarm by the choice, since fresh runs
    do not know of it.

    Parameters
    ----------
    claim
        The guarantee.
    look
        Called with True for one dataset and False for its neighbour; returns what was
        seen in `runs` new runs in it.
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
    pilot = look(True), look(False)
    given, reported = _best(claim, [seen.scores for seen in pilot], confidence), "a threshold"
    numbers = pilot[0].numbers, pilot[1].numbers
    learned = _best(claim, unseen_scores(*numbers), confidence)
    fresh = look(True), look(False)
    threshold, (ones, zeros) = given.threshold, (seen.scores for seen in fresh)
    if learned.level > max(given.level, claim.level):
        score = contrast(*numbers)
        threshold, (ones, zeros) = learned.threshold, (score(seen.numbers) for seen in fresh)
        reported = "a contrast of what was seen, and a threshold,"
    how = f"2 x {runs} runs of {what}; distinguished by {reported} from as many pilot runs"
    return proved(claim, count(threshold, ones, zeros), confidence=confidence, method=how)


def proved(claim: Claim, tally: Tally, *, confidence: float, method: str) -> AuditResult:
    """Return what a test's outcomes prove, and the most that so many runs could have proved."""
    perfect = tally._replace(true_positives=tally.positives, false_positives=0)
    bound, most = (lower_bound(claim, each, confidence) for each in (tally, perfect))
    return AuditResult(
        claim=claim, lower_bound=bound, confidence=confidence, method=method, most=most
    )


class _Test(NamedTuple):
    """A threshold, and the level that it shows in the pilot runs from which it comes."""

    threshold: float
    level: float


def _best(claim: Claim, pilot: Sequence[npt.NDArray[np.float64]], confidence: float) -> _Test:
    ones, zeros = pilot
    threshold = best_threshold(claim, ones, zeros, confidence)
    return _Test(threshold, lower_bound(claim, count(threshold, ones, zeros), confidence))
