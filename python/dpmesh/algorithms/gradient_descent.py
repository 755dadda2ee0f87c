"""Private decentralized gradient descent: gossip, and a gradient over all of a node's records.

The simplest algorithm of this package, and the worked example of how to add one. In a round a node
mixes what its neighbours sent, and steps against the mean of its records' clipped gradients at the
mixed point:

    b_t     = sum_j a_ij (x_t^j + n_t^j),   n_t ~ N(0, (z S)^2)
    x_(t+1) = b_t - alpha g(b_t)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import dpmesh.kernels as kernels
from dpmesh._validate import fail, integer, keep_numbers, positive
from dpmesh.algorithms.base import Exchange, Info, Travel, learns, started
from dpmesh.algorithms.gradients import gradient_of
from dpmesh.keys import Key, Purpose
from dpmesh.privacy.events import Sensitivity
from dpmesh.privacy.mechanisms import Emission, Gaussian, Mechanism, NoNoise
from dpmesh.privacy.plan import Plan, each_round
from dpmesh.privacy.types import Floats, Released, Sensitive
from dpmesh.problems import LinearProblem
from dpmesh.schedules import Schedule, at, keep_schedules


@dataclass(frozen=True)
class GradientDescentState:
    """The nodes' models x_t, shape (nodes, dim). They stay inside their nodes."""

    x: Sensitive


@dataclass(frozen=True)
class GradientDescent:
    """Private decentralized gradient descent.

    Parameters
    ----------
    records
        The smallest number of records at any node, which is public.
    noise_multiplier
        Standard deviation of the noise over the sensitivity; None runs without noise, for
        comparison.
    step_size
        alpha for t = 1, 2, ...
    clipping_norm
        L, the largest norm of a record's gradient.

    Guarantee
    ---------
    All messages of T rounds are mu-Gaussian-DP with mu = sqrt(T - 1) / `noise_multiplier`, for
    replacing one record of one node: given all earlier messages, each record moves each later
    message by at most 2 alpha L / records, since b_t is made of messages alone. The nodes' own
    models are not covered.
    """

    travels: ClassVar[Travel] = "gossip"

    records: int
    noise_multiplier: float | None
    step_size: float | Schedule = 1.0
    clipping_norm: float = 1.0

    def __post_init__(self) -> None:
        keep_numbers(self)
        integer("records", self.records, at_least=1)
        if self.noise_multiplier is not None:
            positive("noise_multiplier", self.noise_multiplier)
        keep_schedules(self, "step_size")
        positive("clipping_norm", self.clipping_norm)

    @property
    def mechanism(self) -> Mechanism:
        """The door: Gaussian noise."""
        return NoNoise() if self.noise_multiplier is None else Gaussian(self.noise_multiplier)

    def sensitivity(self, t: int) -> Sensitivity:
        """Return S: how far a record moves the message of round t, given all earlier ones."""
        if t == 0:
            return Sensitivity(0.0, "l2", "x_0 does not depend on the data")
        bound = 2 * at(self.step_size, t) * self.clipping_norm / self.records
        return Sensitivity(bound, "l2", "2 alpha L / records, one clipped gradient replaced")

    def plan(self, rounds: int) -> Plan:
        """Return the messages of `rounds` rounds, from public numbers alone."""
        releases = (self.mechanism.planned(t, self.sensitivity(t)) for t in each_round(rounds))
        return Plan(tuple(releases), "replace_one", "record")

    def init(self, problem: LinearProblem, key: Key) -> GradientDescentState:
        """Start all nodes at the problem's `initial`: 0, but for a problem of one's own."""
        learns(self, problem, "zeros", "initial", "gradient", "objective")
        if problem.records.min() < self.records:
            wanted = f"at most {problem.records.min()}, the records of the poorest node"
            fail("records", wanted, self.records)
        return GradientDescentState(Sensitive(started(problem, key, problem.nodes)))

    def step(
        self,
        state: GradientDescentState,
        round: int,
        problem: LinearProblem,
        exchange: Exchange,
        key: Key,
    ) -> tuple[GradientDescentState, Info]:
        """Run round t: emit, exchange, absorb."""
        message, release, bits = self.emit(state, round, key)
        b = exchange(round, message)
        losses = partial(problem.objective, state.x, problem.everything)
        return self.absorb(b, round, problem), Info((release,), bits, b, losses)

    def emit(self, state: GradientDescentState, t: int, key: Key) -> Emission:
        """Send x_t + n_t."""
        noise = key.stream(Purpose.NOISE, t)
        return self.mechanism.release(state.x, self.sensitivity(t), noise, round=t)

    def absorb(self, b: Released, t: int, problem: LinearProblem) -> GradientDescentState:
        """Step from the mixed point against the mean gradient of all records."""
        g = gradient_of(problem, b, problem.everything, clipping_norm=self.clipping_norm)
        x = kernels.weighted_sum((1.0, b), (-at(self.step_size, t + 1), g))
        return GradientDescentState(Sensitive(x))

    def parameters(self, state: GradientDescentState) -> Floats:
        """Return the nodes' own models."""
        return state.x
