"""Who takes part in a round of federated learning, and what the server then releases.

All of this follows from public numbers and coins: nothing here looks at data.
"""

from __future__ import annotations

from functools import cached_property
from math import hypot, sqrt
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._ragged import Indices
from dpmesh._validate import fail
from dpmesh.algorithms.base import Algorithm, StateT
from dpmesh.algorithms.federated_clients import ClientProblem
from dpmesh.algorithms.federated_secure import SecureAggregation
from dpmesh.algorithms.federated_server import AdaptiveClipping
from dpmesh.algorithms.federated_worst import opposed_clients
from dpmesh.algorithms.worst_case import Crowd, Pair
from dpmesh.keys import Key, Purpose
from dpmesh.privacy.mechanisms import Gaussian, Mechanism, NoNoise
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.privacy.rows import CorrelatedRow, check_strategy
from dpmesh.privacy.sampling import FixedSizeSampling, PoissonSampling
from dpmesh.privacy.secure import DistributedDiscreteGaussian, SecureSum
from dpmesh.privacy.sensitivity import Sensitivity
from dpmesh.privacy.types import NeighboringRelation, Unit

if TYPE_CHECKING:
    from dpmesh.privacy.correlated import CorrelatedGaussian, CorrelatedStrategy


class FederatedReleases(Algorithm[StateT, ClientProblem]):
    """The cohorts of `FederatedLearning`, their noisy sums, and how far a client moves these.

    The numbers are parameters of `FederatedLearning`, which explains and checks them.
    """

    clients: int
    sampling_rate: float
    clipping_norm: float
    noise_multiplier: float | None
    sampling: Literal["poisson", "uniform", "cyclic"]
    grid: float | None
    arrival_rate: float
    adaptive_clipping: AdaptiveClipping | None
    noise: CorrelatedStrategy | None
    secure_aggregation: SecureAggregation | None

    def worst_case(
        self,
        rounds: int | None = None,
        *,
        dim: int = 3,
        delta: float | None = None,
        canaries: int = 1_000,
    ) -> tuple[Pair, Crowd]:
        """Return clients that pull against one canary, and as many canaries as clients."""
        return opposed_clients(self, rounds=rounds, dim=dim, delta=delta, canaries=canaries)

    @cached_property
    def groups(self) -> int:
        """How many groups take turns with ``"cyclic"``."""
        return max(1, round(1 / self.sampling_rate))

    @cached_property
    def cohorts(self) -> PoissonSampling | FixedSizeSampling | None:
        """How the clients of a round are drawn; None if groups take turns."""
        if self.sampling == "cyclic":
            return None
        if self.sampling == "poisson":
            return PoissonSampling(self.sampling_rate)
        size = max(1, round(self.sampling_rate * self.clients))
        return FixedSizeSampling(size=size, population=self.clients)

    @cached_property
    def expected_size(self) -> float:
        """The public number S that the sum over a cohort is divided by: of updates that arrive."""
        return self.arrival_rate * self._expected_cohort

    @property
    def _expected_cohort(self) -> float:
        rate = 1 / self.groups if self.cohorts is None else self.cohorts.rate
        return rate * self.clients

    def sample(self, t: int, key: Key, here: int | None = None) -> Indices:
        """Return the cohort S_t, ascending: secret, unless groups take turns.

        Under a secure sum each client has a coin of its own, and some of them may be `here`: their
        rows are returned. Otherwise all clients are.
        """
        if self.cohorts is None:
            return np.arange(t % self.groups, self.clients, self.groups)
        coins, rate = key.stream(Purpose.SAMPLE, t), self.cohorts.rate
        if self.secure_sum is not None:
            rows = self.clients if here is None else here
            return np.flatnonzero(kernels.bernoulli((rows, 1), rate, coins))
        match self.cohorts:
            case PoissonSampling():
                return np.flatnonzero(kernels.bernoulli(self.clients, rate, coins))
            case FixedSizeSampling() as fixed:
                return kernels.sample([fixed.population], fixed.size, coins).ravel()

    def returning(self, cohort: Indices, t: int, key: Key) -> Indices:
        """Draw who of a cohort returns its update; the others drop out."""
        if self.arrival_rate == 1:
            return cohort
        coins = key.stream(Purpose.SAMPLE, t)  # `sample` has those of node 0
        arrives = kernels.bernoulli((1, self.clients), self.arrival_rate, coins, nodes=[1])
        some: Indices = cohort[arrives[0, cohort]]
        return some

    @cached_property
    def secure_sum(self) -> SecureSum | None:
        """The public numbers of the secure sum; None if the server sees the updates."""
        secure = self.secure_aggregation
        return None if secure is None else secure.numbers(self)

    @cached_property
    def mechanism(self) -> Mechanism:
        """Gaussian noise on the sum."""
        if self.secure_sum is not None:
            return DistributedDiscreteGaussian(self.secure_sum)
        if self.noise_multiplier is None:
            return NoNoise()
        return Gaussian(self.noise_multiplier, grid=self.grid)

    def sensitivity(self, t: int) -> Sensitivity:
        """How far one client moves the sum over a cohort; in units of C_t if that adapts."""
        bound, what = self.clipping_norm, "clipped update"
        if self.adaptive_clipping is not None:
            bound, what = (
                hypot(1, self._bit_weight / 2),
                "clipped update and its bit, in units of C_t,",
            )
        if self.sampling != "uniform":
            return Sensitivity(bound, "l2", f"one {what} added or removed")
        return Sensitivity(2 * bound, "l2", f"one {what} replaced")

    @cached_property
    def _bit_weight(self) -> float:
        """How far a bit of adaptive clipping moves the released vector, in units of C_t."""
        if self.adaptive_clipping is None:
            return 0.0
        alone = (self.noise_multiplier or 0.0) / (1 if self.sampling == "uniform" else 2)
        return self.adaptive_clipping.weight(alone, self.expected_size)

    @property
    def neighboring_relation(self) -> NeighboringRelation:
        """The relation under which the sampling of cohorts amplifies."""
        return "replace_one" if self.sampling == "uniform" else "add_remove"

    @property
    def unit(self) -> Unit:
        """A client with all that it holds."""
        return "user"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the server must keep to itself; under a secure sum, who must not collude."""
        if self.secure_sum is not None:
            return self.secure_sum.assumptions_about("clients")
        trusted = "the server is trusted: it sees the clients' updates before it adds noise"
        if self.sampling == "cyclic":
            return (trusted,)
        return trusted, "who took part in a round, and how many, stays secret"

    def release_of(self, t: int) -> Release:
        """Return the noisy sum of a cohort's updates."""
        if self.cohorts is not None:
            whole = self.secure_sum is not None and self.cohorts.rate == 1
            sampling = None if whole else self.cohorts
            return Release(t, self.mechanism, self.sensitivity(t), sampling=sampling)
        joint = self._joint
        mechanism = self.mechanism if joint is None else CorrelatedRow.of(joint, t)
        return Release(t, mechanism, self.sensitivity(t), batch=t % self.groups)

    def plan(self, rounds: int, problem: Any = None) -> Plan:
        """Return the sums of `rounds` rounds, and one more for each client that may be lost."""
        secure = self.secure_aggregation
        return super().plan(rounds if secure is None else secure.attempts(rounds), problem)

    @cached_property
    def _joint(self) -> CorrelatedGaussian | None:
        """The noise of all rounds together; None if it is independent."""
        if self.noise is None or self.noise_multiplier is None:
            return None
        uses = -(-self.noise.rows // self.groups)
        bounds = [self.sensitivity(0).bound] * self.noise.rows
        multiplier = self.noise_multiplier / sqrt(uses)
        return self.noise.release(multiplier, bounds, uses=uses, separation=self.groups)

    def _check_noise(self, noise: CorrelatedStrategy) -> None:
        """Fail unless correlated noise is proved for these cohorts."""
        check_strategy(noise, self)
        if self.sampling != "cyclic" or self.grid is not None or self.groups == 1:
            wanted = (
                "None, or sampling='cyclic' in several groups and the grid= of the noise "
                "alone: correlated noise is not proved for random cohorts, and buys nothing "
                "where all take part"
            )
            fail("noise", wanted, noise)
        if noise.topology is not None:
            fail("noise", "noise for a server, with topology=None", noise)
        if self.adaptive_clipping is not None:
            fail(
                "adaptive_clipping",
                "None with correlated noise, whose rows share a unit",
                "one",
            )
