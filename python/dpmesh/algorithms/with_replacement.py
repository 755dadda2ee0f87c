"""Decentralized private SGD with replacement: the baseline of the without-replacement paper.

In every round a node, chosen uniformly at random, updates the global model w on a mini-batch D that
it draws from all of its records (section V of the paper). It drops out once it has used each of its
records `visits` times on average (v; 5 in the paper):

    w_(t+1) = w_t - eta_t (grad f_D(w_t) + N_t)

The paper gives each visit of a record a budget of (epsilon / 5, delta / 5), and adds these up. But
a record may be drawn more often than 5 times, or never. The proof here treats the mini-batches as
secret samples of fixed size, which amplify privacy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, sqrt

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._ragged import Indices, Numbers
from dpmesh._validate import every, fail, integer, positive
from dpmesh.algorithms.base import KNOWN_TO_ALL, Algorithm, initial_parameters, require_problem
from dpmesh.algorithms.clipping import Clipping
from dpmesh.algorithms.gradients import gradient_step
from dpmesh.algorithms.messages import Message, Round
from dpmesh.algorithms.worst_case import CROWD_DELTA, AuditSize, Coins, Crowd, Pair, projection
from dpmesh.data import Dataset
from dpmesh.keys import Key, Purpose
from dpmesh.noise.independent import Independent, keep_kind, mechanism_of
from dpmesh.noise.mechanisms import Mechanism, NoNoise
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.privacy.sampling import FixedSizeSampling
from dpmesh.privacy.views import LossFacts
from dpmesh.problems import LinearProblem, Problem
from dpmesh.problems.canaries import diagonal
from dpmesh.problems.dense import DenseProblem
from dpmesh.schedules import InverseSqrt, Schedule, at, keep_schedules


@dataclass(frozen=True, kw_only=True)
class WithReplacementState:
    """State before a round: what all nodes know.

    Parameters
    ----------
    released
        Global models w_t, shape (K, d).
    turns
        Number of updates that each node has made, shape (nodes,).
    """

    released: Released = field(metadata=KNOWN_TO_ALL)
    turns: Indices = field(metadata=KNOWN_TO_ALL)


@dataclass(frozen=True, kw_only=True)
class WithReplacement(Algorithm[WithReplacementState, LinearProblem], Clipping):
    """Decentralized private SGD with a token, on mini-batches sampled with replacement.

    In a round one random node updates the global model with a noisy gradient step on a mini-batch
    of its records, and sends it to all. A mini-batch has distinct records; a record may be in many
    mini-batches. Source: the baseline of the paper of `WithoutReplacement` (Jin, He and Dai,
    section V), with another proof.

    Parameters
    ----------
    nodes
        Number of nodes, a public number.
    records
        Number of records of each node, a public number.
    noise_multiplier
        Standard deviation of the noise on a model over eta L / b, the largest effect of one
        record's clipped gradient on it. None runs without noise, for comparison.
    models
        Number K of models of the problem: one per class (one-vs-all), or 1.
    batch_size
        Number b of records in a mini-batch.
    visits
        Average number of times v that a node uses each of its records.
    copies
        Largest number of nodes that hold the same record. Each of them adds independent noise, so
        that the run costs as much as `copies` runs on one copy.
    step_size
        Learning rate eta_t for t = 1, 2, ..: a number or a schedule; the paper has 1 / sqrt(t).
    clipping_norm
        Largest L2 norm L of a record's gradient of one model; all K models together are clipped to
        sqrt(K) L. None for losses whose gradients have a known bound, as linear models may have.
    noise
        Kind of noise on one model: a class of mechanisms, such as `dpmesh.noise.Laplace` or a
        custom one. None for Gaussian noise. Epsilon of custom noise counts every mini-batch as all
        records: no amplification by sampling is proved for it.

    Guarantee
    ---------
    All global models together are (epsilon, delta)-DP with the epsilon of
    ``plan(rounds).cost(delta)``, for replacing one record, against an adversary who sees all of
    them but not which records are in a mini-batch. A node releases at most `turns_of_a_node` times,
    each time on a secret sample of b of its records. A record in the sample moves the K models of
    the release by at most 2 sqrt(K) eta L / b together, in L2 norm. The order of nodes depends on
    public coins only. Models after a node's last turn are post-processing of its releases and of
    other nodes' records.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.WithReplacement(nodes=10, records=100, noise_multiplier=10.0).batch_size
    50
    """

    communication = "token"
    messages_need_no_trust = "gradients are bounded at any model, as `init` checks"
    view_refusal = "every node receives each global model"
    parameters_are_released = True
    public_coins = frozenset({Purpose.INIT, Purpose.SAMPLE})

    nodes: int
    records: int
    noise_multiplier: float | None
    models: int = 1
    batch_size: int = 50
    visits: int = 5
    step_size: float | Schedule = InverseSqrt(1.0)
    copies: int = 1
    clipping_norm: float | None = None
    noise: type[Mechanism] | Independent | None = None

    def __post_init__(self) -> None:
        counts = ("nodes", "records", "models", "batch_size", "visits", "copies")
        every(self, integer, *counts, at_least=1)
        every(self, positive, "noise_multiplier", "clipping_norm")
        if self.batch_size > self.records:
            fail("batch_size", f"at most {self.records}, the records of a node", self.batch_size)
        keep_schedules(self, "step_size")
        keep_kind(self)
        if self.noise is not None and self.models > 1:
            expected = "None with several models, whose joint sensitivity is for Gaussian noise"
            fail("noise", expected, self.noise)

    @property
    def run_length(self) -> int:
        """Number of rounds in which one node updates, `turns_of_a_node`."""
        return self.turns_of_a_node

    @property
    def turns_of_a_node(self) -> int:
        """Number of updates of one node: a record is in `visits` of its mini-batches on average."""
        return self.visits * self.records // self.batch_size

    @cached_property
    def mechanism(self) -> Mechanism:
        """Noise mechanism of a release of all K models together."""
        if self.noise_to_sensitivity is None:
            return NoNoise()
        return mechanism_of(self.noise, self.noise_to_sensitivity / self.sensitivity(0).bound)

    def sensitivity(self, t: int) -> Sensitivity:
        """Return the L2 sensitivity of all K models together, over 2 eta L / b: sqrt(K).

        The factor 2 eta L / b of a round is `least_scale_factor`.
        """
        reason = f"{self.models} models, each in units of 2 eta L / b"
        return Sensitivity(sqrt(self.models), "l2", reason)

    @cached_property
    def sampling(self) -> FixedSizeSampling:
        """Sampling of a mini-batch from a node's records."""
        return FixedSizeSampling(size=self.batch_size, population=self.records)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee: mini-batches stay secret."""
        return ("which records are in a mini-batch stays secret",)

    def release_of(self, t: int) -> Release:
        """Return the release of round t, which depends on one node's mini-batch.

        In the plan each node takes all of its turns before the next node; in a run the order is
        random. The epsilon of a ledger is therefore at most the epsilon of the plan. Both are equal
        after the last round.
        """
        node = t // self.turns_of_a_node
        return Release(t, self.mechanism, self.sensitivity(t), batch=node, sampling=self.sampling)

    def release_by(self, node: int, t: int) -> Release:
        """Return the release of round t if `node` updates the models in this round."""
        return replace(self.release_of(t), batch=node)

    def least_scale_factor(self, t: int, problem: LinearProblem) -> float:
        """Return 2 eta_t L / b, the L2 sensitivity of one model to a record; 1 without noise."""
        if self.noise_multiplier is None:
            return 1.0
        return 2 * at(self.step_size, t + 1) * self._gradient_bound(problem) / self.batch_size

    def leaking_data(self, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return problems for audits of one node and one model.

        The pair has two datasets that differ in one canary, whose gradient all other records
        oppose. All records of the crowd are canaries.

        By default coupled runs have all turns of the node. Other runs have one turn, which may draw
        the canary; the tested claim then has a large delta, for which fewer runs suffice. The
        mini-batches of the crowd have the same sampling rate.
        """
        if (self.nodes, self.models) != (1, 1):
            fail("algorithm", "one of one node and one model", self)
        along = diagonal(size.dim or 3)
        canaries = size.canaries

        def problem_of(coins: Coins, features: Numbers) -> LinearProblem:
            train = Dataset(features, np.where(coins, 1, -1), "canaries")
            return LinearProblem(train, (np.arange(len(coins)),), "hinge", feature_norm=1.0)

        def one_canary(coin: bool) -> LinearProblem:
            coins = np.zeros(self.records, dtype=bool)
            coins[0] = coin
            return problem_of(coins, np.tile(along, (len(coins), 1)))

        batch_size = max(1, canaries * self.batch_size // self.records)
        pair = Pair(
            algorithm=self,
            problem=one_canary(True),
            neighbor=one_canary(False),
            rounds=size.rounds or 1,
            delta=size.delta_or(0.03),
            score=projection(along),
        )
        crowd = Crowd(
            algorithm=replace(self, records=canaries, batch_size=batch_size),
            problem_of=lambda coins: problem_of(coins, np.eye(canaries)),
            canaries=canaries,
            rounds=1,
            delta=CROWD_DELTA,
            scores=projection(np.eye(canaries)),
        )
        every_turn = replace(pair, rounds=size.rounds or self.turns_of_a_node)
        return replace(pair, coupled=(every_turn,)), crowd

    def plan(self, rounds: int, problem: Problem | LossFacts | None = None) -> Plan:
        """Return the releases of `rounds` rounds, from public numbers alone."""
        self._check_rounds(rounds)
        return super().plan(rounds, problem)

    def init(self, problem: LinearProblem, key: Key) -> WithReplacementState:
        """Return the state before round 0: all models at the problem's `initial`, 0 by default."""
        require_problem(self, problem, "initial", "gradient")
        if problem.models != self.models:
            fail("models", f"{problem.models}, as the problem has", self.models)
        if problem.all_records.tolist() != [self.records] * self.nodes:
            fail(
                "problem", f"{self.nodes} nodes of {self.records} records each", problem.all_records
            )
        if self.noise_multiplier is not None and self._gradient_bound(problem) == inf:
            fail("clipping_norm", "a number, since the loss does not bound its gradients", None)
        start = initial_parameters(problem, key, 1).reshape(self.models, -1)
        return WithReplacementState(
            released=Released(start), turns=np.zeros(self.nodes, dtype=np.int64)
        )

    def round(
        self, state: WithReplacementState, t: int, problem: LinearProblem, key: Key
    ) -> Round[WithReplacementState]:
        """Let one random node update the models: w_(t+1) = w_t - eta_t (grad f_D(w_t) + N_t)."""
        self._check_rounds(t + 1)
        (m,) = self.senders(t, state.turns, problem.all_records, key).tolist()
        w = state.released
        eta = at(self.step_size, t + 1)
        update = None
        if problem.holds(m):
            point = Released(w.reshape(1, -1))
            batch = self.sample(m, t, problem, key)
            bound = None if self.clipping_norm is None else self.clipping_norm * sqrt(self.models)
            moved = gradient_step(problem, point, eta, batch, clipping_norm=bound)
            update = Sensitive(moved.reshape(w.shape))
        release = self.release_by(m, t)
        factor = self.least_scale_factor(t, problem)
        arrived = yield Message(
            update, release, sender=m, row_count=self.models, scale_factor=factor
        )
        w = state.released if arrived is None else arrived
        return WithReplacementState(released=w, turns=state.turns + (np.arange(self.nodes) == m))

    def _gradient_bound(self, problem: LinearProblem) -> float:
        """Return a bound L on the L2 norm of a record's gradient of one model; may be infinite."""
        if self.clipping_norm is not None:
            return self.clipping_norm
        if isinstance(problem, DenseProblem):
            return inf
        return problem.model_constants().loss_lipschitz

    def losses(
        self, state: WithReplacementState, t: int, problem: LinearProblem, key: Key
    ) -> Numbers:
        """Return the loss of the node that updates on its mini-batch, at w_t."""
        (m,) = self.senders(t, state.turns, problem.all_records, key).tolist()
        if not problem.holds(m):
            return np.empty(0)
        return problem.objective(self.parameters(state), self.sample(m, t, problem, key))

    def senders(self, t: int, turns: Indices, records: Indices, key: Key) -> Indices:
        """Return the node that updates in round t, shape (1,).

        Public coins draw it among the nodes with turns left: the smallest coin wins.
        """
        coins = kernels.uniform(self.nodes, key.stream(Purpose.SAMPLE, t))
        coins_with_turns = np.where(turns < self.turns_of_a_node, coins, 2.0)  # 2 never wins
        return np.array([coins_with_turns.argmin()])

    def sample(self, m: int, t: int, problem: LinearProblem, key: Key) -> Indices:
        """Return the records of node m's mini-batch, shape (1, b), which must stay secret."""
        places = kernels.sample([self.records], self.batch_size, key.stream(Purpose.BATCHES, t))
        _, members = problem.records_of(np.array([problem.row_of(m)]))
        return members[places]

    def parameters(self, state: WithReplacementState) -> Floats:
        """Return the global models, shape (1, K d)."""
        return state.released.reshape(1, -1)

    def _check_rounds(self, rounds: int) -> None:
        most = self.nodes * self.turns_of_a_node
        if integer("rounds", rounds, at_least=1) > most:
            fail("rounds", f"at most {most}, {self.turns_of_a_node} turns of each node", rounds)
