"""Federated learning under a secure sum: nobody sees a client's update, and one noise covers all.

A client is a site that adds up one vector: the clipped update of its own training. So what is
protected is the client with everything that it holds, by the numbers and proofs of secure sums for
one record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._validate import as_python_numbers, fail, integer
from dpmesh.keys import Key
from dpmesh.privacy.secure import SecureSum
from dpmesh.privacy.types import Released, Sensitive


@dataclass(frozen=True, kw_only=True)
class SecureAggregation:
    """Clients add up their updates under masks, each with a share of discrete Gaussian noise.

    Parameters
    ----------
    dim
        Length of the model.
    rounds
        Rounds of a run: the modulus depends on it.
    colluding
        Clients that may collude with the server. With 0 a client could subtract its own share.
    dropouts
        Clients that may be lost for good during a run; each costs one more release.

    Guarantee
    ---------
    That of `SecureSum` for a client in the place of a record: against the server together with
    `colluding` clients, and against each of these alone. Whether a client takes part is decided by
    its own secret coin; one that does not sends its share of noise alone.
    """

    dim: int
    rounds: int
    colluding: int = 1
    dropouts: int = 0

    def __post_init__(self) -> None:
        as_python_numbers(self)
        integer("rounds", self.rounds, at_least=1)

    def numbers(self, algorithm: Any) -> SecureSum:
        """Return the public numbers of the sums of a `FederatedLearning`.

        Raises
        ------
        ValueError
            If a number is out of its range, or the algorithm draws cohorts of a fixed size or in
            groups, which a server would know; has no noise or a grid of its own; expects clients to
            drop out (a sum opens only if all of its cohort answer); adapts its clipping norm; or
            has control variates.
            Correlated noise needs groups, and is refused with them.
        """
        cohorts = algorithm.cohorts
        if cohorts is None or (algorithm.sampling == "uniform" and cohorts.rate < 1):
            wanted = (
                '"poisson", or "uniform" with a sampling_rate of 1, under a secure sum: '
                "the server must not know the cohort"
            )
            fail("sampling", wanted, algorithm.sampling)
        if algorithm.noise_multiplier is None:
            fail("noise_multiplier", "a positive number under a secure sum", None)
        if algorithm.arrival_rate < 1:
            wanted = "1 under a secure sum, which opens only if all of its cohort answer"
            fail("arrival_rate", wanted, algorithm.arrival_rate)
        if algorithm.control_variates:
            fail("control_variates", "False under a secure sum, whose clients keep no state", True)
        for name, why in (
            ("grid", "which has a grid of its own"),
            ("adaptive_clipping", "whose clipping norm stays"),
        ):
            if getattr(algorithm, name) is not None:
                fail(name, f"None under a secure sum, {why}", getattr(algorithm, name))
        return SecureSum(
            dim=self.dim,
            sites=algorithm.clients,
            records=algorithm.clients,
            records_per_site=1,
            noise_multiplier=algorithm.noise_multiplier,
            clipping_norm=algorithm.clipping_norm,
            sampling_rate=cohorts.rate,
            neighboring_relation=algorithm.neighboring_relation,
            rounds=self.rounds,
            colluding=self.colluding,
            dropouts=self.dropouts,
        )

    def attempts(self, rounds: int) -> int:
        """Return how many sums so many rounds are charged for.

        Raises
        ------
        ValueError
            If they are more rounds than the sums are made for.
        """
        if integer("rounds", rounds, at_least=1) > self.rounds:
            wanted = f"at most {self.rounds}, for which secure_aggregation was made"
            fail("rounds", wanted, rounds)
        return rounds + self.dropouts


def client_vectors(algorithm: Any, w: Released, t: int, problem: Any, key: Key) -> Sensitive:
    """Return what each client that is here adds up, shape (clients, dim), float64.

    It is the clipped update of a client that takes part, and 0 of another. It stays inside.
    """
    vectors = np.zeros((problem.nodes, w.shape[1]))
    cohort = algorithm.sample(t, key, problem.nodes)
    for first in range(0, len(cohort), algorithm.clients_at_once):
        some = cohort[first : first + algorithm.clients_at_once]
        updates = algorithm.client_updates(w, some, t, problem, key)
        vectors[some] = kernels.clip_rows(updates.astype(np.float64), algorithm.clipping_norm)
    return Sensitive(vectors)
