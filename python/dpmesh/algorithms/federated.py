"""Differentially private federated learning with Laplacian smoothing (Liang et al.), DP-Fed-LS.

In every round a server sends the global model to a random cohort of clients; each trains on its own
records, within a ball around that model, and returns its update; the server sums the updates, adds
Gaussian noise, smooths the result, and moves the global model. The symbols are those of Algorithm
1; its t counts from 0, as our rounds do:

    w_j^(i+1) = w^t + Clip(w_j^i - eta_l g_j(w_j^i) - w^t, L)      ClientUpdate, i = 0 .. K-1
    Delta_j   = w_j^K - w^t
    Delta     = eta_g / S  A_sigma^-1 (sum_j Delta_j + N(0, nu^2))      (*)
    w^(t+1)   = w^t + Delta

One thing differs: S is a public number, how many moves arrive on average (tau N unless clients drop
out), and not their realised number. Division by that would move the result by up to 2 L / S when a
client is added, twice what the paper's noise covers, and would reveal the number.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from inspect import signature
from math import ceil
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._ragged import Indices, Walks, rows
from dpmesh._validate import (
    as_python_numbers,
    fail,
    instance,
    integer,
    non_negative,
    one_of,
    positive,
    probability,
    require_methods,
)
from dpmesh.algorithms.base import (
    KNOWN_TO_ALL,
    Message,
    Round,
    initial_parameters,
    require_problem,
)
from dpmesh.algorithms.federated_clients import ClientProblem, trained_updates
from dpmesh.algorithms.federated_releases import FederatedReleases
from dpmesh.algorithms.federated_secure import SecureAggregation, client_vectors
from dpmesh.algorithms.federated_server import AdaptiveClipping, ServerOptimizer
from dpmesh.algorithms.minibatches import local_walks
from dpmesh.estimators import Estimator, Identity, ReleasedSum
from dpmesh.keys import Key, Purpose
from dpmesh.privacy.grid import power_of_two
from dpmesh.privacy.types import Floats, Released, Sensitive
from dpmesh.privacy.views import LossFacts, NotProved
from dpmesh.problems import LinearProblem
from dpmesh.schedules import Schedule, at, keep_schedules

if TYPE_CHECKING:
    from dpmesh.privacy.correlated import CorrelatedStrategy

TOUCHING = 1e-6
"""An update ends inside its ball if it is shorter than the radius by this share."""


@dataclass(frozen=True, kw_only=True)
class FederatedState:
    """The global model w^t and its history, shapes (1, dim), all but `controls` from releases.

    Parameters
    ----------
    w
        The global model.
    total
        Sum of the noisy average updates of all rounds.
    output
        Average of w^0 .. w^t with the weights a_t: the paper's output.
    weight
        Sum of the weights so far.
    clipping_norm
        That of the next round.
    moments
        What the server's optimizer remembers, shape (count, dim).
    control
        The control variate c of the server.
    controls
        Those of the clients, c_j, shape (clients, dim), which stay with them; (0, dim) without.
    """

    w: Released = field(metadata=KNOWN_TO_ALL)
    total: Released = field(metadata=KNOWN_TO_ALL)
    output: Released = field(metadata=KNOWN_TO_ALL)
    weight: float
    clipping_norm: float
    moments: Released = field(metadata=KNOWN_TO_ALL)
    control: Released = field(metadata=KNOWN_TO_ALL)
    controls: Sensitive


@dataclass(frozen=True, kw_only=True)
class FederatedLearning(FederatedReleases[FederatedState]):
    """Algorithm 1: DP-Fed, and DP-Fed-LS if the estimator is a `LaplacianSmoothing`.

    Parameters
    ----------
    clients
        Number of clients, N, which is public.
    sampling_rate
        The paper's tau in (0, 1]: the expected share of clients in a cohort.
    clipping_norm
        The paper's L: a client's model stays within this distance of the global one.
    noise_multiplier
        Standard deviation nu of the noise on the sum over its sensitivity, which is L for
        ``"poisson"`` and ``"cyclic"`` and 2 L for ``"uniform"``; None runs without noise, for
        comparison.
    sampling
        ``"poisson"``: each client takes part independently. ``"uniform"``: round(tau N) clients,
        drawn without replacement. ``"cyclic"``: round(1 / tau) fixed groups take turns, in public:
        client i is in group i modulo their number.
    batch_size
        Records of a client's mini-batch.
    local_epochs, local_steps
        Exactly one of them: passes of a client over its records (the paper's E), or mini-batches
        (K).
    local_step_size
        The paper's eta_l, by round, t = 1, 2, ..; ``ExponentialDecay(0.1, 0.99)`` in section 6.
    global_step_size
        The paper's eta_g.
    estimator
        What the server makes of the noisy average, such as ``LaplacianSmoothing(1.0)``.
    output_weights
        The weights a_t of the output for w^(t-1), t = 1, 2, ..; None for the last model.
    clients_at_once
        How many clients of a cohort train together. This bounds the memory, and changes nothing but
        the rounding of sums.
    grid
        If given, a power of 2: the sum is rounded to multiples of it, and the noise is discrete
        Gaussian on these, larger by the factor ``1 + grid sqrt(dim) / sensitivity``, which covers
        the rounding. None for real-valued noise.
    arrival_rate
        Probability in (0, 1] that a client of a cohort returns its update, by coins that look at no
        data; the others drop out, and are missing from the sum.
    adaptive_clipping
        If given, `clipping_norm` is that of the first round, and then follows a quantile of the
        updates' norms.
    optimizer
        How the server steps along the estimated averages: `ServerMomentum()` or `ServerAdam()`;
        None adds them up.
    proximal
        Factor mu of ``mu / 2 |w - w^t|^2`` in each client's objective, as in FedProx (Li et al.,
        2020); not for a `LinearProblem`.
    control_variates
        Whether a client corrects each of its gradients by c - c_j, as in SCAFFOLD (Karimireddy et
        al., 2020, option II). It takes `local_steps`; ``"uniform"`` is not proved, and a
        `LinearProblem` has no such term.
    noise
        `correlated.InTime` of `dpmesh.privacy`, made for ``topology=None``, with ``"cyclic"``; None
        for noise of each round by itself.
    secure_aggregation
        If given, clients add up their updates under a secure sum and share the noise among them:
        the server sees noisy sums alone. `noise_multiplier` is then that of the noise unknown to it
        and the clients that collude with it.

    Guarantee
    ---------
    Epsilon and delta of `plan` hold for the models of all rounds together, for adding or removing
    one client (``"poisson"``, ``"cyclic"``) or replacing one (``"uniform"``), with everything that
    it holds. Groups that take turns are mu-Gaussian-DP with mu = sqrt(k) / `noise_multiplier` for k
    turns of a group, also with `noise` (Theorem 1 of ``docs/privacy/correlated_noise.md``); a
    removed client leaves its number free, so that the others' groups stay. Each client's update has
    a norm of at most L whatever its data, the sum is divided by public numbers alone, and all that
    follows the noise is post-processing. Clients that drop out change nothing, even if it is known
    who did: a missing move is 0. The plan counts all as if they had returned. Control variates
    change nothing either: a client's follows from its own data, its coins and releases, and the
    server's from releases (``docs/algorithms/federated.md`` has the proof). All clients have the
    same weight: weights by numbers of records would be private data. The server is trusted: it sees
    the updates and the cohort; with `secure_aggregation` it sees neither.
    """

    travels = "server"
    parameters_are_released = True

    clients: int
    sampling_rate: float
    clipping_norm: float
    noise_multiplier: float | None
    sampling: Literal["poisson", "uniform", "cyclic"] = "poisson"
    batch_size: int = 10
    local_epochs: int | None = None
    local_steps: int | None = None
    local_step_size: float | Schedule = 0.1
    global_step_size: float = 1.0
    estimator: Estimator = Identity()
    output_weights: float | Schedule | None = None
    clients_at_once: int = 1024
    grid: float | None = None
    arrival_rate: float = 1.0
    adaptive_clipping: AdaptiveClipping | None = None
    optimizer: ServerOptimizer | None = None
    proximal: float = 0.0
    control_variates: bool = False
    noise: CorrelatedStrategy | None = None
    secure_aggregation: SecureAggregation | None = None

    def __post_init__(self) -> None:
        as_python_numbers(self)
        integer("clients", self.clients, at_least=1, below=2**32)
        probability("sampling_rate", self.sampling_rate, zero=False)
        positive("clipping_norm", self.clipping_norm)
        if self.noise_multiplier is not None:
            positive("noise_multiplier", self.noise_multiplier)
        one_of("sampling", self.sampling, ("poisson", "uniform", "cyclic"))
        integer("batch_size", self.batch_size, at_least=1)
        if (self.local_epochs is None) == (self.local_steps is None):
            got = f"local_epochs={self.local_epochs}, local_steps={self.local_steps}"
            fail("local_epochs", "either this or local_steps", got)
        for name in ("local_epochs", "local_steps"):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name), at_least=1)
        keep_schedules(self, "local_step_size")
        positive("global_step_size", self.global_step_size)
        if self.output_weights is not None:
            keep_schedules(self, "output_weights")
            if at(self.output_weights, 1) == 0:
                fail("output_weights", "a first weight greater than 0", 0)
        if isinstance(self.estimator, type) or not callable(self.estimator):
            fail("estimator", "an estimator, such as Identity()", repr(self.estimator))
        integer("clients_at_once", self.clients_at_once, at_least=1)
        if self.grid is not None:
            power_of_two("grid", self.grid)
        probability("arrival_rate", self.arrival_rate, zero=False)
        wanted = "AdaptiveClipping() or None"
        instance("adaptive_clipping", self.adaptive_clipping, wanted, AdaptiveClipping, NoneType)
        if self.optimizer is not None:
            require_methods(
                "optimizer", self.optimizer, "ServerAdam(), for example, or None", "step"
            )
        non_negative("proximal", self.proximal)
        if self.control_variates and self.local_steps is None:
            fail("local_steps", "a number with control_variates, the same for all", None)
        if self.control_variates and self.sampling == "uniform":
            wanted = "'poisson' or 'cyclic': cohorts of a fixed size are not proved for clients"
            fail("sampling", f"{wanted} with control_variates", self.sampling)
        _ = self._bit_weight  # checks the noise on the bits
        if self.noise is not None:
            self._check_noise(self.noise)
        secure, wanted = self.secure_aggregation, "SecureAggregation(dim=.., rounds=..) or None"
        instance("secure_aggregation", secure, wanted, SecureAggregation, NoneType)
        _ = self.secure_sum  # checks its numbers

    def reaction(self, rounds: int, problem: LinearProblem | LossFacts) -> NotProved:
        """Return why there is no cheaper view: the server publishes all models."""
        reason = (
            "all models are public; hiding all but the last is not proved for random cohorts "
            "divided by a constant"
        )
        return NotProved(reason=reason)

    def init(self, problem: ClientProblem, key: Key) -> FederatedState:
        """Start from the problem's initial model."""
        require_problem(self, problem, "initial", "records_of", "local_training")
        here = problem.nodes
        whole = len(getattr(problem, "all_records", range(here)))  # of which some may be elsewhere
        if self.clients != (here if self.secure_sum is None else whole):
            fail("problem", f"one with {self.clients} clients", here)
        terms = signature(problem.local_training).parameters
        for term, name in (("proximal", "proximal"), ("correction", "control_variates")):
            if getattr(self, name) and term not in terms:
                kind = type(problem).__name__
                fail(name, f"none: local_training of a {kind} takes no {term}", getattr(self, name))
        return self.start_from(Released(initial_parameters(problem, key, 1)))

    def start_from(self, w: Released) -> FederatedState:
        """Start from this global model, shape (1, dim), which must not depend on private data."""
        if self.secure_sum is not None and w.shape[1] != (dim := self.secure_sum.dim):
            fail("problem", f"a model of length {dim} (secure_aggregation.dim)", w.shape[1])
        count = 0 if self.optimizer is None else self.optimizer.count
        held = self.clients if self.control_variates else 0
        start = FederatedState(
            w=w,
            total=Released(np.zeros_like(w)),
            output=w,
            weight=0.0,
            clipping_norm=self.clipping_norm,
            moments=Released(np.zeros((count, w.shape[1]), w.dtype)),
            control=Released(np.zeros_like(w)),
            controls=Sensitive(np.zeros((held, w.shape[1]), w.dtype)),
        )
        return self._moved(start, w, start.total, 0)

    def round(
        self, state: FederatedState, t: int, problem: ClientProblem, key: Key
    ) -> Round[FederatedState]:
        """Run round t of Algorithm 1."""
        if (sums := self.secure_sum) is not None:
            vectors = client_vectors(self, state.w, t, problem, key)
            bits = 8 * self.clients * (state.w.nbytes + sums.message_bytes)  # down, and up
            release, copies = self.release_of(t), 2 * self.clients
            noisy = yield Message(vectors, release, copies=copies, bits=bits)
            return self.absorb(state, noisy, t)
        cohort = self.returning(self.sample(t, key), t, key)
        dim, radius = state.w.shape[1], state.clipping_norm
        moved = np.zeros(dim + (self.adaptive_clipping is not None))
        controls = state.controls.copy()
        for first in range(0, len(cohort), self.clients_at_once):
            some = cohort[first : first + self.clients_at_once]
            correction = state.control - controls[some] if self.control_variates else None
            updates = self.client_updates(
                state.w, some, t, problem, key, clipping_norm=radius, correction=correction
            )
            if self.control_variates:
                controls[some] -= state.control + updates / self.local_distance(t)
            moved[:dim] += kernels.column_sums(updates)
            if self.adaptive_clipping is not None:
                inside = kernels.row_norms(updates) < (1 - TOUCHING) * radius
                held = np.diff(problem.records_of(some)[0]) > 0  # who has none sends no bit
                moved[dim] += self._bit_weight * radius * float((held * (inside - 0.5)).sum())
        total = Sensitive(moved[np.newaxis].astype(state.w.dtype))
        models = 1 + self.control_variates
        out, back = models * self._expected_cohort, self.expected_size  # models, updates
        unit = 1.0 if self.adaptive_clipping is None else radius
        release, copies = self.release_of(t), ceil(out) + ceil(back)
        noisy = yield Message(total, release, copies=copies, unit=unit)
        return replace(self.absorb(state, noisy, t), controls=Sensitive(controls))

    def local_distance(self, t: int) -> float:
        """Return K eta_l: an update over it is minus a mean of corrected gradients."""
        assert self.local_steps is not None
        return self.local_steps * positive("local_step_size", at(self.local_step_size, t + 1))

    def client_updates(
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
        """ClientUpdate of all these clients at once, shape (clients, dim)."""
        return trained_updates(
            problem,
            w,
            self._walks(cohort, t, problem, key),
            step_size=at(self.local_step_size, t + 1),
            radius=self.clipping_norm if clipping_norm is None else clipping_norm,
            proximal=self.proximal,
            correction=correction,
        )

    def _walks(self, clients: Indices, t: int, problem: ClientProblem, key: Key) -> Walks:
        """Return the batches of each client's local steps in round t."""
        return local_walks(
            problem.records_of(clients),
            clients,
            key.stream(Purpose.BATCHES, t),
            batch_size=self.batch_size,
            local_epochs=self.local_epochs,
            local_steps=self.local_steps,
        )

    def losses(
        self, state: FederatedState, t: int, problem: ClientProblem, key: Key
    ) -> npt.NDArray[np.float64] | None:
        """Return the losses of the cohort's clients at w^t, each on its first batch."""
        cohort = self.returning(self.sample(t, key, problem.nodes), t, key)
        if not len(cohort):
            return None if self.secure_sum is None else np.zeros(0)
        steps, batches = self._walks(cohort, t, problem, key)
        first = steps[:-1][np.diff(steps) > 0]
        if not len(first):
            return None if self.secure_sum is None else np.zeros(0)
        start = np.repeat(state.w, len(first), axis=0)
        return problem.objective(start, rows(batches, first))

    def published(self, state: FederatedState, received: Any) -> Released:
        """Return the global model w^(t+1)."""
        return state.w

    def absorb(self, state: FederatedState, noisy: Released, t: int) -> FederatedState:
        """Move the global model by the estimated average update (*)."""
        dim, norm = state.w.shape[1], state.clipping_norm
        noisy = Released(noisy.astype(state.w.dtype, copy=False))
        average = Released(noisy[:, :dim] / noisy.dtype.type(self.expected_size))
        total = Released(state.total + average)
        if self.secure_sum is None:
            noise_scale = self.mechanism.drawn_scale(noisy, self.sensitivity(t))
        else:
            noise_scale = self.secure_sum.noise_scale
        if self.adaptive_clipping is not None:
            noise_scale *= norm
            bits = float(noisy[0, dim]) / (self._bit_weight * norm)
            norm = self.adaptive_clipping.next_norm(norm, 0.5 + bits / self.expected_size)
        delta = self.estimator(average, noise_scale / self.expected_size, ReleasedSum(total, t + 1))
        control: Floats = state.control
        if self.control_variates:  # the clients' own changes, in sum, follow from their updates
            change = control + delta / self.local_distance(t)
            control = control - self.expected_size / self.clients * change
        moments: Floats = state.moments
        direction: Floats = delta
        if self.optimizer is not None:
            direction, moments = self.optimizer.step(delta, moments)
        w = Released(state.w + noisy.dtype.type(self.global_step_size) * direction)
        state = replace(
            state, clipping_norm=norm, moments=Released(moments), control=Released(control)
        )
        return self._moved(state, w, total, t + 1)

    def _moved(self, state: FederatedState, w: Released, total: Released, t: int) -> FederatedState:
        """Return the state with the model w^t, also in its output."""
        if self.output_weights is None:
            return replace(state, w=w, total=total, output=w)
        a = at(self.output_weights, t + 1)
        weight = state.weight + a
        output = state.output + w.dtype.type(a / weight) * (w - state.output)
        return replace(state, w=w, total=total, output=Released(output), weight=weight)

    def parameters(self, state: FederatedState) -> Floats:
        """Return the output, shape (1, dim): the last model, or the weighted average."""
        return state.output
