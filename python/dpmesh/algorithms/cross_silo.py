"""Distributed DP-SGD: cross-silo federated learning with record-level privacy by secure sums.

In a round every site sums the clipped gradients of its own records, or of a Poisson sample of them,
and sends the sum with a share of the noise under masks. The server learns the noisy sum over all
sites and nothing else, and steps:

    G_i     = sum_(r in B_i) Clip(g_r(w_t), C)            B_i: each record with probability q
    G       = gamma / (q N) sum_i (rint(G_i / gamma) + e_i)       e_i ~ N_Z(0, share^2)
    m_t     = momentum m_(t-1) + Estimator(G)
    w_(t+1) = w_t - eta_t (m_t + decay w_t)

The divisor is the public number q N: how many records took part is never sent. One gradient is
taken each round: a clipped update of several local steps moves with one record by as much as with
all of them, so that it protects a site, not a record (`FederatedLearning` offers that).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._ragged import Ragged
from dpmesh._validate import (
    as_python_numbers,
    fail,
    integer,
    non_negative,
    probability,
)
from dpmesh.algorithms.base import (
    KNOWN_TO_ALL,
    Algorithm,
    Message,
    Round,
    initial_parameters,
)
from dpmesh.algorithms.federated_worst import opposed_records
from dpmesh.algorithms.record_gradients import clipped_gradient_sums
from dpmesh.algorithms.worst_case import Crowd, Pair
from dpmesh.estimators import Estimator, Identity, ReleasedSum
from dpmesh.keys import Key, Purpose
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.privacy.sampling import PoissonSampling
from dpmesh.privacy.secure import DistributedDiscreteGaussian, SecureSum, calibrated_sum
from dpmesh.privacy.sensitivity import Sensitivity
from dpmesh.privacy.types import Floats, NeighboringRelation, Released, Sensitive
from dpmesh.schedules import Schedule, at, keep_schedules


@dataclass(frozen=True, kw_only=True)
class CrossSiloState:
    """The model and what the server derived from released sums, each of shape (1, dim).

    Parameters
    ----------
    w
        The current model, in the type of the problem.
    momentum
        Decaying sum of the released gradients.
    total
        Sum of the released gradients of all rounds.
    output
        Mean of the models that are averaged so far; the current model before that.
    averaged
        How many models `output` is the mean of.
    """

    w: Released = field(metadata=KNOWN_TO_ALL)
    momentum: Released = field(metadata=KNOWN_TO_ALL)
    total: Released = field(metadata=KNOWN_TO_ALL)
    output: Released = field(metadata=KNOWN_TO_ALL)
    averaged: int


@dataclass(frozen=True, kw_only=True)
class CrossSiloSGD(Algorithm[CrossSiloState, Any]):
    """Distributed DP-SGD over the records of several sites, which trust neither server nor sites.

    Parameters
    ----------
    dim
        Length of the model, d.
    sites
        Number of sites, n.
    records
        Number of records of all sites together, N: a public constant.
    rounds
        Rounds of a run: the modulus and the average of the models depend on it.
    noise_multiplier
        Scale of the noise that the adversary does not know over the sensitivity of the sum; see
        `for_budget`.
    step_size
        eta for t = 1, 2, ..
    clipping_norm
        Largest L2 norm of a record's gradient, C.
    sampling_rate
        Probability in (0, 1] with which each record takes part in a round, q, by its site's secret
        coins.
    neighboring_relation
        ``"replace_one"``, or ``"add_remove"``, under which sampling amplifies privacy.
    colluding
        Sites that may collude with the server, c. With 0 a site could subtract its own share.
    dropouts
        Sites that may be lost for good during a run; each costs one more release.
    records_per_site
        Largest number of records of one site, which is public; by default `records`.
    estimator
        What the server makes of the noisy gradient, such as ``LaplacianSmoothing(1.0)``.
    momentum
        Decay of the sum of past gradients, in [0, 1); 0 for none.
    averaged
        Share of the last rounds whose models are averaged, in [0, 1); 0 for the last model.

    Guarantee
    ---------
    All models of a run have the epsilon and delta of `plan` for one record of one site, against
    the server together with `colluding` sites, and against each of these sites alone. The sites run
    this code; the cryptography of masks is as assumed. Times, batch sizes and losses are not sent.
    """

    travels = "server"
    parameters_are_released = True
    any_rows = "each record's gradient is clipped at whatever model the totals make"

    dim: int
    sites: int
    records: int
    rounds: int
    noise_multiplier: float
    step_size: float | Schedule = 1.0
    clipping_norm: float = 1.0
    sampling_rate: float = 1.0
    neighboring_relation: NeighboringRelation = "replace_one"
    colluding: int = 1
    dropouts: int = 0
    records_per_site: int | None = None
    estimator: Estimator = Identity()
    momentum: float = 0.0
    averaged: float = 0.5

    def __post_init__(self) -> None:
        as_python_numbers(self)
        keep_schedules(self, "step_size")
        non_negative("momentum", self.momentum)
        if self.momentum >= 1:
            fail("momentum", "a number in [0, 1)", self.momentum)
        probability("averaged", self.averaged, one=False)
        if isinstance(self.estimator, type) or not callable(self.estimator):
            fail("estimator", "an estimator, such as Identity()", repr(self.estimator))
        _ = self.secure_sum  # checks the other numbers

    @classmethod
    def for_budget(  # type: ignore[override]
        cls, *, epsilon: float, delta: float = 0.0, **public: Any
    ) -> CrossSiloSGD:
        """Return the algorithm with the least noise for which a run is (epsilon, delta)-private.

        Parameters
        ----------
        epsilon, delta
            The budget; see `SecureSum.epsilon`.
        public
            The other parameters of `CrossSiloSGD`.

        Raises
        ------
        ValueError
            If a number is out of its range, or no noise keeps the budget.
        """
        if not probability("delta", delta, one=False):
            wanted = "a positive number such as 1e-5: no sum has a finite epsilon at delta 0"
            fail("delta", wanted, delta)
        trial = cls(noise_multiplier=1.0, **public)
        sums = calibrated_sum(epsilon=epsilon, delta=delta, **trial._public_numbers())
        return cls(noise_multiplier=sums.noise_multiplier, **public)

    @cached_property
    def secure_sum(self) -> SecureSum:
        """The public numbers of the sums: grid, shares of noise, bits of the modulus."""
        return SecureSum(noise_multiplier=self.noise_multiplier, **self._public_numbers())

    def _public_numbers(self) -> dict[str, Any]:
        """Return the fields that secure sums have, too, but for the noise."""
        own = {each.name for each in fields(self)} - {"noise_multiplier"}
        return {
            each.name: getattr(self, each.name) for each in fields(SecureSum) if each.name in own
        }

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee rests on beside the proof."""
        against, code, cryptography = self.secure_sum.assumptions_about("sites")
        once = "no record is held by more than one site, nor twice by one"
        return against, code, once, cryptography

    @cached_property
    def mechanism(self) -> DistributedDiscreteGaussian:
        """A share of discrete Gaussian noise from each site."""
        return DistributedDiscreteGaussian(self.secure_sum)

    def sensitivity(self, t: int) -> Sensitivity:
        """How far one record moves the sum before it is rounded to the grid."""
        if self.neighboring_relation == "replace_one":
            return Sensitivity(2 * self.clipping_norm, "l2", "2 C, one clipped gradient replaced")
        return Sensitivity(self.clipping_norm, "l2", "C, one clipped gradient added or removed")

    def release_of(self, t: int) -> Release:
        """Return the noisy sum over all sites: one joint release."""
        sampling = None
        if self.sampling_rate < 1 and self.neighboring_relation == "add_remove":
            sampling = PoissonSampling(self.sampling_rate)
        return Release(t, self.mechanism, self.sensitivity(t), sampling=sampling)

    def worst_case(
        self,
        rounds: int | None = None,
        *,
        dim: int = 3,
        delta: float | None = None,
        canaries: int = 1_000,
    ) -> tuple[Pair, Crowd]:
        """Return sites whose first record is a canary in each sum, and many canaries of a site."""
        return opposed_records(
            partial(replace, self),
            records=self.records,
            nodes=self.sites,
            along=-1.0,
            rounds=rounds or self.rounds,
            dim=dim,
            delta=delta,
            canaries=canaries,
        )

    def plan(self, rounds: int, problem: Any = None) -> Plan:
        """Return the sums of `rounds` rounds, and one more for each site that may be lost.

        Raises
        ------
        ValueError
            If there are more rounds than the algorithm is made for.
        """
        if integer("rounds", rounds, at_least=1) > self.rounds:
            fail("rounds", f"at most {self.rounds}, for which the algorithm was made", rounds)
        return super().plan(rounds + self.dropouts, problem)

    @property
    def expected_batch(self) -> float:
        """The public number q N that sums are divided by."""
        return self.sampling_rate * self.records

    def init(self, problem: Any, key: Key) -> CrossSiloState:
        """Start at the problem's initial model.

        Raises
        ------
        ValueError
            If the problem has another number of nodes than sites, or a site has no records, or more
            than `records_per_site`.
        """
        here = problem.nodes
        whole = len(getattr(problem, "all_records", range(here)))  # of which some may be elsewhere
        if self.sites not in (here, whole):
            got = f"{here} nodes" if here == whole else f"{here} of {whole} nodes"
            fail("problem", f"records of {self.sites} sites", got)
        self.check_site(problem)
        return self.start_from(Released(initial_parameters(problem, key, 1)))

    def start_from(self, w: Released) -> CrossSiloState:
        """Start from this model, shape (1, dim), which must not depend on private data."""
        if w.shape != (1, self.dim):
            fail("problem", f"a model of length {self.dim} (dim)", w.shape[1])
        zeros = Released(np.zeros(w.shape))
        return CrossSiloState(
            w=w,
            momentum=zeros,
            total=zeros,
            output=Released(w.astype(np.float64)),
            averaged=0,
        )

    def round(self, state: CrossSiloState, t: int, problem: Any, key: Key) -> Round[CrossSiloState]:
        """Sum clipped gradients at each site, release their sum, step."""
        sums = self.site_sums(state.w, t, problem, key)
        bits = 8 * self.sites * (state.w.nbytes + self.secure_sum.message_bytes)  # down, and up
        total = yield Message(sums, self.release_of(t), copies=2 * self.sites, bits=bits)
        return self.absorb(state, total, t, problem)

    def check_site(self, problem: Any) -> None:
        """Fail unless each site of a problem has records, and not more than the public bound."""
        counts = np.diff(self._all_records(problem)[0])
        sites = getattr(problem, "members", np.arange(len(counts)))
        if counts.min() < 1:
            none_at = sites[counts.argmin()]
            fail("problem", "at least 1 record at each site", f"none at site {none_at}")
        most = self.records if self.records_per_site is None else self.records_per_site
        if counts.max() > most:
            wanted = f"at most {most} records at each site (records_per_site)"
            fail("problem", wanted, f"{counts.max()} at site {sites[counts.argmax()]}")

    def site_sums(self, w: Released, t: int, problem: Any, key: Key) -> Sensitive:
        """Return each site's sum of clipped gradients, shape (sites, dim). It stays inside."""
        batches = self._sample(self._all_records(problem), t, key)
        return clipped_gradient_sums(problem, w, batches, self.clipping_norm)

    def absorb(
        self, state: CrossSiloState, total: Released, t: int, problem: Any
    ) -> CrossSiloState:
        """Step along the released sum, shape (1, dim): all of this is post-processing."""
        gradient = total / self.expected_batch
        seen = ReleasedSum(Released(state.total + gradient), t + 1)
        scale = self.secure_sum.noise_scale / self.expected_batch
        estimate = self.estimator(Released(gradient), scale, seen)
        direction = self.momentum * state.momentum + estimate
        decay = problem.regularization * state.w
        w = state.w - at(self.step_size, t + 1) * (direction + decay)
        averaged = state.averaged + 1 if t + 1 > self.rounds * (1 - self.averaged) else 0
        output = state.output + (w - state.output) / averaged if averaged else w
        return CrossSiloState(
            w=Released(w.astype(state.w.dtype)),
            momentum=Released(direction),
            total=seen.total,
            output=output,
            averaged=averaged,
        )

    def published(self, state: CrossSiloState, received: Released) -> Released:
        """Return the model, which follows from released sums."""
        return Released(self.parameters(state))

    def losses(
        self, state: CrossSiloState, t: int, problem: Any, key: Key
    ) -> npt.NDArray[np.float64]:
        """Return each site's loss on all of its records; only a simulation can."""
        losses: npt.NDArray[np.float64] = problem.objective(
            np.repeat(state.w, problem.nodes, axis=0), self._all_records(problem)
        )
        return losses

    def parameters(self, state: CrossSiloState) -> Floats:
        """Return the model, shape (1, dim): the mean over the last rounds."""
        return state.output.astype(state.w.dtype)

    def _all_records(self, problem: Any) -> Ragged:
        records: Ragged = problem.records_of(np.arange(problem.nodes))
        return records

    def _sample(self, everything: Ragged, t: int, key: Key) -> Ragged:
        """Return the records that take part: each by a coin of its own site."""
        if self.sampling_rate == 1:
            return everything
        indptr, records = everything
        counts = np.diff(indptr)
        shape = (len(counts), int(counts.max()))
        coins = kernels.bernoulli(shape, self.sampling_rate, key.stream(Purpose.SAMPLE, t))
        chosen = coins & (np.arange(shape[1]) < counts[:, np.newaxis])
        ends = np.concatenate(([0], np.cumsum(chosen.sum(axis=1))))
        in_order = chosen[np.arange(shape[1]) < counts[:, np.newaxis]]
        return ends, records[in_order]
