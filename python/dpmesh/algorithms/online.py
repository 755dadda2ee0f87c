"""Differentially private distributed online learning (Li, Zhou, Chen, Jiang), Algorithms 1 and 2.

Every learner (node) keeps a model w. In a round it broadcasts its model with Laplace noise sigma,
and averages its neighbours' broadcasts with the mixing weights a_ij. At this average b it takes one
subgradient step on its next example, and projects the result onto a ball (Pro). The symbols are the
paper's, except that t counts from 0, as rounds do in this package:

    b_t^i     = sum_j a_ij(t+1) (w_t^j + sigma_t^j)            line 4
    g_t^i     = subgradient of f_t^i at b_t^i                  line 5
    w_(t+1)^i = Pro[b_t^i - alpha_(t+1) g_t^i]                 line 6
    broadcast   w_(t+1)^i + sigma_(t+1)^i                      line 7

Algorithm 2, for data that are all available beforehand, takes the mean subgradient of the next
mini-batch of h examples in each round, which divides the noise by h. If each example draws its
round secretly (random allocation), less noise suffices
(``docs/privacy/random_allocation_proof.md``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import TYPE_CHECKING, Literal

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._ragged import Numbers
from dpmesh._validate import every, fail, integer, one_of, positive, probability
from dpmesh.accounting import analytic_gaussian_noise_to_sensitivity, calibrate_noise
from dpmesh.accounting.discrete import delta_on_grid
from dpmesh.algorithms import allocation as allocations
from dpmesh.algorithms.base import Algorithm, initial_parameters, require_problem
from dpmesh.algorithms.gradients import (
    projected_step,
    require_clipped_records,
    require_each_record_once,
    step_by_sums,
)
from dpmesh.algorithms.messages import Message, Relay, Round
from dpmesh.algorithms.worst_case import AuditSize, Crowd, Pair
from dpmesh.kernels.linear_model import Batches
from dpmesh.kernels.projection import NORMS, Norm
from dpmesh.keys import Key
from dpmesh.noise.independent import Independent, NoiseKind, keep_noise, strategy_of
from dpmesh.noise.mechanisms import Gaussian, Laplace, Mechanism, NoNoise
from dpmesh.noise.rows import CorrelatedRow
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.privacy.sampling import RandomAllocation
from dpmesh.privacy.views import LossFacts, NotProved, Reaction
from dpmesh.privacy.views.steps import reaction_of_steps
from dpmesh.problems import LinearProblem
from dpmesh.schedules import InverseSqrt, Schedule, at, keep_schedules

if TYPE_CHECKING:
    from dpmesh.noise.correlated import CorrelatedGaussian

Projection = Literal["ball", "mixture", "box", "none"]


@dataclass(frozen=True)
class OnlineState:
    """State of the learners before round t.

    Parameters
    ----------
    w
        Un-noised models w_t, shape (learners, dim), which no learner sends.
    mean
        Mean of b_0, .., b_(t-1), shape (learners, dim); None unless it is published.
    """

    w: Sensitive
    mean: Released | None = None


@dataclass(frozen=True, kw_only=True)
class OnlineLearning(Algorithm[OnlineState, LinearProblem]):
    """Private online learning by gossip (decentralized): noisy mixing, then a subgradient step.

    Each node (the paper's learner) uses each of its records (examples) in one round only. In round
    t it broadcasts its model w_t with noise, and averages its neighbours' and its own broadcasts to
    b_t. Then it steps from b_t against the subgradient on its next batch, and projects the result:
    w_(t+1). Source: Li, Zhou, Chen and Jiang, Algorithms 1 and 2, whose symbols are used here.

    Parameters
    ----------
    epsilon
        Epsilon of each example over the whole run; None runs without noise, for comparison.
    delta
        Delta of each example over the whole run. At 0, the default, noise is the paper's Laplace
        noise. At a positive delta it is Gaussian noise of the analytic Gaussian mechanism, which
        needs no factor sqrt(dim) for a clipped L2 norm; dim is the length of the model.
    step_size
        Learning rate alpha_t for t = 1, 2, ..: a number or a schedule of `dpmesh.schedules`. The
        paper has ``InverseSqrt(0.5)``, 1 / (2 sqrt t), for convex losses and
        ``InverseTime(1 / lambda)``, 1 / (lambda t), for lambda-strongly convex losses.
    radius
        L2 radius of the ball around 0 that models are projected onto (the paper's W, of diameter
        R = 2 `radius`). Regret is measured against the best fixed model in this ball.
    clipping_norm
        Largest norm L of an example's subgradient; longer ones are clipped (max_grad_norm in
        Opacus). The guarantee therefore needs no assumption on the data. Under the hinge and
        logistic losses the subgradients of examples of L2 norm at most 1 have L2 norm at most 1, so
        that L = 1 never clips them.
    batch_size
        Examples of a node in a round, the paper's h: 1 is Algorithm 1, more is Algorithm 2. Step 6
        of Algorithm 2 as printed takes the regularizer's gradient at the un-noised w_t, which
        leaks; here it is taken at b_t.
    norm
        Norm that is clipped: the paper's ``"l2"``, or ``"l1"`` for sparse examples, with which
        Laplace noise does without the factor sqrt(dim).
    projection
        ``"ball"`` projects w_(t+1) onto the ball of `radius`, as in the paper. ``"mixture"``
        projects b_t onto the ball before the step. This has no privacy cost in any norm, as b_t is
        computed from broadcasts, and subgradients are then taken inside the ball. ``"box"`` clips
        each coordinate of w_(t+1) to [-`radius`, `radius`]. ``"none"`` does not project.
    sampling
        ``"arrival"``: batches of `batch_size` examples in the order of arrival. ``"allocation"``
        (random allocation): each example draws secretly, before the run, the one of
        ``records // batch_size`` rounds that uses it. All examples must be present before the run,
        and `delta` must be positive. Batches have random sizes, and their sums are divided by the
        expected size. Noise at the same epsilon is smaller, by up to the square root of the number
        of rounds.
    records
        Smallest number of examples of a node, a public number; for ``"allocation"`` only.
    copies
        Largest number of copies of an example, each at another node. The noise grows with it, so
        that `epsilon` covers all copies of an example together.
    noise
        Kind of noise. A class of mechanisms, such as `dpmesh.noise.Gaussian` or a custom one, is
        calibrated to epsilon and delta. At a positive delta it may be correlated noise:
        `correlated.InTime`, `correlated.BetweenPartners` or `correlated.Both` of `dpmesh.noise`.
        None for independent noise: Laplace at a delta of 0, else Gaussian.
    average
        True to publish each node's mean of all b_t instead of its last b_t. Theorem 4 is about the
        mean of the un-noised w_t; its proof also holds for the mean of b_t.

    Guarantee
    ---------
    All broadcasts of a run together are (epsilon, delta)-DP for replacing one example of one node,
    against an adversary who sees all of them (Theorems 1 and 3, with delta = 0 there). Models that
    follow from broadcasts, such as the published b_t, are covered; un-noised models w_t, and
    metrics or predictions made from them, are not.

    Given all earlier broadcasts, an example moves exactly one broadcast: the one after the round
    that uses it. It moves by at most 2 alpha L / h in `norm`. For a clipped L2 norm this is at most
    2 alpha sqrt(dim) L / h in L1 norm (Lemma 1). The reason: b_t is computed from broadcasts alone,
    the regularizer's gradient at b_t cancels, and the projection does not expand distances in
    `norm`. (Projecting onto the ball expands L1 distances by up to (1 + sqrt(dim)) / 2, and is
    refused with ``norm="l1"``.)

    With ``"allocation"``, all broadcasts are one event of random allocation (Theorem 1 of
    ``docs/privacy/random_allocation_proof.md``), while the round of each example stays secret. With
    correlated `noise`, they are one joint event (``docs/privacy/correlated_noise_proofs.md``,
    Theorems 1 and 3, also on a grid). Noise between partners does not protect a node from its link
    partners.

    Examples
    --------
    >>> import dpmesh as dm
    >>> print(dm.OnlineLearning(epsilon=1.0).plan(100).cost())
    epsilon = 1 (pure differential privacy of Laplace noise)
    """

    communication = "gossip"
    messages_need_no_trust = (
        "a node steps from what it received, by a clipped gradient of each record"
    )

    epsilon: float | None = 1.0
    delta: float = 0.0
    step_size: float | Schedule = InverseSqrt(0.5)
    radius: float = 1.0
    clipping_norm: float = 1.0
    batch_size: int = 1
    norm: Norm = "l2"
    projection: Projection = "ball"
    sampling: allocations.BatchSampling = "arrival"
    records: int | None = None
    copies: int = 1
    noise: NoiseKind = None
    average: bool = False

    def __post_init__(self) -> None:
        every(self, positive, "epsilon", "radius", "clipping_norm")
        probability("delta", self.delta, one=False)
        keep_schedules(self, "step_size")
        every(self, integer, "batch_size", "copies", at_least=1)
        one_of("norm", self.norm, NORMS)
        one_of("projection", self.projection, ("ball", "mixture", "box", "none"))
        allocations.check_sampling(self.sampling, self.records, self.batch_size, self.delta)
        if self.norm == "l1" and self.projection == "ball":
            fail("projection", "another one with norm='l1': the ball expands L1", "'ball'")
        keep_noise(self)
        if self.noise is not None:
            if self.sampling == "allocation":
                fail("noise", f"None with {allocations.NO_CORRELATED_NOISE}", self.noise)
            if self.copies > 1:
                expected = "1 with this noise, which is proved for distinct records"
                fail("copies", expected, self.copies)
        laplace = self.norm != "l2" or (self.delta == 0 and self.epsilon is not None)
        if laplace and strategy_of(self.noise) is not None:
            expected = (
                "None, or norm='l2' and a positive delta: correlated Laplace noise has no proof"
            )
            fail("noise", expected, self.noise)

    @cached_property
    def mechanism(self) -> Mechanism:
        """Noise mechanism of a broadcast, such as Laplace noise of scale S(t) / epsilon (11)."""
        if self.epsilon is None:
            return NoNoise()
        if self.allocation is not None:
            return allocations.allocated_noise(
                self.allocation, self.epsilon, self.delta, copies=self.copies
            )
        if isinstance(self.noise, Independent):
            return self._calibrated_kind(self.noise)
        if self.delta > 0:
            strategy = strategy_of(self.noise)
            on_grid = strategy is not None and strategy.grid is not None
            multiplier = analytic_gaussian_noise_to_sensitivity(
                target_epsilon=self.epsilon,
                target_delta=delta_on_grid(self.delta) if on_grid else self.delta,
            )
            return Gaussian(multiplier * sqrt(self.copies))
        return Laplace(self.copies / self.epsilon)

    def _calibrated_kind(self, noise: Independent) -> Mechanism:
        """Return the least noise of a kind at which one release is (epsilon, delta)-DP.

        An example affects one release only, so that the guarantee holds for the whole run.
        """
        assert self.epsilon is not None
        sensitivity = self.sensitivity(1)

        def epsilon_at(noise_to_sensitivity: float) -> float:
            release = Release(1, noise.mechanism(noise_to_sensitivity), sensitivity)
            plan = Plan(releases=(release,), neighboring_relation="replace_one", unit="record")
            return plan.cost(self.delta).epsilon

        ratio = calibrate_noise(epsilon_at, target_epsilon=self.epsilon, guess=1 / self.epsilon)
        return noise.mechanism(ratio)

    @cached_property
    def allocation(self) -> RandomAllocation | None:
        """Random allocation of examples to rounds; None for batches in the order of arrival."""
        if self.records:
            return RandomAllocation(rounds=self._allocated_rounds)
        return None

    @property
    def _allocated_rounds(self) -> int:
        """Number of rounds among which examples are allocated, equal at all learners."""
        return (self.records or 0) // self.batch_size

    def sensitivity(self, t: int) -> Sensitivity:
        """Return S(t) = 2 alpha_t L / h, the sensitivity of the message of round t, in `norm`.

        With random allocation, S(t) is the sensitivity at a node of the smallest size `records`:
        see `least_scale_factor`. The Laplace mechanism multiplies an L2 bound by sqrt(dim), which
        gives the L1 bound of Lemma 1.
        """
        if t == 0:
            return Sensitivity(0.0, self.norm, "w_0 does not depend on the data")
        batch_size: float = self.batch_size
        if self.records:
            batch_size = self.records / self._allocated_rounds  # the expected size
        bound = 2 * at(self.step_size, t) * self.clipping_norm / batch_size
        reason = "2 alpha_t L / h, one clipped subgradient replaced (Lemma 1)"
        return Sensitivity(bound, self.norm, reason)

    def least_scale_factor(self, t: int, problem: LinearProblem) -> float:
        """Return the smallest ratio of a node's sensitivity to `sensitivity(t)`, in (0, 1].

        With random allocation, sensitivity and noise of a node are inversely proportional to its
        number of examples: the ratio is `records` over the number at the largest node. It is 1
        without random allocation.
        """
        if self.records:
            return float(self.records / problem.all_records.max())
        return 1.0

    def _scale_factors(self, problem: LinearProblem, w: Floats) -> float | Floats:
        """Return each node's sensitivity over `sensitivity(t)`, shape (nodes, 1), or 1 if equal."""
        counts = problem.records
        if not self.records or (counts == self.records).all():
            return 1.0
        return (self.records / counts[:, np.newaxis]).astype(w.dtype)

    def noise_std(self, t: int, dim: int) -> float:
        """Return the standard deviation of each coordinate of the noise of round t.

        Parameters
        ----------
        t
            Round, from 0.
        dim
            Length of the model.
        """
        scale = self.mechanism.noise_scale(self.sensitivity(t), dim)
        return scale * self.mechanism.deviation

    def release_of(self, t: int) -> Release:
        """Return the release of round t: noisy w_t, made from the examples of round t - 1."""
        if t == 0:
            return Release(t, NoNoise(), self.sensitivity(t))
        if self.allocation is not None:
            return Release(t, self.mechanism, self.sensitivity(t), sampling=self.allocation)
        mechanism = self.mechanism
        if self._joint is not None:
            mechanism = CorrelatedRow.of(self._joint, t - 1)
        return Release(t, mechanism, self.sensitivity(t), batch=t - 1)

    @cached_property
    def _joint(self) -> CorrelatedGaussian | None:
        """Correlated noise of all rounds as one joint release; None if noise is independent.

        Each example affects one round of it.
        """
        strategy = strategy_of(self.noise)
        if strategy is None or self.epsilon is None:
            return None
        bounds = [self.sensitivity(t).bound for t in range(1, strategy.rows + 1)]
        return strategy.release(self.mechanism.noise_to_sensitivity, bounds)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee: a secret allocation, or trust between partners."""
        if self.allocation is None:
            return super().assumptions
        return (allocations.SECRET_ROUNDS,)

    def reaction(self, rounds: int, problem: LinearProblem | LossFacts) -> Reaction | NotProved:
        """Return bounds on how far w_(t+1) moves with an example and with received messages.

        Every projection is non-expansive in L2 norm, and each example is used in one round. There
        is no proof with random allocation or with `average`.
        """
        if self.allocation is not None:
            return NotProved(reason=allocations.NO_WEAKER_ADVERSARY)
        if self.average:
            return NotProved(reason="the mean that is published depends on messages of all rounds")
        return reaction_of_steps(
            LossFacts.of(problem),
            [self.sensitivity(t) for t in range(rounds)],
            self.mechanism,
            step_size=self.step_size,
            clipping_norm=self.clipping_norm,
            one_round=True,
        )

    def leaking_data(self, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return problems for audits, in which a node's first example opposes all its others.

        `radius` should be so large that no model is projected. By default the model has one
        parameter, with which an audit needs the fewest runs. Coupled runs have at least 3.
        """
        size = replace(size, dim=size.dim or 1, delta=size.delta_or(self.delta))
        pair, crowd = super().leaking_data(size)
        coupled, _ = super().leaking_data(replace(size, dim=max(size.dim or 1, 3), canaries=2))
        if self.delta == 0:
            crowd = replace(crowd, delta=0.0)
        return replace(pair, coupled=(coupled,)), crowd

    def most_rounds(self, problem: LinearProblem) -> int:
        """Return the number of rounds until the node with the fewest examples runs out.

        Random allocation has one round more, which sends the models after the last batch.
        """
        require_problem(self, problem, "rounds", "batch", "step")
        if self.allocation is not None:
            return self._allocated_rounds + 1
        return problem.rounds(self.batch_size)

    def init(self, problem: LinearProblem, key: Key) -> OnlineState:
        """Return the state before round 0: all models at the problem's `initial`, 0 by default."""
        require_each_record_once(problem)
        allocations.check_sizes(self.records, problem)
        w = initial_parameters(problem, key, problem.nodes)
        require_clipped_records(problem, w, self.clipping_norm, norm=self.norm, by="step")
        return OnlineState(Sensitive(w), Released(np.zeros_like(w)) if self.average else None)

    def round(
        self, state: OnlineState, t: int, problem: LinearProblem, key: Key
    ) -> Round[OnlineState]:
        """Broadcast (line 7), mix (4), step on fresh examples (5), and project (6)."""
        factors = self._scale_factors(problem, state.w)
        b = yield Message(state.w, self.release_of(t), scale_factor=factors)
        strategy = strategy_of(self.noise)
        if strategy is not None:
            for _ in range(1, strategy.mixings):
                b = yield Relay()
        alpha = at(self.step_size, t + 1)
        examples = self.examples(t, problem, key)
        if self.projection == "mixture":
            b = Released(kernels.clip_rows(b, self.radius))
        radius = self.radius if self.projection == "ball" else None
        w = self._stepped(state, b, alpha, problem, examples, radius)
        if self.projection == "box":
            np.clip(w, -self.radius, self.radius, out=w)
        mean = None
        if state.mean is not None:
            mean = Released(state.mean + (b - state.mean) / (t + 1))
        return OnlineState(Sensitive(w), mean)

    def examples(self, t: int, problem: LinearProblem, key: Key) -> Batches:
        """Return the examples that each node uses in round t.

        Indices of shape (nodes, h) in the order of arrival. With random allocation, ``(indptr,
        indices)`` of the examples that drew round t, which are secret.
        """
        if self.allocation is None:
            return problem.batch(t, self.batch_size)
        if t == self._allocated_rounds:  # only sends the models after the last batch
            return np.zeros(problem.nodes + 1, np.int64), np.zeros(0, np.int64)
        return problem.allocated(t, key, rounds=self._allocated_rounds)

    def losses(self, state: OnlineState, t: int, problem: LinearProblem, key: Key) -> Numbers:
        """Return the loss at w_t of each node that has examples in round t, on these examples."""
        examples = self.examples(t, problem, key)
        losses = problem.objective(state.w, examples)
        if isinstance(examples, tuple):
            indptr, _ = examples
            has_examples = np.diff(indptr) > 0
            return losses[has_examples]
        return losses

    def _stepped(
        self,
        state: OnlineState,
        b: Released,
        alpha: float,
        problem: LinearProblem,
        examples: Batches,
        radius: float | None,
    ) -> Floats:
        """Return Pro[b_t - alpha_(t+1) g_t]; g_t includes the regularizer's gradient at b_t."""
        L, norm = self.clipping_norm, self.norm
        if isinstance(examples, tuple):  # of random sizes
            sizes = allocations.expected_sizes(problem, self._allocated_rounds)
            return step_by_sums(
                problem, b, alpha, examples, sizes, clipping_norm=L, norm=norm, radius=radius
            )
        return projected_step(
            problem, b, alpha, examples, clipping_norm=L, norm=norm, radius=radius
        )

    def parameters(self, state: OnlineState) -> Floats:
        """Return each node's un-noised model w_t, shape (nodes, dim): no guarantee covers it."""
        return state.w

    def published(self, state: OnlineState, received: Released) -> Released:
        """Return each node's last b_t, or with `average` its mean b_t, shape (nodes, dim)."""
        if state.mean is None:
            return received
        return state.mean
