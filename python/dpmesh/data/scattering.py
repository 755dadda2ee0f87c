"""Scattering features of the images of a `Dataset`, computed by `dpmesh.tables.wavelets`."""

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
    """Compute the wavelet scattering features of grey images, normalized within each record.

    Each channel of a record is normalized by its mean and standard deviation over the windows of
    the record, as in group normalization. A hundredth of the record's largest standard deviation is
    added to each. The features of a record depend on no other record, so they need no epsilon.
    Apply `unit_norm` and `with_constant` to the result for the models of this package.

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
    The same records with float32 features: ``1 + J L + L^2 J (J - 1) / 2`` channels, each of
    ``height * width / 4^J`` windows. With the defaults, images of 28 x 28 pixels have 81 channels
    of 49 windows.

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
