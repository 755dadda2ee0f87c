"""Denoisers: estimators of a vector from its noisy release. They are post-processing.

A denoiser is called with a noisy vector and the standard deviation of its noise, both public, and
so adds nothing to epsilon. It is the `denoiser` of `FederatedLearning`. Liang et al. compare
several in their Algorithm 1: none (DP-Fed), Laplacian smoothing (DP-Fed-LS), and the two estimators
of Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy" (2018).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from math import log, sqrt
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._arrays import floats
from dpmesh._privacy_types import Floats, Released
from dpmesh._ragged import Indices, Numbers
from dpmesh._validate import every, fail, integer, non_negative, positive

__all__ = [
    "AdaptiveSmoothing",
    "Denoiser",
    "Identity",
    "JamesStein",
    "LaplacianSmoothing",
    "ReleasedSum",
    "Reordered",
    "SmoothingRisk",
    "SoftThreshold",
    "smoothing_risk",
]


class ReleasedSum(NamedTuple):
    """Sum of the noisy vectors of all rounds so far, the present one included.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> so_far = dm.algorithms.denoisers.ReleasedSum(total=np.full((1, 3), 6.0), rounds=3)
    >>> so_far.total / so_far.rounds
    array([[2., 2., 2.]])
    """

    total: Released
    """Sum of the noisy vectors, shape (nodes, dim)."""
    rounds: int
    """Number of these rounds, at least 1."""


class Denoiser(Protocol):
    """Protocol of a denoiser: an estimator of a vector from its noisy release; post-processing."""

    def __call__(self, noisy: Released, noise_scale: float, so_far: ReleasedSum, /) -> Released:
        """Return an estimate of each row.

        Parameters
        ----------
        noisy
            Shape (nodes, dim): the true rows plus Gaussian noise.
        noise_scale
            Standard deviation of the noise on each coordinate, in every round; 0 if there is none.
        so_far
            Sum of the noisy rows of all rounds so far, the present one included.

        Returns
        -------
        Shape (nodes, dim).
        """


@dataclass(frozen=True)
class Identity:
    """Denoiser that returns the noisy vector unchanged (DP-Fed, DP-FedAvg).

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.FederatedLearning(dm.ClientUpdates(clients=10, steps=5), noise_multiplier=1.0).denoiser
    Identity()
    """

    def __call__(self, noisy: Released, noise_scale: float, so_far: ReleasedSum) -> Released:
        """Return `noisy`."""
        return noisy


@dataclass(frozen=True)
class LaplacianSmoothing:
    """Laplacian smoothing of a noisy vector (DP-Fed-LS).

    It solves ``(I + smoothing * L**power) u = noisy`` for u, where L is the Laplacian matrix of a
    cycle: equation (3) of Liang et al. Neighbouring coordinates become more similar.

    Parameters
    ----------
    smoothing
        Strength of smoothing, at least 0; the paper's sigma.
    power
        Power of the Laplacian, at least 1.
    blocks
        Lengths of the consecutive parts of the vector that are smoothed separately, such as a
        neural network's tensors. By default the whole vector is one block.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> noisy, so_far = np.eye(1, 4), dm.algorithms.denoisers.ReleasedSum(np.eye(1, 4), 1)
    >>> dm.algorithms.denoisers.LaplacianSmoothing(1.0)(noisy, 1.0, so_far).round(3)
    array([[0.467, 0.2  , 0.133, 0.2  ]])
    """

    smoothing: float
    _: KW_ONLY
    power: int = 1
    blocks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        every(self, non_negative, "smoothing")
        _check_cycles(self.power, self.blocks)

    def __call__(self, noisy: Released, noise_scale: float, so_far: ReleasedSum) -> Released:
        """Return the smoothed rows; the noise scale and the sum are ignored."""
        return Released(kernels.smooth(noisy, self.smoothing, power=self.power, blocks=self.blocks))


@dataclass(frozen=True, kw_only=True)
class AdaptiveSmoothing:
    """Laplacian smoothing that chooses its strength for each block from released vectors.

    The strength minimizes the estimated mean square error (Proposition 1 of Liang et al.) of the
    sum of `rounds` rounds. The estimate assumes that the true vector of each round is the mean of
    the rounds so far. Its energy at a frequency is estimated by the energy of the noisy mean minus
    the variance of the noise. The choice uses only public numbers and releases: it adds nothing to
    epsilon.

    Parameters
    ----------
    rounds
        Number of rounds whose sum should be accurate. 1 minimizes the error of the present round,
        and smooths far too much for training. The length of a run minimizes the error of the total
        change of the model, as if later rounds did not correct the noise of earlier ones. Since
        they do, a few times the length is better.
    largest
        Largest strength that is tried; the strengths are 0, and from 1/64 on a factor of 2^(1/4)
        apart.
    power, blocks
        As for `LaplacianSmoothing`.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> noisy, so_far = np.ones((1, 8)), dm.algorithms.denoisers.ReleasedSum(np.ones((1, 8)), 1)
    >>> dm.algorithms.denoisers.AdaptiveSmoothing(rounds=10)(noisy, 0.5, so_far).shape
    (1, 8)
    """

    rounds: int
    largest: float = 256.0
    power: int = 1
    blocks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        every(self, integer, "rounds", at_least=1)
        positive("largest", self.largest)
        _check_cycles(self.power, self.blocks)

    def __call__(self, noisy: Released, noise_scale: float, so_far: ReleasedSum) -> Released:
        """Return the smoothed rows; each block of each row has its chosen strength."""
        estimate = np.empty_like(noisy)
        for row, block, strength in self._choices(noise_scale, so_far):
            estimate[row, block] = kernels.smooth(noisy[row, block], strength, power=self.power)
        return Released(estimate)

    def factors(self, noise_scale: float, so_far: ReleasedSum) -> Numbers:
        """Return the chosen strengths, shape (nodes, blocks)."""
        strengths = [strength for *_, strength in self._choices(noise_scale, so_far)]
        return np.reshape(strengths, (len(so_far.total), -1))

    def _choices(
        self, noise_scale: float, so_far: ReleasedSum
    ) -> Iterator[tuple[int, slice, float]]:
        """Yield each row's index, each block of its columns, and the chosen strength."""
        total, t = so_far
        octaves = np.arange(-6, np.log2(self.largest), 0.25)
        candidates = [0.0, *np.exp2(octaves), self.largest]
        ends = np.cumsum((0, *(self.blocks or (total.shape[-1],))))
        mean_scale = noise_scale / sqrt(self.rounds)
        for row in range(len(total)):
            for first, last in pairwise(ends):
                block = slice(first, last)
                energies = (_energies(total[row, block]) - t * noise_scale**2) / t**2
                risks = [
                    sum(_risk(energies, mean_scale, strength, self.power))
                    for strength in candidates
                ]
                yield row, block, candidates[int(np.argmin(risks))]


@dataclass(frozen=True, eq=False)
class Reordered:
    """Denoiser that reorders the coordinates of each row, applies a denoiser, and reorders back.

    Smoothing assumes that neighbouring coordinates are similar, and the tensors of a neural network
    can be flattened in many orders (Table 5 of Liang et al.); see `JaxProblem.flattening`.

    Parameters
    ----------
    estimator
        Denoiser of the reordered rows. Its `blocks` are parts of the reordered rows.
    order
        Permutation of the coordinates, shape (dim,): coordinate ``order[i]`` moves to place i.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> noisy, so_far = np.eye(1, 4), dm.algorithms.denoisers.ReleasedSum(np.eye(1, 4), 1)
    >>> smoothing = dm.algorithms.denoisers.LaplacianSmoothing(1.0)
    >>> by_column = dm.algorithms.denoisers.Reordered(smoothing, np.array([0, 2, 1, 3]))
    >>> by_column(noisy, 1.0, so_far).round(3)
    array([[0.467, 0.133, 0.2  , 0.2  ]])
    """

    estimator: Denoiser
    order: Indices

    def __post_init__(self) -> None:
        places = np.asarray(self.order)
        if places.ndim != 1 or not np.array_equal(np.sort(places), np.arange(len(places))):
            fail("order", "a permutation of 0, 1, ..", f"{places.dtype} of shape {places.shape}")

    def __call__(self, noisy: Released, noise_scale: float, so_far: ReleasedSum) -> Released:
        """Return the estimate, with the coordinates in their original order."""
        if noisy.shape[-1] != len(self.order):
            fail("order", f"a permutation of {noisy.shape[-1]} coordinates", len(self.order))
        reordered = ReleasedSum(Released(so_far.total[:, self.order]), so_far.rounds)
        estimate = np.empty_like(noisy)
        estimate[:, self.order] = self.estimator(
            Released(np.ascontiguousarray(noisy[:, self.order])), noise_scale, reordered
        )
        return Released(estimate)


class SmoothingRisk(NamedTuple):
    """Mean square error of a smoothed vector, summed over its coordinates.

    Attributes
    ----------
    bias
        Squared bias: the part of the true vector that smoothing removes.
    variance
        Variance: the part of the noise that smoothing leaves.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> risk = dm.algorithms.denoisers.smoothing_risk(np.ones(16), 0.5, 1.0)
    >>> round(risk.bias, 3), round(risk.variance, 3)
    (0.0, 1.073)
    """

    bias: float
    variance: float


def smoothing_risk(
    signal: npt.ArrayLike, noise_scale: float, smoothing: float, *, power: int = 1
) -> SmoothingRisk:
    """Return the mean square error of Laplacian smoothing of ``signal + Gaussian noise``.

    The error, summed over coordinates, has two parts: squared bias and variance. Source:
    Proposition 1 of Liang et al.

    Parameters
    ----------
    signal
        The true vector, shape (dim,).
    noise_scale
        Standard deviation of the noise on each coordinate.
    smoothing, power
        As for `LaplacianSmoothing`.

    Raises
    ------
    ValueError
        If `signal` is not a vector of finite numbers, or a number is out of its range.
    """
    vector = floats("signal", signal, ndim=1)
    return _risk(_energies(vector), non_negative("noise_scale", noise_scale), smoothing, power)


def _energies(vector: Floats) -> Numbers:
    """Return the squared coefficients in the orthonormal Fourier basis."""
    return np.square(np.abs(np.fft.fft(vector, norm="ortho")))


def _risk(energies: Numbers, noise_scale: float, smoothing: float, power: int) -> SmoothingRisk:
    """Return the risk for a signal with these squared Fourier coefficients."""
    attenuation = kernels.smoothing_spectrum(len(energies), smoothing, power=power)
    bias = np.square(1 - attenuation) @ energies
    return SmoothingRisk(float(bias), float(noise_scale**2 * (attenuation @ attenuation)))


@dataclass(frozen=True)
class JamesStein:
    """James-Stein shrinkage of a noisy vector towards 0.

    The vector is multiplied by ``1 - (dim - 2) noise_scale**2 / |noisy|**2``, or by 0 if that is
    negative. Source: Balle and Wang, 2018.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> denoisers = dm.algorithms.denoisers
    >>> noisy, so_far = np.full((1, 4), 2.0), denoisers.ReleasedSum(np.zeros((1, 4)), 1)
    >>> denoisers.JamesStein()(noisy, 1.0, so_far)
    array([[1.75, 1.75, 1.75, 1.75]])
    """

    def __call__(self, noisy: Released, noise_scale: float, so_far: ReleasedSum) -> Released:
        """Return the shrunken rows."""
        squares = np.square(kernels.row_norms(noisy))
        variance = max(noisy.shape[-1] - 2, 0) * noise_scale**2
        ratio = np.divide(variance, squares, out=np.zeros_like(squares), where=squares > 0)
        factors = np.maximum(1 - ratio, 0)
        return Released(noisy * factors[:, np.newaxis].astype(noisy.dtype))


@dataclass(frozen=True)
class SoftThreshold:
    """Soft thresholding: each coordinate moves towards 0 by ``noise_scale * sqrt(2 log dim)``.

    A smaller coordinate becomes 0. Source: Balle and Wang, 2018.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> denoisers = dm.algorithms.denoisers
    >>> noisy, so_far = np.array([[3.0, 0.5]]), denoisers.ReleasedSum(np.zeros((1, 2)), 1)
    >>> denoisers.SoftThreshold()(noisy, 1.0, so_far).round(3)
    array([[1.823, 0.   ]])
    """

    def __call__(self, noisy: Released, noise_scale: float, so_far: ReleasedSum) -> Released:
        """Return the rows with small coordinates set to 0."""
        threshold = noise_scale * sqrt(2 * log(noisy.shape[-1]))
        magnitudes = np.maximum(np.abs(noisy) - noisy.dtype.type(threshold), 0)
        return Released(np.copysign(magnitudes, noisy))


def _check_cycles(power: int, blocks: tuple[int, ...] | None) -> None:
    integer("power", power, at_least=1)
    if blocks is not None:
        if not isinstance(blocks, tuple) or not blocks:
            fail("blocks", "a tuple of lengths, or None", repr(blocks))
        for length in blocks:
            integer("blocks", length, at_least=1)
