"""Meaning of an epsilon for a person, in words and numbers that a board can read."""

from __future__ import annotations

from math import exp

from dpmesh._epsilons import as_given, rounded_up
from dpmesh._validate import positive_or_infinite, probability


def right_guesses(epsilon: float, delta: float = 0.0) -> float:
    """Return how often anybody can guess at most which of two equally likely values a record has.

    ``(exp(epsilon) + delta) / (1 + exp(epsilon))``, from the definition of (epsilon, delta)-DP.
    """
    odds = exp(-positive_or_infinite("epsilon", epsilon))
    return min((1 + probability("delta", delta) * odds) / (1 + odds), 1.0)


def found_at(false_alarms: float, epsilon: float, delta: float = 0.0) -> float:
    """Return the largest share of true suspicions that a test confirms at this rate of false ones.

    The smaller of ``exp(epsilon) a + delta`` and ``1 - exp(-epsilon) (1 - delta - a)``.
    """
    a = probability("false_alarms", false_alarms)
    odds = exp(-positive_or_infinite("epsilon", epsilon))
    most = 1 - odds * (1 - probability("delta", delta) - a)
    if odds > 0:
        return min(a / odds + delta, most)
    return most


def plain_words(epsilon: float, delta: float, threat_model: str) -> str:
    """Return what a guarantee means for one person, and what it does not cover.

    Parameters
    ----------
    epsilon, delta
        Of the guarantee, for one record.
    threat_model
        The threat model of the guarantee, in words.
    """
    guesses = right_guesses(epsilon, delta)
    detections = found_at(0.01, epsilon, delta)
    guarantee = f"epsilon = {as_given(float(rounded_up(epsilon)))}, delta = {as_given(delta)}"
    return "\n".join(
        [
            f"What this means for one person ({guarantee}):",
            "- Somebody who knows all other records, and that this person's is one of two equally",
            f"  likely ones, guesses right in at most {100 * guesses:.1f} of 100 cases. A coin is "
            "right in 50.",
            "- A test of such a suspicion that is wrong about 1 in 100 confirms at most",
            f"  {100 * detections:.1f} in 100 true ones. Without what is published it confirms 1.",
            "- It does not hide what holds for many people alike, nor what a site does with its",
            "  own records, nor a person with several records as well as one with a single one.",
            f"- Threat model: {threat_model}.",
        ]
    )
