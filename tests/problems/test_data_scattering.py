"""Scattering features: against convolutions in full, against kymatio, record by record."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import fft

from dpmesh.data import Dataset, scattering
from dpmesh.tables.wavelets import _filters, transform


def slow(x: np.ndarray, scales: int, angles: int) -> np.ndarray:
    """Convolve with every filter at every pixel, and keep every 2^J-th at the end."""
    window = 2**scales
    padded = np.pad(x.astype(np.float64), window, mode="reflect")
    phi, psi = _filters(padded.shape, scales, angles)

    def apart(image: np.ndarray, spectrum: np.ndarray) -> np.ndarray:
        return fft.ifft2(fft.fft2(image) * spectrum.astype(np.float64))

    first = [(j, np.abs(apart(padded, one))) for j, some in enumerate(psi) for one in some]
    second = [
        np.abs(apart(image, one))
        for j, image in first
        for above in range(j + 1, scales)
        for one in psi[above]
    ]
    means = [apart(image, phi).real for image in (padded, *(image for _, image in first), *second)]
    inside = np.stack(means)[:, ::window, ::window]
    return inside[:, 1 : 1 + x.shape[0] // window, 1 : 1 + x.shape[1] // window]


def pictures(count: int, height: int, width: int) -> np.ndarray:
    draw = np.random.default_rng(3)
    rough = draw.random((count, height, width))
    return fft.ifft2(fft.fft2(rough) * np.exp(-0.3 * np.arange(width))).real.astype(np.float32)


@pytest.mark.parametrize(
    ("scales", "angles", "size"), [(1, 4, (6, 8)), (2, 4, (12, 8)), (2, 8, (28, 28))]
)
def test_coefficients_are_those_of_full_convolutions(
    scales: int, angles: int, size: tuple[int, int]
) -> None:
    x = pictures(2, *size)
    found = transform(x, scales=scales, angles=angles)
    for image, coefficients in zip(x, found, strict=True):
        expected = slow(image, scales, angles)
        scale = np.abs(expected).max(axis=(1, 2), keepdims=True)
        assert (np.abs(coefficients - expected) / scale).max() < 0.06  # aliases of wide filters
    channels = 1 + scales * angles + angles**2 * scales * (scales - 1) // 2
    assert found.shape == (2, channels, size[0] // 2**scales, size[1] // 2**scales)


def test_coefficients_are_those_of_kymatio() -> None:
    frontend = pytest.importorskip("kymatio.scattering2d.frontend.numpy_frontend")
    x = pictures(3, 28, 28)
    expected = frontend.ScatteringNumPy2D(2, (28, 28), L=8)(x.astype(np.float64))
    found = transform(x, scales=2, angles=8)
    scale = np.abs(expected).max(axis=(0, 2, 3), keepdims=True)
    assert (np.abs(found - expected) / scale).max() < 0.02  # filters end elsewhere


def test_a_record_is_transformed_by_itself() -> None:
    x = pictures(300, 8, 8).reshape(300, -1)
    labels = np.zeros(300)
    together = scattering(Dataset(x, labels), (8, 8), angles=4)
    alone = scattering(Dataset(x[257:258], labels[:1]), (8, 8), angles=4)
    np.testing.assert_allclose(together.features[257:258], alone.features, atol=1e-4)
    assert together.features.dtype == np.float32
    twice = scattering(Dataset(2 * x[:1], labels[:1]), (8, 8), angles=4)
    np.testing.assert_allclose(twice.features, together.features[:1], atol=1e-4)


def test_a_blank_image_has_features_of_zero() -> None:
    blank = scattering(Dataset(np.zeros((1, 64)), np.zeros(1)), (8, 8), angles=4)
    assert not blank.features.any()


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="multiples of 4"):
        scattering(Dataset(np.zeros((1, 60)), np.zeros(1)), (6, 10))
    with pytest.raises(ValueError, match="8 x 8 = 64 pixels"):
        scattering(Dataset(np.zeros((1, 63)), np.zeros(1)), (8, 8))
