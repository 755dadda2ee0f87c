"""Private decentralized gradient descent: gossip, and a gradient over all of a node's records.

The simplest algorithm of this package, and the worked example of how to add one. In a round a node
mixes what its neighbours sent, and steps against the mean of its records' clipped gradients at the
mixed point:

    b_t     = sum_j a_ij (x_t^j + n_t^j),   n_t ~ N(0, (z S)^2)
    x_(t+1) = b_t - alpha g(b_t)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._validate import as_python_numbers, integer, positive
from dpmesh.algorithms.base import (
    Algorithm,
    Message,
    Round,
    initial_parameters,
    require_problem,
)
from dpmesh.algorithms.gradients import gradient_of
from dpmesh.keys import Key
from dpmesh.privacy.mechanisms import Gaussian, Mechanism, NoNoise
from dpmesh.privacy.releases import Release
from dpmesh.privacy.sensitivity import Sensitivity
from dpmesh.privacy.types import Floats, Released, Sensitive
from dpmesh.privacy.views import LossFacts, NotProved, Reaction, of_algorithms
from dpmesh.problems import LinearProblem
from dpmesh.schedules import Schedule, at, keep_schedules


@dataclass(frozen=True)
class GradientDescentState:
    """The nodes' models x_t, shape (nodes, dim). They stay inside their nodes."""

    x: Sensitive


@dataclass(frozen=True, kw_only=True)
class GradientDescent(Algorithm[GradientDescentState, LinearProblem]):
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

    travels = "gossip"

    records: int
    noise_multiplier: float | None
    step_size: float | Schedule = 1.0
    clipping_norm: float = 1.0

    def __post_init__(self) -> None:
        as_python_numbers(self)
        integer("records", self.records, at_least=1)
        if self.noise_multiplier is not None:
            positive("noise_multiplier", self.noise_multiplier)
        keep_schedules(self, "step_size")
        positive("clipping_norm", self.clipping_norm)

    @cached_property
    def mechanism(self) -> Mechanism:
        """Gaussian noise."""
        return NoNoise() if self.noise_multiplier is None else Gaussian(self.noise_multiplier)

    def sensitivity(self, t: int) -> Sensitivity:
        """Return S: how far a record moves the message of round t, given all earlier ones."""
        if t == 0:
            return Sensitivity(0.0, "l2", "x_0 does not depend on the data")
        bound = 2 * at(self.step_size, t) * self.clipping_norm / self.records
        return Sensitivity(bound, "l2", "2 alpha L / records, one clipped gradient replaced")

    def release_of(self, t: int) -> Release:
        """Return the messages x_t + n_t."""
        return Release(t, self.mechanism, self.sensitivity(t))

    def reaction(self, rounds: int, problem: LinearProblem) -> Reaction | NotProved:
        """Return how x_(t+1) = b_t - alpha g(b_t) reacts to a record and to messages."""
        return of_algorithms.gradient_descent(
            rounds,
            LossFacts.of(problem),
            records=self.records,
            noise_multiplier=self.noise_multiplier,
            step_size=self.step_size,
            clipping_norm=self.clipping_norm,
        )

    def init(self, problem: LinearProblem, key: Key) -> GradientDescentState:
        """Start all nodes at the problem's `initial`: 0, but for a problem of one's own."""
        require_problem(self, problem, "zeros", "initial", "gradient", "objective")
        if problem.records.min() < self.records:
            raise ValueError(
                f"records is {self.records}, but the smallest node has only "
                f"{problem.records.min()} records"
            )
        return GradientDescentState(Sensitive(initial_parameters(problem, key, problem.nodes)))

    def round(
        self, state: GradientDescentState, t: int, problem: LinearProblem, key: Key
    ) -> Round[GradientDescentState]:
        """Send, mix, and step from the mixed point against the mean gradient of all records."""
        b = yield Message(state.x, self.release_of(t))
        return self._stepped(b, t, problem)

    def _stepped(self, b: Released, t: int, problem: LinearProblem) -> GradientDescentState:
        """Step from the mixed point."""
        g = gradient_of(problem, b, problem.everything, clipping_norm=self.clipping_norm)
        x = kernels.weighted_sum((1.0, b), (-at(self.step_size, t + 1), g))
        return GradientDescentState(Sensitive(x))

    def losses(
        self, state: GradientDescentState, t: int, problem: LinearProblem, key: Key
    ) -> npt.NDArray[np.float64]:
        """Return each node's loss at x_t on all of its records."""
        return problem.objective(state.x, problem.everything)

    def parameters(self, state: GradientDescentState) -> Floats:
        """Return the nodes' own models."""
        return state.x
