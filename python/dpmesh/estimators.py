"""Estimators of a vector from its noisy release: post-processing, so they cost no privacy.

An estimator is called with a noisy vector and the standard deviation of its noise, both public. The
federated paper compares them in the same place of its Algorithm 1: none (DP-Fed), Laplacian
smoothing (DP-Fed-LS), and the two of Balle and Wang, "Improving the Gaussian Mechanism for
Differential Privacy" (2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import Protocol

import numpy as np

from dpmesh import kernels
from dpmesh._validate import fail, integer, non_negative
from dpmesh.privacy.types import Released


class Estimator(Protocol):
    """A function of what was released and of the noise that went into it."""

    def __call__(self, noisy: Released, noise_scale: float) -> Released:
        """Return an estimate of each row.

        Parameters
        ----------
        noisy
            Shape (nodes, dim): the true rows plus Gaussian noise.
        noise_scale
            Standard deviation of the noise on each coordinate; 0 if there is none.
        """
        ...


@dataclass(frozen=True)
class Identity:
    """The noisy vector as it is."""

    def __call__(self, noisy: Released, noise_scale: float) -> Released:
        """Return `noisy`."""
        return noisy


@dataclass(frozen=True)
class LaplacianSmoothing:
    """Solve ``(I + smoothing * L**power) u = noisy``, L the Laplacian of a cycle: equation (3).

    Parameters
    ----------
    smoothing
        The paper's sigma, at least 0.
    power
        Power of the Laplacian, at least 1.
    blocks
        Lengths of the parts of a row that are smoothed on their own, such as a network's tensors;
        the whole row by default.
    """

    smoothing: float
    power: int = 1
    blocks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        non_negative("smoothing", self.smoothing)
        _check_cycles(self.power, self.blocks)

    def __call__(self, noisy: Released, noise_scale: float) -> Released:
        """Return the smoothed rows, whatever the noise."""
        return Released(kernels.smooth(noisy, self.smoothing, power=self.power, blocks=self.blocks))


@dataclass(frozen=True)
class JamesStein:
    """Shrink the row towards 0 by ``1 - (dim - 2) noise_scale**2 / |noisy|**2``, at least by 0."""

    def __call__(self, noisy: Released, noise_scale: float) -> Released:
        """Return the shrunken rows."""
        squares = np.square(kernels.row_norms(noisy))
        variance = max(noisy.shape[-1] - 2, 0) * noise_scale**2
        ratio = np.divide(variance, squares, out=np.zeros_like(squares), where=squares > 0)
        factors = np.maximum(1 - ratio, 0)
        return Released(noisy * factors[:, np.newaxis].astype(noisy.dtype))


@dataclass(frozen=True)
class SoftThreshold:
    """Move every coordinate towards 0 by ``noise_scale * sqrt(2 log dim)``, and no further."""

    def __call__(self, noisy: Released, noise_scale: float) -> Released:
        """Return the rows with small coordinates set to 0."""
        threshold = noise_scale * sqrt(2 * log(noisy.shape[-1]))
        kept = np.maximum(np.abs(noisy) - noisy.dtype.type(threshold), 0)
        return Released(np.copysign(kept, noisy))


def _check_cycles(power: int, blocks: tuple[int, ...] | None) -> None:
    integer("power", power, at_least=1)
    if blocks is not None:
        if not isinstance(blocks, tuple) or not blocks:
            fail("blocks", "a tuple of lengths, or None", repr(blocks))
        for length in blocks:
            integer("blocks", length, at_least=1)
