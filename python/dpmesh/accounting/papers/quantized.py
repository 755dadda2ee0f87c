"""The quantized paper: the sensitivity of its states (Lemma 2).

A node's state is released with Gaussian noise and then quantized; the effect of a replaced record
stays in the state, damped by ``1 - beta`` each round. The messages of iterations 1 to K are
counted; iteration 0 sends a state that depends on no record.
"""

from __future__ import annotations

from math import inf
from typing import Literal

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, integer, non_negative, one_of, positive, positive_or_infinite
from dpmesh.accounting._arguments import Floats, counts, positives
from dpmesh.accounting.papers.refusal import NotProved

Mode = Literal["paper", "safe", "public_point"]
MODES: tuple[Mode, ...] = ("paper", "safe", "public_point")


def sensitivities(
    iterations: int,
    *,
    step_size: npt.ArrayLike,
    consensus_step_size: npt.ArrayLike,
    gradient_bound: float,
    sample_size: npt.ArrayLike,
    mode: Mode,
    smoothness: float = inf,
) -> Floats:
    """Return the L2 sensitivity of a node's state in iterations 1 to K, to replacing a record.

    Given the messages, ``Delta_(k+1) = |1 - beta| Delta_k + alpha C / gamma`` from ``Delta_0 = 0``,
    provided that the gradients of the *common* records are the same at the two states.

    Parameters
    ----------
    iterations
        K.
    step_size
        alpha_K: a number, or an array for many schedules at once, as are the next two.
    consensus_step_size
        beta_K, of ``x <- (1 - beta) x + beta A z - alpha g``.
    gradient_bound
        C: replacing a record changes its gradient by at most C. Clip each to norm ``C / 2``.
    sample_size
        gamma_K.
    mode
        ``"safe"``: ``|1 - beta| Delta_k + alpha min(C / gamma + L Delta_k, C)``, for any loss whose
        clipped gradients are L-Lipschitz; L may be infinite. ``"public_point"``: the recursion
        above, for gradients taken at a released point, any loss. ``"paper"``: the same for
        gradients taken at the state, as in the paper; right where the loss of every record is
        convex and ``alpha L <= 2 (1 - beta)``, L with a regularizer's factor added, and wrong for
        the nonconvex losses that the paper is about, by a factor of 4.8 and more.
    smoothness
        L, the Lipschitz constant of each record's gradient; in mode ``"paper"`` of a convex loss.

    Returns
    -------
    ``Delta_1, ..., Delta_K`` along the first axis.

    Raises
    ------
    NotProved
        In mode ``"paper"``, if ``step_size * smoothness`` exceeds ``2 (1 - consensus_step_size)``.
    ValueError
        If an argument is out of its range.
    """
    integer("iterations", iterations, at_least=1)
    alpha = positives("step_size", step_size)
    beta = positives("consensus_step_size", consensus_step_size)
    bound = positive("gradient_bound", gradient_bound)
    sizes = counts("sample_size", sample_size)
    if np.any(sizes < 1):
        fail("sample_size", "integers of at least 1", np.min(sizes))
    fresh = bound / sizes
    lipschitz = _counted_lipschitz(mode, smoothness, alpha, beta)
    schedules = np.broadcast_shapes(alpha.shape, beta.shape, fresh.shape)
    states = np.zeros((iterations + 1, *schedules))
    for k, state in enumerate(states[:-1]):
        has_moved = state > 0  # infinity times 0 would be NaN
        carried = np.where(has_moved, lipschitz * np.where(has_moved, state, 1.0), 0.0)
        gradient_change = np.minimum(fresh + carried, bound)
        states[k + 1] = np.abs(1 - beta) * state + alpha * gradient_change
    return states[1:]


def next_sensitivity(
    sensitivity: float,
    *,
    step_size: float,
    consensus_step_size: float,
    gradient_bound: float,
    sample_size: int,
    mode: Mode,
    smoothness: float = inf,
) -> float:
    """Return ``Delta_(k+1)`` of a node's state whose sensitivity ``Delta_k`` is `sensitivity`.

    Everything else, errors included, is as in `sensitivities`, at iteration k.
    """
    state = non_negative("sensitivity", sensitivity)
    bound = positive("gradient_bound", gradient_bound)
    alpha = positive("step_size", step_size)
    beta = positive("consensus_step_size", consensus_step_size)
    fresh = bound / integer("sample_size", sample_size, at_least=1)
    lipschitz = _counted_lipschitz(mode, smoothness, alpha, beta)
    carried = 0.0
    if state > 0:  # infinity times 0 would be NaN
        carried = lipschitz * state
    gradient_change = min(fresh + carried, bound)
    return abs(1 - beta) * state + alpha * gradient_change


def _counted_lipschitz(
    mode: Mode, smoothness: float, alpha: Floats | float, beta: Floats | float
) -> float:
    """Return the Lipschitz constant that the mode counts.

    Raises
    ------
    NotProved
        In mode ``"paper"``, if a step is too long for Lemma 2.
    ValueError
        If an argument is out of its range.
    """
    one_of("mode", mode, MODES)
    smoothness = positive_or_infinite("smoothness", smoothness)
    if mode == "paper" and np.any(alpha * smoothness > 2 * (1 - beta)):
        raise NotProved(
            "smoothness: Lemma 2 leaves out that common records' gradients differ at different"
            " states, which is right for convex losses with step_size * smoothness <="
            f" 2 (1 - consensus_step_size) = {np.min(2 * (1 - beta)):.4g}; got"
            f" {np.max(alpha * smoothness):.4g}"
        )
    if mode == "safe":
        return smoothness
    return 0.0
