"""One secure sum: what a site makes of its own vector, and what the cohort's vectors add up to."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._validate import fail
from dpmesh.keys import Stream
from dpmesh.privacy.secure.neighbors import NeighborSums
from dpmesh.privacy.secure.sizes import SecureSum
from dpmesh.privacy.types import Floats, Released, Sensitive

Integers = npt.NDArray[np.int64]

_FIRST_PAIR = 1 << 31
"""Nodes of a stream from here on are pairs of sites: in process their secrets come from it."""


def encode(sizes: SecureSum | NeighborSums, sums: Floats, rows: int | None = None) -> Integers:
    """Return each site's sum in steps of the grid, rounded to the nearest integer.

    Parameters
    ----------
    sizes
        The public numbers.
    sums
        Shape (sites, dim), float64: sums of vectors of norm at most `clipping_norm`.
    rows
        How many sites there must be; None for any number.

    Raises
    ------
    ValueError
        If the sums are not of float64 or not of this shape, or not finite.
    """
    if sums.dtype != np.float64:
        wanted = "float64, whose rounding the sensitivity covers"
        fail("sums", wanted, sums.dtype)
    if sums.ndim != 2 or sums.shape[1] != sizes.dim:
        fail("sums", f"shape (sites, {sizes.dim})", f"shape {sums.shape}")
    if rows is not None and len(sums) != rows:
        fail("sums", f"a row for each of {rows} sites", f"{len(sums)} rows")
    if not kernels.all_finite(sums):
        fail("sums", "finite numbers", "NaN or infinity")
    return sizes.steps_of(sums)


def decode(sizes: SecureSum | NeighborSums, total: Integers) -> Floats:
    """Return a sum in steps of the grid as a vector, float64."""
    return total * sizes.grid


def with_noise(
    sizes: SecureSum, steps: Integers, stream: Stream, *, nodes: npt.ArrayLike | None = None
) -> Integers:
    """Return each site's integers plus its share of noise, an independent one for each row.

    Parameters
    ----------
    sizes
        The public numbers.
    steps
        Shape (sites, dim): what `encode` returned.
    stream
        The randomness of this attempt and nothing else.
    nodes
        The site of each row; 0, 1, .. by default.
    """
    share = sizes.noise(0, np.arange(len(steps)) if nodes is None else np.asarray(nodes), stream)
    return np.add(steps, share, out=share)


def answer(sizes: SecureSum, own: int, noisy: Integers, secrets: Mapping[int, bytes]) -> bytes:
    """Return what a site sends: its noisy integers, masked and packed.

    Parameters
    ----------
    sizes
        The public numbers.
    own
        The site's number.
    noisy
        Shape (dim,): a row of what `with_noise` returned.
    secrets
        What it shares with each other site of the cohort, for this attempt alone.

    Raises
    ------
    ValueError
        If the cohort is too small for its shares of noise to be enough.
    """
    sizes.check_cohort(len(secrets) + 1)
    if own in secrets:
        fail("secrets", "those shared with other sites", f"one of site {own} itself")
    add = [secret for other, secret in secrets.items() if own < other]
    subtract = [secret for other, secret in secrets.items() if own > other]
    return kernels.mask_and_pack(noisy, sizes.modulus_bits, add=add, subtract=subtract)


def open_sum(sizes: SecureSum, answers: Mapping[int, bytes]) -> Released:
    """Return the noisy sum of a cohort's vectors, shape (1, dim), from all of their answers.

    If one of them is missing, or two sites did not agree on the attempt, masks do not cancel and
    the result is uniform noise.

    Raises
    ------
    ValueError
        If the cohort is too small, or an answer has another length: sites with other grids or
        moduli.
    """
    sizes.check_cohort(len(answers))
    total = kernels.unpack_sum(list(answers.values()), sizes.dim, sizes.modulus_bits)
    return Released(decode(sizes, total)[np.newaxis])


def wrapped(sizes: SecureSum | NeighborSums, total: Integers) -> Integers:
    """Return integers modulo ``2**bits``, from ``-2**(bits - 1)`` on."""
    unused = 64 - sizes.modulus_bits
    return total << unused >> unused


def secure_sum(sizes: SecureSum, sums: Sensitive, stream: Stream) -> Released:
    """Return the noisy sum of all sites' vectors under real masks, with all sites in this process.

    It has the bits of `DistributedDiscreteGaussian`, whose parts are added up without masks.

    Parameters
    ----------
    sizes
        The public numbers.
    sums
        Shape (sites, dim), float64: a row for each site, which stays inside it.
    stream
        The noise's randomness, of this release alone: row r draws from node r, and pairs of sites
        draw their secrets from nodes that no row has.

    Raises
    ------
    ValueError
        If there is another number of rows than sites, or they are not finite, or not float64.
    """
    noisy = with_noise(sizes, encode(sizes, sums, sizes.sites), stream)
    secrets = pair_secrets(stream, sizes.sites)
    return open_sum(
        sizes, {site: answer(sizes, site, noisy[site], secrets[site]) for site in range(len(noisy))}
    )


def pair_secrets(stream: Stream, sites: int) -> list[dict[int, bytes]]:
    """Return what each site shares with each other one, drawn in process from the run's key.

    Parties on machines of their own agree on them instead; see `dpmesh.deploy.sums`.
    """
    secrets: list[dict[int, bytes]] = [{} for _ in range(sites)]
    words = np.empty(8, np.uint32)
    for low in range(sites):
        for high in range(low + 1, sites):
            stream.words(_FIRST_PAIR + low * sites + high, words)
            secrets[low][high] = secrets[high][low] = words.astype("<u4").tobytes()
    return secrets
