"""Decentralized private SGD with replacement: the baseline of the without-replacement paper.

Section V: in every round a node, chosen uniformly at random, updates the global model on a
mini-batch drawn from all of its records. It drops out once its records have been visited 5 times on
average (`visits`, v):

    w_(t+1) = w_t - eta_t (grad f_D(w_t) + N_t)

The paper gives each visit a budget of (epsilon / 5, delta / 5) and adds these up. But a record may
be drawn more often than that, or never; the proof here treats the draws as what they are: secret
samples of fixed size, which amplify privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf, sqrt
from typing import ClassVar

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._validate import fail, integer, keep_numbers, positive
from dpmesh.algorithms.base import Exchange, Info, Travel, learns, started
from dpmesh.keys import Key, Purpose
from dpmesh.privacy.events import Release, Sensitivity
from dpmesh.privacy.mechanisms import Gaussian, Mechanism, NoNoise
from dpmesh.privacy.plan import Plan, each_round
from dpmesh.privacy.sampling import FixedSizeSampling
from dpmesh.privacy.types import Floats, Released, Sensitive
from dpmesh.problems import LinearProblem
from dpmesh.schedules import InverseSqrt, Schedule, at, keep_schedules


@dataclass(frozen=True)
class WithReplacementState:
    """The global models, shape (K, d), and how often each node has updated them."""

    released: Released
    turns: npt.NDArray[np.int64]


@dataclass(frozen=True)
class WithReplacement:
    """The baseline "DP-SGD-With Replacement".

    Parameters
    ----------
    nodes
        Their number, which is public.
    records
        Number of records of each node, which is public.
    noise_multiplier
        Standard deviation of each model's noise over its sensitivity 2 eta L / b; None for no
        noise.
    models
        K: the problem's models, one per class (one-vs-all), or 1.
    batch_size
        b.
    visits
        v: how often a node visits a record on average.
    step_size
        eta_t for t = 1, 2, ..; 1 / sqrt(t) in the paper.

    Guarantee
    ---------
    Epsilon and delta of `plan` hold for all global models together, for replacing one record. A
    node releases at most `turns_of_a_node` times, each time on a secret sample of b of its records;
    a record moves the K models of such a release by at most sqrt(K) 2 eta L / b together. Which
    node updates when depends on public coins only. Models after a node's last turn are
    post-processing of its releases and of other nodes' records.
    """

    travels: ClassVar[Travel] = "token"

    nodes: int
    records: int
    noise_multiplier: float | None
    models: int = 1
    batch_size: int = 50
    visits: int = 5
    step_size: float | Schedule = InverseSqrt(1.0)

    def __post_init__(self) -> None:
        keep_numbers(self)
        for name in ("nodes", "records", "models", "batch_size", "visits"):
            integer(name, getattr(self, name), at_least=1)
        if self.batch_size > self.records:
            fail("batch_size", f"at most {self.records}, the records of a node", self.batch_size)
        if self.noise_multiplier is not None:
            positive("noise_multiplier", self.noise_multiplier)
        keep_schedules(self, "step_size")

    @property
    def turns_of_a_node(self) -> int:
        """Number of rounds until a node has visited its records `visits` times on average."""
        return self.visits * self.records // self.batch_size

    @property
    def mechanism(self) -> Mechanism:
        """The door: Gaussian noise on all models, relative to how far a record moves them."""
        if self.noise_multiplier is None:
            return NoNoise()
        return Gaussian(self.noise_multiplier / self.sensitivity.bound)

    @property
    def sensitivity(self) -> Sensitivity:
        """How far a record of the sample moves all models together."""
        reason = f"{self.models} models, each in units of 2 eta L / b"
        return Sensitivity(sqrt(self.models), "l2", reason)

    @property
    def sampling(self) -> FixedSizeSampling:
        """How a mini-batch is drawn from a node's records."""
        return FixedSizeSampling(self.batch_size, self.records)

    def plan(self, rounds: int) -> Plan:
        """Return the releases of `rounds` rounds, from public numbers alone.

        In the plan one node after the other takes all of its turns; in a run the order is random.
        So a ledger costs at most as much as its plan, and as much once all rounds are over.
        """
        self._check_rounds(rounds)
        mechanism, sensitivity, sampling = self.mechanism, self.sensitivity, self.sampling
        releases = (
            mechanism.planned(t, sensitivity, t // self.turns_of_a_node, sampling)
            for t in each_round(rounds)
        )
        secret = "which records are in a mini-batch stays secret"
        return Plan(tuple(releases), "replace_one", "record", (secret,))

    def init(self, problem: LinearProblem, key: Key) -> WithReplacementState:
        """Start all models at the problem's `initial`: 0, but for a problem of one's own."""
        learns(self, problem, "initial", "gradient", "model_constants")
        if problem.models != self.models:
            fail("models", f"{problem.models}, as the problem has", self.models)
        if (problem.records != self.records).any() or problem.nodes != self.nodes:
            fail("problem", f"{self.nodes} nodes of {self.records} records", problem.records)
        if self.noise_multiplier is not None and problem.model_constants().loss_lipschitz == inf:
            fail("problem", "one of a loss whose gradients are bounded", f"{problem.loss!r}")
        start = started(problem, key, 1).reshape(self.models, -1)
        return WithReplacementState(Released(start), np.zeros(self.nodes, dtype=np.int64))

    def step(
        self,
        state: WithReplacementState,
        round: int,
        problem: LinearProblem,
        exchange: Exchange,
        key: Key,
    ) -> tuple[WithReplacementState, Info]:
        """Run round t."""
        self._check_rounds(round + 1)
        m = self.node(state, round, key)
        batch = self.sample(m, round, problem, key)
        w = state.released
        losses = partial(problem.objective, w.reshape(1, -1), batch)
        noisy, release = self.emit(w, m, batch, round, problem, key)
        w = exchange(round, noisy)
        turns = state.turns + (np.arange(self.nodes) == m)
        return WithReplacementState(w, turns), Info(
            releases=(release,),
            bits_per_node=8 * w[0].nbytes,
            received=Released(w.reshape(1, -1)),
            losses=losses,
            messages=self.models,
        )

    def emit(
        self,
        w: Released,
        m: int,
        batch: npt.NDArray[np.int64],
        t: int,
        problem: LinearProblem,
        key: Key,
    ) -> tuple[Released, Release]:
        """Let node m release w_t - eta_t (grad f_D(w_t) + N_t)."""
        eta = at(self.step_size, t + 1)
        g = problem.gradient(w.reshape(1, -1), batch).reshape(w.shape)
        unit = 1.0
        if self.noise_multiplier is not None:
            unit = 2 * eta * problem.model_constants().loss_lipschitz / self.batch_size
        noisy, release, _ = self.mechanism.release(
            Sensitive((w - eta * g) / unit),
            self.sensitivity,
            key.stream(Purpose.NOISE, t),
            round=t,
            batch=m,
            sampling=self.sampling,
        )
        return Released(noisy * unit), release

    def node(self, state: WithReplacementState, t: int, key: Key) -> int:
        """Draw the node that updates, among those with turns left, by public coins."""
        coins = kernels.uniform(self.nodes, key.stream(Purpose.SAMPLE, t))
        return int(np.where(state.turns < self.turns_of_a_node, coins, 2.0).argmin())

    def sample(self, m: int, t: int, problem: LinearProblem, key: Key) -> npt.NDArray[np.int64]:
        """Draw the mini-batch of node m, shape (1, b): secret."""
        places = kernels.sample([self.records], self.batch_size, key.stream(Purpose.BATCHES, t))
        _, own = problem.records_of(np.array([m]))
        return own[places]

    def parameters(self, state: WithReplacementState) -> Floats:
        """Return the global models, shape (1, K d)."""
        return state.released.reshape(1, -1)

    def _check_rounds(self, rounds: int) -> None:
        most = self.nodes * self.turns_of_a_node
        if integer("rounds", rounds, at_least=1) > most:
            fail("rounds", f"at most {most}, {self.turns_of_a_node} turns of each node", rounds)
