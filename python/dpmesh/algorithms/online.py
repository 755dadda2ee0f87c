"""Differentially private distributed online learning (Li, Zhou, Chen, Jiang), Algorithms 1 and 2.

Every learner keeps a parameter vector. In a round it broadcasts its vector with Laplace noise,
mixes what its neighbours broadcast, takes one subgradient step on one fresh example of its own at
the mixed point, and projects onto a ball. The symbols are the paper's; its t counts from 0, as our
rounds do:

    b_t^i     = sum_j a_ij(t+1) (w_t^j + sigma_t^j)            line 4
    g_t^i     = subgradient of f_t^i at b_t^i                  line 5
    w_(t+1)^i = Pro[b_t^i - alpha_(t+1) g_t^i]                 line 6
    broadcast   w_(t+1)^i + sigma_(t+1)^i                      line 7

Algorithm 2, for data that are all there beforehand, takes the mean subgradient of a disjoint
mini-batch of h examples a round, which divides the noise by h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dpmesh import kernels
from dpmesh._validate import integer, positive, probability
from dpmesh.algorithms.base import Exchange, Info, Travel
from dpmesh.keys import Key, Purpose
from dpmesh.privacy.accounting import analytic_gaussian_noise_multiplier
from dpmesh.privacy.events import Sensitivity
from dpmesh.privacy.mechanisms import Emission, Gaussian, Laplace, Mechanism, NoNoise
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.types import Floats, Released, Sensitive
from dpmesh.problems import LinearProblem
from dpmesh.schedules import InverseSqrt, Schedule


@dataclass(frozen=True)
class OnlineState:
    """The learners' parameters w_t, shape (learners, dim). They stay inside their nodes."""

    w: Sensitive


@dataclass(frozen=True)
class OnlineLearning:
    """Private online learning over a time-varying network.

    Parameters
    ----------
    epsilon
        Budget of every example; None runs without noise, for comparison.
    delta
        0 gives the paper's Laplace noise. A positive one gives Gaussian noise instead, by the
        analytic Gaussian mechanism: less of it from about 7 dimensions on.
    step_size
        alpha_t for t = 1, 2, ..: the paper has ``InverseSqrt(0.5)``, 1 / (2 sqrt t), for convex
        losses and ``InverseTime(1 / lambda)``, 1 / (lambda t), for strongly convex ones.
    radius
        The parameters stay in the ball of this radius around 0 (the paper's W, of diameter R = 2
        `radius`).
    clipping_norm
        The paper's L: each example's subgradient of the loss is clipped to this L2 norm, so that
        the guarantee needs no assumption on the data. Examples of norm at most 1 never exceed 1
        under the hinge and logistic losses.
    batch_size
        The paper's h: 1 is Algorithm 1, more is Algorithm 2. Its step 6 as printed takes the
        regularizer's gradient at the un-noised w_t, which leaks; here it is taken at b_t.

    Guarantee
    ---------
    (epsilon, delta)-differential privacy of all broadcasts together, for replacing one example of
    one learner (Theorems 1 and 3, there with delta = 0). Given everything broadcast before, an
    example moves exactly one broadcast, the next one, by at most 2 alpha L / h in L2 norm, or
    2 alpha sqrt(dim) L / h in L1 norm (Lemma 1): b_t is made of broadcasts only, the learner's own
    included, the regularizer's gradient at b_t cancels, and the projection does not expand the L2
    norm. Each example is used once. The un-noised parameters, and predictions or metrics made from
    them, are not covered; publish broadcasts.
    """

    travels: ClassVar[Travel] = "gossip"

    epsilon: float | None = 1.0
    delta: float = 0.0
    step_size: Schedule = InverseSqrt(0.5)
    radius: float = 1.0
    clipping_norm: float = 1.0
    batch_size: int = 1

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            positive("epsilon", self.epsilon)
        probability("delta", self.delta, one=False)
        positive("radius", self.radius)
        positive("clipping_norm", self.clipping_norm)
        integer("batch_size", self.batch_size, at_least=1)

    @property
    def mechanism(self) -> Mechanism:
        """The door: Laplace noise of scale mu = S(t) / epsilon (11), or Gaussian noise."""
        if self.epsilon is None:
            return NoNoise()
        if self.delta > 0:
            return Gaussian(analytic_gaussian_noise_multiplier(self.epsilon, self.delta))
        return Laplace(noise_multiplier=1 / self.epsilon)

    def sensitivity(self, t: int) -> Sensitivity:
        """Return S(t) in L2 norm; the mechanism's sqrt(dim) makes it the L1 bound of Lemma 1."""
        if t == 0:
            return Sensitivity(0.0, "l2", "w_0 does not depend on the data")
        bound = 2 * self.step_size(t) * self.clipping_norm / self.batch_size
        return Sensitivity(
            bound, "l2", "2 alpha_t L / h, one clipped subgradient replaced (Lemma 1)"
        )

    def plan(self, rounds: int) -> Plan:
        """Return the broadcasts of rounds 0 to `rounds` - 1, from public numbers alone."""
        integer("rounds", rounds, at_least=1)
        releases = (
            self.mechanism.planned(t, self.sensitivity(t), batch=_examples_in(t))
            for t in range(rounds)
        )
        return Plan(tuple(releases), "replace_one", "record")

    def init(self, problem: LinearProblem, key: Key) -> OnlineState:
        """Start all learners at 0."""
        return OnlineState(Sensitive(problem.zeros()))

    def step(
        self, state: OnlineState, round: int, problem: LinearProblem, exchange: Exchange, key: Key
    ) -> tuple[OnlineState, Info]:
        """Run round t."""
        broadcast, release, bits = self.emit(state, round, key)
        b = exchange(round, broadcast)
        examples = problem.batch(round, self.batch_size)
        losses = problem.objective(state.w, examples)
        state = self.absorb(b, round, problem, examples)
        return state, Info((release,), bits, b, losses, records=examples)

    def emit(self, state: OnlineState, t: int, key: Key) -> Emission:
        """Broadcast w_t + sigma_t (line 7)."""
        noise = key.stream(Purpose.NOISE, t)
        return self.mechanism.release(
            state.w, self.sensitivity(t), noise, round=t, batch=_examples_in(t)
        )

    def absorb(
        self, b: Released, t: int, problem: LinearProblem, examples: npt.NDArray[np.int64]
    ) -> OnlineState:
        """Step from the mixed point on fresh examples, and project (lines 5 and 6)."""
        alpha = self.step_size(t + 1)
        w = problem.step(b, alpha, examples, clipping_norm=self.clipping_norm)
        return OnlineState(Sensitive(kernels.clip_rows(w, self.radius, out=w)))

    def parameters(self, state: OnlineState) -> Floats:
        """Return w_t, with which the learners predict."""
        return state.w


def _examples_in(t: int) -> int | None:
    """Which round's examples the broadcast of round t depends on, given the earlier broadcasts."""
    return t - 1 if t > 0 else None
