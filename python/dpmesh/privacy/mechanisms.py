"""The one door out of a node: clip, add noise, compress, and say what was released.

Only `Mechanism.release` turns a `Sensitive` array into a `Released` one. It returns the values
together with their privacy event and their length on the wire, so that neither can be forgotten.
Each mechanism has two faces that must agree: `release`, with data, and `planned`, without.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, NamedTuple, final

import numpy as np
import numpy.typing as npt

from dpmesh import kernels
from dpmesh._validate import fail, positive
from dpmesh.keys import Stream
from dpmesh.privacy.compression import Compressor
from dpmesh.privacy.door import Passage, let_out
from dpmesh.privacy.events import (
    MechanismName,
    NeighboringRelation,
    Norm,
    Release,
    Sensitivity,
)
from dpmesh.privacy.sampling import Sampling
from dpmesh.privacy.types import Floats, Released, Sensitive


class Emission(NamedTuple):
    """What came out of the door: the values, their privacy event, their length on the wire.

    That length is one number, or one for each node where a compressor makes them differ.
    """

    values: Released
    release: Release
    bits_per_node: int | npt.NDArray[np.int64]


@dataclass(frozen=True)
class Mechanism(ABC):
    """Noise added to every coordinate of every node's row, in proportion to the sensitivity.

    Parameters
    ----------
    noise_multiplier
        Scale of the noise divided by the sensitivity in `norm`; positive.
    clipping_norm
        If given, each row is clipped to this norm before the noise.
    compressor
        If given, it makes the noisy rows short.
    """

    noise_multiplier: float
    clipping_norm: float | None = None
    compressor: Compressor | None = None

    name: ClassVar[MechanismName]
    norm: ClassVar[Norm]

    def __post_init__(self) -> None:
        positive("noise_multiplier", self.noise_multiplier)
        if self.clipping_norm is not None:
            positive("clipping_norm", self.clipping_norm)

    @abstractmethod
    def _add_noise(self, values: Floats, scale: float, stream: Stream) -> Floats: ...

    @abstractmethod
    def noise_scale(self, sensitivity: Sensitivity, dim: int) -> float:
        """Scale of the noise for rows of `dim` coordinates."""

    def clipping_sensitivity(self, neighboring_relation: NeighboringRelation) -> Sensitivity:
        """Return the sensitivity that clipping alone gives to a row that one unit determines.

        Raises
        ------
        ValueError
            If the mechanism does not clip.
        """
        if self.clipping_norm is None:
            fail("clipping_norm", "a clipping norm to bound the sensitivity", None)
        factor = 2 if neighboring_relation == "replace_one" else 1
        reason = f"{factor} x clipping norm, {neighboring_relation}"
        return Sensitivity(factor * self.clipping_norm, self.norm, reason)

    def planned(
        self,
        round: int,
        sensitivity: Sensitivity,
        batch: int | None = None,
        sampling: Sampling | None = None,
    ) -> Release:
        """Return the record that `release` will make, from public numbers alone."""
        if sensitivity.bound == 0:
            return Release(round, "none", 0.0, sensitivity, batch, sampling)
        return Release(round, self.name, self.noise_multiplier, sensitivity, batch, sampling)

    @final
    def release(
        self,
        values: Sensitive,
        sensitivity: Sensitivity,
        stream: Stream,
        *,
        round: int,
        batch: int | None = None,
        sampling: Sampling | None = None,
        coins: Stream | None = None,
    ) -> Emission:
        """Let `values` out, each node's row with noise of its own.

        Values of sensitivity 0 do not depend on the data and go out without noise.

        Parameters
        ----------
        values
            Shape (nodes, dim).
        sensitivity
            How far one neighbouring dataset moves a row, given all earlier releases.
        stream
            The noise's randomness: of this round and of no other.
        round, batch, sampling
            For the record; see `Release`.
        coins
            The compressor's randomness, of another purpose than `stream`.

        Raises
        ------
        ValueError
            If a value is NaN or infinite, or a compressor gets no coins.
        """
        if not np.isfinite(values).all():
            fail("values", "finite values at the door", "NaN or infinity")
        inside: Floats = values
        if self.clipping_norm is not None:
            inside = kernels.clip_rows(inside, self.clipping_norm, norm=self.norm)
        out = inside
        if sensitivity.bound > 0:
            out = self._add_noise(out, self.noise_scale(sensitivity, values.shape[-1]), stream)
        bits_per_node: int | npt.NDArray[np.int64] = 8 * out.itemsize * out.shape[-1]
        if self.compressor is not None:
            if coins is None:
                fail("coins", "a stream for the compressor", None)
            compressed = self.compressor.compress(out, coins)
            out, bits_per_node = compressed.values, compressed.bits
        record = self.planned(round, sensitivity, batch, sampling)
        emission = Emission(Released(out), record, bits_per_node)
        return let_out(Passage(self, Sensitive(inside), emission))


@dataclass(frozen=True)
class Laplace(Mechanism):
    """Laplace noise: epsilon = 1 / `noise_multiplier` for each release, with no delta.

    An L2 sensitivity is turned into an L1 one by the factor sqrt(dim).

    Guarantee: pure epsilon-differential privacy of real-valued noise. The noise is drawn in
    floating point from a 64-bit uniform: its tail ends at 43 scales (mass 2**-63), and the grid of
    floating-point numbers is not hidden.
    """

    name = "laplace"
    norm = "l1"

    def noise_scale(self, sensitivity: Sensitivity, dim: int) -> float:
        """Scale b of the density exp(-|x| / b) / 2b."""
        l1 = sensitivity.bound if sensitivity.norm == "l1" else sensitivity.bound * sqrt(dim)
        return self.noise_multiplier * l1

    def _add_noise(self, values: Floats, scale: float, stream: Stream) -> Floats:
        return kernels.add_laplace(values, scale, stream)


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Gaussian noise: each release is mu-Gaussian-DP with mu = 1 / `noise_multiplier`.

    An L1 sensitivity also bounds the L2 one.

    Guarantee: as accounted for real-valued noise. The noise is drawn in floating point from a
    64-bit radius: its tail ends at 9.4 standard deviations, and the grid of floating-point numbers
    is not hidden.
    """

    name = "gaussian"
    norm = "l2"

    def noise_scale(self, sensitivity: Sensitivity, dim: int) -> float:
        """Return the standard deviation."""
        return self.noise_multiplier * sensitivity.bound

    def _add_noise(self, values: Floats, scale: float, stream: Stream) -> Floats:
        return kernels.add_gaussian(values, scale, stream)


@dataclass(frozen=True)
class NoNoise(Mechanism):
    """Lets values out as they are, and records that nothing protects them: for comparison only."""

    noise_multiplier: float = 0.0

    name = "none"
    norm = "l2"

    def __post_init__(self) -> None:
        if self.noise_multiplier != 0:
            fail("noise_multiplier", "0, since there is no noise", self.noise_multiplier)

    def noise_scale(self, sensitivity: Sensitivity, dim: int) -> float:
        """Return 0."""
        return 0.0

    def _add_noise(self, values: Floats, scale: float, stream: Stream) -> Floats:
        return values
