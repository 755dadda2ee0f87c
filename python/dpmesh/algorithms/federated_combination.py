"""Combination of the clients' contributions: at a trusted server, or by secure aggregation.

The combination is a part of `FederatedLearning`. It decides where the clients' vectors are summed,
who adds the noise, and whom the guarantee trusts. `SecureSum` holds the public parameters of secure
aggregation. An *attempt* is a sum that is planned, whether or not it succeeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar, TypeAlias

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Sensitive
from dpmesh._ragged import Indices
from dpmesh._validate import every, fail, integer, probability
from dpmesh.algorithms.federated_contribution import AnyContribution, Vectors
from dpmesh.algorithms.messages import Message
from dpmesh.keys import Key, Purpose
from dpmesh.noise.grid import power_of_two
from dpmesh.noise.mechanisms import Gaussian, Mechanism, NoNoise
from dpmesh.noise.secure import DistributedDiscreteGaussian, SecureSum
from dpmesh.noise.secure.sizes import reserved


@dataclass(frozen=True, kw_only=True)
class TrustedServer:
    """Trusted server, which sees each client's contribution, sums them and adds the noise.

    It is a combination of `FederatedLearning` (central DP).

    Parameters
    ----------
    grid
        Spacing of a grid, a power of 2. The sum is rounded to multiples of it, and the noise is
        discrete Gaussian on the grid, larger by the factor ``1 + grid sqrt(dim) / sensitivity`` to
        cover the rounding (dim: length of the model). None for real-valued noise.
    arrival_rate
        Probability in (0, 1] that the contribution of a client in a cohort arrives. Coins that do
        not depend on data decide; the other clients drop out, and are missing from the sum.

    Guarantee
    ---------
    Dropouts do not change the guarantee of `FederatedLearning`, even if it is known which clients
    dropped out: a missing vector is 0, and the plan counts all clients as if they had returned.

    Examples
    --------
    >>> import dpmesh as dm
    >>> sums = dm.algorithms.TrustedServer(grid=2.0**-20)
    >>> clients = dm.ClientUpdates(clients=100, sampling_rate=0.1, steps=5)
    >>> dm.FederatedLearning(clients, noise_multiplier=1.0, combination=sums).plan(30).unit
    'user'
    """

    follows_from_sizes: ClassVar[tuple[str, ...]] = ()
    """Names of parameters that public sizes determine: see `Algorithm.follows_from_sizes`."""

    grid: float | None = None
    arrival_rate: float = 1.0

    def __post_init__(self) -> None:
        every(self, power_of_two, "grid")
        probability("arrival_rate", self.arrival_rate, zero=False)

    @property
    def rounds(self) -> None:
        """None: a run with a trusted server may have any number of rounds."""

    def secure_sum(self, contribution: AnyContribution, noise_to_sensitivity: float | None) -> None:
        """Return None: a trusted server uses no secure aggregation."""

    def mechanism(
        self, noise_to_sensitivity: float | None, secure_sum: SecureSum | None
    ) -> Mechanism:
        """Return the Gaussian mechanism of the sum, which the server applies."""
        if noise_to_sensitivity is None:
            return NoNoise()
        return Gaussian(noise_to_sensitivity, grid=self.grid)

    def assumptions(
        self, contribution: AnyContribution, secure_sum: SecureSum | None
    ) -> tuple[str, ...]:
        """Return the assumptions of trust in the server, in words."""
        return contribution.assumptions(trusted=True)

    def attempts(self, rounds: int) -> int:
        """Return the number of planned sums: one for each round."""
        return rounds

    def cohort(
        self, contribution: AnyContribution, t: int, key: Key, local_clients: int
    ) -> Indices:
        """Return the indices of the cohort's clients whose contributions arrive, ascending.

        The other clients of the cohort drop out.
        """
        cohort = contribution.cohort(t, key, None)
        if self.arrival_rate == 1:
            return cohort
        coins = key.stream(Purpose.SAMPLE, t)  # node 1; the coins of node 0 drew the cohort
        arrives = kernels.bernoulli((1, contribution.clients), self.arrival_rate, coins, nodes=[1])
        arriving: Indices = cohort[arrives[0, cohort]]
        return arriving

    def message(
        self, cohort_vectors: Vectors, algorithm: Any, state: Any, t: int, local_clients: int
    ) -> Message:
        """Return the message of the sum of all vectors, shape (1, dim).

        With adaptive clipping, the sum of the clients' weighted bits follows, shape (1, dim + 1).
        """
        contribution = algorithm.contribution
        dim = state.w.shape[1]
        total_update = np.zeros(dim + contribution.bits)
        for _, vectors in cohort_vectors:
            total_update += kernels.column_sums(vectors)
        total = Sensitive(total_update[np.newaxis].astype(contribution.precision(state.w)))
        models_down = contribution.models * contribution.expected_clients
        updates_up = self.arrival_rate * contribution.expected_clients
        scale_factor = state.clipping_norm if contribution.bits else 1.0
        return Message(
            total,
            algorithm.release_of(t),
            copies=ceil(models_down) + ceil(updates_up),
            scale_factor=scale_factor,
        )


@dataclass(frozen=True, kw_only=True)
class SecureAggregation:
    """Secure aggregation: the server learns only the noisy sum of the clients' vectors.

    It is a combination of `FederatedLearning` without a trusted server (distributed DP). Each
    client adds a share of discrete Gaussian noise to its vector, and masks it.

    Parameters
    ----------
    dim
        Length of the model.
    rounds
        Largest number of rounds of the run. The noise and the modulus of the sums depend on it.
    colluding
        Largest number of clients that collude with the server. With 0 the guarantee does not hold
        against a client, which can subtract its share of the noise.
    dropouts
        Largest number of clients that drop out for good during a run. Each adds one release to the
        plan.
    reserve
        Number of further releases in the plan, beyond one for each round. They are for sums that
        fail because a client stalls, sends a wrong vector, or refuses. At least `dropouts`, which
        is the default.

    Guarantee
    ---------
    The sums have the guarantee of `dpmesh.noise.secure.SecureSum`. The adversary is the server
    together with `colluding` clients, or these clients alone. The unit is the contribution's. With
    `ClientUpdates` the unit is a client, which decides by a secret coin whether it takes part in a
    round. If it does not, it sends its share of the noise alone.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.algorithms.SecureAggregation(dim=10, rounds=30).colluding
    1
    """

    follows_from_sizes: ClassVar[tuple[str, ...]] = ("dim", "rounds")
    """Names of parameters that public sizes determine: see `Algorithm.follows_from_sizes`."""

    dim: int
    rounds: int
    colluding: int = 1
    dropouts: int = 0
    reserve: int | None = None

    def __post_init__(self) -> None:
        every(self, integer, "rounds", at_least=1)

    @property
    def arrival_rate(self) -> float:
        """Probability that a client's vector arrives: 1, since a sum needs all of its clients."""
        return 1.0

    def secure_sum(
        self, contribution: AnyContribution, noise_to_sensitivity: float | None
    ) -> SecureSum:
        """Return the public parameters of the secure sums: sizes, noise, limit on collusion.

        Raises
        ------
        ValueError
            If a number is out of its range, there is no noise, or a setting of the contribution has
            no proof under secure aggregation (`Contribution.check_secure`).
        """
        contribution.check_secure()
        if noise_to_sensitivity is None:
            fail("noise_multiplier", "a positive number under a secure sum", None)
        return self.secure_sum_of_noise(contribution, noise_to_sensitivity)

    def secure_sum_of_noise(
        self, contribution: AnyContribution, noise_to_sensitivity: float
    ) -> SecureSum:
        """Return the secure sums, but do not check the settings of the contribution."""
        counts = contribution.unit_counts
        sampling_rate = contribution.sampling_rate
        if contribution.unit == "user" and contribution.scheme is not None:
            sampling_rate = contribution.scheme.rate
        return SecureSum(
            dim=self.dim,
            sites=contribution.clients,
            records=counts.total,
            records_per_site=counts.most_per_client,
            noise_to_sensitivity=noise_to_sensitivity,
            clipping_norm=contribution.clipping_norm,
            sampling_rate=sampling_rate,
            neighboring_relation=contribution.neighboring_relation,
            rounds=self.rounds,
            colluding=self.colluding,
            dropouts=self.dropouts,
            reserve=self.reserve,
        )

    def mechanism(
        self, noise_to_sensitivity: float | None, secure_sum: SecureSum | None
    ) -> Mechanism:
        """Return the mechanism by which each client adds a share of discrete Gaussian noise."""
        assert secure_sum is not None
        return DistributedDiscreteGaussian(secure_sum)

    def assumptions(
        self, contribution: AnyContribution, secure_sum: SecureSum | None
    ) -> tuple[str, ...]:
        """Return the limit on colluding clients and the cryptographic assumptions, in words."""
        assert secure_sum is not None
        *collusion, cryptography = secure_sum.assumptions_about(contribution.parties)
        return (*collusion, *contribution.assumptions(trusted=False), cryptography)

    def attempts(self, rounds: int) -> int:
        """Return the number of planned sums of a run, which all count towards epsilon.

        These are one sum for each of `rounds` rounds, and `reserve` further sums, in place of sums
        that fail.

        Raises
        ------
        ValueError
            If `rounds` is larger than the parameter `rounds` of the class.
        """
        if integer("rounds", rounds, at_least=1) > self.rounds:
            fail("rounds", f"at most {self.rounds}, for which the secure sums were made", rounds)
        return rounds + reserved(self.dropouts, self.reserve)

    def cohort(
        self, contribution: AnyContribution, t: int, key: Key, local_clients: int
    ) -> Indices:
        """Return the indices of the cohort's clients, ascending; no contribution is missing."""
        return contribution.cohort(t, key, local_clients)

    def message(
        self, cohort_vectors: Vectors, algorithm: Any, state: Any, t: int, local_clients: int
    ) -> Message:
        """Return the message with a row for each client of this process, shape (clients, dim).

        The row of a client that does not take part in the round is 0.
        """
        contribution = algorithm.contribution
        rows = np.zeros((local_clients, self.dim))
        for clients, vectors in cohort_vectors:
            rows[clients] = contribution.bounded(vectors)
        copies = 2 * contribution.clients  # the model down, and a masked vector up
        bits = 8 * contribution.clients * (state.w.nbytes + algorithm.secure_sum.message_bytes)
        return Message(Sensitive(rows), algorithm.release_of(t), copies=copies, bits=bits)


Combination: TypeAlias = TrustedServer | SecureAggregation
"""Place where contributions are summed: at a trusted server, or by secure aggregation."""
