"""Sums of clipped gradients of records: what DP-SGD across sites contributes.

    v_j = sum_(r in B_j) Clip(g_r(w^t), C)      B_j: each record of client j with probability q

One gradient is taken each round. An update of several local steps moves with one record by as much
as with all of them, so that it protects a client, not a record: `ClientUpdates`.
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
from dpmesh.algorithms.federated_contribution import Contribution
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
    amplifies privacy as long as nobody learns which records take part: their number, times and
    losses are never sent. `FederatedLearning` states adversary and noise.

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
        """Poisson sampling of records; None if it amplifies nothing, as under replace-one."""
        if self.sampling_rate == 1 or self.neighboring_relation == "replace_one":
            return None
        return PoissonSampling(self.sampling_rate)

    @property
    def expected_size(self) -> float:
        """Expected number of records in a round, the public number q N."""
        return self.sampling_rate * self.records

    @property
    def expected_clients(self) -> float:
        """Number of clients in a round: all of them, each with some of its records."""
        return self.clients

    @property
    def size(self) -> dict[str, Any]:
        """Counts of units for secure aggregation: records in all, and at most at one client."""
        return {"records": self.records, "records_per_site": self.records_per_client}

    def sensitivity(self, bit_weight: float) -> Sensitivity:
        """Return the L2 sensitivity of the sum to one record."""
        if self.neighboring_relation == "replace_one":
            return Sensitivity(2 * self.clipping_norm, "l2", "2 C, one clipped gradient replaced")
        return Sensitivity(self.clipping_norm, "l2", "C, one clipped gradient added or removed")

    def assumptions(self, *, trusted: bool) -> tuple[str, ...]:
        """Return the assumptions of trust in the server, and of one client for each record."""
        once = "no record is held by more than one site, nor twice by one"
        sees = "the server is trusted: it sees the sites' sums of gradients before it adds noise"
        if trusted:
            return (sees, once)
        return (once,)

    def check_secure(self) -> None:
        """Accept secure aggregation, which hides the records that take part."""

    def check(self, problem: GradientProblem) -> None:
        """Fail unless each client here has records, and not more than the public bound."""
        counts = np.diff(self._all_records(problem)[0])
        names = getattr(problem, "members", np.arange(len(counts)))
        if counts.min() < 1:
            none_at = names[counts.argmin()]
            fail("problem", "at least 1 record at each client", f"none at client {none_at}")
        most = self.records if self.records_per_client is None else self.records_per_client
        if counts.max() > most:
            expected = f"at most {most} records at each client (records_per_client)"
            fail("problem", expected, f"{counts.max()} at client {names[counts.argmax()]}")

    def leaking_data(self, algorithm: Any, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return clients whose first record is a canary in each sum, and many canaries of one."""

        def sized(*, dim: int, records: int) -> Any:
            sized_algorithm = replace(algorithm, contribution=replace(self, records=records))
            if algorithm.secure_sum is None:
                return sized_algorithm
            return replace(sized_algorithm, combination=replace(algorithm.combination, dim=dim))

        size = replace(size, rounds=size.rounds or algorithm.run_length)
        pair, crowd = opposed_records(
            sized, size, records=self.records, nodes=self.clients, sign=-1.0
        )
        if self.sampling_rate < 1 and algorithm.run_length is None:
            longer = replace(pair, rounds=max(pair.rounds, 20))  # in which the canary takes part
            pair = replace(pair, coupled=(longer,))
        return pair, crowd

    def cohort(self, t: int, key: Key, local_clients: int | None) -> Indices:
        """Return all clients."""
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
        """Return each local client's sum of clipped gradients, shape (clients, dim), un-noised."""
        batches = self.sample(self._all_records(problem), t, key)
        return clipped_gradient_sums(problem, w, batches, self.clipping_norm)

    def sample(self, everything: Ragged, t: int, key: Key) -> Ragged:
        """Return the records that take part in round t, each by a secret coin of its client."""
        if self.sampling_rate == 1:
            return everything
        indptr, records = everything
        counts = np.diff(indptr)
        shape = (len(counts), int(counts.max()))
        coins = kernels.bernoulli(shape, self.sampling_rate, key.stream(Purpose.SAMPLE, t))
        is_record = np.arange(shape[1]) < counts[:, np.newaxis]
        ends = np.concatenate(([0], np.cumsum((coins & is_record).sum(axis=1))))
        return ends, records[coins[is_record]]

    def losses(
        self, w: Released, cohort: Indices, t: int, problem: GradientProblem, key: Key
    ) -> Numbers:
        """Return each client's loss on all of its records; only a simulation can."""
        models = np.repeat(w, problem.nodes, axis=0)
        losses: Numbers = problem.objective(models, self._all_records(problem))
        return losses

    def moved(self, w: Released, direction: Floats, step_size: float, decay: float) -> Floats:
        """Return w - eta (m + decay w)."""
        return w - step_size * (direction + decay * w)

    def decay(self, problem: GradientProblem) -> float:
        """Return the problem's weight decay, which is no part of the clipped gradients."""
        return float(problem.regularization)

    def _all_records(self, problem: GradientProblem) -> Ragged:
        records: Ragged = problem.records_of(np.arange(problem.nodes))
        return records
