"""Shared parts of gradient descent by gossip, by push-sum and with gradient tracking.

Each takes the mean of clipped gradients of a node's records once in a round, and mixes messages
that hold noise for it. Parameters, sensitivity and releases are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import TYPE_CHECKING, ClassVar, Generic

import numpy as np

from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._ragged import Numbers, Ragged
from dpmesh._validate import every, fail, integer, positive
from dpmesh.algorithms.base import Algorithm, initial_parameters, require_problem
from dpmesh.algorithms.clipping import Clipping
from dpmesh.algorithms.gradients import check_batches, check_records
from dpmesh.algorithms.messages import Message, Relay, StateT
from dpmesh.keys import Key
from dpmesh.noise.independent import NoiseKind, keep_noise, mechanism_of, strategy_of
from dpmesh.noise.mechanisms import Mechanism, NoNoise
from dpmesh.noise.rows import CorrelatedRow
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.releases import Release
from dpmesh.problems import LinearProblem
from dpmesh.schedules import Schedule, at, keep_schedules

if TYPE_CHECKING:
    from collections.abc import Generator

    from dpmesh.noise.correlated import CorrelatedGaussian


@dataclass(frozen=True, kw_only=True)
class Descent(Algorithm[StateT, LinearProblem], Clipping, Generic[StateT]):
    """Gradient descent of all nodes, each on all of its records or on batches in turn.

    Parameters
    ----------
    records
        Records of the smallest node, a public number.
    noise_multiplier
        Standard deviation of the noise on a sum of clipped gradients over `clipping_norm`, as in
        Opacus; None runs without noise, for comparison.
    step_size
        alpha for t = 1, 2, ...
    clipping_norm
        L, the largest norm of a record's gradient.
    batches
        Number of batches into which a node's first `records` records are split, in their order. A
        round takes the gradient of the next one, and the first one follows the last. 1 takes all
        records in every round.
    copies
        The most nodes that hold the same record. Each of them adds noise of its own, so the run
        costs as much as `copies` runs on it.
    noise
        Kind of noise: a class of mechanisms, such as `Laplace` or your own; or
        `correlated.BetweenPartners` of `dpmesh.noise`, with several batches also
        `correlated.InTime` and `correlated.Both`. None for independent Gaussian noise.
    mixings
        k, how often the messages of a round travel over the network; traffic grows with it. None
        stands for the number that `noise` was made for, and for 1 without it.
    """

    travels = "gossip"

    first_use: ClassVar[int] = 1
    """The first round whose release depends on the data."""

    records: int
    noise_multiplier: float | None
    step_size: float | Schedule = 1.0
    clipping_norm: float = 1.0
    batches: int = 1
    copies: int = 1
    noise: NoiseKind = None
    mixings: int | None = None

    def __post_init__(self) -> None:
        every(self, integer, "records", "copies", "mixings", at_least=1)
        every(self, positive, "noise_multiplier", "clipping_norm")
        integer("batches", self.batches, at_least=1, below=self.records + 1)
        keep_schedules(self, "step_size")
        keep_noise(self)
        strategy = strategy_of(self.noise)
        if strategy is not None:
            if self.times_mixed != strategy.mixings:
                fail("noise", f"noise made for mixings={self.mixings}", f"{strategy.mixings}")
            if self.copies > 1:
                fail(
                    "copies", "1 with correlated noise, which is for distinct records", self.copies
                )
            if strategy.correlates_time and self.batches == 1:
                expected = (
                    "correlated.BetweenPartners(..), or several batches: noise that is correlated "
                    "in time buys nothing where every round uses all records (Theorem 2)"
                )
                fail("noise", expected, self.noise)

    @cached_property
    def mechanism(self) -> Mechanism:
        """Gaussian noise, or independent `noise` of another kind."""
        if self.noise_to_sensitivity is None:
            return NoNoise()
        return mechanism_of(self.noise, self.noise_to_sensitivity)

    def sensitivity(self, t: int) -> Sensitivity:
        """Return S: how far a record moves the message of round t, given all earlier ones."""
        if t == 0:
            return Sensitivity(0.0, "l2", "x_0 does not depend on the data")
        bound = at(self.step_size, t) * self.mean_gradient_moves
        return Sensitivity(bound, "l2", "2 alpha L / records, one clipped gradient replaced")

    def noisy(self, t: int) -> Release:
        """Return the release of round t that depends on the data: a batch of it, if there are."""
        use = t - self.first_use
        if use < 0:
            return Release(t, NoNoise(), self.sensitivity(t))
        joint = self._joint
        batch = use % self.batches if self.batches > 1 else None
        mechanism = self.mechanism if joint is None else CorrelatedRow.of(joint, use)
        return Release(t, mechanism, self.sensitivity(t), batch=batch)

    @property
    def mean_gradient_moves(self) -> float:
        """Sensitivity of a round's mean gradient to a record in its batch, 2 L / records."""
        return 2 * self.clipping_norm / (self.records // self.batches)

    @cached_property
    def _joint(self) -> CorrelatedGaussian | None:
        """The noise of all rounds together; None if it is independent."""
        strategy = strategy_of(self.noise)
        if strategy is None or self.noise_to_sensitivity is None:
            return None
        first = self.first_use
        bounds = [self.sensitivity(t).bound for t in range(first, strategy.rounds)]
        uses = -(-len(bounds) // self.batches)
        return strategy.release(
            self.noise_to_sensitivity / sqrt(uses), bounds, uses=uses, separation=self.batches
        )

    @property
    def times_mixed(self) -> int:
        """Number of times that the messages of a round are mixed."""
        strategy = strategy_of(self.noise)
        return self.mixings or (1 if strategy is None else strategy.mixings)

    def mixed(self, message: Message) -> Generator[Message | Relay, Released, Released]:
        """Send a message, and mix it as often as `mixings` says; return what arrived."""
        b = yield message
        for _ in range(1, self.times_mixed):
            b = yield Relay()
        return b

    def start(self, problem: LinearProblem, key: Key) -> Floats:
        """Return the models before round 0: 0, but for a problem of one's own.

        Raises
        ------
        ValueError
            If a node has too few records, or the problem lacks what a round calls.
        """
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
        return x

    def losses(self, state: StateT, t: int, problem: LinearProblem, key: Key) -> Numbers:
        """Return each node's loss at its own model, on the records that the round uses."""
        return problem.objective(Sensitive(self.parameters(state)), self.records_of(t, problem))

    def records_of(self, t: int, problem: LinearProblem) -> Ragged:
        """Return the records that round t uses."""
        if self.batches == 1:
            return problem.everything
        batch = problem.batch(t % self.batches, self.records // self.batches)
        return np.arange(len(batch) + 1) * batch.shape[1], batch.reshape(-1)
