"""The best score of an audit: how much likelier a value is in one world than in the other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpmesh.privacy.events import Norm
from dpmesh.privacy.types import Floats


def log_likelihood_ratio(
    values: Floats,
    positive: Floats,
    negative: Floats,
    norm: Norm,
    noise_scale: float,
    *,
    every_bit: bool = False,
) -> npt.NDArray[np.float64]:
    """Return how much likelier each row is as `positive` plus noise than as `negative` plus noise.

    Parameters
    ----------
    values, positive, negative
        Shape (rows, dim).
    norm
        ``"l1"`` for Laplace noise, ``"l2"`` for Gaussian noise.
    noise_scale
        Of that noise; positive.
    every_bit
        Whether to keep the ratio's last bits; else it has 5 digits after the point. The last bits
        of a floating-point sum tell what the noise was added to (Mironov 2012), which no claim on
        real-valued noise covers.

    Returns
    -------
    The logarithm of the ratio, shape (rows,).
    """
    to_positive, to_negative = values - positive, values - negative
    if norm == "l1":
        ratios = (abs(to_negative) - abs(to_positive)) / noise_scale
    else:
        ratios = (to_negative**2 - to_positive**2) / (2 * noise_scale**2)
    logarithm = np.asarray(ratios.sum(axis=-1, dtype=np.float64))
    return logarithm if every_bit else logarithm.round(5)
