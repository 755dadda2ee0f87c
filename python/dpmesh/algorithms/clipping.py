"""The noise multiplier of algorithms that clip each record's or client's contribution to a sum.

Two ratios describe the noise of such a sum. The *noise multiplier* is the standard deviation over
the clipping norm C, as in Opacus. The *noise to sensitivity* is the standard deviation over the
sensitivity, on which epsilon depends. The sensitivity is C under add-remove and 2 C under
replace-one, so that the second ratio is half of the first under replace-one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpmesh.accounting.multiplier import noise_to_sensitivity
from dpmesh.noise.independent import Independent
from dpmesh.privacy.plan import ClippedNoise

if TYPE_CHECKING:
    from dpmesh._privacy_types import NeighboringRelation


class Clipping:
    """Base class of algorithms that clip, with a `noise_multiplier` over the clipping norm.

    The noise is on a sum of vectors, one vector for each unit of privacy (record or client), each
    clipped to the norm. A factor by which an algorithm scales sum and noise alike cancels.
    """

    noise_multiplier: float | None

    @property
    def neighboring_relation(self) -> NeighboringRelation:
        """Neighbouring relation of the guarantee: ``"replace_one"`` or ``"add_remove"``."""
        raise NotImplementedError

    @property
    def clipping_bound(self) -> float | None:
        """Clipping norm of one unit's vector.

        None if gradients are not clipped, since the problem bounds them.
        """
        bound: float | None = getattr(self, "clipping_norm", None)
        return bound

    @property
    def noise_to_sensitivity(self) -> float | None:
        """Standard deviation of the noise over the sensitivity, on which epsilon depends.

        None without noise.
        """
        if self.noise_multiplier is None:
            return None
        return self.noise_to_sensitivity_at(self.noise_multiplier)

    def noise_to_sensitivity_at(self, noise_multiplier: float) -> float:
        """Return the ratio of standard deviation to sensitivity at a noise multiplier."""
        relation = self.neighboring_relation
        return noise_to_sensitivity(noise_multiplier, neighboring_relation=relation)

    @property
    def clipped_noise(self) -> ClippedNoise | None:
        """Noise multiplier and clipping norm, for reports.

        None without noise, or if the scale of the noise is not its standard deviation.
        """
        if self.noise_multiplier is None:
            return None
        noise = getattr(self, "noise", None)
        if isinstance(noise, Independent) and noise.kind.deviation != 1.0:
            return None
        return ClippedNoise(
            noise_multiplier=self.noise_multiplier, clipping_norm=self.clipping_bound
        )
