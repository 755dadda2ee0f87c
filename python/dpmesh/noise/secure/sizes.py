"""The public numbers of a secure sum: its grid, sensitivity, shares of noise, and modulus.

A secure sum is the distributed discrete Gaussian mechanism (Kairouz, Liu and Steinke 2021), but
vectors are rounded to the nearest step of a grid, without a random rotation before. It adds up one
vector of d numbers from each of n sites: the sum over its records of vectors of norm at most C. Its
public numbers are, in the order in which they follow from each other:

    width of a step       gamma = C / S
    sensitivity           Delta = U / gamma + sqrt(d) + (rounding in float64), in steps, where the
                          sum before rounding has sensitivity U: 2 C if a record is replaced (or
                          `diameter` times C), C if it is added or removed
    share of noise        sigma = z Delta / sqrt(n - c - l), in steps: the scale of each site's
                          noise, so that the n - c - l shares which the adversary never knows have
                          the scale z Delta together
    modulus               2^k, large enough for the sum and its noise but for a probability of
                          2^-20 in a run

All of them follow from numbers that the sites agree on before a run, so that every site computes
the same ones, and a report can be made without data. `dpmesh.noise.secure.neighbors.NeighborSums`
has numbers of the same names for sums over neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, exp, log, log2, sqrt
from typing import get_args

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Floats, NeighboringRelation
from dpmesh._ragged import Indices
from dpmesh._validate import every, fail, integer, one_of, positive, probability
from dpmesh.accounting.shares import (
    SMALLEST_SHARE,
    sum_of_shares_epsilon,
    sum_of_shares_noise_to_sensitivity,
)
from dpmesh.keys import Stream
from dpmesh.noise.grid import MOST_STEPS

WRAP_PROBABILITY = 2.0**-20
"""Largest probability that any number of any sum of a run leaves the modulus."""

MOST_BITS = 64
_MOST_GRID_STEPS = 2**40


@dataclass(frozen=True, kw_only=True)
class SecureSum:
    """A sum of clipped vectors over sites, on an integer grid, with a share of noise from each.

    A site clips each record's vector to `clipping_norm`, sums them, rounds the sum to the grid,
    adds discrete Gaussian noise of scale `share`, and masks the result modulo ``2**bits``. The sum
    of all masked vectors reveals the sum with the noise of all shares, and nothing else.

    Parameters
    ----------
    dim
        Length of the vectors, d.
    sites
        Number of sites, n.
    records
        Number of records of all sites together, N: a public constant, from which the modulus is
        computed. More records make a wrap-around more likely and change nothing else.
    noise_to_sensitivity
        Scale of the noise that the adversary does not know, over the `sensitivity`.
    clipping_norm
        Largest L2 norm of a record's vector, C.
    colluding
        Number of sites whose shares the adversary knows, c. At least 1 protects against another
        site, which can subtract its own share; 0 protects against an outside server alone.
    dropouts
        Number of sites that may be lost for good, l. An attempt without them is one more release.
    rounds
        Number of sums that a run publishes.
    sampling_rate
        Probability in (0, 1] with which each record takes part in a sum.
    neighboring_relation
        ``"replace_one"``, or ``"add_remove"``, under which sampling amplifies privacy.
    records_per_site
        Largest number of records of one site, B; by default `records`. It bounds the
        floating-point rounding of a site's sum.
    grid_steps
        Steps of the grid in a `clipping_norm`, S: a power of 2. By default the smallest of at least
        ``2**7 sqrt(dim)`` for which the share is at least 4. If float64 would round the sum of the
        records by more than a step, the grid is coarser, of at least ``2**5 sqrt(dim)`` steps:
        noise is then larger by up to 3%.
    bits
        Bits of the modulus, k; by default enough for a wrap-around probability of 2**-20.
    diameter
        Largest L2 distance between the vectors of two records, in clipping norms: 2, unless they
        are closer together, as vectors of non-negative numbers are (sqrt(2)).
    reserve
        Number of releases for attempts that fail, beside one release for each sum. At least
        `dropouts`, which is the default.

    Raises
    ------
    ValueError
        If an argument is out of its range; fewer than two honest sites are left; the share of noise
        is not between 4 and 2**25 steps; rounding in floating point may exceed one step; or `bits`
        are so few that a run wraps around with a probability above 2**-20.

    Examples
    --------
    >>> import dpmesh as dm
    >>> numbers = dm.noise.secure.SecureSum(dim=10, sites=5, records=1000, noise_to_sensitivity=8.0)
    >>> numbers.bits
    """

    dim: int
    sites: int
    records: int
    noise_to_sensitivity: float
    clipping_norm: float = 1.0
    colluding: int = 1
    dropouts: int = 0
    rounds: int = 1
    sampling_rate: float = 1.0
    neighboring_relation: NeighboringRelation = "replace_one"
    records_per_site: int | None = None
    grid_steps: int | None = None
    bits: int | None = None
    diameter: float = 2.0
    reserve: int | None = None

    def __post_init__(self) -> None:
        every(self, integer, "dim", "sites", "records", "rounds", at_least=1, below=2**32)
        every(self, integer, "colluding", "dropouts")
        every(self, integer, "reserve", at_least=self.dropouts, below=2**31)
        every(self, positive, "noise_to_sensitivity", "clipping_norm")
        every(self, probability, "sampling_rate", zero=False)
        one_of("neighboring_relation", self.neighboring_relation, get_args(NeighboringRelation))
        every(self, integer, "records_per_site", at_least=1, below=self.records + 1)
        if positive("diameter", self.diameter) > 2:
            fail("diameter", "at most 2, that of a ball of radius clipping_norm", self.diameter)
        self._check_sites()
        self._check_grid()
        self._check_share()
        self._check_bits()

    def _check_sites(self) -> None:
        """Fail if fewer than two honest sites are left."""
        if self.honest < 2:
            expected = "at least 2 honest sites left, sites - colluding - dropouts"
            honest_sites = f"{self.sites} - {self.colluding} - {self.dropouts} = {self.honest}"
            advice = "add sites, or allow fewer of them to collude or drop"
            fail("sites", expected, f"{honest_sites}; {advice}")

    def _check_grid(self) -> None:
        """Fail unless the grid is a power of 2, and wider than the rounding of sums in float64."""
        if self.grid_steps is not None:
            steps = integer("grid_steps", self.grid_steps, at_least=1, below=_MOST_GRID_STEPS + 1)
            if steps & (steps - 1):
                fail("grid_steps", "a power of 2", steps)
        if self._rounding > 1:
            expected = "so few records that float64 rounds their sum by at most one grid step"
            got = f"{self._most_records_of_site}, which it may round by {self._rounding:.3g} steps"
            fail("records_per_site", expected, got)

    def _check_share(self) -> None:
        """Fail unless the share of noise is in the range of its proof and of the sampler."""
        if SMALLEST_SHARE <= self.share <= MOST_STEPS:
            return
        parameter = "noise_to_sensitivity"
        if self.grid_steps:
            parameter = "grid_steps"
        expected = f"a share of noise between {SMALLEST_SHARE:g} and 2**25 steps of the grid"
        fail(parameter, expected, f"{self.share:g}")

    def _check_bits(self) -> None:
        """Fail if the modulus is too large for a number, or so small that sums may wrap around."""
        every(self, integer, "bits", at_least=2, below=MOST_BITS + 1)
        if self.modulus_bits > MOST_BITS:
            fail("records", f"sums that {MOST_BITS} bits can hold", f"{self.modulus_bits} bits")
        wraps = self.wrap_probability
        if wraps > WRAP_PROBABILITY:
            expected = f"at least {self._bits_by_rule}, so that sums wrap around with a probability"
            fail("bits", f"{expected} of at most 2**-20", f"{self.bits} (at most {wraps:.2g})")

    def assumptions_about(self, parties: str) -> tuple[str, ...]:
        """Return the assumptions of the guarantee that the proof does not cover, in words.

        Parameters
        ----------
        parties
            Plural noun for the parties, such as ``"sites"`` or ``"clients"``.
        """
        against = "the server"
        if self.colluding:
            against = f"the server and {self.colluding} of the {parties}"
        return (
            f"the guarantee is against {against}; if more collude it is weaker",
            f"all {parties} run this code; timing is not observed",
            "X25519, HKDF and AES are secure (standard cryptographic assumptions), "
            f"if {parties} are on separate machines",
        )

    @property
    def honest(self) -> int:
        """Shares of noise that the adversary never knows: sites - colluding - dropouts."""
        return self.sites - self.colluding - self.dropouts

    @property
    def fewest_parties(self) -> int:
        """Smallest number of sites with which a run goes on."""
        return self.sites - self.dropouts

    def is_cohort(self, parties: tuple[int, ...], receiver: int = 0) -> bool:
        """Return True if these sites are enough for the noise of the guarantee."""
        return len(parties) >= self.fewest_parties

    @property
    def attempts(self) -> int:
        """Number of releases in the cost of a run: its rounds and the reserve."""
        return self.rounds + reserved(self.dropouts, self.reserve)

    @cached_property
    def steps(self) -> int:
        """Steps of the grid in a `clipping_norm`, S."""
        if self.grid_steps is not None:
            return self.grid_steps
        steps = 1 << max(0, ceil(log2(2**7 * sqrt(self.dim))))
        while self._share_at(steps) < SMALLEST_SHARE and steps < _MOST_GRID_STEPS:
            steps *= 2
        fewest_steps = 2**5 * sqrt(self.dim)
        while self._rounding_at(steps) > 1:
            fewer = steps // 2
            if fewer < fewest_steps or self._share_at(fewer) < SMALLEST_SHARE:
                break
            steps = fewer
        return steps

    @property
    def grid(self) -> float:
        """Width of a step of the grid, gamma = C / S, in the units of the vectors."""
        return self.clipping_norm / self.steps

    @property
    def unrounded_sensitivity(self) -> float:
        """L2 sensitivity of the sum to one record before rounding, in units of the vectors, U."""
        if self.neighboring_relation == "replace_one":
            return self.diameter * self.clipping_norm
        return self.clipping_norm

    @cached_property
    def sensitivity(self) -> float:
        """L2 sensitivity of the rounded sum to one record, in steps of the grid, Delta.

        Rounding to the nearest step moves two sums apart by at most 1 more in each coordinate, an
        L2 distance of sqrt(dim). The rounding of float64 is added.
        """
        return self._sensitivity_at(self.steps)

    @cached_property
    def share(self) -> float:
        """Scale of one site's noise, in steps of the grid, sigma."""
        return self._share_at(self.steps)

    @cached_property
    def noise_scale(self) -> float:
        """Scale of all sites' shares together, in the units of the vectors."""
        return self.share * sqrt(self.sites) * self.grid

    @property
    def smallest_share(self) -> float:
        """The `share`, which is the same for all sites."""
        return self.share

    @property
    def released_scalars(self) -> int:
        """Number of released scalars that one record affects: those of one sum."""
        return self.dim

    @property
    def modulus_bits(self) -> int:
        """Bits of the modulus, k."""
        if self.bits is None:
            return self._bits_by_rule
        return self.bits

    @property
    def message_bytes(self) -> int:
        """Length of a site's masked vector in bytes."""
        return (self.dim * self.modulus_bits + 7) // 8

    @property
    def wrap_probability(self) -> float:
        """Bound on the probability that any number of any sum of a run leaves the modulus."""
        room = 2.0 ** (self.modulus_bits - 1) - 1 - self._largest_sum
        if room <= 0:
            return 1.0
        scale = self.share * sqrt(self.sites)
        scalars = self.dim * self.attempts
        rare_batches = 0.0
        if self.sampling_rate < 1:
            rare_batches = WRAP_PROBABILITY / 2
        return min(1.0, rare_batches + scalars * wrap_bound(0.0, scale, room))

    def noise_to_sensitivity_against(self, unknown_shares: int) -> float:
        """Return the noise ratio against an adversary that knows all but `unknown_shares` shares.

        Raises
        ------
        ValueError
            If it is not an integer from 0 to the number of sites.
        """
        shares = integer("unknown_shares", unknown_shares, below=self.sites + 1)
        return self.share * sqrt(shares) / self.sensitivity

    def epsilon(self, delta: float) -> float:
        """Return the proved epsilon of a run at `delta`, all attempts included.

        The adversary is the server together with `colluding` sites; see
        `accounting.shares.sum_of_shares_epsilon`.
        """
        return sum_of_shares_epsilon(
            delta=delta,
            noise_to_sensitivity=self.noise_to_sensitivity,
            scale=self.noise_to_sensitivity * self.sensitivity,
            share=self.share,
            sites=self.sites,
            dim=self.dim,
            neighboring_relation=self.neighboring_relation,
            sampling_rate=self.sampling_rate,
            count=self.attempts,
        )

    @property
    def nodes(self) -> int:
        """Number of nodes that contribute: the sites."""
        return self.sites

    @cached_property
    def receivers(self) -> tuple[tuple[int, ...], ...]:
        """Sites that contribute to each sum: there is one sum, of all sites."""
        return (tuple(range(self.sites)),)

    def steps_of(self, sums: Floats) -> npt.NDArray[np.int64]:
        """Return sums in steps of the grid, rounded to the nearest integer."""
        rounded = np.rint(sums * (self.steps / self.clipping_norm))
        steps: npt.NDArray[np.int64] = rounded.astype(np.int64)
        return steps

    def noise(self, receiver: int, sites: Indices, stream: Stream) -> npt.NDArray[np.int64]:
        """Return the shares of noise of some sites, shape (sites, dim), in steps.

        Parameters
        ----------
        receiver
            0, since there is one sum.
        sites
            Indices of the sites, shape (sites,).
        stream
            Randomness of this release alone: site i draws from the stream of node i.
        """
        nodes = np.asarray(sites, np.uint32)
        return kernels.discrete_gaussian((len(nodes), self.dim), self.share, stream, nodes=nodes)

    @property
    def _most_records_of_site(self) -> int:
        """Largest number of records of one site, B."""
        if self.records_per_site is None:
            return self.records
        return self.records_per_site

    @property
    def _rounding(self) -> float:
        """Float64 error between two neighbouring sums, in steps of the grid."""
        return self._rounding_at(self.steps)

    def _rounding_at(self, steps: int) -> float:
        """Return the float64 error between two neighbouring sums, for so many steps in C.

        It bounds the rounding of additions, of clipping and of the division by the grid.
        """
        records = self._most_records_of_site
        return (2.0 * records * (records + 2) + 2 * self.dim) * 2.0**-53 * steps

    def _sensitivity_at(self, steps: int) -> float:
        """Return the sensitivity of the rounded sum, in steps, for so many steps in C."""
        unrounded = self.unrounded_sensitivity / self.clipping_norm * steps
        return unrounded + sqrt(self.dim) + self._rounding_at(steps)

    def _share_at(self, steps: int) -> float:
        """Return the scale of one site's noise, in steps, for so many steps in C."""
        return self.noise_to_sensitivity * self._sensitivity_at(steps) / sqrt(self.honest)

    @cached_property
    def _largest_sum(self) -> float:
        """Bound on a coordinate of the rounded sum in all but rare batches (`WRAP_PROBABILITY`)."""
        batch = float(self.records)
        if self.sampling_rate < 1:
            from scipy.stats import binom

            rare = WRAP_PROBABILITY / 2 / self.attempts
            batch = float(binom.isf(rare, self.records, self.sampling_rate))
        return batch * self.steps + self.sites / 2

    @cached_property
    def _bits_by_rule(self) -> int:
        """Bits for which sums wrap around with a probability of at most `WRAP_PROBABILITY`."""
        scalars = 4 * self.dim * self.attempts / WRAP_PROBABILITY
        noise = self.share * sqrt(self.sites) * sqrt(2 * log(scalars))
        return ceil(log2(2 * (self._largest_sum + noise) + 2))


def reserved(dropouts: int, reserve: int | None) -> int:
    """Return the number of planned releases for failed attempts: `reserve`, else `dropouts`."""
    if reserve is None:
        return dropouts
    return reserve


def wrap_bound(offset: float, noise_scale: float, half_range: float) -> float:
    """Bound the probability that an offset plus noise leaves ``[-half_range, half_range)``.

    Discrete Gaussian noise, and sums of it, are subgaussian of their scale (Canonne, Kamath and
    Steinke 2020): a tail beyond x has a probability of at most ``exp(-x^2 / (2 noise_scale^2))``.

    Parameters
    ----------
    offset, noise_scale, half_range
        In steps of the grid; the scale is that of all shares together.
    """
    room = half_range - abs(offset)
    if room <= 0:
        return 1.0
    return min(1.0, 2 * exp(-(room**2) / (2 * noise_scale**2)))


def calibrated_sum(sums: SecureSum, *, epsilon: float, delta: float) -> SecureSum:
    """Return a secure sum with the least noise that keeps a budget.

    Parameters
    ----------
    sums
        The secure sum with any noise. All its other parameters are kept.
    epsilon, delta
        The budget of a run, all attempts included; see `SecureSum.epsilon`.

    Raises
    ------
    ValueError
        If a number is out of its range, or no noise keeps the budget.
    """
    trial = replace(sums, noise_to_sensitivity=1.0, bits=None)
    noise_ratio = sum_of_shares_noise_to_sensitivity(
        target_epsilon=epsilon,
        target_delta=delta,
        scale_per_multiplier=trial.sensitivity,
        unknown=trial.honest,
        sites=trial.sites,
        dim=trial.dim,
        neighboring_relation=trial.neighboring_relation,
        sampling_rate=trial.sampling_rate,
        count=trial.attempts,
    )
    return replace(sums, noise_to_sensitivity=noise_ratio)
