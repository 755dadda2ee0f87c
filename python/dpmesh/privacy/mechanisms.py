"""The one door out of a node: clip, add noise, compress, and say what was released.

Only `Mechanism.release` turns a `Sensitive` array into a `Released` one. It returns the values
together with their privacy event and their length on the wire, so that neither can be forgotten.
Each mechanism has two methods that must agree: `release`, with data, and `planned`, without.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import ClassVar, Literal, NamedTuple, final, get_args

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._arrays import floats, read_only
from dpmesh._validate import (
    able,
    argument_of,
    fail,
    instance,
    integer,
    keep_numbers,
    number,
    one_of,
    positive,
)
from dpmesh.kernels._rows import node_ids
from dpmesh.kernels.projection import Norm
from dpmesh.keys import Stream
from dpmesh.privacy.compression import Compressor
from dpmesh.privacy.door import DOOR, Door, Passage, door_of, share_memory
from dpmesh.privacy.events import A_SENSITIVITY, MechanismName, Release, Sensitivity
from dpmesh.privacy.grid import MOST_STEPS, add_on_grid, power_of_two, round_to_grid
from dpmesh.privacy.rounding import check_scale, fail_for_length, longest_row, precision_of
from dpmesh.privacy.sampling import Sampling
from dpmesh.privacy.types import Floats, NeighboringRelation, Released, Sensitive


class Emission(NamedTuple):
    """What went through the door: the values, their privacy event, their length on the wire.

    The values cannot be written to. Their length is one number, or one for each node where a
    compressor makes them differ.
    """

    values: Released
    release: Release
    bits_per_node: int | npt.NDArray[np.int64]


class Source(NamedTuple):
    """A stream of the nodes whose rows draw from it, and the norm that no noisy row may exceed."""

    stream: Stream
    longest: float


_ON_GRID: dict[str, MechanismName] = {
    "laplace": "discrete_laplace",
    "gaussian": "discrete_gaussian",
}
_REAL_NOISE = {"laplace": kernels.add_laplace, "gaussian": kernels.add_gaussian}
_INTEGER_NOISE = {"laplace": kernels.discrete_laplace, "gaussian": kernels.discrete_gaussian}


@dataclass(frozen=True)
class Mechanism(ABC):
    """Noise added to every coordinate of every node's row, in proportion to the sensitivity.

    The data of one unit affect only one row of a release.

    Parameters
    ----------
    noise_multiplier
        Scale of the noise divided by the sensitivity in `norm`; positive.
    clipping_norm
        If given, each row is clipped to this norm before the noise.
    compressor
        If given, it compresses the noisy rows.
    grid
        If given, values are rounded to multiples of it, and the noise is a whole number of them, so
        that the digits of the sum do not reveal the value beneath the noise. Rounding may move
        neighbouring rows apart by one `grid` in every coordinate, which the noise covers: choose it
        small beside sensitivity / dim for Laplace and sensitivity / sqrt(dim) for Gaussian noise,
        and at least a 2**-25th of the noise. A power of 2, on which floating-point arithmetic is
        exact.
    """

    noise_multiplier: float
    clipping_norm: float | None = None
    compressor: Compressor | None = None
    grid: float | None = None

    law: ClassVar[Literal["laplace", "gaussian", "none"]]
    norm: ClassVar[Norm]

    def __post_init__(self) -> None:
        keep_numbers(self)
        self._check_noise()
        if self.clipping_norm is not None:
            positive("clipping_norm", self.clipping_norm)
        if self.compressor is not None:
            able("compressor", self.compressor, "a compressor", "compress", "decode", "apart")

    def _check_noise(self) -> None:
        positive("noise_multiplier", self.noise_multiplier)
        if self.grid is not None:
            power_of_two("grid", self.grid)

    @property
    def name(self) -> MechanismName:
        """The distribution of the noise, and whether it is on a grid."""
        return self.law if self.grid is None else _ON_GRID[self.law]

    @abstractmethod
    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        """Return the sensitivity in `norm` of a row of `dim` coordinates, rounded to the grid."""

    @final
    def noise_scale(self, sensitivity: Sensitivity, dim: int) -> float:
        """Return the scale of the noise for rows of `dim` coordinates.

        Raises
        ------
        ValueError
            If `dim` is not an integer of at least 1.
        """
        dim = integer("dim", dim, at_least=1)
        if sensitivity.bound == 0:
            return 0.0
        return self.noise_multiplier * self._distance(sensitivity, dim)

    def clipping_sensitivity(self, neighboring_relation: NeighboringRelation) -> Sensitivity:
        """Return the sensitivity, by clipping alone, of a row that depends on a single unit.

        Raises
        ------
        ValueError
            If the mechanism does not clip, or the relation is unknown.
        """
        one_of("neighboring_relation", neighboring_relation, get_args(NeighboringRelation))
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
        nodes: tuple[int, ...] | None = None,
    ) -> Release:
        """Return the record that `release` will make, from public numbers alone."""
        instance("sensitivity", sensitivity, A_SENSITIVITY, Sensitivity)
        noiseless = sensitivity.bound == 0
        name: MechanismName = "none" if noiseless else self.name
        multiplier = 0.0 if noiseless else self.noise_multiplier
        return Release(round, name, multiplier, sensitivity, batch, sampling, nodes)

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
        nodes: tuple[int, ...] | None = None,
    ) -> Emission:
        """Release `values`, each node's row with noise of its own.

        Values of sensitivity 0 do not depend on the data and go out without noise.

        Parameters
        ----------
        values
            Shape (nodes, dim).
        sensitivity
            How far one neighbouring dataset moves a row, given all earlier releases.
        stream
            The noise's randomness, of this round. Another release in the same round takes a stream
            of another purpose, or of other nodes: within a run the same one is refused.
        round, batch, sampling
            For the record; see `Release`.
        coins
            The compressor's randomness, of another purpose than `stream`.
        nodes
            The nodes to which the rows belong, and which draw noise and coins; None for all, in
            order.

        Raises
        ------
        ValueError
            If an argument has the wrong type, a value is NaN or infinite or would be after its
            compression, a noisy row is so long that its type rounds it by more than the
            sensitivity, the noise is smaller than the type's normal numbers or exceeds 2**25 times
            the grid, a compressor gets no coins, the release is over the run's budget, a stream is
            of another round or has served another release of the run, or the noise is of a seeded
            key and the run's is not.
        """
        record = self.planned(round, sensitivity, batch, sampling, nodes)
        inside = _rows(values)
        depends = sensitivity.bound > 0
        door = DOOR.get() if self.compressor is None else door_of(round)
        noisy = depends and self.law != "none"
        if not (noisy and self._is_checked_by_noise):
            _check_finite(inside)
        if depends:
            instance("stream", stream, "one of the key's, as key.stream(purpose, round)", Stream)
            stream = _of(nodes, stream, inside)
            door.draw("stream", stream, round, inside.shape)
        if noisy and door.draws is not None:
            door.draws.hide(stream, values)
        if door.keeper is not None:
            door.keeper(record, stream.purpose)
        if self.clipping_norm is not None:
            inside = kernels.clip_rows(inside, self.clipping_norm, norm=self.norm)
        if noisy and self.grid is not None:
            inside = round_to_grid(inside, self.grid)
        # What a node does to its own values, or to these, must not change what was released.
        out = self._noisy(inside, sensitivity, stream) if noisy else inside.copy()
        out = before_compression = read_only(out)
        bits_per_node: int | npt.NDArray[np.int64] = 8 * out.itemsize * out.shape[-1]
        if self.compressor is not None:
            out, bits_per_node = _compressed(self.compressor, out, coins, door, record)
        emission = Emission(Released(out), record, bits_per_node)
        if door.watcher is None:
            return emission
        return door.watcher(
            Passage(self, Sensitive(inside), Released(before_compression), emission)
        )

    @property
    def _is_checked_by_noise(self) -> bool:
        """Whether the kernel that adds noise gets the values as given, and refuses NaN."""
        return self._has_kernel and self.clipping_norm is None

    @cached_property
    def _has_kernel(self) -> bool:
        """Whether a kernel adds the noise; kernels refuse noisy rows that are too long."""
        return type(self)._add_noise is Mechanism._add_noise and self.grid is None

    def _noisy(self, values: Floats, sensitivity: Sensitivity, stream: Stream) -> Floats:
        """Return values plus noise, in an array of their own, unless a row is too long."""
        dim, precision = values.shape[-1], precision_of(values)
        distance = self._distance(sensitivity, dim)
        scale = self.noise_multiplier * distance
        check_scale(scale, precision)
        longest = longest_row(distance, scale, precision, dim, self.norm)
        if self.grid is not None:
            noisy = self._on_grid(values, scale, self.grid, stream)
        else:
            try:
                noisy = self._add_noise(values, scale, Source(stream, longest))
            except ValueError as error:
                _check_finite(values)
                if argument_of(error) == "x":
                    fail_for_length(distance, precision)
                raise
        if self._has_kernel:
            return noisy
        if share_memory(noisy, values):
            fail("mechanism", "noisy values in an array of their own", "those that it was given")
        if (kernels.row_norms(noisy, norm=self.norm) > longest).any():
            fail_for_length(distance, precision)
        return noisy

    def _add_noise(self, values: Floats, scale: float, source: Source) -> Floats:
        """Return values plus real-valued noise; what a mechanism of one's own replaces."""
        add = _REAL_NOISE[self.law]
        return add(values, scale, source.stream, longest=source.longest)

    def _on_grid(self, values: Floats, scale: float, grid: float, stream: Stream) -> Floats:
        """Return multiples of `grid` plus a random whole number of them."""
        if scale / grid > MOST_STEPS:
            fail("grid", f"at least a 2**-25th of the noise, {scale / MOST_STEPS:g}", grid)
        draw = _INTEGER_NOISE[self.law]
        return add_on_grid(values, draw(values.shape, scale / grid, stream), grid)


def _compressed(
    compressor: Compressor,
    noisy: Floats,
    coins: Stream | None,
    door: Door,
    record: Release,
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return what the receivers decode, and the length of each node's message in bits."""
    if not isinstance(coins, Stream):
        fail("coins", "a stream for the compressor", repr(coins))
    own = _of(record.nodes, coins, noisy)
    door.draw("coins", own, record.round, noisy.shape)
    compressed = compressor.compress(noisy, own)
    compressed = replace(compressed, values=read_only(compressed.values))
    if door.carrier is not None:
        door.carrier(compressed)
    if not kernels.all_finite(compressed.values):
        kind = compressed.values.dtype
        fail("values", f"numbers whose compression {kind} can hold", "larger ones")
    return compressed.values, compressed.bits


@dataclass(frozen=True)
class Laplace(Mechanism):
    """Laplace noise: epsilon = 1 / `noise_multiplier` for each release, with no delta.

    An L2 sensitivity is turned into an L1 one by the factor sqrt(dim).

    Guarantee: pure epsilon-differential privacy of real-valued noise. The noise is drawn in
    floating point from a 64-bit uniform: its tail ends at 43 scales (mass 2**-63), and the last
    bits of the sum are not hidden, which alone may tell neighbours apart (Mironov 2012). With a
    `grid`, pure epsilon-differential privacy of what is released, up to 2**-73 in total variation
    for each number (see `dpmesh.kernels.discrete`).
    """

    law = "laplace"
    norm = "l1"

    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        l1 = sensitivity.bound if sensitivity.norm == "l1" else sensitivity.bound * sqrt(dim)
        return l1 + dim * (self.grid or 0.0)


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Gaussian noise: each release is mu-Gaussian-DP with mu = 1 / `noise_multiplier`.

    An L1 sensitivity also bounds the L2 one.

    Guarantee: as accounted for real-valued noise. The noise is drawn in floating point from a
    64-bit radius: its tail ends at 9.4 standard deviations, and the last bits of the sum are not
    hidden, as with `Laplace`. With a `grid`, each release is ``mu**2 / 2``-zCDP (Canonne, Kamath
    and Steinke 2020, Theorem 14), up to 2**-73 in total variation for each number; that it is
    mu-Gaussian-DP is not proved and not claimed.
    """

    law = "gaussian"
    norm = "l2"

    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        return sensitivity.bound + sqrt(dim) * (self.grid or 0.0)


@dataclass(frozen=True)
class NoNoise(Mechanism):
    """Releases values as they are, and records that nothing protects them: for comparison only."""

    noise_multiplier: float = 0.0

    law = "none"
    norm = "l2"

    def _check_noise(self) -> None:
        if number("noise_multiplier", self.noise_multiplier) != 0:
            fail("noise_multiplier", "0, since there is no noise", self.noise_multiplier)
        if self.grid is not None:
            fail("grid", "None, since there is no noise", self.grid)

    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        return sensitivity.bound


def _rows(values: Floats) -> Floats:
    """Return values as the kernels take them; fail unless they are rows, without showing them."""
    if getattr(values, "ndim", None) not in (1, 2):
        of_shape = f" of shape {values.shape}" if hasattr(values, "shape") else ""
        fail("values", "an array of shape (nodes, dim)", f"{type(values).__name__}{of_shape}")
    return floats("values", values)


def _of(nodes: tuple[int, ...] | None, stream: Stream, values: Floats) -> Stream:
    """Return the stream whose rows are those of these nodes."""
    ids = node_ids(nodes, len(values) if values.ndim > 1 else 1)
    return stream if ids is None else stream.for_nodes(ids)


def _check_finite(values: Floats) -> None:
    if not kernels.all_finite(values):
        fail("values", "finite values at the door", "NaN or infinity")
