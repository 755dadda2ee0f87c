"""Lower confidence bounds from one run with many canaries.

A fair coin chooses the form of each canary: one of two neighbouring forms of a unit. An observer of
the released messages guesses some of the coins. If more guesses are right than a level of privacy
allows, up to an error of 1 - confidence, that level is refuted; the bound is the largest such
level. For (epsilon, delta) it is that of Steinke, Nasr and Jagielski (2023, Theorem 5.2), for
Gaussian differential privacy the tighter one of Mahloujifar, Melis and Chaudhuri (2025).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import optimize, special, stats

from dpmesh._validate import fail, instance, integer, non_negative, probability
from dpmesh.algorithms.base import AN_ALGORITHM, Algorithm, AnyAlgorithm
from dpmesh.algorithms.worst_case import Coins, Scores
from dpmesh.audit.claims import Claim, EpsilonClaim, GaussianClaim, claim_of
from dpmesh.audit.result import AuditResult
from dpmesh.audit.scores import ReplayedLikelihood
from dpmesh.audit.transcript import Audited, fresh_keys, record
from dpmesh.keys import Key, Purpose, generator
from dpmesh.run.carriers import Carrier


def p_value(
    epsilon: float, *, canaries: int, guesses: int, correct: int, delta: float = 0.0
) -> float:
    """Bound the probability of guessing this well if the run were (epsilon, delta)-private.

    Let X be the number of right guesses if each is right with probability ``e^epsilon / (1 +
    e^epsilon)``, independently. With c right guesses of so many canaries the bound is

        P(X >= c) + 2 canaries delta max over i in 1 .. c of P(c - i <= X < c) / i

    Parameters
    ----------
    epsilon
        At least 0.
    canaries
        Number of coins that were tossed.
    guesses
        Number of them that were guessed; the choice may depend on the messages.
    correct
        Number of right guesses.
    delta
        In [0, 1).

    Raises
    ------
    ValueError
        If a number is out of range, or not correct <= guesses <= canaries.
    """
    epsilon = non_negative("epsilon", epsilon)
    canaries, guesses, correct = _counts(canaries, guesses, correct)
    delta = probability("delta", delta, one=False)
    right_guesses = stats.binom(guesses, special.expit(epsilon))  # X
    value = right_guesses.sf(correct - 1)
    if delta > 0 and correct > 0:
        missing = np.arange(1, correct + 1)  # i
        fewer = right_guesses.cdf(correct - 1)  # P(X < c)
        far_fewer = right_guesses.cdf(correct - missing - 1)  # P(X < c - i), shape (correct,)
        value += 2 * canaries * delta * ((fewer - far_fewer) / missing).max()
    return min(float(value), 1.0)


def _counts(canaries: int, guesses: int, correct: int) -> tuple[int, int, int]:
    """Return the three counts; fail unless 0 <= correct <= guesses <= canaries."""
    canaries = integer("canaries", canaries, at_least=1)
    guesses = integer("guesses", guesses, below=canaries + 1)
    correct = integer("correct", correct, below=guesses + 1)
    return canaries, guesses, correct


def epsilon_lower_bound(
    *, canaries: int, guesses: int, correct: int, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Return a lower confidence bound on epsilon from one run: the largest epsilon that it refutes.

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

    def is_refuted(epsilon: float) -> bool:
        value = p_value(epsilon, canaries=canaries, guesses=guesses, correct=correct, delta=delta)
        return value < error

    return _largest_refuted(is_refuted, accuracy=1e-12)


def mu_is_refuted(
    mu: float, *, canaries: int, guesses: int, correct: int, confidence: float = 0.95
) -> bool:
    """Return True if mu-GDP gives this many right guesses a probability below 1 - `confidence`.

    Let p_i be the probability of i right guesses. For a canary drawn at random, at least i other
    guesses are right and its own is right with probability
    ``r_(i+1) = sum_(j > i) p_j j / canaries``, and wrong with ``h_i = sum_(j >= i) p_j
    (guesses - j) / canaries``. Flipping the canary's coin turns one into the other, so Gaussian
    differential privacy requires ``h_i >= Phi(Phi^-1(r_(i+1)) - mu)`` for every i. The claim is
    refuted if, with a probability of 1 - `confidence` for `correct` or more right guesses, this
    makes the total probability exceed 1.

    That is computed downwards from i = `correct` - 1. Where h_i must grow by d, p_i must grow by
    ``d canaries / (guesses - i)``, and then r_i by ``d i / (guesses - i)``. With all p_i included,
    ``r_1 + h_0`` is guesses / canaries: a larger sum is a total probability above 1.

    Parameters
    ----------
    mu
        At least 0.
    canaries, guesses, correct
        See `p_value`.
    confidence
        In (0, 1).

    Raises
    ------
    ValueError
        If a number is out of range, or not correct <= guesses <= canaries.
    """
    mu = non_negative("mu", mu)
    canaries, guesses, correct = _counts(canaries, guesses, correct)
    error = 1 - probability("confidence", confidence, zero=False, one=False)
    guessed_share = guesses / canaries
    right = error * correct / canaries  # r_(i+1)
    wrong = error * (guesses - correct) / canaries  # h_i
    for i in range(correct - 1, -1, -1):
        least_wrong = float(special.ndtr(special.ndtri(right) - mu))
        if least_wrong > wrong:
            right += i / (guesses - i) * (least_wrong - wrong)
            wrong = least_wrong
        if right + wrong > guessed_share:
            return True
    return False


def mu_lower_bound(*, canaries: int, guesses: int, correct: int, confidence: float = 0.95) -> float:
    """Return a lower confidence bound on mu from one run: the largest mu that it refutes.

    Parameters
    ----------
    canaries, guesses, correct, confidence
        See `mu_is_refuted`.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    def is_refuted(mu: float) -> bool:
        return mu_is_refuted(
            mu, canaries=canaries, guesses=guesses, correct=correct, confidence=confidence
        )

    return _largest_refuted(is_refuted, accuracy=1e-9)


def _largest_refuted(is_refuted: Callable[[float], bool], *, accuracy: float) -> float:
    """Return the largest level that is refuted, within `accuracy`; 0 if none is.

    Every level below a refuted one is refuted, too.
    """
    if not is_refuted(0.0):
        return 0.0
    upper = 1.0
    while is_refuted(upper):
        upper *= 2

    def step_at_bound(level: float) -> float:
        """Return a function of the level that changes its sign at the bound, for `bisect`."""
        if is_refuted(level):
            return -0.5
        return 0.5

    return float(optimize.bisect(step_at_bound, 0.0, upper, xtol=accuracy))


def audit_one_run(
    algorithm: AnyAlgorithm,
    problem_of: Callable[[Coins], Audited],
    carrier: Carrier,
    *,
    canaries: int,
    rounds: int,
    guesses: int | None = None,
    delta: float = 0.0,
    confidence: float = 0.95,
    scores: Scores | None = None,
    per_release: bool = False,
    key: Key | None = None,
) -> AuditResult:
    """Return a lower confidence bound on epsilon, or on mu, from one run with many canaries.

    Each canary is one of two forms of a unit, chosen by an independent fair coin. The audit guesses
    the coins from the messages of the run, and the number of correct guesses gives the bound. This
    is a smoke test for a real training loop: it detects gross faults only, and does not replace
    `couple` or `audit_algorithm`.

    Parameters
    ----------
    algorithm
        The algorithm to audit.
    problem_of
        Returns the problem for the canaries' coins, shape (canaries,): each coin chooses between
        two neighbouring forms of one unit.
    carrier
        Carrier of the messages, such as `alone`.
    canaries
        At least 2.
    rounds
        Number of rounds of the run.
    guesses
        Number of coins to guess: those of the largest scores as True, and equally many of the
        smallest as False. By default a fifth of the canaries.
    delta
        Delta of the claim, in [0, 1).
    confidence
        Probability, in (0, 1), with which the bound holds.
    scores
        Returns for each canary a number that is larger if its coin is True, from the values that
        the run `sent`, `released` and `received`; such as a `projection`. By default the likelihood
        ratio of its node's releases, for one canary on each node.
    per_release
        If true, there is one canary for each release of a single node, in place of one on each
        node.
    key
        Source of all randomness; by default a new one from the operating system.

    Raises
    ------
    ValueError
        If an argument is out of range, or the plan claims nothing.
    """
    canaries = integer("canaries", canaries, at_least=2)
    instance("algorithm", algorithm, AN_ALGORITHM, Algorithm)
    integer("rounds", rounds, at_least=1)
    if guesses is None:
        guesses = max(2, canaries // 5)
    guesses_per_side = integer("guesses", guesses, at_least=2, below=canaries + 1) // 2
    claim = claim_of(algorithm.plan(rounds), delta)
    keys = fresh_keys(key)
    coins = generator(next(keys), Purpose.AUDIT).integers(2, size=canaries).astype(bool)
    run = record(algorithm, problem_of(coins), carrier, rounds=rounds, key=next(keys))
    if scores is not None:
        canary_scores = scores(run)
    else:
        likelihood = ReplayedLikelihood(
            algorithm=algorithm,
            problem=problem_of(np.ones(canaries, dtype=bool)),
            neighbor=problem_of(np.zeros(canaries, dtype=bool)),
            carrier=carrier,
            rounds=rounds,
            key=next(keys),
        )
        log_ratios = list(likelihood.ratios(run))  # of each release, shape (rows,)
        if per_release:
            canary_scores = np.concatenate(log_ratios)
        else:
            canary_scores = sum(log_ratios, start=np.zeros(canaries))
    if canary_scores.shape != (canaries,):
        got = f"shape {canary_scores.shape}"
        fail("scores", f"one number for each of {canaries} canaries", got)
    ranked_coins = coins[np.argsort(canary_scores)]  # by ascending score
    correct_true = ranked_coins[-guesses_per_side:].sum()
    correct_false = (~ranked_coins[:guesses_per_side]).sum()
    return _result(
        claim,
        canaries=canaries,
        guesses=2 * guesses_per_side,
        correct=int(correct_true + correct_false),
        confidence=confidence,
        subject=f"{type(algorithm).__name__}, rounds: {rounds}, canaries: {canaries}",
    )


def _result(
    claim: Claim, *, canaries: int, guesses: int, correct: int, confidence: float, subject: str
) -> AuditResult:
    """Return the lower bound that the guesses of one run prove, and the most that they could.

    The most is the bound if all guesses were right.
    """

    def bound(correct: int) -> float:
        if isinstance(claim, GaussianClaim):
            return mu_lower_bound(
                canaries=canaries, guesses=guesses, correct=correct, confidence=confidence
            )
        assert isinstance(claim, EpsilonClaim)
        return epsilon_lower_bound(
            canaries=canaries,
            guesses=guesses,
            correct=correct,
            delta=claim.delta,
            confidence=confidence,
        )

    return AuditResult(
        claim=claim,
        lower_bound=bound(correct),
        confidence=confidence,
        method=f"1 run of {subject}; {correct} of {guesses} guesses were right",
        most=bound(guesses),
    )
