"""A site's message of a secure sum: encoded, with its share of noise, masked and packed.

The least work is its noise and a key stream for each partner; OpenSSL draws that stream, of 4 bytes
a number for up to 32 bits, otherwise 8.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from benches.measure import Case
from dpmesh import kernels
from dpmesh.keys import Key
from dpmesh.noise.secure import DistributedDiscreteGaussian, SecureSum


def case(dim: int, sites: int) -> Case:
    records = 10_000
    numbers = SecureSum(
        dim=dim,
        sites=sites,
        records=records * sites,
        records_per_site=records,
        noise_to_sensitivity=20.0,
        rounds=100,
    )
    stream, own_sum = Key.generate().stream(1), np.full((1, dim), 100 / dim**0.5)
    secrets = [os.urandom(32) for _ in range(1, sites)]
    words = bytes(dim * (4 if numbers.modulus_bits <= 32 else 8))

    def parts() -> None:
        kernels.discrete_gaussian((1, dim), numbers.share, stream)
        for secret in secrets:
            Cipher(algorithms.AES(secret), modes.CTR(bytes(16))).encryptor().update(words)

    def message() -> bytes:
        part = DistributedDiscreteGaussian(numbers).part(own_sum, np.array([0]), stream).part()
        return kernels.mask_and_pack(part[0], numbers.modulus_bits, add=secrets)

    return Case(
        f"{sites} sites, {dim:,} numbers of {numbers.modulus_bits} bits",
        message,
        limits={"noise and key streams alone": parts},
        goals={"noise and key streams alone": 1 / 1.5},
        values=dim,
        rounds=5,
    )


def cases() -> Iterator[Case]:
    for dim in (10_000, 1_000_000, 10_000_000):
        for sites in (5, 100):
            yield case(dim, sites)
