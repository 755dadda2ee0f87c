"""Combination of contributions: at a trusted server, or by secure aggregation."""

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
    """Parameters that public sizes determine, as those of an `Algorithm`."""

    grid: float | None = None
    arrival_rate: float = 1.0

    def __post_init__(self) -> None:
        every(self, power_of_two, "grid")
        probability("arrival_rate", self.arrival_rate, zero=False)

    @property
    def rounds(self) -> None:
        """None: a run with a trusted server may have any number of rounds."""

    def numbers(self, contribution: AnyContribution, noise_to_sensitivity: float | None) -> None:
        """Return None: a trusted server needs no secure aggregation."""

    def mechanism(self, noise_to_sensitivity: float | None, numbers: SecureSum | None) -> Mechanism:
        """Return Gaussian noise on the sum."""
        if noise_to_sensitivity is None:
            return NoNoise()
        return Gaussian(noise_to_sensitivity, grid=self.grid)

    def assumptions(
        self, contribution: AnyContribution, numbers: SecureSum | None
    ) -> tuple[str, ...]:
        """Return the assumptions of trust in the server, in words."""
        return contribution.assumptions(trusted=True)

    def attempts(self, rounds: int) -> int:
        """Return the number of planned sums: one for each round."""
        return rounds

    def cohort(
        self, contribution: AnyContribution, t: int, key: Key, local_clients: int
    ) -> Indices:
        """Return the clients of the cohort whose contributions arrive; the others drop out."""
        cohort = contribution.cohort(t, key, None)
        if self.arrival_rate == 1:
            return cohort
        coins = key.stream(Purpose.SAMPLE, t)  # the cohort has those of node 0
        arrives = kernels.bernoulli((1, contribution.clients), self.arrival_rate, coins, nodes=[1])
        arriving: Indices = cohort[arrives[0, cohort]]
        return arriving

    def message(
        self, cohort_vectors: Vectors, algorithm: Any, state: Any, t: int, local_clients: int
    ) -> Message:
        """Return the sum of all vectors, shape (1, dim) or with a bit."""
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
    """Secure aggregation: the server learns only the noisy sum of the clients' masked vectors.

    It is a combination of `FederatedLearning` without a trusted server. Each client adds a share of
    discrete Gaussian noise (distributed DP).

    Parameters
    ----------
    dim
        Length of the model.
    rounds
        Number of rounds of the run, on which the modulus of the sums depends.
    colluding
        Largest number of clients that collude with the server. With 0 a client could subtract its
        own share of the noise.
    dropouts
        Largest number of clients that drop out for good during a run. Each adds one release to the
        plan.
    reserve
        Number of further releases in the plan, for sums that fail since a client stalls, sends a
        wrong vector, or refuses. At least `dropouts`, the default.

    Guarantee
    ---------
    The sums have the guarantee of `dpmesh.noise.secure.SecureSum`. The adversary is the server
    together with `colluding` clients, or one of these alone. With `ClientUpdates` the unit is a
    client. It decides by a secret coin whether it takes part; if not, it sends its share of the
    noise alone.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.algorithms.SecureAggregation(dim=10, rounds=30).colluding
    1
    """

    follows_from_sizes: ClassVar[tuple[str, ...]] = ("dim", "rounds")
    """Parameters that public sizes determine, as those of an `Algorithm`."""

    dim: int
    rounds: int
    colluding: int = 1
    dropouts: int = 0
    reserve: int | None = None

    def __post_init__(self) -> None:
        every(self, integer, "rounds", at_least=1)

    @property
    def arrival_rate(self) -> float:
        """1: a sum opens only if all of its cohort answer."""
        return 1.0

    def numbers(
        self, contribution: AnyContribution, noise_to_sensitivity: float | None
    ) -> SecureSum:
        """Return the public parameters of the secure sums, such as their noise and who may collude.

        Raises
        ------
        ValueError
            If a number is out of its range, there is no noise, or who takes part or what they keep
            cannot be hidden from the server.
        """
        contribution.check_secure()
        if noise_to_sensitivity is None:
            fail("noise_multiplier", "a positive number under a secure sum", None)
        return SecureSum(noise_to_sensitivity=noise_to_sensitivity, **self.public(contribution))

    def public(self, contribution: AnyContribution) -> dict[str, Any]:
        """Return all public numbers of the sums but the noise."""
        rate = (
            contribution.sampling_rate
            if contribution.unit == "record" or contribution.scheme is None
            else contribution.scheme.rate
        )
        return {
            **contribution.size,
            "dim": self.dim,
            "sites": contribution.clients,
            "clipping_norm": contribution.clipping_norm,
            "sampling_rate": rate,
            "neighboring_relation": contribution.neighboring_relation,
            "rounds": self.rounds,
            "colluding": self.colluding,
            "dropouts": self.dropouts,
            "reserve": self.reserve,
        }

    def mechanism(self, noise_to_sensitivity: float | None, numbers: SecureSum | None) -> Mechanism:
        """Return the mechanism by which each client adds a share of discrete Gaussian noise."""
        assert numbers is not None
        return DistributedDiscreteGaussian(numbers)

    def assumptions(
        self, contribution: AnyContribution, numbers: SecureSum | None
    ) -> tuple[str, ...]:
        """Return the limit on colluding clients, in words."""
        assert numbers is not None
        *against, cryptography = numbers.assumptions_about(contribution.parties)
        return (*against, *contribution.assumptions(trusted=False), cryptography)

    def attempts(self, rounds: int) -> int:
        """Return the number of planned sums: one for each round, and the reserve.

        Raises
        ------
        ValueError
            If they are more rounds than the sums are made for.
        """
        if integer("rounds", rounds, at_least=1) > self.rounds:
            fail("rounds", f"at most {self.rounds}, for which the secure sums were made", rounds)
        return rounds + reserved(self.dropouts, self.reserve)

    def cohort(
        self, contribution: AnyContribution, t: int, key: Key, local_clients: int
    ) -> Indices:
        """Return the clients of the cohort; none of them drops out."""
        return contribution.cohort(t, key, local_clients)

    def message(
        self, cohort_vectors: Vectors, algorithm: Any, state: Any, t: int, local_clients: int
    ) -> Message:
        """Return the vector of each client that is here, 0 of one that does not take part."""
        contribution = algorithm.contribution
        rows = np.zeros((local_clients, self.dim))
        for clients, vectors in cohort_vectors:
            rows[clients] = contribution.bounded(vectors)
        copies = 2 * contribution.clients  # down, and up
        bits = 8 * contribution.clients * (state.w.nbytes + algorithm.secure_sum.message_bytes)
        return Message(Sensitive(rows), algorithm.release_of(t), copies=copies, bits=bits)


Combination: TypeAlias = TrustedServer | SecureAggregation
"""Who adds up what clients contribute, and who adds the noise."""
