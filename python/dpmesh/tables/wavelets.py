"""Scattering coefficients of images: the scattering transform of depth 2 with fixed wavelets.

For an image x the transform (Bruna and Mallat, 2013) has three kinds of channels, each an average
over windows of ``2 ** scales`` pixels:

    x * phi,   | x * psi_1 | * phi,   || x * psi_1 | * psi_2 | * phi

Here * is convolution, phi a Gaussian average, and each psi a Morlet wavelet of one of `scales`
octaves and `angles` directions; psi_2 has a coarser octave than psi_1. No number is learned, and
each image is transformed by itself: two datasets that differ in one record still differ in one
record, so the transform needs no epsilon. Private linear models of such features reach a higher
accuracy than of pixels (Tramer and Boneh, 2021).

Convolutions are products of discrete Fourier transforms ("spectra"). The filters have the shapes
and constants of Kymatio (Andreux et al., 2020). `dpmesh.tables.features.Scattering` calls
`coefficients`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy  # its submodules are imported on first use

from dpmesh._arrays import FloatArray

Spectrum: TypeAlias = npt.NDArray[np.inexact[Any]]
"""Discrete Fourier transforms along the last two axes, shape (.., height, width).

Spectra of images are complex. Spectra of filters are real: the value of a filter at -x is the
conjugate of its value at x.
"""

_IMAGES_AT_ONCE = 256
"""Number of images that are in memory with all their spectra at once."""

_DEVIATION_FLOOR = 0.01
"""Term that is added to each channel's standard deviation, as a share of the largest deviation of
the image, so that nearly constant channels stay small."""

_WIDTH = 0.8
"""Standard deviation, in pixels, of the finest wavelet's Gaussian."""

_FREQUENCY = 0.75 * np.pi
"""Frequency of the finest wavelet, in radians per pixel."""

_COPIES = range(-2, 3)
"""Periods over which a filter is summed along each axis; beyond them it is almost 0."""


def channels_of(scales: int, angles: int) -> int:
    """Return the number of channels: of no wavelet, of one wavelet, and of two wavelets."""
    octave_pairs = scales * (scales - 1) // 2
    of_one_wavelet = scales * angles
    of_two_wavelets = angles**2 * octave_pairs
    return 1 + of_one_wavelet + of_two_wavelets


def coefficients(images: FloatArray, *, scales: int, angles: int, out: FloatArray) -> FloatArray:
    """Write the normalized scattering coefficients of images into `out`, and return `out`.

    Parameters
    ----------
    images
        Images, shape (records, height, width); height and width are multiples of ``2 ** scales``.
    scales, angles
        Number of octaves and of directions of the wavelets.
    out
        Float32 array for the result, shape (records, channels * windows).
    """
    for first in range(0, len(images), _IMAGES_AT_ONCE):
        block = images[first : first + _IMAGES_AT_ONCE]
        channels = transform(block, scales=scales, angles=angles)
        flat = channels.reshape(len(block), channels_of(scales, angles), -1)
        out[first : first + _IMAGES_AT_ONCE] = _normalised(flat).reshape(len(block), -1)
    return out


def transform(images: FloatArray, *, scales: int, angles: int) -> FloatArray:
    """Return the scattering coefficients of images, shape (images, channels, rows, columns).

    There is a row and a column for each window of ``2 ** scales`` pixels. The channels are in the
    order: average; one wavelet, by octave and direction; two wavelets, in the same order.

    After a wavelet of octave j, every 2^j-th pixel represents the remaining frequencies. All
    further steps are computed at these pixels only, called *level* j.

    Parameters
    ----------
    images, scales, angles
        As for `coefficients`.
    """
    window = 2**scales
    _, height, width = images.shape
    margins = ((0, 0), (window, window), (window, window))
    padded = np.pad(images, margins, mode="reflect")
    filters = _filters(padded.shape[1:], scales, angles)
    # leave out the margins, which are one window wide
    rows = slice(1, 1 + height // window)
    columns = slice(1, 1 + width // window)

    def filtered(spectrum: Spectrum, level: int, wavelet: Spectrum, next_level: int) -> Spectrum:
        """Return the spectrum of ``| x * wavelet |`` at `next_level`, from x's at `level`."""
        product = spectrum * _folded(wavelet, 2**level)
        sampled = _sampled(product, 2 ** (next_level - level))
        modulus = np.abs(scipy.fft.ifft2(sampled))
        spectrum_of_modulus: Spectrum = scipy.fft.fft2(modulus)
        return spectrum_of_modulus

    def averaged(spectrum: Spectrum, level: int) -> FloatArray:
        """Return the averages of x over windows, from the spectrum of x at `level`."""
        product = spectrum * _folded(filters.average, 2**level)
        sampled = _sampled(product, 2 ** (scales - level))
        averages: FloatArray = np.real(scipy.fft.ifft2(sampled))
        return averages[:, rows, columns]

    image = scipy.fft.fft2(padded.astype(np.float32))
    averages = averaged(image, 0)
    first_orders = []
    second_orders = []
    for octave in range(scales):
        for wavelet in filters.wavelets[octave]:
            modulus = filtered(image, 0, wavelet, octave)
            first_orders.append(averaged(modulus, octave))
            for coarser_octave in range(octave + 1, scales):
                for coarser_wavelet in filters.wavelets[coarser_octave]:
                    second_modulus = filtered(modulus, octave, coarser_wavelet, coarser_octave)
                    second_orders.append(averaged(second_modulus, coarser_octave))
    return np.stack([averages, *first_orders, *second_orders], axis=1)


def _normalised(channels: FloatArray) -> FloatArray:
    """Standardize each channel of each image over its windows: subtract mean, divide by deviation.

    The shape of `channels`, and of the result, is (records, channels, windows).
    """
    deviations = channels.std(axis=2, keepdims=True)
    largest = deviations.max(axis=1, keepdims=True)
    deviations += _DEVIATION_FLOOR * largest + np.finfo(np.float32).tiny
    normalised: FloatArray = (channels - channels.mean(axis=2, keepdims=True)) / deviations
    return normalised


def _sampled(spectrum: Spectrum, factor: int) -> Spectrum:
    """Return the spectrum of every factor-th pixel of an image: the mean of its bands."""
    sampled: Spectrum = _bands(spectrum, factor).mean(axis=(-4, -2))
    return sampled


def _folded(spectrum: Spectrum, factor: int) -> Spectrum:
    """Return the spectrum of a filter for images of every factor-th pixel: the sum of its bands.

    It is ``factor ** 2`` times the spectrum of the filter's every factor-th pixel, since a
    convolution at level j sums over fewer pixels.
    """
    folded: Spectrum = _bands(spectrum, factor).sum(axis=(-4, -2))
    return folded


def _bands(spectrum: Spectrum, factor: int) -> Spectrum:
    """Return the spectrum cut into factor x factor bands of frequencies, on axes -4 and -2.

    Frequencies at the same position in different bands are aliases at every factor-th pixel.
    """
    *leading, height, width = spectrum.shape
    return spectrum.reshape(*leading, factor, height // factor, factor, width // factor)


class _Filters(NamedTuple):
    """Spectra of the filters for images of one shape."""

    average: Spectrum
    """The spectrum of phi, shape (height, width)."""
    wavelets: list[list[Spectrum]]
    """The spectrum of each psi, by octave and direction."""


@cache
def _filters(shape: tuple[int, int], scales: int, angles: int) -> _Filters:
    """Return the filters for images of a shape; each octave doubles the width of the wavelets."""
    coarsest = 2 ** (scales - 1)
    average = _gabor(shape, width=_WIDTH * coarsest, angle=0.0, frequency=0.0, slant=1.0)
    first_turn = angles // 2 - 1  # directions go down from here, and cover half a circle
    turns = range(first_turn, first_turn - angles, -1)
    wavelets = []
    for octave in range(scales):
        width = _WIDTH * 2**octave
        frequency = _FREQUENCY / 2**octave
        directions = [
            _morlet(
                shape,
                width=width,
                angle=np.pi * turn / angles,
                frequency=frequency,
                slant=4 / angles,  # the more directions, the longer the wave fronts
            )
            for turn in turns
        ]
        wavelets.append(directions)
    return _Filters(average, wavelets)


def _morlet(
    shape: tuple[int, int], *, width: float, angle: float, frequency: float, slant: float
) -> Spectrum:
    """Return the spectrum of a Morlet wavelet: a Gabor wave minus a Gaussian, with mean 0.

    The parameters are as of `_gabor`.
    """
    wave = _gabor(shape, width=width, angle=angle, frequency=frequency, slant=slant)
    gaussian = _gabor(shape, width=width, angle=angle, frequency=0.0, slant=slant)
    wavelet: Spectrum = wave - gaussian * (wave[0, 0] / gaussian[0, 0])
    return wavelet


def _gabor(
    shape: tuple[int, int], *, width: float, angle: float, frequency: float, slant: float
) -> Spectrum:
    """Return the spectrum of a Gabor wave, a Gaussian times a plane wave, periodic in the image.

    At a pixel ``(r, c)`` it is ``exp(-(r, c) A (r, c)^T + i frequency (r cos + c sin)) slant / (2
    pi width^2)``, where A has the eigenvalues ``1 / (2 width^2)`` along the wave and ``slant^2 / (2
    width^2)`` across.

    Parameters
    ----------
    shape
        Height and width of the image in pixels.
    width
        Standard deviation of the Gaussian along the wave, in pixels.
    angle
        Direction of the wave, in radians.
    frequency
        Radians per pixel along the wave; 0 for a Gaussian without a wave.
    slant
        Standard deviation of the Gaussian along the wave over its deviation across the wave.
    """
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    curvature = rotation @ np.diag([1.0, slant**2]) @ rotation.T / (2 * width**2)  # A, shape (2, 2)
    height, breadth = shape
    values = np.zeros(shape, dtype=np.complex128)
    for period_down in _COPIES:
        for period_right in _COPIES:
            rows = np.arange(height)[:, np.newaxis] + period_down * height  # (height, 1)
            columns = np.arange(breadth)[np.newaxis] + period_right * breadth  # (1, breadth)
            decay = curvature[0, 0] * rows**2 + 2 * curvature[0, 1] * rows * columns
            decay = decay + curvature[1, 1] * columns**2
            phase = frequency * (rows * np.cos(angle) + columns * np.sin(angle))
            values += np.exp(-decay + 1j * phase)
    integral = 2 * np.pi * width**2 / slant  # of the Gaussian
    spectrum: Spectrum = np.real(scipy.fft.fft2(values / integral)).astype(np.float32)
    return spectrum
