"""Sensitivity of a release: the largest change of its values between neighbouring datasets."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from dpmesh._validate import non_negative, one_of
from dpmesh.kernels.projection import NORMS, Norm

A_SENSITIVITY = "a Sensitivity, such as Sensitivity(1.0, 'l2', 'why')"


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Sensitivity of a release to one unit of privacy, given all earlier releases.

    Parameters
    ----------
    bound
        Largest distance between the un-noised values of two neighbouring datasets, in the units of
        the values; 0 if they do not depend on the data. It holds for exact arithmetic: rounding of
        the values' type must be small beside it.
    norm
        Norm of that distance, ``"l1"`` or ``"l2"``.
    reason
        Proof of the bound in a few words, with its source.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.noise.Sensitivity(2.0, "l2", "one record replaced").bound
    2.0
    """

    bound: float
    norm: Norm
    reason: str

    def __post_init__(self) -> None:
        if not (type(self.bound) is float and 0 <= self.bound < inf):
            object.__setattr__(self, "bound", non_negative("bound", self.bound))
        if self.norm not in NORMS:
            one_of("norm", self.norm, NORMS)
