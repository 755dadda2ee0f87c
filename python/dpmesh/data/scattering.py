"""Scattering features of images, see `dpmesh.tables.wavelets`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpmesh._arrays import new
from dpmesh._validate import fail, instance, integer
from dpmesh.data.dataset import A_DATASET, Dataset
from dpmesh.tables.wavelets import channels_of, coefficients


def scattering(
    images: Dataset, shape: tuple[int, int], *, scales: int = 2, angles: int = 8
) -> Dataset:
    """Compute the wavelet scattering features of grey images, normalised within each record.

    Each channel of a record is normalised by its mean and standard deviation over the windows of
    the record, as in group normalisation. To each standard deviation 1/100 of the largest one of
    the record is added. A feature depends on no other record. Apply `unit_norm` and `with_constant`
    to the result for the models of this package.

    Parameters
    ----------
    images
        Dense records of ``height * width`` grey values, row by row.
    shape
        Height and width, multiples of ``2 ** scales``.
    scales
        Number of octaves of the wavelets, J.
    angles
        Number of directions of the wavelets, L.

    Returns
    -------
    The same records with float32 features: ``1 + J L + L^2 J (J - 1) / 2`` channels of ``height *
    width / 4^J`` windows: 81 of 49 for images of 28 x 28.

    Raises
    ------
    ValueError
        If the images do not have this shape, or a number is out of its range.
    """
    instance("images", images, A_DATASET, Dataset)
    scales = integer("scales", scales, at_least=1)
    angles = integer("angles", angles, at_least=1)
    height, width = (integer("shape", size, at_least=1) for size in shape)
    window = 2**scales
    if height % window or width % window:
        fail("shape", f"multiples of {window} (2 ** scales)", shape)
    features = images.features
    if not isinstance(features, np.ndarray) or features.shape[1] != height * width:
        expectation = f"dense records of {height} x {width} = {height * width} pixels"
        fail("images", expectation, features.shape)
    windows = (height // window) * (width // window)
    channels = channels_of(scales, angles)
    out = new((len(features), channels * windows), np.float32)
    pixels = features.reshape(-1, height, width)
    return replace(images, features=coefficients(pixels, scales=scales, angles=angles, out=out))
