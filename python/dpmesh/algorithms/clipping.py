"""The noise multiplier of algorithms that clip the contribution of a unit to a sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpmesh.accounting.multiplier import noise_to_sensitivity
from dpmesh.noise.independent import Independent
from dpmesh.privacy.plan import ClippedNoise

if TYPE_CHECKING:
    from dpmesh._privacy_types import NeighboringRelation


class Clipping:
    """An algorithm whose `noise_multiplier` is a standard deviation over a clipping norm.

    The noise is that on a sum of vectors, one of each unit, none longer than the norm. Factors by
    which the algorithm scales sum and noise alike cancel.
    """

    noise_multiplier: float | None

    @property
    def neighboring_relation(self) -> NeighboringRelation:
        """Which datasets count as neighbours."""
        raise NotImplementedError

    @property
    def clipping_bound(self) -> float | None:
        """The clipping norm of one unit; None if only the problem tells it."""
        bound: float | None = getattr(self, "clipping_norm", None)
        return bound

    @property
    def noise_to_sensitivity(self) -> float | None:
        """Standard deviation of the noise over the sensitivity, which decides the cost.

        None without noise.
        """
        if self.noise_multiplier is None:
            return None
        return self.relative(self.noise_multiplier)

    def relative(self, noise_multiplier: float) -> float:
        """Return the noise over the sensitivity of a noise multiplier."""
        relation = self.neighboring_relation
        return noise_to_sensitivity(noise_multiplier, neighboring_relation=relation)

    @property
    def clipped_noise(self) -> ClippedNoise | None:
        """The noise multiplier and the norm, for reports; None without noise."""
        if self.noise_multiplier is None:
            return None
        kind = getattr(self, "noise", None)
        if isinstance(kind, Independent) and kind.kind.deviation != 1.0:
            return None  # whose scale is no standard deviation
        return ClippedNoise(
            noise_multiplier=self.noise_multiplier, clipping_norm=self.clipping_bound
        )
