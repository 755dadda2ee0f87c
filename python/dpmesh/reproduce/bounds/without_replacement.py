"""The steps of Theorem 4 on SGD without replacement (Jin, He, Dai)."""

from __future__ import annotations

from dpmesh._validate import positive, probability
from dpmesh.problems import LinearProblem
from dpmesh.schedules import InverseTime


def theorem_4_steps(
    problem: LinearProblem, smallest_chance: float, *, smoothness: float | None = None
) -> InverseTime:
    """Return the step sizes of Theorem 4, delayed until Lemma 4 allows them.

    ``1 / (a gamma (t + t0))`` with ``t0 = 2 mu / (a gamma)``: never above ``1 / (2 mu)``.

    Parameters
    ----------
    problem
        Regularized: gamma is its strong convexity.
    smallest_chance
        The paper's a in (0, 1]: the least probability of either decision. With exploration p it is
        at least p / 2.
    smoothness
        mu; by default the problem's own. The paper's, 1 + lambda for the logistic loss, is larger
        and makes the first steps smaller.

    Raises
    ------
    ValueError
        If the problem is not regularized or has no feature norm, or an argument is out of range.
    """
    constants = problem.model_constants()
    mu = constants.smoothness if smoothness is None else positive("smoothness", smoothness)
    scale = 1 / probability("smallest_chance", smallest_chance, zero=False)
    scale /= positive("problem.regularization", constants.strong_convexity)
    return InverseTime(scale=scale, offset=2 * mu * scale)
