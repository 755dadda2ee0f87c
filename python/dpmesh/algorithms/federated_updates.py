"""Clipped model updates of clients, the contribution of DP-Fed, FedAvg, FedProx and SCAFFOLD.

Client j trains on its local records, within a ball of radius L around the global model w^t, and
returns its update Delta_j. Here g_j is the mean gradient on the next mini-batch, eta_l the clients'
learning rate, and K the number of local steps:

    w_j^0     = w^t
    w_j^(i+1) = w^t + Clip(w_j^i - eta_l g_j(w_j^i) - w^t, L)      ClientUpdate, i = 0 .. K-1
    Delta_j   = w_j^K - w^t

A client's *walk* is the sequence of mini-batches of its local steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import signature
from math import hypot
from types import NoneType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._arrays import floats, read_only
from dpmesh._privacy_types import Floats, NeighboringRelation, Released, Sensitive
from dpmesh._ragged import Indices, Numbers, Walks, rows
from dpmesh._validate import every, fail, instance, integer, non_negative, one_of, positive
from dpmesh.algorithms.base import require_problem
from dpmesh.algorithms.federated_contribution import Contribution, UnitCounts
from dpmesh.algorithms.federated_server import AdaptiveClipping
from dpmesh.algorithms.worst_case import AuditSize, Crowd, Pair, opposed_clients
from dpmesh.kernels.draws import local_walks
from dpmesh.keys import Key, Purpose
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.sampling import FixedSizeSampling, PoissonSampling, RandomAllocation, Sampling
from dpmesh.problems import ClientProblem
from dpmesh.schedules import Schedule, at, keep_schedules

BOUNDARY = 1e-6
"""An update counts as unclipped if its norm is below (1 - BOUNDARY) times the radius."""


@dataclass(frozen=True, kw_only=True)
class ClientUpdates(Contribution[ClientProblem]):
    """Clipped model updates of clients after local training, with user-level (client-level) DP.

    It is a contribution of `FederatedLearning`. Each client of a round's cohort trains the global
    model w^t on its own records, and contributes the difference of its model and w^t.

    Parameters
    ----------
    clients
        Number N of clients, a public number.
    sampling_rate
        Expected fraction of clients in a cohort, in (0, 1]; the paper's tau.
    clipping_norm
        Largest L2 norm L of an update: each local step is clipped to this distance from w^t.
    sampling
        ``"poisson"``: each client joins a cohort independently with probability tau. ``"uniform"``:
        round(tau N) clients, drawn without replacement. ``"cyclic"``: round(1 / tau) fixed, public
        groups take turns; client i is in group i modulo their number. ``"allocation"`` (random
        allocation): a pass has round(1 / tau) rounds, and each client draws secretly the one round
        of each pass in which it takes part.
    batch_size
        Number of records in a client's mini-batch.
    epochs, steps
        Exactly one of them: passes of a client over its records in a round (the paper's E), or
        local steps, one mini-batch each (K).
    step_size
        Learning rate eta_l of clients for t = 1, 2, ..: a number or a schedule; the paper has
        ``ExponentialDecay(0.1, 0.99)`` in section 6.
    adaptive_clipping
        An `AdaptiveClipping`: `clipping_norm` is that of the first round, and then follows a
        quantile of the updates' norms. None for a fixed norm.
    proximal
        Factor mu of the term ``mu / 2 |w - w^t|^2`` in each client's objective, as in FedProx (Li
        et al., 2020). A `LinearProblem` does not support it.
    control_variates
        True to add the control variates c - c_j to the gradients of client j, as in SCAFFOLD
        (Karimireddy et al., 2020, option II). It requires `steps`. ``"uniform"`` is refused, for
        lack of a proof. A `LinearProblem` does not support it.
    clients_at_once
        Number of clients of a cohort that train together. It bounds the memory, and changes only
        the rounding of sums.

    Guarantee
    ---------
    The unit is a client with all of its records. Each update has an L2 norm of at most L for any
    data, and does not depend on other clients. Adding or removing a client therefore moves the sum
    by at most L (add-remove). Under ``"uniform"`` the relation is replace-one, and replacing a
    client moves the sum by at most 2 L. With adaptive clipping, L is the clipping norm of the round
    and the sum includes the clients' indicator bits. Both bounds are then larger by the factor that
    `AdaptiveClipping` states, and the noise covers it. With ``"allocation"`` a pass is one event
    (``docs/privacy/random_allocation_proof.md``). `FederatedLearning` states adversary and noise.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.ClientUpdates(clients=1000, sampling_rate=0.05, epochs=5).clients
    1000
    """

    unit = "user"
    parties = "clients"

    sampling: Literal["poisson", "uniform", "cyclic", "allocation"] = "poisson"
    batch_size: int = 10
    epochs: int | None = None
    steps: int | None = None
    step_size: float | Schedule = 0.1
    adaptive_clipping: AdaptiveClipping | None = None
    proximal: float = 0.0
    control_variates: bool = False
    clients_at_once: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("sampling", self.sampling, ("poisson", "uniform", "cyclic", "allocation"))
        if (self.epochs is None) == (self.steps is None):
            got = f"epochs={self.epochs}, steps={self.steps}"
            fail("epochs", "either this or steps", got)
        counts = ("batch_size", "epochs", "steps", "clients_at_once")
        every(self, integer, *counts, at_least=1)
        keep_schedules(self, "step_size")
        expected = "AdaptiveClipping() or None"
        instance("adaptive_clipping", self.adaptive_clipping, expected, AdaptiveClipping, NoneType)
        non_negative("proximal", self.proximal)
        if self.control_variates and self.steps is None:
            fail("steps", "a number with control_variates, the same for all", None)
        if self.control_variates and self.sampling == "uniform":
            expected = "another one: cohorts of a fixed size are not proved for clients"
            fail("sampling", f"{expected} with control_variates", self.sampling)

    # Who takes part: coins and public numbers, no data

    @property
    def neighboring_relation(self) -> NeighboringRelation:
        """Neighbouring relation: ``"replace_one"`` with ``"uniform"``, else ``"add_remove"``."""
        if self.sampling == "uniform":
            return "replace_one"
        return "add_remove"

    @property
    def groups(self) -> int | None:
        """Number of groups that take turns with ``"cyclic"``; None with other schemes."""
        if self.sampling == "cyclic":
            return self._turns
        return None

    @property
    def _turns(self) -> int:
        """Number of rounds of a pass, in which each client takes part once."""
        return max(1, round(1 / self.sampling_rate))

    @cached_property
    def scheme(self) -> Sampling | None:
        """Secret sampling of the clients of a round; None if groups take turns."""
        if self.groups is not None:
            return None
        if self.sampling == "allocation":
            return RandomAllocation(rounds=self._turns)
        if self.sampling == "poisson":
            return PoissonSampling(self.sampling_rate)
        size = max(1, round(self.sampling_rate * self.clients))
        return FixedSizeSampling(size=size, population=self.clients)

    @property
    def expected_clients(self) -> float:
        """Expected number of clients in a cohort."""
        if self.scheme is None:
            return 1 / self._turns * self.clients
        return self.scheme.rate * self.clients

    @property
    def expected_size(self) -> float:
        """Expected number of units in a cohort: a unit is a client."""
        return self.expected_clients

    @property
    def unit_counts(self) -> UnitCounts:
        """Public numbers of units: each client is one."""
        return UnitCounts(self.clients, 1)

    def cohort(self, t: int, key: Key, local_clients: int | None) -> Indices:
        """Return the indices of the clients in round t's cohort, ascending.

        The cohort is secret, unless groups take turns.
        """
        if self.scheme is None:
            return np.arange(t % self._turns, self.clients, self._turns)
        coins = key.stream(Purpose.SAMPLE, t)
        rate = self.scheme.rate
        if local_clients is not None:
            return np.flatnonzero(kernels.bernoulli((local_clients, 1), rate, coins))
        match self.scheme:
            case PoissonSampling():
                return np.flatnonzero(kernels.bernoulli(self.clients, rate, coins))
            case FixedSizeSampling() as fixed:
                return kernels.sample([fixed.population], fixed.size, coins).ravel()
            case RandomAllocation(rounds=rounds):
                coins = key.stream(Purpose.ALLOCATION, t // rounds)
                return np.flatnonzero(kernels.integers([self.clients], rounds, coins) == t % rounds)

    # How far a client moves the sum

    def sensitivity(self, bit_weight: float) -> Sensitivity:
        """Return the L2 sensitivity of the sum to one client.

        With adaptive clipping it is stated over the clipping norm C_t of the round.
        """
        bound = self.clipping_norm
        vector = "clipped update"
        if self.adaptive_clipping is not None:
            bound = hypot(1, bit_weight / 2)  # norms of the update and of (bit - 1/2) weight
            vector = "clipped update and its bit, in units of C_t,"
        if self.sampling != "uniform":
            return Sensitivity(bound, "l2", f"one {vector} added or removed")
        return Sensitivity(2 * bound, "l2", f"one {vector} replaced")

    def bit_weight(self, noise_multiplier: float, expected_size: float) -> float:
        """Return the weight of the indicator bit in a client's vector, over the clipping norm C_t.

        0 without adaptive clipping.
        """
        if self.adaptive_clipping is None:
            return 0.0
        least_std = noise_multiplier / 2  # a client moves the sum of (bit - 1/2) by 1/2
        return self.adaptive_clipping.weight(least_std, expected_size)

    def assumptions(self, *, trusted: bool) -> tuple[str, ...]:
        """Return the assumptions about the server, in words.

        Parameters
        ----------
        trusted
            True if a trusted server sums the updates. It then sees each update, and must keep
            secret who took part, unless groups take turns. False with secure aggregation.
        """
        if not trusted:
            return ()
        trust = "the server is trusted: it sees the clients' updates before it adds noise"
        if self.groups is not None:
            return (trust,)
        return (trust, "who took part in a round, and how many, stays secret")

    def check_secure(self) -> None:
        """Check that the settings have a proof under secure aggregation.

        Raises
        ------
        ValueError
            If the cohort is public or of a fixed size (unless all clients take part), or with
            control variates or adaptive clipping.
        """
        all_take_part = self.scheme is not None and self.scheme.rate == 1
        if self.sampling != "poisson" and not (self.sampling == "uniform" and all_take_part):
            expected = (
                '"poisson", or "uniform" with a sampling_rate of 1, under a secure sum: the server '
                "must not know the cohort, and of sums of integers only these are proved"
            )
            fail("sampling", expected, self.sampling)
        if self.control_variates:
            fail("control_variates", "False under a secure sum, whose clients keep no state", True)
        adaptive = self.adaptive_clipping
        if adaptive is not None:
            expected = "None under a secure sum, whose clipping norm stays"
            fail("adaptive_clipping", expected, adaptive)

    def leaking_data(self, algorithm: Any, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return problems for audits of user-level DP, as `Algorithm.leaking_data` does.

        In the pair one canary client faces clients with opposite updates. All clients of the crowd
        are canaries.
        """
        return opposed_clients(algorithm, size)

    # Local training of a client

    def check(self, problem: ClientProblem) -> None:
        """Check that a problem's method `local_training` supports the settings.

        Raises
        ------
        ValueError
            If the problem has no `local_training` or `records_of`, or if `local_training` does not
            accept `proximal` or, for control variates, `correction`, where these are needed.
        """
        require_problem(self, problem, "records_of", "local_training")
        accepted = signature(problem.local_training).parameters
        for argument, name in (("proximal", "proximal"), ("correction", "control_variates")):
            setting = getattr(self, name)
            if setting and argument not in accepted:
                kind = type(problem).__name__
                fail(name, f"none: local_training of a {kind} takes no {argument}", setting)

    def updates(
        self,
        w: Released,
        cohort: Indices,
        t: int,
        problem: ClientProblem,
        key: Key,
        *,
        clipping_norm: float | None = None,
        correction: Floats | None = None,
    ) -> Sensitive:
        """Train clients from the global model, and return their clipped updates.

        A client whose training ends in NaN or infinity has an update of 0: an error would reveal
        that it took part.

        Parameters
        ----------
        w
            Global model, shape (1, dim).
        cohort
            Indices of the clients.
        t, problem, key
            As in `Algorithm.round`.
        clipping_norm
            Largest L2 norm of an update; by default the contribution's `clipping_norm`.
        correction
            Vectors that are added to each client's gradients, shape (clients, dim); None for none.

        Returns
        -------
        Shape (clients, dim), without noise.

        Raises
        ------
        ValueError
            If training does not return one update of floats for each client.
        """
        radius = self.clipping_norm if clipping_norm is None else clipping_norm
        step_size = at(self.step_size, t + 1)
        walks = self._walks(cohort, t, problem, key)
        train = partial(problem.local_training, step_size=step_size, radius=radius)
        if self.proximal:  # else a problem need not accept it
            train = partial(train, proximal=self.proximal)
        if correction is not None:
            train = partial(train, correction=correction)
        start = read_only(w.copy())  # a change in place would publish a model without noise
        trained = train(start, walks)
        updates = np.require(floats("local_training", trained), requirements="W")
        # The guarantee must not depend on the problem's code: check the shape, and clip again.
        shape = (len(cohort), w.shape[1])
        if updates.shape != shape:
            fail("local_training", f"updates of shape {shape}", updates.shape)
        if not kernels.all_finite(updates):
            updates[~np.isfinite(updates).all(axis=1)] = 0.0
        kernels.clip_rows(updates, radius, out=updates)
        return Sensitive(updates)

    def _walks(self, clients: Indices, t: int, problem: ClientProblem, key: Key) -> Walks:
        """Return each client's walk in round t: the mini-batches of its local steps."""
        return local_walks(
            problem.records_of(clients),
            clients,
            key.stream(Purpose.BATCHES, t),
            batch_size=self.batch_size,
            local_epochs=self.epochs,
            local_steps=self.steps,
        )

    def vectors(
        self,
        state: Any,
        cohort: Indices,
        t: int,
        problem: ClientProblem,
        key: Key,
        bit_weight: float,
    ) -> Iterator[tuple[Indices, Sensitive]]:
        """Yield the updates of a cohort, `clients_at_once` at a time.

        With adaptive clipping, each update is followed by its weighted indicator bit, shape
        (clients, dim + 1). With control variates, the clients' c_j in `state` are updated in place.
        """
        radius = state.clipping_norm
        for first in range(0, len(cohort), self.clients_at_once):
            clients = cohort[first : first + self.clients_at_once]
            correction = None
            if self.control_variates:
                correction = state.control - state.controls[clients]
            updates = self.updates(
                state.w, clients, t, problem, key, clipping_norm=radius, correction=correction
            )
            if self.control_variates:  # c_j <- c_j - c - Delta_j / (K eta_l), option II
                state.controls[clients] -= state.control + updates / self.total_step(t)
            if self.adaptive_clipping is not None:
                is_unclipped = kernels.row_norms(updates) < (1 - BOUNDARY) * radius
                indptr, _ = problem.records_of(clients)
                has_records = np.diff(indptr) > 0
                bits = bit_weight * radius * has_records * (is_unclipped - 0.5)
                updates = Sensitive(np.column_stack([updates, bits]))
            yield clients, updates

    def losses(
        self, w: Released, cohort: Indices, t: int, problem: ClientProblem, key: Key
    ) -> Numbers:
        """Return the loss at w^t of each client of the cohort that has records.

        Each client's loss is on the first mini-batch of its walk.
        """
        steps, batches = self._walks(cohort, t, problem, key)
        first_batches = steps[:-1][np.diff(steps) > 0]
        if not len(first_batches):
            return np.zeros(0)
        models = np.repeat(w, len(first_batches), axis=0)
        return problem.objective(models, rows(batches, first_batches))

    def bounded(self, vectors: Sensitive) -> Sensitive:
        """Return updates clipped again, in float64."""
        return Sensitive(kernels.clip_rows(vectors.astype(np.float64), self.clipping_norm))

    # The server's step

    def precision(self, w: Released) -> npt.DTypeLike:
        """Return the dtype of the global model."""
        return w.dtype

    def moved(self, w: Released, direction: Floats, step_size: float, decay: float) -> Floats:
        """Return the global model after the server's step, w^t + eta_g Delta.

        Delta is `direction` and eta_g is `step_size`. The `decay` is not used, since the clients'
        local steps include the weight decay.
        """
        moved: Floats = w + w.dtype.type(step_size) * direction
        return moved

    @property
    def bits(self) -> int:
        """Number of indicator bits that a client sends: 1 with adaptive clipping, else 0."""
        return int(self.adaptive_clipping is not None)

    @property
    def models(self) -> int:
        """Number of vectors a client receives: the global model, and c with control variates."""
        return 1 + self.control_variates

    def next_norm(self, clipping_norm: float, share: float) -> float:
        """Return the clipping norm C_(t+1), given C_t and the noisy fraction of set bits - 1/2."""
        if self.adaptive_clipping is None:
            return clipping_norm
        return self.adaptive_clipping.next_norm(clipping_norm, 0.5 + share)

    def total_step(self, t: int) -> float:
        """Return K eta_l: an update is minus this factor times the mean of its K gradients."""
        assert self.steps is not None
        return self.steps * positive("step_size", at(self.step_size, t + 1))

    def next_control(
        self, control: Released, average: Released, t: int, expected_size: float
    ) -> Floats:
        """Return the server's next control variate c of SCAFFOLD, from the denoised average.

        c <- c - S / N (c + Delta / (K eta_l)), where S is the expected size of the cohort.
        """
        if not self.control_variates:
            return control
        rate = expected_size / self.clients
        return control - rate * (control + average / self.total_step(t))
