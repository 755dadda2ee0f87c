"""Sums of clipped record gradients, the contribution of DP-SGD across sites.

Client j sums the clipped gradients g_r of a random batch B_j of its records, at the global model:

    v_j = sum_(r in B_j) Clip(g_r(w^t), C)      B_j: each record of client j with probability q

A client takes one gradient in each round. After several local steps a single record could move the
client's update as far as all of its records together: such an update protects a client and not a
record (`ClientUpdates`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Floats, NeighboringRelation, Released, Sensitive
from dpmesh._ragged import Indices, Numbers, Ragged
from dpmesh._validate import every, fail, integer, one_of
from dpmesh.algorithms.federated_contribution import Contribution, UnitCounts
from dpmesh.algorithms.gradients import clipped_gradient_sums
from dpmesh.algorithms.worst_case import AuditSize, Crowd, Pair, opposed_records
from dpmesh.keys import Key, Purpose
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.sampling import PoissonSampling
from dpmesh.problems import GradientProblem


@dataclass(frozen=True, kw_only=True)
class RecordGradients(Contribution[GradientProblem]):
    """Clients' sums of clipped record gradients, with record-level DP: DP-SGD across sites.

    It is a contribution of `FederatedLearning`. In a round each client sums the clipped gradients,
    at the global model, of its records that take part.

    Parameters
    ----------
    clients
        Number of clients: the sites that hold the records.
    records
        Number N of records of all clients together, a public constant.
    sampling_rate
        Probability q in (0, 1] with which each record takes part in a round (Poisson sampling), by
        its client's secret coins.
    clipping_norm
        Largest L2 norm C of a record's gradient (max_grad_norm in Opacus); longer ones are clipped.
    neighboring_relation
        Neighbouring relation of the guarantee: ``"replace_one"``, or ``"add_remove"``, under which
        sampling amplifies privacy.
    records_per_client
        Largest number of records of one client, a public number; by default `records`.

    Guarantee
    ---------
    The unit is one record. It moves the sum by at most 2 C in L2 norm if it is replaced, and by at
    most C if it is added or removed. The divisor of the sum is the public number q N. Sampling
    amplifies privacy only while it stays secret which records take part: clients never send their
    number, times or losses. `FederatedLearning` states adversary and noise.

    Examples
    --------
    >>> import dpmesh as dm
    >>> gradients = dm.RecordGradients(clients=4, records=1000)
    >>> dm.FederatedLearning(gradients, noise_multiplier=40.0).plan(30).unit
    'record'
    """

    unit = "record"
    parties = "sites"
    follows_from_sizes = ("clients", "records", "records_per_client")

    records: int
    neighboring_relation: NeighboringRelation = "replace_one"
    records_per_client: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("records", self.records, at_least=1, below=2**32)
        every(self, integer, "records_per_client", at_least=1)
        one_of("neighboring_relation", self.neighboring_relation, get_args(NeighboringRelation))

    @property
    def scheme(self) -> PoissonSampling | None:
        """Poisson sampling of records; None under replace-one or if all records take part.

        It then does not amplify privacy.
        """
        if self.sampling_rate == 1 or self.neighboring_relation == "replace_one":
            return None
        return PoissonSampling(self.sampling_rate)

    @property
    def expected_size(self) -> float:
        """Expected number of records in a round, the public number q N."""
        return self.sampling_rate * self.records

    @property
    def expected_clients(self) -> float:
        """Number of clients in a round: all clients, each with a sample of its records."""
        return self.clients

    @property
    def unit_counts(self) -> UnitCounts:
        """Public numbers of records, of all clients together and of one client."""
        return UnitCounts(self.records, self.records_per_client)

    def sensitivity(self, bit_weight: float) -> Sensitivity:
        """Return the L2 sensitivity of the sum to one record: 2 C, or C under add-remove."""
        if self.neighboring_relation == "replace_one":
            return Sensitivity(2 * self.clipping_norm, "l2", "2 C, one clipped gradient replaced")
        return Sensitivity(self.clipping_norm, "l2", "C, one clipped gradient added or removed")

    def assumptions(self, *, trusted: bool) -> tuple[str, ...]:
        """Return the assumptions: each record is at one client, and a trusted server if any.

        Parameters
        ----------
        trusted
            True if a trusted server sums the vectors, and so sees each of them; False with secure
            aggregation.
        """
        distinct = "no record is held by more than one site, nor twice by one"
        trust = "the server is trusted: it sees the sites' sums of gradients before it adds noise"
        if trusted:
            return (trust, distinct)
        return (distinct,)

    def check_secure(self) -> None:
        """Accept all settings: secure aggregation hides which records take part."""

    def check(self, problem: GradientProblem) -> None:
        """Check the number of records of each client of this process.

        Raises
        ------
        ValueError
            If a client has no record, or more than `records_per_client`.
        """
        indptr, _ = self._all_records(problem)
        counts = np.diff(indptr)
        # with several processes, the problem has the clients `members` of all
        clients = getattr(problem, "members", np.arange(len(counts)))
        if counts.min() < 1:
            empty_client = clients[counts.argmin()]
            fail("problem", "at least 1 record at each client", f"none at client {empty_client}")
        most = self.records if self.records_per_client is None else self.records_per_client
        if counts.max() > most:
            expected = f"at most {most} records at each client (records_per_client)"
            fail("problem", expected, f"{counts.max()} at client {clients[counts.argmax()]}")

    def leaking_data(self, algorithm: Any, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return problems for audits, whose canaries are records of the first client.

        If the number of rounds is free and records are sampled, coupled runs have 20 rounds or
        more, so that the canary is in the sample of some of them.
        """

        def algorithm_for(*, dim: int, records: int) -> Any:
            audited = replace(algorithm, contribution=replace(self, records=records))
            if algorithm.secure_sum is None:
                return audited
            return replace(audited, combination=replace(algorithm.combination, dim=dim))

        size = replace(size, rounds=size.rounds or algorithm.run_length)
        pair, crowd = opposed_records(
            algorithm_for,
            size,
            records=self.records,
            nodes=self.clients,
            sign=-1.0,  # a sum of gradients moves along them
        )
        if self.sampling_rate < 1 and algorithm.run_length is None:
            coupled = replace(pair, rounds=max(pair.rounds, 20))
            pair = replace(pair, coupled=(coupled,))
        return pair, crowd

    def cohort(self, t: int, key: Key, local_clients: int | None) -> Indices:
        """Return the indices of all clients: each takes part in each round."""
        return np.arange(self.clients if local_clients is None else local_clients)

    def vectors(
        self,
        state: Any,
        cohort: Indices,
        t: int,
        problem: GradientProblem,
        key: Key,
        bit_weight: float,
    ) -> Iterator[tuple[Indices, Sensitive]]:
        """Yield each client's sum of clipped gradients, shape (clients, dim), float64."""
        yield cohort, Sensitive(self.sums(state.w, t, problem, key)[cohort])

    def sums(self, w: Released, t: int, problem: GradientProblem, key: Key) -> Sensitive:
        """Return each client's sum of clipped gradients, shape (clients, dim), without noise.

        The clients are those of this process.
        """
        batches = self.sample(self._all_records(problem), t, key)
        return clipped_gradient_sums(problem, w, batches, self.clipping_norm)

    def sample(self, full_batches: Ragged, t: int, key: Key) -> Ragged:
        """Return the records that take part in round t, each by a secret coin of its client.

        Both `full_batches`, the records of each client, and the result are ``(indptr, indices)``.
        """
        if self.sampling_rate == 1:
            return full_batches
        indptr, records = full_batches
        counts = np.diff(indptr)
        clients, most = len(counts), int(counts.max())
        # One coin for each place (client, k); a client with fewer records ignores its last coins.
        coins = kernels.bernoulli(
            (clients, most), self.sampling_rate, key.stream(Purpose.SAMPLE, t)
        )
        is_record = np.arange(most) < counts[:, np.newaxis]
        sample_sizes = (coins & is_record).sum(axis=1)
        sample_indptr = np.concatenate(([0], np.cumsum(sample_sizes)))
        return sample_indptr, records[coins[is_record]]

    def losses(
        self, w: Released, cohort: Indices, t: int, problem: GradientProblem, key: Key
    ) -> Numbers:
        """Return each client's mean loss at the global model, on all of its records.

        It includes weight decay. Only a simulation can compute it: no client sends its loss.

        Returns
        -------
        Shape (clients,), for all clients of this process, whatever `cohort` is.
        """
        models = np.repeat(w, problem.nodes, axis=0)
        losses: Numbers = problem.objective(models, self._all_records(problem))
        return losses

    def moved(self, w: Released, direction: Floats, step_size: float, decay: float) -> Floats:
        """Return the global model after the server's step, w - step_size (direction + decay w)."""
        return w - step_size * (direction + decay * w)

    def decay(self, problem: GradientProblem) -> float:
        """Return the problem's weight decay; clipped gradients do not include it."""
        return float(problem.regularization)

    def _all_records(self, problem: GradientProblem) -> Ragged:
        records: Ragged = problem.records_of(np.arange(problem.nodes))
        return records
