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
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpmesh._ragged import Ragged
from dpmesh._validate import as_python_numbers, fail, integer, positive
from dpmesh.algorithms.base import (
    Algorithm,
    Message,
    Relay,
    Round,
    initial_parameters,
    require_problem,
)
from dpmesh.algorithms.gradients import check_batches, check_records, descended
from dpmesh.keys import Key
from dpmesh.privacy.mechanisms import Gaussian, Mechanism, NoNoise
from dpmesh.privacy.releases import Release
from dpmesh.privacy.rounding import ROUNDINGS, SINGLE, most_noise
from dpmesh.privacy.rows import CorrelatedRow, check_strategy
from dpmesh.privacy.sensitivity import Sensitivity
from dpmesh.privacy.types import Floats, Sensitive
from dpmesh.privacy.views import LossFacts, NotProved, Reaction, of_algorithms
from dpmesh.problems import LinearProblem
from dpmesh.schedules import Schedule, at, keep_schedules

if TYPE_CHECKING:
    from dpmesh.privacy.correlated import CorrelatedGaussian, CorrelatedStrategy


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
    batches
        Into how many batches a node's first `records` records are split, in their order; a round
        takes the gradient of the next one, and the first one follows the last. 1 takes all records
        in every round.
    copies
        The most nodes that hold the same record. Each of them adds noise of its own, so the run
        costs as much as `copies` runs on it.
    noise
        `correlated.BetweenPartners` of `dpmesh.privacy`, or with several batches also
        `correlated.InTime` and `correlated.Both`; None for independent noise.

    Guarantee
    ---------
    All messages of T rounds are mu-Gaussian-DP with mu = sqrt(k) / `noise_multiplier`, where k =
    ceil((T - 1) / `batches`) rounds use a record, for replacing one record of one node: given all
    earlier messages, each record moves the message after a round that uses it by at most
    2 alpha L / (records // batches), since b_t is made of messages alone. With `noise` that of
    partners is against everybody except link partners (Theorems 1 and 3 of
    ``docs/privacy/correlated_noise.md``). The nodes' own models are not
    covered.
    """

    travels = "gossip"

    records: int
    noise_multiplier: float | None
    step_size: float | Schedule = 1.0
    clipping_norm: float = 1.0
    batches: int = 1
    copies: int = 1
    noise: CorrelatedStrategy | None = None

    def __post_init__(self) -> None:
        as_python_numbers(self)
        integer("records", self.records, at_least=1)
        if self.noise_multiplier is not None:
            positive("noise_multiplier", self.noise_multiplier)
        keep_schedules(self, "step_size")
        positive("clipping_norm", self.clipping_norm)
        integer("batches", self.batches, at_least=1, below=self.records + 1)
        integer("copies", self.copies, at_least=1)
        if self.noise is not None:
            if self.copies > 1:
                fail(
                    "copies", "1 with correlated noise, which is for distinct records", self.copies
                )
            check_strategy(self.noise, self)
            if self.noise.correlates_time and self.batches == 1:
                wanted = (
                    "correlated.BetweenPartners(..), or several batches: noise that is correlated "
                    "in time buys nothing where every round uses all records (Theorem 2)"
                )
                fail("noise", wanted, self.noise)

    @cached_property
    def mechanism(self) -> Mechanism:
        """Gaussian noise."""
        return NoNoise() if self.noise_multiplier is None else Gaussian(self.noise_multiplier)

    def sensitivity(self, t: int) -> Sensitivity:
        """Return S: how far a record moves the message of round t, given all earlier ones."""
        if t == 0:
            return Sensitivity(0.0, "l2", "x_0 does not depend on the data")
        bound = 2 * at(self.step_size, t) * self.clipping_norm / (self.records // self.batches)
        return Sensitivity(bound, "l2", "2 alpha L / records, one clipped gradient replaced")

    def release_of(self, t: int) -> Release:
        """Return the messages x_t + n_t, which depend on the batch of round t - 1."""
        joint = self._joint
        batch = (t - 1) % self.batches if t > 0 and self.batches > 1 else None
        row = None if joint is None or t == 0 else CorrelatedRow.of(joint, t - 1)
        return Release(t, row or self.mechanism, self.sensitivity(t), batch=batch)

    def outgrows_single(self, rounds: int, dim: int) -> bool:
        """Whether float32 might round messages of length `dim` by more than the noise covers.

        By public numbers alone: no model is longer than all steps together and the noise on them.
        """
        if self.noise_multiplier is None or rounds < 2:
            return False
        steps = [at(self.step_size, t) * self.clipping_norm for t in range(1, rounds)]
        moved = [self.sensitivity(t).bound for t in range(1, rounds)]
        noise = sqrt(rounds) * most_noise(dim, self.noise_multiplier * max(moved), "l2")
        return sum(steps) + noise > SINGLE.longest(ROUNDINGS) * min(moved)

    @cached_property
    def _joint(self) -> CorrelatedGaussian | None:
        """The noise of all rounds together; None if it is independent."""
        if self.noise is None or self.noise_multiplier is None:
            return None
        bounds = [self.sensitivity(t).bound for t in range(1, self.noise.rows + 1)]
        uses = -(-len(bounds) // self.batches)
        return self.noise.release(
            self.noise_multiplier / sqrt(uses), bounds, uses=uses, separation=self.batches
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Whom partners who share noise trust."""
        return () if self.noise is None else self.noise.assumptions

    def reaction(self, rounds: int, problem: LinearProblem | LossFacts) -> Reaction | NotProved:
        """Return how x_(t+1) = b_t - alpha g(b_t) reacts to a record and to messages."""
        if self.batches > 1:
            return NotProved(reason="rounds that use some of the records are not accounted for")
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
        require_problem(self, problem, "records_of", "initial", "gradient", "objective")
        if problem.records.min() < self.records:
            raise ValueError(
                f"records is {self.records}, but the smallest node has only "
                f"{problem.records.min()} records"
            )
        if self.batches > 1:
            require_problem(self, problem, "batch")
            check_batches(problem)
        x = initial_parameters(problem, key, problem.nodes)
        check_records(problem, x, self.clipping_norm)
        return GradientDescentState(Sensitive(x))

    def round(
        self, state: GradientDescentState, t: int, problem: LinearProblem, key: Key
    ) -> Round[GradientDescentState]:
        """Send, mix, and step from the mixed point against the mean gradient of all records."""
        b = yield Message(state.x, self.release_of(t))
        for _ in range(1, self._mixings):
            b = yield Relay()
        used = self._records_of(t, problem)
        alpha = at(self.step_size, t + 1)
        x = descended(problem, b, alpha, used, clipping_norm=self.clipping_norm)
        return GradientDescentState(Sensitive(x))

    def losses(
        self, state: GradientDescentState, t: int, problem: LinearProblem, key: Key
    ) -> npt.NDArray[np.float64]:
        """Return each node's loss at x_t on all of its records."""
        return problem.objective(state.x, self._records_of(t, problem))

    def _records_of(self, t: int, problem: LinearProblem) -> Ragged:
        """Return the records that round t uses."""
        if self.batches == 1:
            return problem.everything
        used = problem.batch(t % self.batches, self.records // self.batches)
        return np.arange(len(used) + 1) * used.shape[1], used.reshape(-1)

    @property
    def _mixings(self) -> int:
        return 1 if self.noise is None else self.noise.mixings

    def parameters(self, state: GradientDescentState) -> Floats:
        """Return the nodes' own models."""
        return state.x
