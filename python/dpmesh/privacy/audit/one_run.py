"""What one run with many canaries proves (Steinke, Nasr, Jagielski 2023, Theorem 5.2)."""

from __future__ import annotations

import numpy as np
from scipy import optimize, special, stats

from dpmesh._validate import integer, non_negative, probability


def p_value(
    epsilon: float, *, canaries: int, guesses: int, correct: int, delta: float = 0.0
) -> float:
    """Return the probability of guessing so well if the run were (epsilon, delta)-private.

    Each canary is in one of two forms by a fair coin of its own; who sees the released messages
    guesses some of the coins. Privacy lets a guess be right with probability e^epsilon / (1 +
    e^epsilon), and the whole set of guesses be somewhat better than that with a probability of the
    order of `canaries` x `delta`.

    Parameters
    ----------
    epsilon
        At least 0.
    canaries
        How many coins were thrown.
    guesses
        How many of them were guessed; the choice may depend on the messages.
    correct
        How many guesses were right.
    delta
        In [0, 1).

    Raises
    ------
    ValueError
        If a number is out of range, or not correct <= guesses <= canaries.
    """
    non_negative("epsilon", epsilon)
    integer("canaries", canaries, at_least=1)
    integer("guesses", guesses, below=canaries + 1)
    integer("correct", correct, below=guesses + 1)
    probability("delta", delta, one=False)
    right = stats.binom(guesses, special.expit(epsilon))
    value = right.sf(correct - 1)
    if delta > 0 and correct > 0:
        fewer = np.arange(1, correct + 1)
        nearly = right.cdf(correct - 1) - right.cdf(correct - fewer - 1)
        value += 2 * canaries * delta * (nearly / fewer).max()
    return min(float(value), 1.0)


def epsilon_lower_bound(
    *, canaries: int, guesses: int, correct: int, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Return a lower confidence bound on epsilon from one run: the largest one that it refutes.

    Parameters
    ----------
    canaries, guesses, correct, delta
        See `p_value`.
    confidence
        Probability, in (0, 1), with which the bound holds.

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    error = 1 - probability("confidence", confidence, zero=False, one=False)

    def excess(epsilon: float) -> float:
        return (
            p_value(epsilon, canaries=canaries, guesses=guesses, correct=correct, delta=delta)
            - error
        )

    if excess(0.0) >= 0:
        return 0.0
    above = 1.0
    while excess(above) < 0:
        above *= 2
    return float(optimize.bisect(excess, 0.0, above, xtol=1e-12))
