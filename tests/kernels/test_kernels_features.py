"""Cosines of angles against the C library's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpmesh import kernels

EIGHTHS = st.integers(-1000, 1000).map(lambda n: n * np.pi / 4)
ANGLES = st.floats(-1e9, 1e9) | st.floats(-4, 4) | EIGHTHS
UNIT = 2.0**-52


@given(hnp.arrays(np.float64, hnp.array_shapes(max_side=9), elements=ANGLES))
def test_cosines_are_those_of_the_c_library_within_the_stated_error(
    angles: npt.NDArray[np.float64],
) -> None:
    cosines = kernels.cosines(angles)
    assert cosines.shape == angles.shape
    np.testing.assert_allclose(cosines, np.cos(angles), rtol=0, atol=UNIT + UNIT / 2)


def test_what_has_no_cosine_is_nan() -> None:
    angles = np.array([0.0, np.nan, np.inf, -np.inf, 1e300])
    is_nan = np.isnan(kernels.cosines(angles))
    np.testing.assert_array_equal(is_nan, [False, True, True, True, False])


def test_other_numbers_are_taken_as_float64() -> None:
    np.testing.assert_array_equal(kernels.cosines([0, 0]), [1.0, 1.0])
    single = kernels.cosines(np.array([0.5], np.float32))
    assert single.dtype == np.float64
    with pytest.raises(ValueError, match="out: wanted"):
        kernels.cosines(np.zeros(3), out=np.zeros(2))
