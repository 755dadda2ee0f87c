"""The distributed discrete Gaussian mechanism: all rows together make one release, their sums."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from dpmesh.keys import Stream
from dpmesh.privacy.mechanisms import Mechanism
from dpmesh.privacy.secure.neighbors import NeighborSums
from dpmesh.privacy.secure.sizes import SecureSum
from dpmesh.privacy.secure.sums import clear_sum, release_sum
from dpmesh.privacy.sensitivity import Sensitivity
from dpmesh.privacy.types import Floats, Sensitive

if TYPE_CHECKING:
    from dp_accounting import DpEvent


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
    `numbers.sensitivity` steps of the grid, and noise of scale `noise_multiplier` times that is
    unknown to the server together with `colluding` sites, or neighbours of each node. They are
    accounted as what is proved of sums of shares; see `accounting.shares.sum_of_shares_epsilon`. In
    one process the masks are left out, which changes no bit of the result (`secure_sum` has them).
    """

    distribution = "gaussian"
    norm = "l2"

    numbers: SecureSum | NeighborSums
    _: KW_ONLY
    noise_multiplier: float = field(init=False)
    clipping_norm: float | None = field(init=False, default=None)
    grid: float | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", self.numbers.noise_multiplier)
        object.__setattr__(self, "grid", self.numbers.grid)

    @property
    def name(self) -> str:
        """The distribution of the noise."""
        return "distributed_discrete_gaussian"

    @property
    def event(self) -> DpEvent:
        """Zero-concentrated differential privacy of the discrete Gaussian that the shares form."""
        import dp_accounting

        return dp_accounting.ZCDpEvent(1 / (2 * self.noise_multiplier**2))

    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        return self.numbers.sensitivity * self.numbers.grid

    def prepared(self, values: Sensitive) -> Sensitive:
        """Return what the noise is added to: sums of rounded rows, shape (1 or nodes, dim)."""
        if isinstance(self.numbers, NeighborSums):
            return self.numbers.clear(values)
        return Sensitive(clear_sum(self.numbers, values))

    def _noisy(self, values: Floats, sensitivity: Sensitivity, stream: Stream) -> Floats:
        if isinstance(self.numbers, NeighborSums):
            return self.numbers.released(Sensitive(values), stream)
        return release_sum(self.numbers, Sensitive(values), stream)
