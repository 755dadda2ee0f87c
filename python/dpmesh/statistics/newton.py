"""Newton steps from noisy sums, and the errors of the coefficients that they end with.

All of this follows from released sums and public numbers, so that it costs nothing.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np

from dpmesh.statistics.bins import Floats

LONGEST_STEP = 2.0
"""Largest length of a step, for terms in [-1, 1]: the noise of early rounds leads nowhere far."""

CAUTION = 1.0
"""Standard deviations of its noise by which an eigenvalue is lowered in standard errors."""

LEAST_EIGENVALUE = 1e-9
"""Least eigenvalue in standard errors, which divide by it."""

REST_QUANTILE = 0.9999
"""Quantile of the squared length of the gradient's noise, for the last gradient to be at rest.

A fit that has converged is refused with a probability of 1e-4.
"""


class Curvature(NamedTuple):
    """A released matrix of second derivatives, with noise.

    Attributes
    ----------
    matrix
        Symmetric, shape (p, p).
    noise
        Standard deviation of the noise on its diagonal; off it over sqrt(2).
    """

    matrix: Floats
    noise: float

    @property
    def floor(self) -> float:
        """About the largest eigenvalue of the noise alone."""
        return self.noise * sqrt(2 * len(self.matrix))

    @property
    def limit(self) -> float:
        """The least eigenvalue that is shown: one deviation above `floor`."""
        return self.floor + self.noise

    @property
    def smallest(self) -> float:
        """The smallest eigenvalue."""
        return float(np.linalg.eigvalsh(self.matrix)[0])

    @property
    def weakest(self) -> Floats:
        """The direction of the smallest eigenvalue, a unit vector."""
        _, vectors = np.linalg.eigh(self.matrix)
        return np.asarray(vectors[:, 0])

    @property
    def is_shown(self) -> bool:
        """True if all directions stand out from the noise."""
        return self.smallest > self.limit

    @property
    def is_near_limit(self) -> bool:
        """True if intervals are wide since the noise is nearly as large as the curvature."""
        return self.smallest < 2 * self.limit


class Step(NamedTuple):
    """A Newton step from released sums; p is the number of coefficients.

    Attributes
    ----------
    gradient
        The released sum of gradients, shape (p,).
    gradient_noise
        Standard deviation of the noise in each number of the gradient.
    curvature
        The released sum of Hessians.
    """

    gradient: Floats
    gradient_noise: float
    curvature: Curvature

    @property
    def move(self) -> Floats:
        """The change of coefficients, shape (p,): the inverse curvature times the gradient.

        Eigenvalues below the floor of the noise are raised to it; the length is cut.
        """
        eigenvalues, eigenvectors = np.linalg.eigh(self.curvature.matrix)
        divisors = np.maximum(eigenvalues, self.curvature.floor)
        move = eigenvectors @ ((eigenvectors.T @ self.gradient) / divisors)
        length = float(np.linalg.norm(move))
        if length > LONGEST_STEP:
            move = move * (LONGEST_STEP / length)
        return np.asarray(move)


class Errors(NamedTuple):
    """Covariances of coefficients by cause, each of shape (p, p).

    Attributes
    ----------
    model
        By the sampling of records, if the model is true.
    robust
        By the sampling of records, also under a wrong model (White 1980); noise may make diagonal
        entries negative. None if the outer products of gradients were not released.
    noise
        By the noise of the releases.
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
    """Return the covariances of coefficients after their last step.

    With delta the distance of the coefficients before the step from those without noise, E the
    noise of the Hessian H and xi that of the gradient, the error is H^-1 (E delta + xi) up to
    second order. The last step estimates delta and is longer on average. If E has variance e^2 on
    its diagonal and e^2 / 2 off it, the covariance of E delta is ``e^2 / 2 (delta' delta I + delta
    delta')``.

    Parameters
    ----------
    curvature
        The Hessian of the last step.
    gradient_noise
        Standard deviation of the noise in the last gradient.
    move
        The last step, shape (p,).
    scores
        The released sum of outer products of gradients, shape (p, p); None if there is none.
    dispersion
        Variance of residuals over that of the model.
    """
    eigenvalues, eigenvectors = np.linalg.eigh(curvature.matrix)
    cautious_eigenvalues = np.maximum(eigenvalues - CAUTION * curvature.noise, LEAST_EIGENVALUE)
    inverse = eigenvectors / cautious_eigenvalues @ eigenvectors.T  # of H, shape (p, p)
    delta = inverse @ curvature.matrix @ move
    identity = np.eye(len(move))
    of_delta = delta @ delta * identity + np.outer(delta, delta)
    gradient_covariance = gradient_noise**2 * identity + curvature.noise**2 / 2 * of_delta
    robust = None
    if scores is not None:
        robust = inverse @ scores @ inverse
    return Errors(
        model=inverse @ curvature.matrix @ inverse * dispersion,
        robust=robust,
        noise=inverse @ gradient_covariance @ inverse,
    )


def second_order(curvature: Curvature, move: Floats, skew: float) -> float:
    """Return the error of second order in the constant, which is not small for rare outcomes.

    Parameters
    ----------
    curvature, move
        Of the last step.
    skew
        Third derivative over the second of the log likelihood at the mean.
    """
    squared = max(float(move @ curvature.matrix @ move), 0.0)
    return 0.5 * skew * squared / max(float(curvature.matrix[0, 0]), curvature.noise)


def not_at_rest(last: Step, noise_before: float) -> float:
    """Return the squared last gradient over the .9999 quantile that it has by noise alone.

    Had the steps come to rest, the last gradient would be its own noise, and that of the gradient
    by which the step before it has moved.

    Parameters
    ----------
    last
        The last step.
    noise_before
        Standard deviation of the noise in the gradient of the step before it.
    """
    from scipy.stats import chi2

    squared_length = float(last.gradient @ last.gradient)
    variance = last.gradient_noise**2 + noise_before**2
    largest_by_noise = chi2.ppf(REST_QUANTILE, len(last.gradient)) * variance
    return squared_length / float(largest_by_noise)
