"""Privacy profiles of samples of published size lie within their stated errors, at any rate."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dpmesh.accounting._poisson_pairs import _size_profile

DIGITS = 60


def exact_profile(loss: float, rate: float, weight: float, noise: float, sign: int) -> mp.mpf:
    """Return ``H_e(a Q + b P || Q)`` for the sign 1, and ``H_e(Q || a Q + b P)`` for -1."""
    threshold = mp.expm1(sign * mp.mpf(loss)) + mp.mpf(rate)
    weight = mp.mpf(weight)
    x = -mp.inf
    if threshold > 0:
        x = mp.mpf(1) / 2 + mp.mpf(noise) ** 2 * mp.log(threshold / weight)
    mass_p = mp.mpf(sign > 0)
    mass_q = mp.mpf(sign > 0)
    if mp.isfinite(x):
        mass_p = mp.ncdf(-sign * (x - 1) / mp.mpf(noise))
        mass_q = mp.ncdf(-sign * x / mp.mpf(noise))
    divergence = weight * mass_p - threshold * mass_q
    if sign < 0:
        divergence = -mp.exp(mp.mpf(loss)) * divergence
    return max(mp.mpf(0), divergence)


@given(
    st.floats(-9, -0.5).map(lambda power: 10**power),
    st.floats(-1, 1).map(lambda power: 10**power),
    st.floats(-1, 1.7).map(lambda power: 10**power),
    st.sampled_from([1, -1]),
    st.lists(st.floats(0, 3) | st.floats(-12, 0).map(lambda power: 10**power), max_size=3),
)
def test_a_profile_is_off_by_at_most_its_errors(
    rate: float, share: float, noise: float, sign: int, losses: list[float]
) -> None:
    # around this loss the threshold of the sign -1 is a small difference of larger numbers
    turn = -math.log1p(-rate)
    around = [turn * factor for factor in (1 - 1e-6, 1 - 1e-12, 1, 1 + 1e-12, 1 + 1e-6)]
    points = [0.0, *around, *losses]
    weight = rate * share
    profile = _size_profile(np.array(points), rate, weight, noise, sign)
    with mp.workdps(DIGITS):
        for loss, value, error in zip(points, *profile, strict=True):
            exact = exact_profile(loss, rate, weight, noise, sign)
            assert abs(mp.mpf(float(value)) - exact) <= error
