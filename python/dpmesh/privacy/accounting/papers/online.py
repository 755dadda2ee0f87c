"""The online paper: Lemma 1, Theorem 1, and what Algorithm 2's regularizer costs.

Each learner releases its iterate with Laplace noise of scale ``S(t) / epsilon`` in every
coordinate. An example is used in one round, and all later rounds depend on it through released
iterates only, so the epsilon of a release is that of the whole run (Theorem 1; by adaptive parallel
composition).
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, integer, positive
from dpmesh.privacy.accounting._arguments import Floats, positives


def sensitivity(step_size: float, *, dim: int, lipschitz: float, batch_size: int = 1) -> float:
    """Return the L1 sensitivity of a release to replacing an example, by Lemmas 1 and 7.

    ``2 alpha_t sqrt(n) L / h``. As sqrt(n) times the L2 sensitivity, it holds for any convex set
    onto which iterates are projected. If the set is an L2 ball, the L1 norm of the gradients,
    smaller for sparse data, must not replace sqrt(n) L: a projection may stretch L1 distances.

    Parameters
    ----------
    step_size
        alpha_t, the step that leads to the release.
    dim
        n.
    lipschitz
        L, the bound on the L2 norm of the loss gradients, without the regularizer.
    batch_size
        h of Algorithm 2.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    alpha, L = positive("step_size", step_size), positive("lipschitz", lipschitz)
    n, h = integer("dim", dim, at_least=1), integer("batch_size", batch_size, at_least=1)
    return 2 * alpha * sqrt(n) * L / h


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
