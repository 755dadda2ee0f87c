"""Sums of sites under real masks, all sites in this process: what the released sum must equal."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpmesh._privacy_types import Floats, Released
from dpmesh.kernels import mask_and_pack, unpack_sum
from dpmesh.keys import Stream
from dpmesh.noise.secure import DistributedDiscreteGaussian, SecureSum


def secrets_of(sites: int, seed: int) -> list[dict[int, bytes]]:
    """Return the secret that each site shares with each other one."""
    draw = np.random.default_rng(seed)
    secrets: list[dict[int, bytes]] = [{} for _ in range(sites)]
    for low in range(sites):
        for high in range(low + 1, sites):
            secrets[low][high] = secrets[high][low] = draw.bytes(32)
    return secrets


def masked_vectors(values: Any, secrets: list[dict[int, bytes]], cohort: Any, bits: int) -> Any:
    """Return the message of each site of a cohort."""
    return {
        i: mask_and_pack(
            values[i],
            bits,
            add=[secrets[i][j] for j in cohort if j > i],
            subtract=[secrets[i][j] for j in cohort if j < i],
        )
        for i in cohort
    }


def masked_sum(sizes: SecureSum, sums: Floats, stream: Stream) -> Released:
    """Return the noisy sum of all sites' vectors, each encoded, noisy by a share, and masked."""
    mechanism = DistributedDiscreteGaussian(sizes)
    sites = sizes.sites
    bits = sizes.modulus_bits
    parts = [mechanism.part(sums[[i]], np.array([i]), stream).part()[0] for i in range(sites)]
    messages = masked_vectors(parts, secrets_of(sites, 1), range(sites), bits)
    return mechanism.opened(unpack_sum([*messages.values()], sizes.dim, bits)[np.newaxis])
