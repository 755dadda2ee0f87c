"""Private sums of records' vectors in several rounds, each of which may depend on earlier sums.

In round t the sum s^t (the *total*) of all records' vectors v_r^t is released with noise:

    v_r^t   = a function of record r, of public numbers, and of the totals s^0, .., s^(t-1)
    s^t     = sum_r Clip(v_r^t, C_t) + noise            |v_r^t - v_r'^t| <= D_t for any two records

Newton steps of a regression are such sums. The noise has the same standard deviation sigma in all
rounds. Given the earlier totals, round t is a Gaussian release of sensitivity D_t. By adaptive
composition all rounds together have the epsilon of one release of sensitivity
``sqrt(sum_t D_t^2)`` with this noise.

``problem.in_round(t, totals)`` returns a problem with the vectors of round t, as `RecordSums` sums
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from math import fsum, sqrt
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dpmesh._privacy_types import Floats, Released
from dpmesh._validate import every, fail, integer, positive
from dpmesh.algorithms.base import KNOWN_TO_ALL, Algorithm, assumed_copies
from dpmesh.algorithms.messages import Round
from dpmesh.algorithms.record_sums import RecordSums
from dpmesh.algorithms.worst_case import CROWD_DELTA, AuditSize, Coins, Crowd, Pair
from dpmesh.keys import Key
from dpmesh.noise.secure import SecureSum
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.problems import Problem, VectorProblem
from dpmesh.problems.canaries import Vectors


class NoisyTotal(NamedTuple):
    """The released sum of all records' vectors in a round.

    Attributes
    ----------
    total
        The noisy sum, shape (length,).
    noise
        Standard deviation of the noise in each number.
    """

    total: npt.NDArray[np.float64]
    noise: float


class AdaptiveProblem(Problem, Protocol):
    """Protocol of a problem whose records' vectors depend on the totals of earlier rounds."""

    def in_round(self, t: int, totals: Sequence[NoisyTotal]) -> VectorProblem:
        """Return a problem with the vectors of round t, given the totals of rounds 0 to t - 1."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveSumsState:
    """Concatenated totals of all rounds, shape (1, sum of lengths); 0 before their release."""

    totals: Released = field(metadata=KNOWN_TO_ALL)


@dataclass(frozen=True, kw_only=True)
class AdaptiveSums(Algorithm[AdaptiveSumsState, AdaptiveProblem]):
    """Noisy sums of records' vectors over several rounds, each of which may use earlier sums.

    Newton steps of a private regression are such sums. All rounds have noise of the same standard
    deviation.

    Parameters
    ----------
    lengths
        Length of a record's vector in each round, a tuple.
    longest
        Largest L2 norm C_t of a record's vector in each round; longer vectors are clipped.
    distances
        Largest L2 distance D_t between the vectors of two records in each round, at most 2 C_t.
        Clipping alone ensures 2 C_t. A smaller value must follow from how the problem makes its
        vectors, and is listed as an assumption in the report.
    sites
        Number of sites.
    records
        Number of records of all sites together: a public constant.
    noise_to_sensitivity
        Standard deviation of the noise that the adversary does not know, over the L2 sensitivity
        of all sums together, ``sqrt(sum_t D_t^2)``. `for_budget` computes it from epsilon and
        delta.
    colluding, dropouts, secure
        As in `RecordSums`. For each dropout the plan has one more release in each round.

    Guarantee
    ---------
    All sums together are (epsilon, delta)-DP, as `plan` computes, for replacing one record of one
    site. With `secure` the adversary is the server colluding with `colluding` sites; without it,
    the adversary sees all messages.

    Examples
    --------
    >>> import dpmesh as dm
    >>> sums = dm.algorithms.AdaptiveSums(
    ...     lengths=(3, 6), longest=(1.0, 1.0), distances=(0.6, 0.8), sites=4, records=100,
    ...     noise_to_sensitivity=9.0)
    >>> sums.run_length
    2
    """

    communication = "server"
    parameters_are_released = True
    follows_from_sizes = ("sites", "records")
    messages_need_no_trust = (
        "what a site adds up follows from its records and from totals that all parties have"
    )

    lengths: tuple[int, ...]
    longest: tuple[float, ...]
    distances: tuple[float, ...]
    sites: int
    records: int
    noise_to_sensitivity: float
    colluding: int = 1
    dropouts: int = 0
    secure: bool = True

    def __post_init__(self) -> None:
        every(self, integer, "sites", "records", at_least=1)
        integer("dropouts", self.dropouts)
        positive("noise_to_sensitivity", self.noise_to_sensitivity)
        for name in ("lengths", "longest", "distances"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not len(self.lengths) == len(self.longest) == len(self.distances) > 0:
            expected = "as many as lengths and longest, at least 1: one for each round"
            fail("distances", expected, len(self.distances))
        _ = self.parts  # computing them checks the other parameters

    @cached_property
    def distance(self) -> float:
        """L2 sensitivity of all sums together to one record, ``sqrt(sum_t D_t^2)``."""
        return sqrt(fsum(distance**2 for distance in self.distances))

    @cached_property
    def parts(self) -> tuple[RecordSums, ...]:
        """The sum of each round as a `RecordSums`."""
        return tuple(
            RecordSums(
                dim=length,
                sites=self.sites,
                records=self.records,
                noise_to_sensitivity=self.noise_to_sensitivity * self.distance / distance,
                longest=longest,
                diameter=distance / longest,
                colluding=self.colluding,
                dropouts=self.dropouts,
                secure=self.secure,
            )
            for length, longest, distance in zip(
                self.lengths, self.longest, self.distances, strict=True
            )
        )

    @property
    def run_length(self) -> int:
        """Number of rounds, one for each of `lengths`."""
        return len(self.lengths)

    @property
    def secure_sum(self) -> SecureSum | None:
        """Public parameters of the first round's secure aggregation; None without it."""
        return self.parts[0].secure_sum

    @property
    def noise_scales(self) -> tuple[float, ...]:
        """Standard deviation of the noise in each number of each round's sum over all sites."""
        return tuple(part.noise_scale for part in self.parts)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee that this package cannot check, in words."""
        assumptions: list[str] = []
        if self.secure_sum is not None:
            assumptions += self.secure_sum.assumptions_about("sites")
        diameters = [part.diameter for part in self.parts]
        if min(diameters) < RecordSums.ensured:
            assumptions.append(
                f"the vectors of any two records are at most {min(diameters):.4g} to "
                f"{max(diameters):.4g} times the clipping norm apart, by round"
            )
        return (*assumptions, *assumed_copies(1))

    def sensitivity(self, t: int) -> Sensitivity:
        """Return the L2 sensitivity of round t's sum to one record, before rounding to the grid."""
        return self.parts[t].sensitivity(t)

    def plan(self, rounds: int, problem: Any = None) -> Plan:
        """Return the releases of a run; under secure aggregation, each once more per dropout."""
        plan = super().plan(rounds, problem)
        attempts = 1
        if self.secure:
            attempts += self.dropouts
        releases: list[Release] = []
        for release in plan.releases:
            releases += [release] * attempts
        return replace(plan, releases=tuple(releases))

    def release_of(self, t: int) -> Release:
        """Return the release of round t: one joint sum over all sites, or each site's sum."""
        if not t < self.run_length:
            fail("rounds", f"at most {self.run_length}, of which each has its vectors", t + 1)
        return self.parts[t].release_of(t)

    def init(self, problem: AdaptiveProblem, key: Key) -> AdaptiveSumsState:
        """Return the state before round 0: totals of zeros.

        Raises
        ------
        ValueError
            If the problem's number of nodes is not `sites`.
        """
        self.parts[0].init(problem.in_round(0, ()), key)
        return AdaptiveSumsState(totals=Released(np.zeros((1, sum(self.lengths)))))

    def totals(self, concatenated: npt.NDArray[Any]) -> list[Floats]:
        """Return the total of each round, shape (length,), from the concatenated totals."""
        ends = np.cumsum((0, *self.lengths))
        return [concatenated[first:last] for first, last in pairwise(ends)]

    def round(
        self, state: AdaptiveSumsState, t: int, problem: AdaptiveProblem, key: Key
    ) -> Round[AdaptiveSumsState]:
        """Sum the vectors at each site, and release the sum over all sites."""
        earlier = self.totals(state.totals[0])[:t]
        released = [
            NoisyTotal(np.asarray(total, np.float64), noise)
            for total, noise in zip(earlier, self.noise_scales, strict=False)
        ]
        arrived = yield self.parts[t].message(problem.in_round(t, released), t)
        totals = np.concatenate([*earlier, arrived.sum(axis=0)])
        later_rounds = state.totals.shape[1] - len(totals)
        padded = np.pad(totals, (0, later_rounds))
        return AdaptiveSumsState(totals=Released(padded[np.newaxis]))

    def parameters(self, state: AdaptiveSumsState) -> Floats:
        """Return the concatenated totals of all rounds, shape (1, sum of lengths)."""
        return state.totals

    def leaking_data(self, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return problems for audits: one canary record, and many, all at the first site.

        The two vectors of a canary are as far apart as `distances` allows in each round.
        """

        def problem_of(coins: Coins) -> CanaryRounds:
            return CanaryRounds(algorithm=self, coins=coins)

        pair = Pair(
            algorithm=self._as_wide(1),
            problem=problem_of(np.array([True])),
            neighbor=problem_of(np.array([False])),
            delta=size.delta_or(1e-5),
            rounds=self.run_length,
        )
        crowd = Crowd(
            algorithm=replace(
                self._as_wide(size.canaries), records=max(self.records, size.canaries)
            ),
            problem_of=problem_of,
            canaries=size.canaries,
            delta=CROWD_DELTA,
            scores=partial(_score, self.distances),
            rounds=self.run_length,
        )
        return pair, crowd

    def _as_wide(self, canaries: int) -> AdaptiveSums:
        """Return the algorithm with vectors of length `canaries` in each round."""
        return replace(self, lengths=(canaries,) * self.run_length)


@dataclass(frozen=True, kw_only=True, eq=False)
class CanaryRounds:
    """Problem for audits, whose records are canaries at the first site.

    In round t canary i has the vector plus or minus ``distances[t] / 2`` along axis i, by its coin.

    Parameters
    ----------
    algorithm
        The algorithm, with its `distances` and `sites`.
    coins
        Coin of each canary, shape (canaries,).
    """

    algorithm: AdaptiveSums
    coins: Coins

    @property
    def nodes(self) -> int:
        """Number of sites."""
        return self.algorithm.sites

    def vectors(self, node: int) -> Iterator[Floats]:
        """Return the vectors of a node's records in round 0."""
        yield from self.in_round(0, ()).vectors(node)

    def in_round(self, t: int, totals: Sequence[NoisyTotal]) -> Vectors:
        """Return a problem with the vectors of round t, which do not depend on the totals."""
        del totals
        signs = self.coins[:, np.newaxis] - 0.5
        rows = self.algorithm.distances[t] * signs * np.eye(len(self.coins))
        return Vectors(rows=rows, nodes=self.nodes)


def _score(distances: tuple[float, ...], run: Any) -> npt.NDArray[np.float64]:
    """Return each canary's score: its coordinate of the released sums, weighted by `distances`.

    Row 0 of a release is the sum over all sites, or without secure aggregation the first site's.
    """
    first_rows = (values[0] for values in run.released)
    return np.asarray(sum(d * row for d, row in zip(distances, first_rows, strict=True)))
