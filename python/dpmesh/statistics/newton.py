"""Newton steps from noisy gradients and Hessians, and the errors of the final coefficients.

All is post-processing of released sums, and needs no further epsilon. `Regression` releases the
sums, see `dpmesh.statistics.regression`. p is the number of coefficients.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np

from dpmesh.statistics.bins import Floats

LONGEST_STEP = 2.0
"""Largest L2 norm of a step, for terms in [-1, 1]; it bounds the effect of noise in early rounds.
"""

CAUTION = 1.0
"""Number of standard deviations of the noise by which standard errors lower each eigenvalue."""

LEAST_EIGENVALUE = 1e-9
"""Smallest eigenvalue in standard errors, which divide by it."""

REST_QUANTILE = 0.9999
"""Quantile of the squared norm of the gradient's noise, as a test of convergence. A fit that has
converged is refused with probability 1e-4."""


class Curvature(NamedTuple):
    """A noisy Hessian: the released matrix of second derivatives.

    Attributes
    ----------
    matrix
        Symmetric matrix, shape (p, p).
    noise
        Standard deviation of the noise in diagonal entries. Off the diagonal it is smaller by
        sqrt(2).
    """

    matrix: Floats
    noise: float

    @property
    def floor(self) -> float:
        """Approximate largest eigenvalue of the noise matrix."""
        return self.noise * sqrt(2 * len(self.matrix))

    @property
    def limit(self) -> float:
        """Limit that all eigenvalues must exceed to show coefficients: `floor` plus `noise`."""
        return self.floor + self.noise

    @property
    def smallest(self) -> float:
        """The smallest eigenvalue."""
        return float(np.linalg.eigvalsh(self.matrix)[0])

    @property
    def weakest(self) -> Floats:
        """Eigenvector of the smallest eigenvalue, a unit vector, shape (p,)."""
        _, vectors = np.linalg.eigh(self.matrix)
        return np.asarray(vectors[:, 0])

    @property
    def is_shown(self) -> bool:
        """True if all eigenvalues exceed `limit`. Only then are coefficients shown."""
        return self.smallest > self.limit

    @property
    def is_near_limit(self) -> bool:
        """True if the smallest eigenvalue is below twice the limit, which makes intervals wide."""
        return self.smallest < 2 * self.limit


class Step(NamedTuple):
    """The noisy sums of one round, from which a Newton step follows.

    Attributes
    ----------
    gradient
        Noisy sum of gradients, shape (p,).
    gradient_noise
        Standard deviation of the noise in each element of the gradient.
    curvature
        Noisy sum of Hessians.
    """

    gradient: Floats
    gradient_noise: float
    curvature: Curvature

    @property
    def move(self) -> Floats:
        """Change of the coefficients, shape (p,): the inverse Hessian times the gradient.

        Eigenvalues below `Curvature.floor` are raised to it, and the change is clipped to the norm
        `LONGEST_STEP`.
        """
        eigenvalues, eigenvectors = np.linalg.eigh(self.curvature.matrix)
        divisors = np.maximum(eigenvalues, self.curvature.floor)
        move = eigenvectors @ ((eigenvectors.T @ self.gradient) / divisors)
        length = float(np.linalg.norm(move))
        if length > LONGEST_STEP:
            move = move * (LONGEST_STEP / length)
        return np.asarray(move)


class Errors(NamedTuple):
    """Covariance matrices of coefficients by cause, each of shape (p, p).

    Attributes
    ----------
    model
        Covariance due to sampling, if the model is true.
    robust
        Covariance due to sampling, also under a wrong model (White 1980); noise may make diagonal
        entries negative. None if the outer products of gradients were not released.
    noise
        Covariance due to the privacy noise.
    """

    model: Floats
    robust: Floats | None
    noise: Floats


def errors(
    curvature: Curvature,
    gradient_noise: float,
    move: Floats,
    scores: Floats | None,
    dispersion: float = 1.0,
) -> Errors:
    """Return the covariances of the coefficients after the last step.

    Let delta be the difference between the coefficients before the step and the solution without
    noise, E the noise in the Hessian H, and xi the noise in the gradient. To first order, the error
    is H^-1 (E delta + xi). The last step estimates delta, and is longer on average. If E has the
    variance e^2 on its diagonal and e^2 / 2 off the diagonal, the covariance of E delta is
    ``e^2 / 2 (delta' delta I + delta delta')``.

    Parameters
    ----------
    curvature
        Noisy Hessian of the last step.
    gradient_noise
        Standard deviation of the noise in each element of the last gradient.
    move
        The last step, shape (p,).
    scores
        Noisy sum of outer products of gradients, shape (p, p); None if it was not released.
    dispersion
        Variance of the residuals over the variance by the model; 1 for logistic and Poisson
        regressions.
    """
    eigenvalues, eigenvectors = np.linalg.eigh(curvature.matrix)
    cautious_eigenvalues = np.maximum(eigenvalues - CAUTION * curvature.noise, LEAST_EIGENVALUE)
    inverse = eigenvectors / cautious_eigenvalues @ eigenvectors.T  # of H, shape (p, p)
    delta = inverse @ curvature.matrix @ move
    identity = np.eye(len(move))
    delta_moments = delta @ delta * identity + np.outer(delta, delta)
    gradient_covariance = gradient_noise**2 * identity + curvature.noise**2 / 2 * delta_moments
    robust = None
    if scores is not None:
        robust = inverse @ scores @ inverse
    return Errors(
        model=inverse @ curvature.matrix @ inverse * dispersion,
        robust=robust,
        noise=inverse @ gradient_covariance @ inverse,
    )


def second_order(curvature: Curvature, move: Floats, skew: float) -> float:
    """Return the second-order error of the constant, which is not small for rare outcomes.

    Parameters
    ----------
    curvature, move
        Noisy Hessian, and change of coefficients, of the last step.
    skew
        Third over second derivative of the log likelihood by the constant, at the mean.
    """
    squared = max(float(move @ curvature.matrix @ move), 0.0)
    return 0.5 * skew * squared / max(float(curvature.matrix[0, 0]), curvature.noise)


def not_at_rest(last: Step, noise_before: float) -> float:
    """Return the squared norm of the last gradient over its .9999 quantile due to noise alone.

    A value above 1 shows that the steps have not converged. After convergence, the last gradient
    consists of its noise, and of the noise of the previous gradient, by which the previous step
    moved the coefficients.

    Parameters
    ----------
    last
        The last step.
    noise_before
        Standard deviation of the noise in the gradient of the previous step.
    """
    from scipy.stats import chi2

    squared_length = float(last.gradient @ last.gradient)
    variance = last.gradient_noise**2 + noise_before**2
    largest_by_noise = chi2.ppf(REST_QUANTILE, len(last.gradient)) * variance
    return squared_length / float(largest_by_noise)
