"""Private sums of records' vectors over all sites, for statistics and for means before learning.

Each record r has a vector v_r. In a round every site i sums the vectors of its records to s_i, and
the noisy sum s over all sites is released:

    s_i     = sum_(r at i) v_r                        |v_r| <= C, |v_r - v_r'| <= D C for any two
    s       = gamma sum_i (rint(s_i / gamma) + e_i)           e_i ~ N_Z(0, share^2)

Here C is `longest`, D is `diameter`, gamma is the spacing of the grid, and e_i is a site's share of
discrete Gaussian noise. Under secure aggregation the server learns only s, and the shares of the
honest sites suffice for the guarantee. Without secure aggregation each site releases s_i itself,
with noise that suffices for one site.

``problem.vectors(node)`` returns the vectors of a node's records in blocks of shape (records, dim).
A vector must be a function of its record and of public numbers. Replacing a record then moves one
s_i by at most D C.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import floor, log2, sqrt
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from scipy import sparse

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._validate import every, fail, integer, positive
from dpmesh.algorithms.base import KNOWN_TO_ALL, Algorithm, assumed_copies
from dpmesh.algorithms.messages import Message, Round
from dpmesh.algorithms.worst_case import CROWD_DELTA, AuditSize, Coins, Crowd, Pair
from dpmesh.keys import Key
from dpmesh.noise.mechanisms import Gaussian, NoNoise
from dpmesh.noise.secure import DistributedDiscreteGaussian, SecureSum
from dpmesh.noise.secure.sizes import calibrated_sum
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.problems import VectorProblem
from dpmesh.problems.canaries import Vectors

_GRID_STEPS = 2.0**7
"""Least ratio of the `sensitivity` to the grid of a site's local sum, over sqrt(dim)."""


_HUGE = 2.0**600
"""Power of two by which vectors are divided if their squares overflow."""


class RecordVectors(Protocol):
    """Protocol of a problem whose records are vectors, to be summed."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""

    def vectors(self, node: int) -> Iterator[Any]:
        """Return the vectors of a node's records in blocks, each of shape (records, dim)."""


@dataclass(frozen=True, kw_only=True)
class RecordSumsState:
    """Mean `total` of the sums released so far, shape (1, dim); zeros before the first."""

    total: Released = field(metadata=KNOWN_TO_ALL)


@dataclass(frozen=True, kw_only=True)
class RecordSums(Algorithm[RecordSumsState, VectorProblem]):
    """Noisy sum of all sites' record vectors, by secure aggregation or from local noisy sums.

    Private means, histograms and other statistics follow from such sums.

    Parameters
    ----------
    dim
        Length d of a record's vector.
    sites
        Number of sites.
    records
        Number of records of all sites together: a public constant.
    noise_to_sensitivity
        Standard deviation of the noise that the adversary does not know, over the L2 sensitivity
        of the sum, `diameter` times `longest`. `for_budget` computes it from epsilon and delta.
        None for no noise, for comparison, if `secure` is False.
    longest
        Largest L2 norm of a record's vector, C; longer ones are clipped.
    diameter
        D, the largest L2 distance between two records' vectors, divided by `longest`; at most 2.
        Clipping alone ensures 2. A smaller value must follow from how the problem makes its
        vectors, and is listed as an assumption in the report.
    colluding
        Number of sites that may collude with the server under secure aggregation.
    secure
        True to sum by secure aggregation; False to let each site release a local noisy sum.
    dropouts
        Number of sites that may drop out for good under secure aggregation; the plan has one more
        release for each.
    rounds
        Number of releases of the same sum. The estimate is their mean.

    Guarantee
    ---------
    All releases together are (epsilon, delta)-DP, as `plan` computes, for replacing one record of
    one site. Under secure aggregation the adversary is the server colluding with `colluding` sites;
    else it reads all messages.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.algorithms.RecordSums(dim=3, sites=4, records=100, noise_to_sensitivity=9.0).rounds
    1
    """

    communication = "server"
    parameters_are_released = True
    follows_from_sizes = ("dim", "sites", "records", "rounds")
    messages_need_no_trust = "what a site adds up depends on nothing that others send"

    ensured: ClassVar[float] = 2.0
    """Diameter that clipping alone ensures. A smaller `diameter` is an assumption."""

    dim: int
    sites: int
    records: int
    noise_to_sensitivity: float | None
    longest: float = 1.0
    diameter: float = 2.0
    colluding: int = 1
    dropouts: int = 0
    secure: bool = True
    rounds: int = 1

    def __post_init__(self) -> None:
        every(self, integer, "dim", "sites", "records", "rounds", at_least=1)
        positive("longest", self.longest)
        integer("dropouts", self.dropouts)
        if positive("diameter", self.diameter) > 2:
            fail("diameter", "at most 2, that of a ball", self.diameter)
        if self.secure and self.noise_to_sensitivity is None:
            fail(
                "noise_to_sensitivity", "a number under a secure sum, whose shares are noise", None
            )
        _ = self.mechanism  # checks the other numbers

    def least_secure_noise(self, epsilon: float, delta: float) -> float | None:
        """Return the least `noise_to_sensitivity` of secure aggregation for a budget.

        None without secure aggregation.
        """
        if not self.secure:
            return None
        sums = self._secure_sum_of_noise(1.0)
        calibrated = calibrated_sum(sums, epsilon=epsilon, delta=delta)
        return calibrated.noise_to_sensitivity

    def _secure_sum_of_noise(self, noise_to_sensitivity: float) -> SecureSum:
        """Return the public parameters of secure aggregation with this much noise."""
        return SecureSum(
            dim=self.dim,
            sites=self.sites,
            records=self.records,
            noise_to_sensitivity=noise_to_sensitivity,
            clipping_norm=self.longest,
            colluding=self.colluding,
            dropouts=self.dropouts,
            rounds=self.rounds,
            diameter=self.diameter,
        )

    @cached_property
    def secure_sum(self) -> SecureSum | None:
        """Public parameters of secure aggregation; None without it."""
        if not self.secure or self.noise_to_sensitivity is None:
            return None
        return self._secure_sum_of_noise(self.noise_to_sensitivity)

    @cached_property
    def mechanism(self) -> DistributedDiscreteGaussian | Gaussian | NoNoise:
        """Noise mechanism of a release.

        Under secure aggregation each site adds a share of the noise. Without it, each site adds
        noise that suffices for its local sum, on a grid whose rounding is small beside the
        sensitivity.
        """
        if self.noise_to_sensitivity is None:
            return NoNoise()
        if self.secure_sum is not None:
            return DistributedDiscreteGaussian(self.secure_sum)
        largest_spacing = self.diameter * self.longest / (_GRID_STEPS * sqrt(self.dim))
        return Gaussian(self.noise_to_sensitivity, grid=2.0 ** floor(log2(largest_spacing)))

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise in each coordinate of the mean over rounds."""
        if self.secure_sum is not None:
            return self.secure_sum.noise_scale / sqrt(self.rounds)
        if self.noise_to_sensitivity is None:
            return 0.0
        local_scale = self.mechanism.noise_scale(self.sensitivity(0), self.dim)
        return local_scale * sqrt(self.sites / self.rounds)

    @property
    def noise_scales(self) -> tuple[float, ...]:
        """The `noise_scale` as a tuple of one number; `AdaptiveSums` has one for each sum."""
        return (self.noise_scale,)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee that this package cannot check, in words."""
        assumptions: list[str] = []
        if self.secure_sum is not None:
            assumptions += self.secure_sum.assumptions_about("sites")
        if self.diameter < self.ensured:
            distance = f"at most {self.diameter:.4g} times the clipping norm apart"
            assumptions.append(f"the vectors of any two records are {distance}")
        return (*assumptions, *assumed_copies(1))

    def sensitivity(self, t: int) -> Sensitivity:
        """Return the L2 sensitivity of the sum to one record, before rounding to the grid."""
        moved = self.diameter * self.longest
        return Sensitivity(moved, "l2", f"{self.diameter:g} C, one record's vector replaced")

    def plan(self, rounds: int, problem: Any = None) -> Plan:
        """Return the releases of a run; under secure aggregation, one more for each dropout."""
        return super().plan(rounds + self.dropouts * self.secure, problem)

    def release_of(self, t: int) -> Release:
        """Return the release of round t: one joint sum over all sites, or each site's sum."""
        return Release(t, self.mechanism, self.sensitivity(t))

    def leaking_data(self, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return problems for audits: one canary record, and many, all at the first site.

        The two vectors of a canary are `diameter` times `longest` apart. The number of canaries
        sets `dim`.
        """

        def problem_of(coins: Coins) -> Vectors:
            return Vectors(rows=self.canaries(coins)[0], nodes=self.sites)

        _, directions = self.canaries(np.ones(1, np.bool_))
        rounds = size.rounds or self.rounds
        pair = Pair(
            algorithm=replace(self, dim=directions.shape[1]),
            problem=problem_of(np.array([True])),
            neighbor=problem_of(np.array([False])),
            rounds=rounds,
            delta=size.delta_or(1e-5),
        )
        _, directions = self.canaries(np.ones(size.canaries, np.bool_))
        records = max(self.records, size.canaries)
        crowd = Crowd(
            algorithm=replace(self, dim=directions.shape[1], records=records),
            problem_of=problem_of,
            canaries=size.canaries,
            rounds=rounds,
            delta=CROWD_DELTA,
            scores=partial(_projections, directions),
        )
        return pair, crowd

    def canaries(self, coins: Coins) -> tuple[Floats, Floats]:
        """Return the vectors of canary records, and their directions, both of shape (coins, dim).

        A direction is a unit vector. A canary's vector is plus `diameter` times `longest` / 2 times
        its direction if its coin is True, and minus the same vector if not.
        """
        directions = np.eye(len(coins))
        signed_halves = coins[:, np.newaxis] - 0.5
        return self.longest * self.diameter * signed_halves * directions, directions

    def init(self, problem: VectorProblem, key: Key) -> RecordSumsState:
        """Return the state before round 0: an estimate of zeros.

        Raises
        ------
        ValueError
            If the problem's number of nodes is not `sites`.
        """
        all_sites = len(getattr(problem, "all_records", range(problem.nodes)))
        if self.sites not in (problem.nodes, all_sites):
            fail("problem", f"records of {self.sites} sites", f"{problem.nodes} nodes")
        return RecordSumsState(total=Released(np.zeros((1, self.dim))))

    def round(
        self, state: RecordSumsState, t: int, problem: VectorProblem, key: Key
    ) -> Round[RecordSumsState]:
        """Sum the vectors at each site, and release the sum over all sites."""
        arrived = yield self.message(problem, t)
        total = arrived.sum(axis=0, keepdims=True)
        return RecordSumsState(total=Released(state.total + (total - state.total) / (t + 1)))

    def message(self, problem: RecordVectors, t: int) -> Message:
        """Return the message of round t: the local sums of all nodes, shape (nodes, dim)."""
        sums = np.stack([self._sum(problem, node) for node in range(problem.nodes)])
        length = 64 * self.dim
        if self.secure_sum is not None:
            length = 8 * self.secure_sum.message_bytes
        release = self.release_of(t)
        bits = self.sites * length
        return Message(Sensitive(sums), release, copies=self.sites, bits=bits)

    def _sum(self, problem: RecordVectors, node: int) -> Floats:
        total = np.zeros(self.dim)
        for block in problem.vectors(node):
            total += clipped_sum(block, self.longest)
        return total

    def parameters(self, state: RecordSumsState) -> Floats:
        """Return the estimate of the sum, shape (1, dim)."""
        return state.total


def clipped_sum(block: Floats | sparse.csr_array, longest: float) -> Floats:
    """Return the sum of vectors, each clipped to an L2 norm of at most `longest`.

    Parameters
    ----------
    block
        The vectors, shape (records, dim), dense or sparse.
    longest
        Largest L2 norm, positive.

    Returns
    -------
    Shape (dim,).
    """
    if not isinstance(block, sparse.csr_array):
        return np.asarray(kernels.clip_rows(block, longest).sum(axis=0))
    factors = longest / np.maximum(_norms_of_sparse_rows(block), longest)
    return np.asarray(factors @ block)


def _norms_of_sparse_rows(block: sparse.csr_array) -> npt.NDArray[np.float64]:
    """Return the L2 norms of sparse rows, also of rows whose squares overflow float64."""
    with np.errstate(over="ignore"):
        norms: npt.NDArray[np.float64]
        norms = np.sqrt(np.asarray(block.multiply(block).sum(axis=1)).ravel())
    overflows = ~np.isfinite(norms)
    if not overflows.any():
        return norms
    if not np.isfinite(block.data).all():
        fail("vectors", "finite numbers", "NaN or infinity")
    small_rows = sparse.csr_array(block[np.flatnonzero(overflows)]) / _HUGE
    with np.errstate(over="ignore"):
        small_norms = np.sqrt(np.asarray(small_rows.multiply(small_rows).sum(axis=1)).ravel())
        norms[overflows] = small_norms * _HUGE
    return norms


def _projections(directions: Floats, run: Any) -> npt.NDArray[np.float64]:
    """Return the released sums of a run, projected onto each direction, shape (directions,).

    Row 0 of a release is the sum over all sites, or without secure aggregation the first site's.
    """
    return np.asarray(directions @ sum(values[0] for values in run.released))
