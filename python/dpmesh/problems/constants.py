"""Lipschitz, smoothness and strong convexity constants of linear models' objectives.

Sensitivities without clipping, bounds on learning rates and epsilon under weaker adversaries are
computed from these constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpmesh._validate import non_negative, positive
from dpmesh.kernels.linear_model import Loss, check_loss


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Constants of an objective, for all parameters or for the parameters in a ball.

    Attributes
    ----------
    loss_lipschitz
        Largest L2 norm of the gradient of one record's loss, without the regularizer. Replacing a
        record moves the sum of gradients, at equal parameters, by at most twice this number.
    lipschitz
        Largest L2 norm of a gradient of the objective, regularizer included.
    smoothness
        Lipschitz constant of the objective's gradient; infinite for losses with a kink.
    strong_convexity
        Largest number s for which the objective minus ``s |w|^2 / 2`` is convex for any records. It
        equals the regularization, since the loss of a linear model is constant in directions
        orthogonal to the records.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> data = dm.data.unit_norm(dm.data.breast_cancer())
    >>> parts = dm.data.iid(data, 4, np.random.default_rng(0))
    >>> problem = dm.LinearProblem(data, parts, "logistic", regularization=0.1)
    >>> constants = problem.constants(radius=1.0)
    >>> round(constants.smoothness, 3), constants.strong_convexity
    (0.35, 0.1)
    """

    loss_lipschitz: float
    lipschitz: float
    smoothness: float
    strong_convexity: float


def linear_constants(
    loss: Loss,
    feature_norm: float,
    *,
    classes: int | None = None,
    regularization: float = 0.0,
    radius: float | None = None,
    label_bound: float = 1.0,
) -> Constants:
    """Return the constants of a linear model whose records have norms of at most `feature_norm`.

    Let ``B = feature_norm``, ``R = radius``, ``K = classes`` and ``Y = label_bound``. A record x
    with scores z has the slopes ``s = dloss/dz``. Its gradient has the norm ``|s| |x|``, where
    ``|x| <= B``. Its Hessian is the second derivative of the loss in the scores times ``x x^T``:

    ==================  ===============================  =======================================
    loss                loss_lipschitz                   smoothness, without the regularization
    ==================  ===============================  =======================================
    logistic            ``B``, since ``|s| < 1``         ``B^2 / 4``
    multilabel of K     ``sqrt(K) B``                    ``B^2 / 4``
    hinge               ``B``, since ``|s| <= 1``        infinite
    absolute            ``B``, since ``|s| <= 1``        infinite
    huber, poisson      ``B``, since ``|s| <= 1``        ``B^2``
    squared             ``(R B + Y) B``, since           ``B^2``
                        ``|z - y| <= |w| |x| + |y|``
    softmax             ``sqrt(2) B``: ``s = p - e_y``   ``B^2 / 2``: ``diag(p) - p p^T <= I / 2``
    one-vs-all of K     ``sqrt(K) B``; squared:          as one model, since the models share no
                        ``(R B + sqrt(K)) B``            parameters
    ==================  ===============================  =======================================

    The regularization ``lambda`` adds ``lambda R`` to lipschitz, and ``lambda`` to smoothness and
    strong_convexity. Except for the squared loss, the bounds on ``s`` hold at all parameters. Noise
    that is calibrated to loss_lipschitz is then valid outside the ball, too. Source of the softmax
    bound: Böhning, Multinomial logistic regression algorithm, Ann. Inst. Statist. Math. 44 (1992).

    Parameters
    ----------
    loss
        Name of a loss of `dpmesh.kernels.linear`.
    feature_norm
        Largest L2 norm of a record's features: a public number, such as 1 for records of unit norm.
    classes
        Number of classes for softmax and one-vs-all, of labels for multilabel; None for one model.
    regularization
        Factor lambda of the regularizer ``lambda |w|^2 / 2``, at least 0.
    radius
        Largest L2 norm of the parameters of a node, all its models together; None for no bound.
    label_bound
        Largest absolute value of a real target of one squared model.

    Raises
    ------
    ValueError
        If a number is out of its range, or `classes` does not suit the loss.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.problems.linear_constants("logistic", 1.0).smoothness
    0.25
    """
    check_loss(loss, classes)
    b = positive("feature_norm", feature_norm)
    r = math.inf if radius is None else positive("radius", radius)
    regularization = non_negative("regularization", regularization)
    if classes is None:
        models = 1
        target_norm = positive("label_bound", label_bound)
    else:
        models = int(classes)
        target_norm = math.sqrt(models)  # of targets of -1 and +1
    loss_lipschitz, curvature = {
        "logistic": (math.sqrt(models) * b, b * b / 4),
        "multilabel": (math.sqrt(models) * b, b * b / 4),
        "hinge": (math.sqrt(models) * b, math.inf),
        "absolute": (math.sqrt(models) * b, math.inf),
        "huber": (math.sqrt(models) * b, b * b),
        "poisson": (b, b * b),
        "squared": ((r * b + target_norm) * b, b * b),
        "softmax": (math.sqrt(2) * b, b * b / 2),
    }[loss]
    lipschitz = loss_lipschitz
    if regularization:  # else 0 times an infinite radius would be NaN
        lipschitz += regularization * r
    return Constants(
        loss_lipschitz=loss_lipschitz,
        lipschitz=lipschitz,
        smoothness=curvature + regularization,
        strong_convexity=regularization,
    )
