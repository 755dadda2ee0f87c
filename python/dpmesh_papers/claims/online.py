"""Claims of the online paper that fail: step 6 of Algorithm 2, and the last line of (42)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, integer, non_negative, positive
from dpmesh.accounting._arguments import Floats, positives


def unnoised_regularizer_factors(step_sizes: npt.ArrayLike, regularization: float) -> Floats:
    """Return the factors on epsilon of Algorithm 2 as printed, one for an example of each round.

    Its step 6 subtracts ``alpha_(t+1) phi w_t``, the gradient of the regularizer of (52) at the
    iterate *before* noise. So a release depends on an example of an earlier round also directly,
    not only through earlier releases, and round s repeats that example's privacy loss times a
    product of ``phi alpha_r``. The factor is ``sum over s >= t of prod over t <= r < s of phi
    alpha_r`` (exact, not only a bound). With the step sizes ``1 / (lambda t)`` and ``phi = lambda``
    the first example pays e times epsilon. With ``phi b_t``, computed from released iterates, as in
    this package, the factor is 1.

    Parameters
    ----------
    step_sizes
        alpha_1, ..., alpha_T: round t releases the result of step alpha_t.
    regularization
        phi.

    Returns
    -------
    Shape (T,): the factor for an example of each round; the largest is that of the run.

    Raises
    ------
    ValueError
        If an argument is not finite and positive, or there is no step.
    """
    steps = positives("step_sizes", step_sizes)
    phi = positive("regularization", regularization)
    if steps.ndim != 1 or steps.size == 0:
        fail("step_sizes", "one step for each round", f"shape {steps.shape}")
    factors = np.ones(steps.size)
    for t in range(steps.size - 2, -1, -1):
        factors[t] = 1 + phi * steps[t] * factors[t + 1]
    return factors


class Sides(NamedTuple):
    """Both sides of (42), without noise.

    Attributes
    ----------
    left
        S_1 of the proof of Lemma 6: its first line.
    printed
        The last line, by which the paper bounds it.
    dropped
        ``m R T (L - lambda)``, which stands in the line before and not in the last one.
    """

    left: float
    printed: float
    dropped: float


def sides_of_42(
    distances: npt.ArrayLike,
    step_sizes: npt.ArrayLike,
    *,
    diameter: float,
    lipschitz: float,
    strong_convexity: float,
    nodes: int = 1,
) -> Sides:
    """Return S_1 of the proof of Lemma 6 without noise, and the bound of (42) on it.

    With ``d_t = |w_t - w*|`` of the mean learner, ``S_1 = (m / 2) sum_t ((1 - 2 lambda + 2
    alpha_(t+1) L + 2 L) d_t - d_(t+1))`` from (41), and the printed bound is ``R m L sum_t alpha_t
    + m R / 2``, t from 1 to T.

    The line before the last has ``- m R T (lambda - L)``; the last line leaves it out, as if it
    were not positive. For L > lambda, always so at lambda = 0, it is a term linear in T, and S_1
    of a mean learner that stays at a distance R from w* exceeds what is printed. With the term
    restored, Lemma 6 and Theorem 2 are not sublinear. The corrected regret bound
    (`bounds.online.regret`) does not take this way.

    Parameters
    ----------
    distances
        ``|w_t - w*|`` of the mean learner for t = 1, .., T + 1, each at most `diameter`.
    step_sizes
        alpha_1, .., alpha_(T + 1), falling.
    diameter, lipschitz, strong_convexity, nodes
        R, L, lambda and m.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the lengths differ.
    """
    d = positives("distances", distances)
    alpha = positives("step_sizes", step_sizes)
    R = positive("diameter", diameter)
    L = positive("lipschitz", lipschitz)
    lambda_ = non_negative("strong_convexity", strong_convexity)
    m = integer("nodes", nodes, at_least=1)
    if d.shape != alpha.shape or d.ndim != 1 or len(d) < 2:
        fail("distances", f"as many as step_sizes, at least 2: shape {alpha.shape}", d.shape)
    if d.max() > R:
        fail("distances", f"at most diameter = {R}", d.max())
    T = len(d) - 1
    factors = 1 - 2 * lambda_ + 2 * alpha[1:] * L + 2 * L
    first_line = m / 2 * float(factors @ d[:-1] - d[1:].sum())
    printed = R * m * L * float(alpha[:-1].sum()) + m * R / 2
    return Sides(left=first_line, printed=printed, dropped=m * R * T * (L - lambda_))
