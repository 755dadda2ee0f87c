"""Cosines of many angles, of which random Fourier features are made."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._arrays import floats

Floats = npt.NDArray[np.float64]


def cosines(angles: npt.ArrayLike, *, out: Floats | None = None) -> Floats:
    """Return the cosine of each angle, within 2.3e-16: the same bits on every processor.

    `numpy.cos` of float64 takes the C library's, whose bits may differ between machines, one number
    at a time.

    Parameters
    ----------
    angles
        Angles in radians, of at least one axis and one element; taken as float64. NaN and infinity
        become NaN.
    out
        Array like `angles` that receives the result; it may be `angles` itself.

    Returns
    -------
    An array of the shape of `angles`; `out` if it was given.

    Raises
    ------
    ValueError
        If `angles` are not numbers, are a scalar or empty, or `out` does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> dm.kernels.cosines([0, np.pi])
    array([ 1., -1.])
    """
    as_float64: Floats = np.asarray(floats("angles", np.asarray(angles, np.float64)), np.float64)
    return _core.cosines(as_float64, out)
