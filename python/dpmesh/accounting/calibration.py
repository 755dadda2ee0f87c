"""How much noise a budget needs, and how many rounds it buys.

Both are found by bracketing, and the end that keeps the budget is returned: the epsilon of the
result does not exceed the target and is within ``1e-6 * min(1, target)`` of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from math import exp, inf, log, nan, sqrt
from typing import get_args

import numpy as np
import numpy.typing as npt

from dpmesh._privacy_types import NeighboringRelation
from dpmesh._validate import fail, integer, one_of, positive
from dpmesh.accounting._arguments import Floats, open_probability, sampled_rounds
from dpmesh.accounting._pairs import Pair
from dpmesh.accounting.gaussian import analytic_gaussian_noise_to_sensitivity
from dpmesh.accounting.renyi import RdpGuarantee, best_order, orders_beside, rdp_epsilon
from dpmesh.accounting.sampled import Accountant, Curve, sampled_epsilon, sampled_pair

_TOLERANCE = 5e-7
_RANGE = 1e12  # of noise scales, to either side of the first guess


def calibrate_noise(
    epsilon_of: Callable[[float], float], *, target_epsilon: float, guess: float = 1.0
) -> float:
    """Return the least noise scale at which a composition costs no more than `target_epsilon`.

    Parameters
    ----------
    epsilon_of
        The epsilon at a noise scale: finite from some scale on, and never growing with it.
    target_epsilon
        Finite and positive.
    guess
        Where the search starts; each factor of two between it and the result costs an evaluation.

    Returns
    -------
    A scale whose `epsilon_of` does not exceed the target and is within 1e-6 of it (of the target,
    if that is below 1); or, where `epsilon_of` jumps across the target, the scale behind the jump.

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
    enough = short = guess = positive("guess", guess)
    at_guess = cost = short_cost = epsilon_of(guess)
    stride = _stride(cost, target_epsilon)
    while not cost <= target_epsilon:
        short, short_cost = enough, cost
        enough, stride = enough * stride, min(2.0, stride * stride)
        if enough > guess * _RANGE:
            some = f"such as {cost}" if cost < inf else "at a delta above 0 if it is Gaussian"
            wanted = f"an epsilon that noise attains, {some}"
            if cost == at_guess < inf:
                wanted = f"at least {cost}, which it costs at any noise (is the noise used?)"
            fail("target_epsilon", wanted, target_epsilon)
        cost = epsilon_of(enough)
    while short_cost <= target_epsilon:
        enough, cost = short, short_cost
        short, stride = short / stride, min(2.0, stride * stride)
        if short < guess / _RANGE:
            fail(
                "target_epsilon",
                f"less than {cost}, which it costs however little the noise",
                target_epsilon,
            )
        short_cost = epsilon_of(short)
    return _narrow(epsilon_of, target_epsilon, short, short_cost, enough, cost)


def _stride(cost: float, target: float) -> float:
    """Return a factor of noise, at most 2, that should lead from this cost beyond the target."""
    if not 0 < cost < inf:
        return 2.0
    return min(2.0, min(2.0, max(cost / target, target / cost, 1.001)) ** 2)


def _narrow(
    epsilon_of: Callable[[float], float],
    target: float,
    short: float,
    short_cost: float,
    enough: float,
    cost: float,
) -> float:
    """Narrow ``short < noise <= enough`` by the secant through the last two points, in logarithms.

    Where that leaves the bracket, and every fifth time, the bracket is halved instead.
    """
    aim = log(target - 0.5 * _TOLERANCE * min(1, target))
    before, last = (short, short_cost), (enough, cost)
    for turn in count(1):
        if cost >= target - _TOLERANCE * min(1, target) or enough <= short * (1 + 1e-13):
            break
        middle = sqrt(short) * sqrt(enough) if turn % 5 == 0 else _secant(before, last, aim)
        if not short < middle < enough:
            middle = sqrt(short) * sqrt(enough)
        before, last = last, (middle, epsilon_of(middle))
        if last[1] <= target:
            enough, cost = last
        else:
            short, _ = last
    return enough


def _secant(one: tuple[float, float], other: tuple[float, float], aim: float) -> float:
    """Return the noise at which the logarithm of the cost would be `aim`; NaN if none is."""
    (a, cost_a), (b, cost_b) = one, other
    if not (0 < cost_a < inf and 0 < cost_b < inf) or log(cost_a) == log(cost_b):
        return nan
    share = (aim - log(cost_b)) / (log(cost_a) - log(cost_b))
    return b * exp(min(max(share, -9), 9) * log(a / b))  # beyond 9 lies outside any bracket


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
    """Return the least noise at which Poisson-sampled Gaussian releases keep a budget.

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
    The factor that turns `relative_noise` into noise ratios; for 1, the multiplier itself.

    Raises
    ------
    ValueError
        If an argument is out of its range, the lengths of the rounds differ, or no noise keeps the
        budget.
    """
    rounds = sampled_rounds(sampling_rate, relative_noise, count)
    pair, curve = sampled_pair("poisson", neighboring_relation)
    return _sampled_noise(pair, curve, (target_epsilon, target_delta), rounds, accountant)


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
    """Return the least noise at which Gaussian releases of fixed-size samples keep a budget.

    Noise is relative to the replace-one sensitivity, and samples are those of
    `fixed_size_gaussian_epsilon`. Everything else is as in `poisson_gaussian_noise_to_sensitivity`.
    """
    rounds = sampled_rounds(sampling_rate, relative_noise, count)
    pair, curve = sampled_pair("fixed_size", neighboring_relation)
    return _sampled_noise(pair, curve, (target_epsilon, target_delta), rounds, accountant)


def affordable_rounds(
    epsilon_of: Callable[[int], float], *, target_epsilon: float, at_most: int = 2**40
) -> int:
    """Return how many rounds cost no more than `target_epsilon`: 0 if not even one does.

    Parameters
    ----------
    epsilon_of
        The epsilon of the first n rounds, which must not fall as n grows.
    target_epsilon
        Finite and positive.
    at_most
        The most rounds to try, at least 1.

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
    enough, too_many = 0, 1
    while too_many <= at_most and epsilon_of(too_many) <= target_epsilon:
        enough, too_many = too_many, 2 * too_many
    if too_many > at_most:
        if epsilon_of(at_most) <= target_epsilon:
            return at_most
        too_many = at_most
    return bisect_right(range(too_many), target_epsilon, enough + 1, key=epsilon_of) - 1


def _sampled_noise(
    pair: Pair,
    curve: Curve,
    budget: tuple[float, float],
    rounds: tuple[Floats, ...],
    accountant: Accountant,
) -> float:
    target_epsilon = positive("target_epsilon", budget[0])
    target_delta = open_probability("target_delta", budget[1])
    one_of("accountant", accountant, get_args(Accountant))
    rate, relative, times = rounds
    each = {"sampling_rate": rate, "count": times}
    if not np.any(times):
        fail("count", "at least 1 round", times)
    # where the rounds together cost about as much as one Gaussian release with this budget
    single = analytic_gaussian_noise_to_sensitivity(
        target_epsilon=target_epsilon, target_delta=target_delta
    )
    guess = single * sqrt(np.sum(times * (rate / relative) ** 2))
    guess = max(guess, 0.2 / np.max(relative))
    by_curve = _noise_by_curve(
        lambda noise, orders: rdp_epsilon(
            delta=target_delta,
            rdp=curve(noise_to_sensitivity=noise * relative, orders=orders, **each),
            orders=orders,
        ),
        target_epsilon,
        guess,
    )
    if accountant == "rdp":
        return by_curve
    return calibrate_noise(
        lambda noise: sampled_epsilon(
            target_delta, pair, curve, (rate, noise * relative, times), accountant
        ),
        target_epsilon=target_epsilon,
        guess=by_curve,
    )


def _noise_by_curve(
    guarantee: Callable[[float, Sequence[float]], RdpGuarantee], target_epsilon: float, noise: float
) -> float:
    """Calibrate at one order, then look for a better order at that noise, until there is none.

    Each order alone proves the budget, so each step can only lower the noise.
    """

    def cost(scale: float, order: float) -> float:
        return guarantee(scale, [order]).epsilon

    most = noise * _RANGE
    while (best := best_order(partial(guarantee, noise))).epsilon > target_epsilon:
        if noise > most:
            wanted = f"an epsilon that noise attains, such as {best.epsilon}"
            fail("target_epsilon", wanted, target_epsilon)
        noise *= 2
    tried: set[float] = set()
    while best.order not in tried and best.epsilon <= target_epsilon:
        tried.add(best.order)
        noise = calibrate_noise(
            partial(cost, order=best.order), target_epsilon=target_epsilon, guess=noise
        )
        best = guarantee(noise * (1 - 1e-9), orders_beside(best.order))
    return noise
