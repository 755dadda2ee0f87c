"""The distributed discrete Gaussian mechanism: all rows together make one release, their sums.

It is made of two halves, between which the sum travels: each node has a `Masked` part, integers
with its share of the noise, and whoever gets the totals of all parts opens them.
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
        The public numbers.
    sums
        Shape (sites, dim), float64: sums of vectors of norm at most `clipping_norm`.
    rows
        How many sites there must be; None for any number.

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
    """Return integers modulo ``2**bits``, from ``-2**(bits - 1)`` on."""
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
        The number of the node of each row.
    stream
        The noise's randomness, of this release alone, for all nodes.
    """

    numbers: SecureSum | NeighborSums
    steps: Integers = field(repr=False)
    nodes: Indices
    stream: Stream

    def part(self, receiver: int = 0) -> Integers:
        """Return what the nodes here add to the sum of a receiver, a row for each that does.

        Shape (rows, dim): integers with the shares of noise of these nodes alone.
        """
        to_it = np.zeros(self.numbers.nodes, np.bool_)
        to_it[[*self.numbers.receivers[receiver]]] = True
        adds = to_it[self.nodes]
        if not adds.any():
            return self.steps[:0]
        noise = self.numbers.noise(receiver, self.nodes[adds], self.stream)
        return np.add(self.steps if adds.all() else self.steps[adds], noise, out=noise)

    def totals(self) -> Integers:
        """Return what the nodes here add to all sums together, modulo ``2**64``.

        Shape (receivers, dim). The totals of all nodes are what they release; those of some are for
        whoever may see the rows of these nodes.
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
        """None: a sum is charged for the numbers that its sites draw."""
        return 0

    @property
    def event(self) -> DpEvent:
        """Zero-concentrated differential privacy of the discrete Gaussian that the shares form."""
        import dp_accounting

        return dp_accounting.ZCDpEvent(1 / (2 * self.noise_to_sensitivity**2))

    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        return self.numbers.sensitivity * self.numbers.grid

    def part(self, values: Sensitive, nodes: Indices, stream: Stream) -> Masked:
        """Return what some nodes add to the sums, before the sums travel.

        Parameters
        ----------
        values
            Shape (rows, dim), float64.
        nodes
            The number of the node of each row, among all nodes.
        stream
            The noise's randomness, of this release alone, for all nodes.

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
        """Return what the noise is added to: sums of rounded rows, shape (receivers, dim)."""
        receivers, nodes = self.numbers.receivers, self.numbers.nodes
        steps = encode(self.numbers, values, nodes)
        sums = np.stack([steps[[*senders]].sum(axis=0) for senders in receivers])
        return Sensitive(sums * self.numbers.grid)

    def _noisy(self, values: Floats, sensitivity: Sensitivity, stream: Stream) -> Floats:
        sizes = self.numbers
        nothing = np.broadcast_to(np.int64(0), (sizes.nodes, sizes.dim))
        noise = Masked(sizes, nothing, np.arange(sizes.nodes), stream).totals()
        return self.opened(np.rint(values / sizes.grid).astype(np.int64) + noise)


def is_summed(release: object) -> bool:
    """Return True if a release, or the first of several, is a sum of all nodes' rows."""
    first = release[0] if isinstance(release, tuple) and release else release
    mechanism = getattr(first, "mechanism", None)
    return isinstance(mechanism, Mechanism) and mechanism.sums is not None
