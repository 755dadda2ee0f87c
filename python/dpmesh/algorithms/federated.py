"""Federated learning: a server steps along noisy sums of its clients' vectors.

`FederatedLearning` consists of parts. In every round clients contribute vectors, the vectors are
summed with noise, and the server moves the global model w along the noisy average. The symbols are
from Algorithm 1 of Liang et al. (DP-Fed-LS), except that t counts from 0, as rounds do in this
package. S is the expected number of clients or records in a round, D the denoiser:

    Delta_j   = vector of client j                                      `contribution`
    Delta     = 1 / S  D(sum_j Delta_j + N(0, nu^2))      (*)           `combination`, `denoiser`
    w^(t+1)   = w^t + eta_g Delta                                       `optimizer`, `step_size`

FedAvg, DP-Fed-LS, FedAdam, SCAFFOLD, and DP-SGD across sites with secure aggregation are, in this
order::

    updates = ClientUpdates(clients=100, sampling_rate=0.1, steps=5)
    FederatedLearning(updates, noise_multiplier=1.0)
    FederatedLearning(updates, noise_multiplier=1.0, denoiser=LaplacianSmoothing(1.0))
    FederatedLearning(updates, noise_multiplier=1.0, optimizer=ServerAdam(), step_size=0.01)
    FederatedLearning(replace(updates, control_variates=True), noise_multiplier=1.0)
    FederatedLearning(
        RecordGradients(clients=3, records=600),
        noise_multiplier=1.0,
        combination=SecureAggregation(dim=31, rounds=50),
    )

One thing differs from the paper: S is the expected number of participants, which is public, and not
the realised number. Division by the realised number would move the average by up to 2 L / S when a
client is added, twice as far as the paper's noise covers, and would reveal the number.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from math import ceil, isnan, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._ragged import Indices, Numbers
from dpmesh._validate import every, fail, instance, positive, probability, refuse, require_methods
from dpmesh.algorithms.base import KNOWN_TO_ALL, Algorithm, initial_parameters, require_problem
from dpmesh.algorithms.clipping import Clipping
from dpmesh.algorithms.denoisers import Denoiser, Identity, ReleasedSum
from dpmesh.algorithms.federated_combination import Combination, SecureAggregation, TrustedServer
from dpmesh.algorithms.federated_contribution import Contribution
from dpmesh.algorithms.federated_server import Average, ServerOptimizer
from dpmesh.algorithms.messages import Round
from dpmesh.algorithms.worst_case import AuditSize, Crowd, Pair
from dpmesh.keys import Key
from dpmesh.noise.independent import Independent, NoiseKind, keep_noise, strategy_of
from dpmesh.noise.mechanisms import Mechanism
from dpmesh.noise.rows import CorrelatedRow
from dpmesh.noise.secure import SecureSum
from dpmesh.noise.secure.sizes import calibrated_sum
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.privacy.sampling import RandomAllocation
from dpmesh.privacy.views import LossFacts
from dpmesh.problems import ModelProblem, Problem
from dpmesh.schedules import Schedule, at, keep_schedules

if TYPE_CHECKING:
    from dpmesh.noise.correlated import CorrelatedGaussian


@dataclass(frozen=True, kw_only=True)
class FederatedState:
    """State before round t. All of it but `controls` is computed from releases.

    Parameters
    ----------
    w
        Global model w^t, shape (1, dim).
    total
        Sum of the noisy averages of all rounds so far, shape (1, dim).
    output
        Output of the run so far, shape (1, dim): the last model, or an average of models.
    weight
        Sum of the weights of the models in an averaged output.
    clipping_norm
        Clipping norm of the next round; it changes with adaptive clipping only.
    moments
        Memory of the server's optimizer, shape (count, dim).
    control
        Control variate c of the server (SCAFFOLD), shape (1, dim).
    controls
        Control variates c_j of the clients, shape (clients, dim), which the clients keep private.
        Shape (0, dim) without control variates.
    """

    w: Released = field(metadata=KNOWN_TO_ALL)
    total: Released = field(metadata=KNOWN_TO_ALL)
    output: Released = field(metadata=KNOWN_TO_ALL)
    weight: float
    clipping_norm: float
    moments: Released = field(metadata=KNOWN_TO_ALL)
    control: Released = field(metadata=KNOWN_TO_ALL)
    controls: Sensitive


TRUSTED = TrustedServer()
"""Default combination."""


@dataclass(frozen=True)
class FederatedLearning(Algorithm[FederatedState, ModelProblem], Clipping):
    """Private federated learning with a server: FedAvg, DP-Fed-LS, FedAdam, SCAFFOLD or DP-SGD.

    In a round clients contribute clipped vectors. These are summed, noise is added, and the sum is
    divided by its expected number of units. The server filters the noisy average (`denoiser`) and
    moves the global model w along it (`optimizer`, `step_size`). Source: Algorithm 1 of Liang et
    al. (DP-Fed-LS), whose symbols are used here.

    Parameters
    ----------
    contribution
        Vectors that clients contribute. `ClientUpdates` are model updates after local training,
        with user-level (client-level) privacy. `RecordGradients` are sums of clipped gradients,
        with record-level privacy.
    noise_multiplier
        Standard deviation nu of the noise on the sum over the contribution's `clipping_norm`, as in
        Opacus and Flower. Under secure aggregation it counts only noise that is unknown to the
        server and the clients that collude with it. None runs without noise, for comparison.
    combination
        Place where contributions are summed: `TrustedServer`, a server that sees each contribution
        and adds the noise, or `SecureAggregation`, where the server sees noisy sums alone.
    denoiser
        Filter of the noisy average, such as ``denoisers.LaplacianSmoothing(1.0)`` of
        `dpmesh.algorithms`; by default none.
    optimizer
        Optimizer of the server: `ServerMomentum()`, `ServerAdam()`, or None for plain steps along
        the filtered average.
    average
        `Average` of the global models of several rounds, as the output; None for the last model.
    step_size
        Learning rate eta_g of the server for t = 1, 2, ..: a number or a schedule.
    noise
        Kind of noise. With a trusted server, a class of mechanisms, such as `dpmesh.noise.Laplace`
        or a custom one. With ``sampling="cyclic"``, temporally correlated noise as in DP-FTRL:
        `correlated.InTime` of `dpmesh.noise`, made for ``topology=None``. None for independent
        Gaussian noise.

    Guarantee
    ---------
    The global models of all rounds together are (epsilon, delta)-DP with the epsilon of
    ``plan(rounds).cost(delta)``. The contribution sets the unit of privacy and the neighbouring
    relation. The adversary sees all global models. A `TrustedServer` is trusted, and keeps secret
    who takes part where sampling amplifies privacy. With `SecureAggregation` the adversary is the
    server together with its colluding clients.

    A unit moves the sum by at most its sensitivity, divisors are public, and all that follows the
    noise is post-processing. With ``sampling="cyclic"``, for k turns of a group, the models are
    mu-Gaussian-DP with mu = sqrt(k) / `noise_multiplier`, also with `InTime` (Theorem 1 of
    ``docs/privacy/correlated_noise_proofs.md``). If a client is removed, the other clients keep
    their indices and groups. SCAFFOLD's control variates do not change the guarantee. A client's
    control variate follows from its data, its coins and releases; the server's follows from
    releases (``docs/algorithms/federated.md``). All clients have the same weight, since weights by
    numbers of records would depend on private data.

    Examples
    --------
    >>> import dpmesh as dm
    >>> updates = dm.ClientUpdates(clients=1000, sampling_rate=0.05, epochs=1)
    >>> fed = dm.FederatedLearning(updates, noise_multiplier=1.0)
    >>> fed.plan(30).cost(1e-5).epsilon < 2
    False
    """

    communication = "server"
    parameters_are_released = True
    messages_need_no_trust = (
        "each update, or each record's gradient, is clipped at whatever model the totals make"
    )
    view_refusal = (
        "all models are public; hiding all but the last is not proved for random cohorts divided "
        "by a constant"
    )

    neighboring_relation = Algorithm.of_part("contribution.neighboring_relation")
    unit = Algorithm.of_part("contribution.unit")
    run_length = Algorithm.of_part("combination.rounds")

    contribution: Contribution[Any]
    _: KW_ONLY
    noise_multiplier: float | None
    combination: Combination = TRUSTED
    denoiser: Denoiser = Identity()
    optimizer: ServerOptimizer | None = None
    average: Average | None = None
    step_size: float | Schedule = 1.0
    noise: NoiseKind = None

    def __post_init__(self) -> None:
        every(self, positive, "noise_multiplier")
        expected = "ClientUpdates(..) or RecordGradients(..)"
        instance("contribution", self.contribution, expected, Contribution)
        expected = "TrustedServer() or SecureAggregation(dim=.., rounds=..)"
        instance("combination", self.combination, expected, TrustedServer, SecureAggregation)
        if isinstance(self.denoiser, type) or not callable(self.denoiser):
            fail(
                "denoiser",
                "one of dpmesh.algorithms.denoisers, such as Identity()",
                repr(self.denoiser),
            )
        if self.optimizer is not None:
            require_methods(
                "optimizer", self.optimizer, "ServerAdam(), for example, or None", "step"
            )
        instance("average", self.average, "Average() or None", Average, type(None))
        keep_schedules(self, "step_size")
        _ = self.secure_sum, self.bit_weight  # computing them checks their parameters
        keep_noise(self)
        self._check_noise()

    # What is released, from public numbers and coins

    @property
    def clipping_bound(self) -> float:
        """Clipping norm of the contribution; with adaptive clipping, that of the first round."""
        return self.contribution.clipping_norm

    def least_secure_noise(self, epsilon: float, delta: float) -> float | None:
        """Return the least `noise_multiplier` at which secure aggregation is (epsilon, delta)-DP.

        None with a trusted server.
        """
        if not isinstance(self.combination, SecureAggregation):
            return None
        if not probability("delta", delta, one=False):
            expected = "a positive number such as 1e-5: no sum has a finite epsilon at delta 0"
            fail("delta", expected, delta)
        sums = self.combination.secure_sum_of_noise(self.contribution, 1.0)
        calibrated = calibrated_sum(sums, epsilon=epsilon, delta=delta)
        return calibrated.noise_to_sensitivity / self.noise_to_sensitivity_at(1.0)

    @cached_property
    def secure_sum(self) -> SecureSum | None:
        """Public parameters of secure aggregation; None with a trusted server."""
        return self.combination.secure_sum(self.contribution, self.noise_to_sensitivity)

    @cached_property
    def expected_size(self) -> float:
        """Public divisor S of sums: expected number of units whose vectors arrive in a round."""
        return self.combination.arrival_rate * self.contribution.expected_size

    @cached_property
    def bit_weight(self) -> float:
        """Weight of a client's indicator bit in the sum, over the clipping norm.

        0 without adaptive clipping.
        """
        return self.contribution.bit_weight(self.noise_multiplier or 0.0, self.expected_size)

    @cached_property
    def mechanism(self) -> Mechanism:
        """Mechanism of the sum: Gaussian, or independent noise of another kind (`noise`)."""
        if isinstance(self.noise, Independent) and self.noise_to_sensitivity is not None:
            return self.noise.mechanism(self.noise_to_sensitivity)
        return self.combination.mechanism(self.noise_to_sensitivity, self.secure_sum)

    def sensitivity(self, t: int) -> Sensitivity:
        """Return the L2 sensitivity of the sum to one client or record, equal in all rounds.

        With adaptive clipping it is stated over the clipping norm of the round.
        """
        return self._sensitivity

    @cached_property
    def _sensitivity(self) -> Sensitivity:
        return self.contribution.sensitivity(self.bit_weight)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee: trust in the server, or limits on collusion."""
        return self.combination.assumptions(self.contribution, self.secure_sum)

    def release_of(self, t: int) -> Release:
        """Return the release of round t: the noisy sum of all contributions."""
        scheme = self.contribution.scheme
        if self.secure_sum is not None and scheme is not None and scheme.rate == 1:
            scheme = None  # all take part: nothing is sampled
        if isinstance(scheme, RandomAllocation):
            scheme = replace(scheme, cycle=t // scheme.rounds)
        mechanism = self.mechanism
        if self._joint is not None:
            mechanism = CorrelatedRow.of(self._joint, t)
        batch = None
        if self.contribution.groups is not None:
            batch = t % self.contribution.groups
        return Release(t, mechanism, self.sensitivity(t), sampling=scheme, batch=batch)

    def plan(self, rounds: int, problem: Problem | LossFacts | None = None) -> Plan:
        """Return the releases of a run: see `Algorithm.plan`.

        With `SecureAggregation` it has the further releases of its `reserve`.
        """
        return super().plan(self.combination.attempts(rounds), problem)

    def leaking_data(self, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return problems for audits: a canary that all other units oppose, and many canaries."""
        return self.contribution.leaking_data(self, size)

    # A run

    def init(self, problem: ModelProblem, key: Key) -> FederatedState:
        """Return the state before round 0, with the problem's initial model."""
        require_problem(self, problem, "initial")
        clients = self.contribution.clients
        local_clients = problem.nodes
        all_clients = local_clients
        if hasattr(problem, "all_records"):  # other processes may hold the other clients
            all_clients = len(problem.all_records)
        is_complete = clients == local_clients
        if self.secure_sum is not None:
            is_complete = clients in (local_clients, all_clients)
        if not is_complete:
            got = f"{local_clients}"
            if local_clients != all_clients:
                got = f"{local_clients} of {all_clients}"
            fail("problem", f"one with {clients} clients", got)
        self.contribution.check(problem)
        return self.start_from(Released(initial_parameters(problem, key, 1)))

    def start_from(self, w: Released) -> FederatedState:
        """Return a state that starts from the global model `w`, shape (1, dim).

        The model must not depend on private data.
        """
        secure_sum = self.secure_sum
        if secure_sum is not None and w.shape[1] != secure_sum.dim:
            fail("problem", f"a model of length {secure_sum.dim} (combination.dim)", w.shape[1])
        contribution = self.contribution
        moments = 0 if self.optimizer is None else self.optimizer.count
        zeros = np.zeros(w.shape, contribution.precision(w))
        controls = np.zeros(((contribution.models - 1) * contribution.clients, w.shape[1]), w.dtype)
        start = FederatedState(
            w=w,
            total=Released(zeros),
            output=Released(w.astype(zeros.dtype)),
            weight=0.0,
            clipping_norm=contribution.clipping_norm,
            moments=Released(np.repeat(zeros, moments, axis=0)),
            control=Released(zeros),
            controls=Sensitive(controls),
        )
        return self._moved(start, start.output, 0)

    def round(
        self, state: FederatedState, t: int, problem: ModelProblem, key: Key
    ) -> Round[FederatedState]:
        """Run round t of Algorithm 1."""
        if len(state.controls):  # `vectors` changes them in place
            state = replace(state, controls=state.controls.copy())
        cohort = self.cohort(t, key, problem.nodes)
        vectors = self.contribution.vectors(state, cohort, t, problem, key, self.bit_weight)
        noisy = yield self.combination.message(vectors, self, state, t, problem.nodes)
        return self.absorb(state, noisy, t, self.contribution.decay(problem))

    def cohort(self, t: int, key: Key, local_clients: int) -> Indices:
        """Return the indices of the clients whose contributions to round t arrive, ascending.

        They are secret, unless public groups take turns. `local_clients` is the number of clients
        of this process.
        """
        return self.combination.cohort(self.contribution, t, key, local_clients)

    def absorb(
        self, state: FederatedState, noisy: Released, t: int, decay: float = 0.0
    ) -> FederatedState:
        """Return the state after the server's step along the noisy average of round t.

        Parameters
        ----------
        state
            State before the round.
        noisy
            Noisy sum of the round, shape (1, dim); with adaptive clipping, the noisy sum of the
            clients' weighted bits follows it, shape (1, dim + 1).
        t
            Round, from 0.
        decay
            Weight decay of the server's step.
        """
        contribution, size = self.contribution, self.expected_size
        dim = state.w.shape[1]
        noisy = Released(noisy.astype(state.total.dtype, copy=False))
        average = Released(noisy[:, :dim] / noisy.dtype.type(size))
        total = Released(state.total + average)
        clipping_norm = state.clipping_norm
        noise_scale = self._noise_scale(noisy, t)
        if contribution.bits:
            noise_scale *= clipping_norm  # sensitivity and noise are over the clipping norm
            bit_sum = float(noisy[0, dim]) / (self.bit_weight * clipping_norm)
            clipping_norm = contribution.next_norm(clipping_norm, bit_sum / size)
        delta = self.denoiser(average, noise_scale / size, ReleasedSum(total, t + 1))
        direction: Floats = delta
        moments: Floats = state.moments
        if self.optimizer is not None:
            direction, moments = self.optimizer.step(delta, moments)
        w = contribution.moved(state.w, direction, at(self.step_size, t + 1), decay)
        control = Released(contribution.next_control(state.control, delta, t, size))
        after = replace(
            state,
            total=total,
            clipping_norm=clipping_norm,
            control=control,
            moments=Released(moments),
        )
        return self._moved(after, Released(w), t + 1)

    def _noise_scale(self, noisy: Released, t: int) -> float:
        """Return the standard deviation of the noise in a sum; adaptive clipping multiplies it."""
        if self.secure_sum is not None:
            return self.secure_sum.noise_scale
        scale = self.mechanism.drawn_scale(noisy, self.sensitivity(t))
        return scale * self.mechanism.deviation

    def _moved(self, state: FederatedState, w: Released, t: int) -> FederatedState:
        """Return the state with the global model w^t, and with the output up to w^t."""
        output: Floats = w
        weight = 0.0
        if self.average is not None:
            output, weight = self.average.next(state.output, state.weight, w, t)
        w = Released(w.astype(state.w.dtype, copy=False))
        return replace(state, w=w, output=Released(output), weight=weight)

    def losses(
        self, state: FederatedState, t: int, problem: ModelProblem, key: Key
    ) -> Numbers | None:
        """Return the losses at w^t of the clients that learn in round t; None if there are none."""
        cohort = self.cohort(t, key, problem.nodes)
        losses = self.contribution.losses(state.w, cohort, t, problem, key)
        if len(losses) or self.secure_sum is not None:
            return losses
        return None

    def parameters(self, state: FederatedState) -> Floats:
        """Return the output, shape (1, dim): the last global model, or the average by `average`."""
        return state.output.astype(state.w.dtype, copy=False)

    @cached_property
    def _joint(self) -> CorrelatedGaussian | None:
        """Correlated noise of all rounds as one joint release; None if noise is independent.

        A client takes part in `uses` rounds, one for each turn of its group.
        """
        groups = self.contribution.groups
        strategy = strategy_of(self.noise)
        if strategy is None or self.noise_to_sensitivity is None or groups is None:
            return None
        uses = ceil(strategy.rows / groups)
        bounds = [self.sensitivity(0).bound] * strategy.rows
        ratio = self.noise_to_sensitivity / sqrt(uses)
        return strategy.release(ratio, bounds, uses=uses, separation=groups)

    def _check_noise(self) -> None:
        """Raise a ValueError unless `noise` has a proof with the other parts."""
        if isinstance(self.noise, Independent):
            self._check_kind(self.noise)
            return
        noise = strategy_of(self.noise)
        if noise is None:
            return
        takes_turns = self.contribution.groups is not None and self.contribution.groups > 1
        if not takes_turns or getattr(self.combination, "grid", None):
            reason = (
                "correlated noise is not proved for random cohorts, and has no benefit if all "
                "clients take part in each round: use ClientUpdates with sampling='cyclic', "
                "sampling_rate of at most 0.5, and no grid= but that of the noise"
            )
            refuse("noise", reason)
        if noise.topology is not None:
            fail("noise", "noise for a server, with topology=None", noise)
        if self.contribution.bits:
            expected = "None with correlated noise, whose rows share a unit"
            fail("adaptive_clipping", expected, "one")

    def _check_kind(self, noise: Independent) -> None:
        """Raise a ValueError unless this kind of noise has a proof with the other parts."""
        if self.secure_sum is not None:
            expected = "None under a secure sum: shares of other noise are not proved to add up"
            fail("noise", expected, noise.kind.__name__)
        if self.contribution.bits:
            expected = "None with adaptive clipping, whose bits are proved for Gaussian noise"
            fail("noise", expected, noise.kind.__name__)
        if getattr(self.combination, "grid", None):
            fail("noise", "noise with a grid of its own, or None", noise.kind.__name__)
        if isnan(noise.kind.deviation):
            expected = "a class that states its `deviation`, standard deviation over scale"
            fail("noise", expected, noise.kind.__name__)
