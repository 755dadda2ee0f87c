"""The online paper: what the regularizer of its Algorithm 2 costs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, positive
from dpmesh.accounting._arguments import Floats, positives


def unnoised_regularizer_factors(step_sizes: npt.ArrayLike, regularization: float) -> Floats:
    """Return by how much Algorithm 2 as printed exceeds its epsilon, for an example of each round.

    Its step 6 adds ``phi w_t``, the iterate *before* noise. So a release depends on an example of
    an earlier round not through releases alone, and round s repeats that example's privacy loss
    times a product of ``phi alpha_r``. The factor is ``sum over s >= t of prod over t <= r < s of
    phi alpha_r`` (exact, not only a bound). With the step sizes ``1 / (lambda t)`` and
    ``phi = lambda`` the first example pays e times epsilon. With ``phi b_t``, computed from
    released iterates, as in this package, the factor is 1.

    Parameters
    ----------
    step_sizes
        alpha_1, ..., alpha_T: round t releases the result of step alpha_t.
    regularization
        phi.

    Returns
    -------
    The factor for an example of each round; the largest is that of the run.

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
