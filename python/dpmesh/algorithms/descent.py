"""Base class of gradient descent by gossip, by push-sum and with gradient tracking.

In each of the three algorithms a node takes the mean of its records' clipped gradients once in a
round, and sends messages whose noise covers this mean. Parameters, sensitivity and releases are
the same. *Mixing* a message means averaging each node's rows with its neighbours', by the mixing
matrix of the network. A *use* of a record is a round whose release depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, sqrt
from typing import TYPE_CHECKING, ClassVar, Generic

import numpy as np

from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._ragged import Numbers, Ragged
from dpmesh._validate import every, fail, integer, positive
from dpmesh.algorithms.base import Algorithm, initial_parameters, require_problem
from dpmesh.algorithms.clipping import Clipping
from dpmesh.algorithms.gradients import require_clipped_records, require_each_record_once
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
    """Base class of private gradient descent on all records of each node, or on batches in turn.

    Parameters
    ----------
    records
        Number of records of the smallest node, a public number.
    noise_multiplier
        Standard deviation of the noise on a node's sum of clipped gradients over `clipping_norm`,
        as in Opacus; None runs without noise, for comparison.
    step_size
        Learning rate alpha for t = 1, 2, ..: a number or a schedule of `dpmesh.schedules`.
    clipping_norm
        Largest L2 norm L of a record's gradient (max_grad_norm in Opacus); longer ones are clipped.
    batches
        Number of batches into which each node's first `records` records are split, in their order.
        Rounds use the batches in turn. With 1 every round uses all records of a node.
    copies
        Largest number of nodes that hold the same record. Each of them adds independent noise, so
        that the run costs as much as `copies` runs on one copy.
    noise
        Kind of noise: a class of mechanisms, such as `dpmesh.noise.Laplace` or a custom one; or
        correlated noise of `dpmesh.noise`: `correlated.BetweenPartners`, and with several batches
        also `correlated.InTime` and `correlated.Both`. None for independent Gaussian noise.
    mixings
        Number k of times that the noisy messages of a round are mixed over the network. None for
        the number that `noise` was made for, or 1.
    """

    communication = "gossip"

    first_noisy_round: ClassVar[int] = 1
    """First round whose release depends on the data."""

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
            if self.mixing_count != strategy.mixings:
                fail("noise", f"noise made for mixings={self.mixings}", f"{strategy.mixings}")
            if self.copies > 1:
                expected = "1 with correlated noise, which is for distinct records"
                fail("copies", expected, self.copies)
            if strategy.correlates_time and self.batches == 1:
                expected = (
                    "correlated.BetweenPartners(..), or several batches: noise that is correlated "
                    "in time buys nothing where every round uses all records (Theorem 2)"
                )
                fail("noise", expected, self.noise)

    @cached_property
    def mechanism(self) -> Mechanism:
        """Mechanism of a release with independent noise: Gaussian, or of the kind of `noise`."""
        if self.noise_to_sensitivity is None:
            return NoNoise()
        return mechanism_of(self.noise, self.noise_to_sensitivity)

    def sensitivity(self, t: int) -> Sensitivity:
        """Return the L2 sensitivity S of a node's message of round t, given all earlier messages.

        Replacing one record moves the message by at most S = 2 alpha_t L / batch size.
        """
        if t == 0:
            return Sensitivity(0.0, "l2", "x_0 does not depend on the data")
        bound = at(self.step_size, t) * self.mean_gradient_sensitivity
        return Sensitivity(bound, "l2", "2 alpha L / records, one clipped gradient replaced")

    def noisy_release(self, t: int) -> Release:
        """Return the noisy release of round t, with the index of its batch if there are several.

        Before `first_noisy_round` the message depends on no data, and has no noise.
        """
        step = t - self.first_noisy_round
        if step < 0:
            return Release(t, NoNoise(), self.sensitivity(t))
        batch = None
        if self.batches > 1:
            batch = step % self.batches
        mechanism = self.mechanism
        if self._joint is not None:
            mechanism = CorrelatedRow.of(self._joint, step)
        return Release(t, mechanism, self.sensitivity(t), batch=batch)

    @property
    def mean_gradient_sensitivity(self) -> float:
        """L2 sensitivity of a node's mean clipped gradient to one record, 2 L / batch size.

        All batches have ``records // batches`` records.
        """
        return 2 * self.clipping_norm / (self.records // self.batches)

    @cached_property
    def _joint(self) -> CorrelatedGaussian | None:
        """Correlated noise of all rounds as one joint release; None if noise is independent.

        Let z be `noise_to_sensitivity`, and k the number of noisy rounds that use a record. The
        joint release has the ratio z / sqrt(k) of noise to sensitivity. It is then as private as
        k releases with independent noise of ratio z.
        """
        strategy = strategy_of(self.noise)
        if strategy is None or self.noise_to_sensitivity is None:
            return None
        noisy_rounds = range(self.first_noisy_round, strategy.rounds)
        bounds = [self.sensitivity(t).bound for t in noisy_rounds]
        uses = ceil(len(noisy_rounds) / self.batches)
        return strategy.release(
            self.noise_to_sensitivity / sqrt(uses), bounds, uses=uses, separation=self.batches
        )

    @property
    def mixing_count(self) -> int:
        """Number of times that the messages of a round are mixed."""
        if self.mixings is not None:
            return self.mixings
        strategy = strategy_of(self.noise)
        if strategy is None:
            return 1
        return strategy.mixings

    def send_and_mix(self, message: Message) -> Generator[Message | Relay, Released, Released]:
        """Send a message and mix it `mixing_count` times; return each node's mixed row."""
        mixture = yield message
        for _ in range(1, self.mixing_count):
            mixture = yield Relay()
        return mixture

    def initial_models(self, problem: LinearProblem, key: Key) -> Floats:
        """Return the models before round 0, shape (nodes, dim), from the problem's `initial`.

        Raises
        ------
        ValueError
            If a node has fewer than `records` records, or the problem lacks a method that a round
            calls.
        """
        require_problem(self, problem, "records_of", "initial", "gradient", "objective")
        if problem.records.min() < self.records:
            raise ValueError(
                f"records is {self.records}, but the smallest node has only "
                f"{problem.records.min()} records"
            )
        if self.batches > 1:
            require_problem(self, problem, "batch")
            require_each_record_once(problem)
        x = initial_parameters(problem, key, problem.nodes)
        require_clipped_records(problem, x, self.clipping_norm)
        return x

    def losses(self, state: StateT, t: int, problem: LinearProblem, key: Key) -> Numbers:
        """Return each node's loss at its current model, on the records that round t uses."""
        return problem.objective(Sensitive(self.parameters(state)), self.records_of(t, problem))

    def records_of(self, t: int, problem: LinearProblem) -> Ragged:
        """Return the records of each node that round t uses, as ``(indptr, indices)``.

        Node i uses the records ``indices[indptr[i]:indptr[i + 1]]``.
        """
        if self.batches == 1:
            return problem.full_batches
        batch = problem.batch(t % self.batches, self.records // self.batches)
        nodes, batch_size = batch.shape
        return np.arange(nodes + 1) * batch_size, batch.reshape(-1)
