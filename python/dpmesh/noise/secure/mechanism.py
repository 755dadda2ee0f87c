"""The distributed discrete Gaussian mechanism: all rows together make one release, their sums.

It has two halves, between which the sum travels: each node contributes a `Masked` part, integers
with its share of the noise, and the receiver of the totals of all parts opens them.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._ragged import Indices
from dpmesh._validate import fail
from dpmesh.keys import Stream
from dpmesh.noise.mechanisms import Mechanism
from dpmesh.noise.secure.neighbors import NeighborSums
from dpmesh.noise.secure.sizes import SecureSum
from dpmesh.noise.sensitivity import Sensitivity

if TYPE_CHECKING:
    from dp_accounting import DpEvent


Integers = npt.NDArray[np.int64]


def encode(sizes: SecureSum | NeighborSums, sums: Floats, rows: int | None = None) -> Integers:
    """Return each site's sum in steps of the grid, rounded to the nearest integer.

    Parameters
    ----------
    sizes
        Public numbers of the sums.
    sums
        Sums of vectors of norm at most `clipping_norm`, shape (sites, dim), float64.
    rows
        Required number of sites; None for any number.

    Returns
    -------
    Shape (sites, dim).

    Raises
    ------
    ValueError
        If the sums are not of float64 or not of this shape, or not finite.
    """
    if sums.dtype != np.float64:
        expected = "float64, whose rounding the sensitivity covers"
        fail("sums", expected, sums.dtype)
    if sums.ndim != 2 or sums.shape[1] != sizes.dim:
        fail("sums", f"shape (sites, {sizes.dim})", f"shape {sums.shape}")
    if rows is not None and len(sums) != rows:
        fail("sums", f"a row for each of {rows} sites", f"{len(sums)} rows")
    if not kernels.all_finite(sums):
        fail("sums", "finite numbers", "NaN or infinity")
    return sizes.steps_of(sums)


def wrapped(sizes: SecureSum | NeighborSums, total: Integers) -> Integers:
    """Return integers modulo ``2**b`` as signed numbers of b bits, where b is `modulus_bits`."""
    unused = 64 - sizes.modulus_bits
    return total << unused >> unused


@dataclass(frozen=True, eq=False)
class Masked:
    """Contributions of some nodes to sums: they leave under masks, or as a part of a total.

    Parameters
    ----------
    numbers
        The public numbers of the sums.
    steps
        The nodes' rounded rows in steps of the grid, shape (rows, dim).
    nodes
        The node of each row, shape (rows,).
    stream
        Randomness of the noise of this release alone, for all nodes.
    """

    numbers: SecureSum | NeighborSums
    steps: Integers = field(repr=False)
    nodes: Indices
    stream: Stream

    def part(self, receiver: int = 0) -> Integers:
        """Return the contributions of these nodes to the sum of one receiver.

        Returns
        -------
        Integers with the shares of noise of these nodes alone, shape (contributors, dim): a row for
        each of these nodes that contributes to the sum.
        """
        is_contributor = np.zeros(self.numbers.nodes, np.bool_)
        is_contributor[[*self.numbers.receivers[receiver]]] = True
        contributes = is_contributor[self.nodes]
        if not contributes.any():
            return self.steps[:0]
        noise = self.numbers.noise(receiver, self.nodes[contributes], self.stream)
        steps = self.steps
        if not contributes.all():
            steps = steps[contributes]
        return np.add(steps, noise, out=noise)

    def totals(self) -> Integers:
        """Return the total contribution of these nodes to each sum, modulo ``2**64``.

        The totals of all nodes are released. The totals of some nodes are secret to everyone but a
        holder of the rows of these nodes.

        Returns
        -------
        Shape (receivers, dim).
        """
        receivers = range(len(self.numbers.receivers))
        return np.stack([self.part(receiver).sum(axis=0) for receiver in receivers])


@dataclass(frozen=True)
class DistributedDiscreteGaussian(Mechanism):
    """A secure sum of all sites' rows, with a share of discrete Gaussian noise from each site.

    Parameters
    ----------
    numbers
        The public numbers of the sum over all sites, or of a sum for each node over its neighbours.

    Guarantee
    ---------
    The released sums are a joint event of all sites: a record of any site moves them by at most
    `numbers.sensitivity` steps of the grid, and noise of scale `noise_to_sensitivity` times that is
    unknown to the server together with `colluding` sites, or neighbours of each node. They are
    accounted as what is proved of sums of shares; see `accounting.shares.sum_of_shares_epsilon`. In
    one process the masks are left out, which changes no bit of the result (`secure_sum` has them).

    Examples
    --------
    >>> import dpmesh as dm
    >>> numbers = dm.noise.secure.SecureSum(dim=10, sites=5, records=1000, noise_to_sensitivity=8.0)
    >>> round(dm.noise.secure.DistributedDiscreteGaussian(numbers).noise_to_sensitivity, 3)
    8.0
    """

    distribution = "gaussian"
    norm = "l2"
    deviation = 1.0
    composition = 2

    numbers: SecureSum | NeighborSums
    _: KW_ONLY
    noise_to_sensitivity: float = field(init=False)
    clipping_norm: float | None = field(init=False, default=None)
    grid: float | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_to_sensitivity", self.numbers.noise_to_sensitivity)
        object.__setattr__(self, "grid", self.numbers.grid)

    @property
    def name(self) -> str:
        """The distribution of the noise."""
        return "distributed_discrete_gaussian"

    @property
    def sums(self) -> SecureSum | NeighborSums:
        """The public numbers."""
        return self.numbers

    @property
    def integer_rows(self) -> int:
        """0, since the cost of a sum already includes the noise that each of its sites draws."""
        return 0

    @property
    def event(self) -> DpEvent:
        """Zero-concentrated differential privacy of the discrete Gaussian that the shares form."""
        import dp_accounting

        return dp_accounting.ZCDpEvent(1 / (2 * self.noise_to_sensitivity**2))

    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        return self.numbers.sensitivity * self.numbers.grid

    def part(self, values: Sensitive, nodes: Indices, stream: Stream) -> Masked:
        """Return the contributions of some nodes to the sums, before the sums travel.

        Parameters
        ----------
        values
            Shape (rows, dim), float64.
        nodes
            The node of each row, shape (rows,).
        stream
            Randomness of the noise of this release alone, for all nodes.

        Raises
        ------
        ValueError
            If the values are not finite, not float64, or not a row for each of these nodes.
        """
        return Masked(self.numbers, encode(self.numbers, values, len(nodes)), nodes, stream)

    def opened(self, totals: Integers) -> Released:
        """Return the released sums, shape (receivers, dim), from the totals of all parts."""
        return Released(wrapped(self.numbers, totals) * self.numbers.grid)

    def prepared(self, values: Sensitive) -> Sensitive:
        """Return the sums of rounded rows before the noise, shape (receivers, dim)."""
        steps = encode(self.numbers, values, self.numbers.nodes)
        receivers = self.numbers.receivers
        sums = np.stack([steps[[*contributors]].sum(axis=0) for contributors in receivers])
        return Sensitive(sums * self.numbers.grid)

    def _noisy(self, values: Floats, sensitivity: Sensitivity, stream: Stream) -> Floats:
        sizes = self.numbers
        zeros = np.broadcast_to(np.int64(0), (sizes.nodes, sizes.dim))
        noise = Masked(sizes, zeros, np.arange(sizes.nodes), stream).totals()
        steps = np.rint(values / sizes.grid).astype(np.int64)
        return self.opened(steps + noise)


def is_summed(release: object) -> bool:
    """Return True if a release, or the first of several, is a sum of all nodes' rows."""
    first = release
    if isinstance(release, tuple) and release:
        first = release[0]
    mechanism = getattr(first, "mechanism", None)
    return isinstance(mechanism, Mechanism) and mechanism.sums is not None
