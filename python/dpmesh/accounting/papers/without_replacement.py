"""The paper on SGD without replacement: Lemma 4, Theorem 2, and the cases outside of them.

The release of node ``m`` at ``t`` is ``w + eta N``: the standard deviation here is that of the
product ``eta_t N_t``. A record affects one release, whose epsilon is then that of the whole run,
provided that the sequence of local and global updates does not depend on the data; but the paper's
controller makes it depend.
"""

from __future__ import annotations

from math import log, sqrt

import numpy as np
import numpy.typing as npt

from dpmesh._epsilons import ROUNDING, rounded_down, rounded_up
from dpmesh._validate import fail, integer, positive
from dpmesh.accounting._arguments import open_probability, positives
from dpmesh.accounting.gaussian import gdp_delta
from dpmesh.accounting.papers.refusal import NotProved


def sensitivity(
    step_size: npt.ArrayLike, *, lipschitz: float, batch_size: int, smoothness: float
) -> float:
    """Return the L2 sensitivity of a release to replacing a record, by Lemma 4.

    ``max_k 2 eta_k L / b`` over the steps since the node's last release: if steps decay, the oldest
    counts, not the latest.

    Parameters
    ----------
    step_size
        eta_k of the steps since the last release and of this one: an array, or the largest alone.
    lipschitz
        L of the loss, or its clipping norm; without the regularizer, which cancels.
    batch_size
        b.
    smoothness
        mu of the loss: above a step of ``1 / (2 mu)`` the gradient map may expand, and the lemma
        does not apply.

    Raises
    ------
    NotProved
        If a step exceeds ``1 / (2 smoothness)``, but for rounding.
    ValueError
        If an argument is out of its range.
    """
    steps = positives("step_size", step_size)
    L = positive("lipschitz", lipschitz)
    b = integer("batch_size", batch_size, at_least=1)
    smoothness = positive("smoothness", smoothness)
    if steps.size == 0:
        fail("step_size", "at least 1 step", "none")
    largest = float(np.max(steps))
    limit = 1 / (2 * smoothness)
    if largest > limit * (1 + ROUNDING):
        raise NotProved(
            f"step_size: Lemma 4 wants at most 1 / (2 smoothness) = {rounded_down(limit, 4)},"
            f" got {rounded_up(largest, 4)}: the gradient map may expand"
        )
    return 2 * largest * L / b


def classical_noise_std(*, target_epsilon: float, target_delta: float, sensitivity: float) -> float:
    """Return the standard deviation of Theorem 2: ``sqrt(2 ln(1.25 / delta)) Delta / epsilon``.

    Parameters
    ----------
    target_epsilon, target_delta
        The budget of one release, and of a run in which each record affects one release.
    sensitivity
        Delta, of Lemma 4.

    Raises
    ------
    NotProved
        If epsilon is 1 or more, where the classical theorem does not apply, and the noise does
        not keep the budget by the exact one either.
    ValueError
        If an argument is out of its range.
    """
    target_epsilon = positive("target_epsilon", target_epsilon)
    target_delta = open_probability("target_delta", target_delta)
    sensitivity = positive("sensitivity", sensitivity)
    noise = classical_noise_to_sensitivity(target_delta) / target_epsilon
    if target_epsilon >= 1:
        exact_delta = gdp_delta(epsilon=target_epsilon, mu=1 / noise)
        if exact_delta > target_delta:
            raise NotProved(
                "target_epsilon: the classical formula is proved below 1, and at"
                f" {target_epsilon:.4g} its delta is {rounded_up(exact_delta, 4)}, not"
                f" {target_delta:.4g}"
            )
    return noise * sensitivity


def classical_noise_to_sensitivity(target_delta: float) -> float:
    """Return ``sqrt(2 ln(1.25 / delta))``, the classical noise ratio at epsilon 1."""
    return sqrt(2 * log(1.25 / open_probability("target_delta", target_delta)))
