"""Calibration: the least noise that keeps a privacy budget, and the most rounds that keep it.

Each search keeps a bracket of two values, one that keeps the budget (`sufficient` noise) and one
that exceeds it (`insufficient` noise). It returns the end that keeps the budget. The epsilon of
calibrated noise is within ``1e-6 * min(1, target)`` of the target, unless epsilon jumps there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from math import exp, inf, log, nan, sqrt
from typing import NamedTuple, NoReturn, get_args

import numpy as np
import numpy.typing as npt

from dpmesh._privacy_types import NeighboringRelation
from dpmesh._validate import fail, integer, one_of, positive
from dpmesh.accounting._arguments import Floats, open_probability, sampled_rounds
from dpmesh.accounting._pairs import DominatingPair
from dpmesh.accounting.gaussian import analytic_gaussian_noise_to_sensitivity
from dpmesh.accounting.renyi import RdpGuarantee, best_order, orders_beside, rdp_epsilon
from dpmesh.accounting.sampled import Accountant, Curve, sampled_epsilon, sampled_pair

_TOLERANCE = 5e-7
"""Distance from the target below which an epsilon ends the search; relative for targets below 1."""

_MIN_BRACKET_WIDTH = 1e-13
"""Relative width of a bracket of noise scales that is not narrowed further, near rounding."""

_MAX_FACTOR = 1e12
"""Factor between the first guess and the noise scales that are tried, to either side."""


def calibrate_noise(
    epsilon_of: Callable[[float], float], *, target_epsilon: float, guess: float = 1.0
) -> float:
    """Return the least noise scale for which an epsilon is at most a target.

    Parameters
    ----------
    epsilon_of
        Function from a noise scale to epsilon. It must not increase with the noise scale, and must
        be finite for large scales.
    target_epsilon
        Largest epsilon, finite and positive.
    guess
        Noise scale at which the search starts, positive. Each factor of two between the guess and
        the result takes one evaluation.

    Returns
    -------
    A noise scale. Its epsilon is at most the target, and within 1e-6 of the target (for targets
    below 1: within a relative 1e-6). If `epsilon_of` jumps across the target, the scale just above
    the jump.

    Raises
    ------
    ValueError
        If a number is not finite and positive, or the scales within a factor 1e12 of `guess` all
        exceed the target or all stay below it.

    Examples
    --------
    The factor by which to multiply the noise of rounds that differ:

    >>> from dpmesh.accounting import calibrate_noise, gdp_epsilon, gdp_mu
    >>> def epsilon(c: float) -> float:
    ...     return gdp_epsilon(delta=1e-5, mu=gdp_mu([c, 2 * c, 3 * c]))
    >>> factor = calibrate_noise(epsilon, target_epsilon=1.0)
    >>> round(factor, 4)
    4.3524
    """
    target_epsilon = positive("target_epsilon", target_epsilon)
    guess = positive("guess", guess)
    at_guess = _Evaluation(guess, epsilon_of(guess))
    stride = _stride(at_guess.epsilon, target_epsilon)
    sufficient = insufficient = at_guess
    while not sufficient.epsilon <= target_epsilon:
        insufficient = sufficient
        noise = sufficient.noise * stride
        stride = min(2.0, stride * stride)
        if noise > guess * _MAX_FACTOR:
            _fail_above(target_epsilon, at_guess.epsilon, sufficient.epsilon)
        sufficient = _Evaluation(noise, epsilon_of(noise))
    while insufficient.epsilon <= target_epsilon:
        sufficient = insufficient
        noise = insufficient.noise / stride
        stride = min(2.0, stride * stride)
        if noise < guess / _MAX_FACTOR:
            expectation = f"less than {sufficient.epsilon}, which it costs however little the noise"
            fail("target_epsilon", expectation, target_epsilon)
        insufficient = _Evaluation(noise, epsilon_of(noise))
    return _narrow(epsilon_of, target_epsilon, insufficient, sufficient)


class _Evaluation(NamedTuple):
    """A noise scale, and the epsilon there."""

    noise: float
    epsilon: float


def _fail_above(target_epsilon: float, at_guess: float, at_largest: float) -> NoReturn:
    """Fail where even the largest noise leaves epsilon above the target."""
    if at_largest == at_guess < inf:
        expectation = f"at least {at_largest}, which it costs at any noise (is the noise used?)"
    elif at_largest < inf:
        expectation = f"an epsilon that noise attains, such as {at_largest}"
    else:
        expectation = "an epsilon that noise attains, at a delta above 0 if it is Gaussian"
    fail("target_epsilon", expectation, target_epsilon)


def _stride(epsilon: float, target: float) -> float:
    """Return a factor of the noise, at most 2, that should move epsilon beyond the target.

    If epsilon falls about with the inverse of the noise, their ratio would reach the target, and
    its square passes the target.
    """
    if not 0 < epsilon < inf:
        return 2.0
    ratio = max(epsilon / target, target / epsilon, 1.001)
    return min(2.0, min(2.0, ratio) ** 2)


def _narrow(
    epsilon_of: Callable[[float], float],
    target: float,
    insufficient: _Evaluation,
    sufficient: _Evaluation,
) -> float:
    """Narrow ``insufficient < noise <= sufficient`` and return the sufficient noise.

    The next noise is that of the secant through the last two evaluations, in logarithms of noise
    and epsilon. Where the secant leaves the bracket, and every fifth time, it is the geometric mean
    of the bracket's ends.
    """
    tolerance = _TOLERANCE * min(1, target)
    log_target = log(target - 0.5 * tolerance)
    previous = insufficient
    last = sufficient
    for turn in count(1):
        is_narrow = sufficient.noise <= insufficient.noise * (1 + _MIN_BRACKET_WIDTH)
        if sufficient.epsilon >= target - tolerance or is_narrow:
            break
        geometric_middle = sqrt(insufficient.noise) * sqrt(sufficient.noise)
        noise = geometric_middle
        if turn % 5 != 0:
            noise = _secant(previous, last, log_target)
        if not insufficient.noise < noise < sufficient.noise:
            noise = geometric_middle
        previous = last
        last = _Evaluation(noise, epsilon_of(noise))
        if last.epsilon <= target:
            sufficient = last
        else:
            insufficient = last
    return sufficient.noise


def _secant(first: _Evaluation, second: _Evaluation, log_target: float) -> float:
    """Return the noise at which the logarithm of epsilon would be `log_target`; NaN if none is."""
    if not (0 < first.epsilon < inf and 0 < second.epsilon < inf):
        return nan
    log_first = log(first.epsilon)
    log_second = log(second.epsilon)
    if log_first == log_second:
        return nan
    relative_position = (log_target - log_second) / (log_first - log_second)
    relative_position = min(max(relative_position, -9), 9)  # beyond 9 lies outside any bracket
    return second.noise * exp(relative_position * log(first.noise / second.noise))


def poisson_gaussian_noise_to_sensitivity(
    *,
    target_epsilon: float,
    target_delta: float,
    sampling_rate: npt.ArrayLike,
    neighboring_relation: NeighboringRelation,
    relative_noise: npt.ArrayLike = 1.0,
    count: npt.ArrayLike = 1,
    accountant: Accountant = "best",
) -> float:
    """Return the least noise ratio for which Gaussian releases of Poisson samples keep a budget.

    All rounds together are then (`target_epsilon`, `target_delta`)-DP.

    Parameters
    ----------
    target_epsilon
        Finite and positive.
    target_delta
        In (0, 1).
    sampling_rate, count, neighboring_relation, accountant
        As for `poisson_gaussian_epsilon`.
    relative_noise
        Noise of the rounds relative to one another: a number, or one for each round.

    Returns
    -------
    The factor that turns `relative_noise` into noise ratios; for 1, the noise ratio itself.

    Raises
    ------
    ValueError
        If an argument is out of its range, the lengths of the rounds differ, or no noise keeps the
        budget.
    """
    rounds = sampled_rounds(sampling_rate, relative_noise, count)
    pair, curve = sampled_pair("poisson", neighboring_relation)
    return _sampled_noise(
        pair, curve, rounds, accountant, target_epsilon=target_epsilon, target_delta=target_delta
    )


def fixed_size_gaussian_noise_to_sensitivity(
    *,
    target_epsilon: float,
    target_delta: float,
    sampling_rate: npt.ArrayLike,
    neighboring_relation: NeighboringRelation,
    relative_noise: npt.ArrayLike = 1.0,
    count: npt.ArrayLike = 1,
    accountant: Accountant = "best",
) -> float:
    """Return the least noise ratio for which Gaussian releases of fixed-size samples keep a budget.

    The sensitivity is that to replacing a unit. The samples are drawn without replacement, as in
    `fixed_size_gaussian_epsilon`. Parameters, result and errors are those of
    `poisson_gaussian_noise_to_sensitivity`.
    """
    rounds = sampled_rounds(sampling_rate, relative_noise, count)
    pair, curve = sampled_pair("fixed_size", neighboring_relation)
    return _sampled_noise(
        pair, curve, rounds, accountant, target_epsilon=target_epsilon, target_delta=target_delta
    )


def affordable_rounds(
    epsilon_of: Callable[[int], float], *, target_epsilon: float, at_most: int = 2**40
) -> int:
    """Return the largest number of rounds for which epsilon is at most a target.

    The result is 0 if the epsilon of one round exceeds the target.

    Parameters
    ----------
    epsilon_of
        Function from a number n of rounds to the epsilon of the first n rounds. It must not
        decrease with n.
    target_epsilon
        Largest epsilon, finite and positive.
    at_most
        Largest number of rounds to try, at least 1.

    Raises
    ------
    ValueError
        If `target_epsilon` is not finite and positive, or `at_most` is not an integer of at least
        1.

    Examples
    --------
    For equal rounds, one curve serves any number of them:

    >>> from dpmesh.accounting import affordable_rounds, rdp_epsilon, rdp_poisson_gaussian
    >>> one = rdp_poisson_gaussian(
    ...     sampling_rate=0.01, noise_to_sensitivity=1.1, neighboring_relation="add_remove"
    ... )
    >>> def epsilon(rounds: int) -> float:
    ...     return rdp_epsilon(delta=1e-5, rdp=rounds * one).epsilon
    >>> affordable_rounds(epsilon, target_epsilon=3.0)
    3132

    For a node whose rounds get noisier, sums of squares do:

    >>> from dpmesh.accounting import gdp_epsilon, gdp_mu
    >>> noise = [10 + 0.1 * t for t in range(1000)]
    >>> def epsilon(rounds: int) -> float:
    ...     return gdp_epsilon(delta=1e-5, mu=gdp_mu(noise[:rounds]))
    >>> affordable_rounds(epsilon, target_epsilon=1.0, at_most=1000)
    7
    """
    target_epsilon = positive("target_epsilon", target_epsilon)
    at_most = integer("at_most", at_most, at_least=1)
    affordable = 0
    too_many = 1
    while too_many <= at_most and epsilon_of(too_many) <= target_epsilon:
        affordable = too_many
        too_many = 2 * too_many
    if too_many > at_most:
        if epsilon_of(at_most) <= target_epsilon:
            return at_most
        too_many = at_most
    first_above = bisect_right(range(too_many), target_epsilon, affordable + 1, key=epsilon_of)
    return first_above - 1


def _sampled_noise(
    pair: DominatingPair,
    curve: Curve,
    rounds: tuple[Floats, ...],
    accountant: Accountant,
    *,
    target_epsilon: float,
    target_delta: float,
) -> float:
    """Return the least factor of the rounds' relative noise that keeps the budget.

    The search starts from the noise that the Rényi curve needs, which is fast to compute.
    """
    target_epsilon = positive("target_epsilon", target_epsilon)
    target_delta = open_probability("target_delta", target_delta)
    one_of("accountant", accountant, get_args(Accountant))
    rate, relative_noise, counts = rounds
    if not np.any(counts):
        fail("count", "at least 1 round", counts)
    # a guess: the rounds together have about the mu of one Gaussian release with this budget
    single_noise = analytic_gaussian_noise_to_sensitivity(
        target_epsilon=target_epsilon, target_delta=target_delta
    )
    guess = single_noise * sqrt(np.sum(counts * (rate / relative_noise) ** 2))
    guess = max(guess, 0.2 / np.max(relative_noise))

    def guarantee(factor: float, orders: Sequence[float]) -> RdpGuarantee:
        divergences = curve(
            sampling_rate=rate,
            noise_to_sensitivity=factor * relative_noise,
            count=counts,
            orders=orders,
        )
        return rdp_epsilon(delta=target_delta, rdp=divergences, orders=orders)

    noise_by_curve = _noise_by_curve(guarantee, target_epsilon, guess)
    if accountant == "rdp":
        return noise_by_curve

    def epsilon_of(factor: float) -> float:
        noisy_rounds = (rate, factor * relative_noise, counts)
        return sampled_epsilon(target_delta, pair, curve, noisy_rounds, accountant)

    return calibrate_noise(epsilon_of, target_epsilon=target_epsilon, guess=noise_by_curve)


def _noise_by_curve(
    guarantee: Callable[[float, Sequence[float]], RdpGuarantee], target_epsilon: float, noise: float
) -> float:
    """Return about the least noise for which the best Rényi order keeps the budget.

    It calibrates the noise at one order, then looks for a better order at this noise, until no
    order is better. Each order alone proves the budget, so each step can only lower the noise.

    Parameters
    ----------
    guarantee
        Function from a noise and Rényi orders to the guarantee of the best of these orders.
    target_epsilon
        Largest epsilon.
    noise
        Noise at which the search starts, as the factor that all rounds' noise is multiplied by.
    """
    largest_noise = noise * _MAX_FACTOR
    best = best_order(partial(guarantee, noise))
    while best.epsilon > target_epsilon:
        if noise > largest_noise:
            expectation = f"an epsilon that noise attains, such as {best.epsilon}"
            fail("target_epsilon", expectation, target_epsilon)
        noise *= 2
        best = best_order(partial(guarantee, noise))

    def epsilon_of(scale: float, order: float) -> float:
        return guarantee(scale, [order]).epsilon

    tried: set[float] = set()
    while best.order not in tried and best.epsilon <= target_epsilon:
        tried.add(best.order)
        epsilon_at_order = partial(epsilon_of, order=best.order)
        noise = calibrate_noise(epsilon_at_order, target_epsilon=target_epsilon, guess=noise)
        # at slightly less noise, so that only an order that allows less noise keeps the budget
        best = guarantee(noise * (1 - 1e-9), orders_beside(best.order))
    return noise
