"""Scattering coefficients of images: fixed wavelets, nothing fitted, so that they cost no privacy.

The scattering transform of depth 2 (Bruna and Mallat, 2013) averages an image, the moduli of its
wavelet coefficients, and the moduli of the wavelet coefficients of these, over windows of ``2 **
scales`` pixels:

    x * phi,   | x * psi_1 | * phi,   || x * psi_1 | * psi_2 | * phi

with Morlet wavelets psi of `scales` octaves and `angles` directions. Each image is transformed by
itself, with no number that was learned: two datasets that differ in one record still differ in one
record. Private linear models then learn far more from such features than from pixels (Tramer and
Boneh, 2021).
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
from scipy import fft

Array: TypeAlias = Any  # numpy's complex or real arrays

_AT_ONCE = 256


def channels_of(scales: int, angles: int) -> int:
    """Return the number of channels of the transform."""
    return 1 + scales * angles + angles**2 * scales * (scales - 1) // 2


def coefficients(images: Array, *, scales: int, angles: int, out: Array) -> Array:
    """Write the normalised coefficients of images into `out`, and return it.

    Parameters
    ----------
    images
        Shape (records, height, width), both multiples of ``2 ** scales``.
    out
        Shape (records, channels * windows), float32.
    """
    for first in range(0, len(images), _AT_ONCE):
        block = images[first : first + _AT_ONCE]
        channels = transform(block, scales=scales, angles=angles)
        flat = channels.reshape(len(block), channels_of(scales, angles), -1)
        out[first : first + _AT_ONCE] = _normalised(flat).reshape(len(block), -1)
    return out


def transform(x: Array, *, scales: int, angles: int) -> Array:
    """Return the coefficients of images, shape (images, channels, height / 2^J, width / 2^J)."""
    window = 2**scales
    _, height, width = x.shape
    padded = np.pad(x, ((0, 0), (window, window), (window, window)), mode="reflect")
    phi, psi = _filters(padded.shape[1:], scales, angles)
    rows = slice(1, 1 + height // window)
    columns = slice(1, 1 + width // window)

    def averaged(spectrum: Array, level: int) -> Array:
        """Average over windows what has been sampled at every 2^level-th pixel."""
        low_frequencies = spectrum * _folded(phi, 2**level)
        sampled = _sampled(low_frequencies, 2 ** (scales - level))
        return np.real(fft.ifft2(sampled))[:, rows, columns]

    image = fft.fft2(padded.astype(np.float32))
    first_orders = [averaged(image, 0)]
    second_orders = []
    for level, wavelets in enumerate(psi):
        for wavelet in wavelets:
            modulus = np.abs(fft.ifft2(_sampled(image * wavelet, 2**level)))
            spectrum = fft.fft2(modulus)
            first_orders.append(averaged(spectrum, level))
            for coarser_level in range(level + 1, scales):
                for coarser_wavelet in psi[coarser_level]:
                    filtered = spectrum * _folded(coarser_wavelet, 2**level)
                    sampled = _sampled(filtered, 2 ** (coarser_level - level))
                    second_modulus = np.abs(fft.ifft2(sampled))
                    second_orders.append(averaged(fft.fft2(second_modulus), coarser_level))
    return np.stack([*first_orders, *second_orders], axis=1)


def _normalised(channels: Array) -> Array:
    """Return each channel of each record less its mean, over its deviation."""
    deviations = channels.std(axis=2, keepdims=True)
    largest = deviations.max(axis=1, keepdims=True)
    deviations += 0.01 * largest + np.finfo(np.float32).tiny
    return (channels - channels.mean(axis=2, keepdims=True)) / deviations


def _blocks(spectrum: Array, factor: int) -> Array:
    """Return the spectrum cut into factor^2 bands, on axes -4 and -2."""
    *rest, height, width = spectrum.shape
    return spectrum.reshape(*rest, factor, height // factor, factor, width // factor)


def _sampled(spectrum: Array, factor: int) -> Array:
    """Return the spectrum of every factor-th pixel."""
    return _blocks(spectrum, factor).mean(axis=(-4, -2))


def _folded(spectrum: Array, factor: int) -> Array:
    """Return the spectrum of a filter for images of every factor-th pixel."""
    return _blocks(spectrum, factor).sum(axis=(-4, -2))


@cache
def _filters(shape: tuple[int, int], scales: int, angles: int) -> tuple[Array, list[list[Array]]]:
    """Return the spectra of the average phi and of the wavelets psi, by octave and direction."""
    phi = _gabor(shape, width=0.8 * 2 ** (scales - 1), angle=0.0, frequency=0.0, slant=1.0)
    half_turn = angles // 2 - 1
    psi = []
    for octave in range(scales):
        width = 0.8 * 2**octave
        frequency = 0.75 * np.pi / 2**octave
        directions = [np.pi * turn / angles for turn in range(half_turn, half_turn - angles, -1)]
        wavelets = [
            _morlet(shape, width=width, angle=angle, frequency=frequency, slant=4 / angles)
            for angle in directions
        ]
        psi.append(wavelets)
    return phi, psi


def _morlet(
    shape: tuple[int, int], *, width: float, angle: float, frequency: float, slant: float
) -> Array:
    """Return the spectrum of a Gabor wave less a Gaussian, so that its mean is 0."""
    wave = _gabor(shape, width=width, angle=angle, frequency=frequency, slant=slant)
    bell = _gabor(shape, width=width, angle=angle, frequency=0.0, slant=slant)
    return wave - bell * (wave[0, 0] / bell[0, 0])


def _gabor(
    shape: tuple[int, int], *, width: float, angle: float, frequency: float, slant: float
) -> Array:
    """Return the spectrum of a periodic Gaussian of this width along a wave of this frequency."""
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    curvature = rotation @ np.diag([1.0, slant**2]) @ rotation.T / (2 * width**2)
    height, breadth = shape
    total = np.zeros(shape, dtype=np.complex128)
    for down in range(-2, 3):
        for right in range(-2, 3):
            rows = np.arange(height)[:, np.newaxis] + down * height
            columns = np.arange(breadth)[np.newaxis] + right * breadth
            bell = curvature[0, 0] * rows**2 + 2 * curvature[0, 1] * rows * columns
            bell = bell + curvature[1, 1] * columns**2
            wave = frequency * (rows * np.cos(angle) + columns * np.sin(angle))
            total += np.exp(-bell + 1j * wave)
    normal = 2 * np.pi * width**2 / slant
    spectrum: Array = np.real(fft.fft2(total / normal)).astype(np.float32)
    return spectrum
