"""Decentralized private SGD without replacement (Jin, He, Dai), Algorithm 1.

Each node keeps a local model w^L, and all know a global model w^G. Every mini-batch of a node's
records is used once. Within a step t nodes act one after the other, in random order, and a
controller decides which model each of them updates. The symbols are the paper's; its t counts from
0, as our rounds do:

    Local:   w_(t+1)^L = w_t^L - 2 eta_t grad f_D(w_t^L)
    Global:  w_(t+1)^G = (w_t^G + w_t^L) / 2 - eta_t (grad f_D(w_t^G) + N_t)          (5)
             w_(t+1)^L = w_(t+1)^G                                                    (6)

One-vs-all with K classes takes K such pairs of models in each node, on the same mini-batches, each
with decisions of its own. The paper needs repair in some places:

- The standard deviation in Theorem 2 is that of the product eta_t N_t.
- A record enters K releases, not one, and more if several nodes hold it: the noise covers all.
- Lemma 4 wants steps of at most 1 / (2 mu). Those of Theorem 4, 1 / (a gamma t), exceed that at
  every step of the paper's runs; `theorem_4_steps` of `reproduce.bounds.without_replacement`
  starts the same schedule late enough.
- Algorithm 1 does not project, although its constants need a bounded model: see `radius`.
- Theorem 2 does not cover decisions that depend on private data: the default controller looks at
  none, and the report names controllers that do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._ragged import Flags, Indices, Numbers, Ragged
from dpmesh._validate import every, fail, integer, one_of, positive, probability, require_methods
from dpmesh.algorithms.allocation import check_sampling, expected_sizes
from dpmesh.algorithms.base import initial_parameters, require_problem
from dpmesh.algorithms.controllers import AlwaysGlobal, FixedController
from dpmesh.algorithms.gradients import gradient_of, gradient_sums
from dpmesh.algorithms.messages import Message, Round
from dpmesh.algorithms.without_replacement_decisions import (
    WithoutReplacementDecisions,
    WithoutReplacementState,
)
from dpmesh.keys import Key, Purpose
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.privacy.views import LossFacts
from dpmesh.problems import LinearProblem, Problem
from dpmesh.problems.dense import DenseProblem
from dpmesh.schedules import at, keep_schedules

ANNOUNCEMENT_BITS = 64
"""The step and the node's number, which all others receive after a global update of a model."""


@dataclass(frozen=True, kw_only=True)
class WithoutReplacement(WithoutReplacementDecisions):
    """Algorithm 1, with any controller.

    Parameters
    ----------
    epsilon
        Budget of every record over the whole run; None runs without noise, for comparison.
    delta
        In (0, 1); 1 / n^2 in the paper.
    models
        K: a node's models, one per class of the problem (one-vs-all), or 1.
    batch_size
        Records of a node's mini-batch, b.
    step_size
        eta_t for t = 1, 2, ..: at most 1 / (2 mu), where mu is the smoothness of the objective.
    controller
        What decides. The default looks at nothing but coins; `DeepQ` is Algorithm 2.
    calibration
        ``"analytic"``: the least Gaussian noise for the budget. ``"classical"``: by Theorem 1's
        formula. ``"paper"``: by that formula for each single release, as if a record were in one
        only; the report then states what that really costs.
    copies
        The most nodes that hold the same record, once each: two copies at a node could move the
        same release together. The paper's experiments give each node all of the data.
    radius
        Local models, and global ones after their noise, are projected onto the ball of this radius
        around 0, each of the K by itself; None for no projection. Its diameter is the paper's R.
    arrival_rate
        Probability that a node acts in a step, by a public coin: with 1 all act, with less they are
        asynchronous.
    public_data
        Public records, on which a controller may score the global model.
    clipping_norm
        L, to which a model's gradient of a record is clipped (that of K models together to sqrt(K)
        L): it trains any model, but only with `AlwaysGlobal`, since steps of local models are
        non-expansive (Lemma 4) for convex, smooth losses alone. None for linear models.
    sampling
        ``"arrival"``: mini-batches of `batch_size` in the order of a node's records.
        ``"allocation"``: each record draws one of ``records // batch_size`` mini-batches secretly,
        before the run. They have random sizes, and are divided by the expected one; noise at the
        same epsilon is smaller, the more releases a node makes. Which steps are global must be
        known before the run: `AlwaysGlobal`, `Periodic` or `RandomGlobal`.
    records
        The smallest number of records of a node, which is public; for ``"allocation"`` only.
    decisions
        ``"together"``: all models of a node make the same decision, as ``"allocation"`` needs;
        ``"apart"``: each model its own.
    nodes
        Number of nodes, for ``"allocation"`` with `RandomGlobal`: the node with the most unequal
        shares determines the noise.
    decisions_seed
        Makes the public coins of `RandomGlobal` with ``"allocation"``.
    noise
        `correlated.InTime` of `dpmesh.privacy`, made for ``topology=None``, with `AlwaysGlobal` and
        an `arrival_rate` of 1: each node takes back part of the noise of its own earlier updates.
        None for noise of each update by itself.

    Guarantee
    ---------
    (epsilon, delta)-differential privacy of all global models together, for replacing one record
    with all its copies (Theorem 2, by exact Gaussian composition). If decisions do not depend on
    private data, then given all earlier releases a record moves exactly one release of each model,
    the first after its mini-batch, by at most Delta = max 2 eta L / b over the steps since the
    node's last (Lemma 4): the steps in between are non-expansive, and (6) forgets the local model.
    So it moves K `copies` releases, which together are one Gaussian release of sensitivity sqrt(K
    copies) Delta. The ledger records them as such, in units of Delta: once per round, each round
    charged with all that a record can move, and the rounds composed in parallel. The number of
    releases costs nothing. With ``"allocation"`` all releases of a node are one event of random
    allocation (``docs/privacy/random_allocation.md``), whose delta also pays for batches so large
    that local steps expand, and a pass ends with w^L = w^G. With `noise` a record is in one update
    of its node, which a C of unit columns hides as well (Theorem 1 of
    ``docs/privacy/correlated_noise.md``); noise of other nodes is independent. A controller with a
    `NoisyLoss` decides by noisy answers: a record is in one of them, too, and the noise of both
    together keeps the budget (``docs/algorithms``). Local models, and metrics made from them, are
    not covered.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.WithoutReplacement(epsilon=1.0, batch_size=50).epsilon
    1.0
    """

    travels = "token"
    any_rows = "a holder projects the model that it received before it uses it"
    no_views = "every node receives the global model after each update"
    counts_copies = True
    public_coins = frozenset({Purpose.INIT, Purpose.SAMPLE, Purpose.CONTROLLER})

    def __post_init__(self) -> None:
        every(self, positive, "epsilon", "radius", "clipping_norm")
        every(self, integer, "models", "batch_size", "copies", "nodes", at_least=1)
        integer("decisions_seed", self.decisions_seed)
        probability("delta", self.delta, zero=False, one=False)
        probability("arrival_rate", self.arrival_rate, zero=False)
        keep_schedules(self, "step_size")
        require_methods("controller", self.controller, "a controller", "init", "learn", "decide")
        one_of("calibration", self.calibration, ("analytic", "classical", "paper"))
        if self.controller.noisy_loss is not None and self.calibration != "analytic":
            fail("calibration", "'analytic', which noisy losses need", repr(self.calibration))
        if self.public_data is not None:
            require_methods("public_data", self.public_data, "a Dataset, or None", "take")
        if self.clipping_norm is not None and not isinstance(self.controller, AlwaysGlobal):
            wanted = "AlwaysGlobal() with a clipping_norm (local steps need convex losses)"
            fail("controller", wanted, self.controller)
        check_sampling(self.sampling, self.records, self.batch_size, self.delta)
        one_of("decisions", self.decisions, ("apart", "together"))
        if self.decisions == "together" and not isinstance(self.controller, FixedController):
            fail("decisions", "'apart' for a controller that learns", repr(self.decisions))
        if self.noise is not None:
            self._check_noise(self.noise)
        if self.sampling == "allocation":
            self._check_allocation()

    @property
    def rewinds(self) -> bool:
        """Whether a round that fails leaves its state: a learning controller reuses its arrays."""
        return isinstance(self.controller, FixedController)

    def refused_by_parties(self) -> dict[str, str]:
        """Return a calibration without a proof, and a controller that looks at data, if it does."""
        refused: dict[str, str] = {}
        if self.calibration == "paper":
            refused["calibration"] = "wanted one that is proved, got 'paper'"
        if not isinstance(self.controller, FixedController):
            refused["controller"] = "wanted one that looks at no data"
        return refused

    def most_rounds(self, problem: LinearProblem) -> int | None:
        """Return how many steps the largest node's mini-batches last, if all nodes always act."""
        require_problem(self, problem, "class_objectives", "gradient")
        if self.arrival_rate < 1:
            return None
        if self.allocated is not None:
            return self.allocated.steps
        return int(problem.all_records.max()) // self.batch_size

    def init(self, problem: LinearProblem, key: Key) -> WithoutReplacementState:
        """Start all models at the problem's `initial`: 0, but for a problem of one's own."""
        if problem.models != self.models:
            fail("models", f"{problem.models}, as the problem has", self.models)
        if self.public_data is problem.train:
            fail("public_data", "public records, which no node holds", "those of the nodes")
        if isinstance(problem, DenseProblem) and self.public_data is not None:
            fail("public_data", f"None for a {type(problem).__name__}", "records")
        if self.epsilon is not None and self.clipping_norm is None:
            self._constants(problem)
        if self.allocated is not None:
            self._check_allocated(problem, self.allocated)
        start = initial_parameters(problem, key, problem.nodes)
        local = self._projected(start.reshape(problem.nodes, self.models, -1))
        return WithoutReplacementState(
            local=Sensitive(local),
            released=Released(local[0].copy()),
            used=np.zeros(len(problem.all_records), dtype=np.int64),
            largest_step=np.zeros(local.shape[:2]),
            controller=self.controller.init(local.shape, self._controllers_key(problem, key)),
        )

    def round(
        self, state: WithoutReplacementState, t: int, problem: LinearProblem, key: Key
    ) -> Round[WithoutReplacementState]:
        """Run step t: all that arrive decide and act, one after the other (lines 3 to 6)."""
        turns, acting, batches = self._acting(state, t, problem, key)
        answers, releases = None, self.release_of(t)
        released = (releases,) if isinstance(releases, Release) else releases
        if self.controller.noisy_loss is not None and released and len(turns):
            answers = yield self._question(state, released[0], problem, acting, batches)
        actions, state = self._decided(state, t, problem, acting, batches, key, answers)
        state = self._updated(state, t, problem, acting[:, np.newaxis] & ~actions, batches)
        eta = at(self.step_size, t + 1)
        w_l, w_g = state.local.copy(), state.released.copy()
        forgets = np.zeros_like(actions)
        delta = self._delta(problem, np.maximum(state.largest_step, eta)).astype(w_g.dtype)
        for m in turns.tolist() if released else ():
            release = released[-1]
            if release.nodes is not None:  # of one node
                release = self.allocated_release(t, m)
            message = Message(None, release, sender=m, among=self.models)
            if problem.holds(m) and actions[row := problem.row_of(m)].any():
                models = w_g, w_l[row], actions[row], delta[row], eta
                message = self._updating(message, problem, row, batches, *models)
            arrived = yield message
            if arrived is None:
                continue
            sent = ~np.isnan(arrived[:, 0])
            w_g[sent] = self._projected(arrived[sent])
            if problem.holds(m):
                row = problem.row_of(m)
                w_l[row, sent], forgets[row, sent] = w_g[sent], True  # (6)
        if self.allocated is not None and t + 1 == self.allocated.steps:
            w_l[:] = w_g  # what the last release did not take along must reach no later one
        return replace(
            state,
            local=Sensitive(w_l),
            released=Released(w_g),
            used=state.used + np.bincount(turns, minlength=len(state.used)),
            largest_step=np.where(forgets, 0.0, state.largest_step),
        )

    def losses(
        self, state: WithoutReplacementState, t: int, problem: LinearProblem, key: Key
    ) -> Numbers | None:
        """Return the losses of the nodes that act in step t, on their mini-batches."""
        turns, acting, batches = self._acting(state, t, problem, key)
        if not len(turns):
            return None
        losses = problem.class_objectives(_flat(state.local), batches)
        used = acting & (np.diff(batches[0]) > 0)
        return np.asarray(losses[used].sum(axis=1), dtype=np.float64)

    def _updated(
        self,
        state: WithoutReplacementState,
        t: int,
        problem: LinearProblem,
        chosen: Flags,
        batches: Ragged,
    ) -> WithoutReplacementState:
        """Step the chosen local models, all at once, since they are independent."""
        if not chosen.any():
            return state
        w, eta = state.local, at(self.step_size, t + 1)
        g = self._gradient(problem, _flat(w), batches, np.arange(len(w))).astype(w.dtype)
        moved = self._projected(kernels.weighted_sum((1.0, w), (-2 * eta, g)))
        np.copyto(moved, w, where=~chosen[:, :, np.newaxis])
        return replace(
            state,
            local=Sensitive(moved),
            largest_step=np.where(chosen, np.maximum(state.largest_step, eta), state.largest_step),
        )

    def _updating(
        self,
        message: Message,
        problem: LinearProblem,
        row: int,
        batches: Ragged,
        w_g: Floats,
        w_l: Floats,
        chosen: Flags,
        delta: Floats,
        eta: float,
    ) -> Message:
        """Return the message of the node in a row with the update (5) of the chosen models."""
        k, (first, last) = np.flatnonzero(chosen), batches[0][row : row + 2]
        own = np.array([0, last - first]), batches[1][first:last]
        g = self._gradient(problem, w_g.reshape(1, -1), own, np.array([row]))[0]
        exact = (w_g[k].astype(np.float64) + w_l[k]) / 2 - eta * g[k]
        others = len(problem.all_records) - 1
        bits = 8 * w_g.itemsize * w_g.shape[1] + others * ANNOUNCEMENT_BITS
        return message._replace(
            values=Sensitive(exact.astype(w_g.dtype)),
            rows=(message.sender or 0) * self.models + k,
            unit=delta[k, np.newaxis],
            bits=len(k) * bits,
        )

    def _gradient(
        self, problem: LinearProblem, point: Floats, batches: Ragged, nodes: Indices
    ) -> Floats:
        """Return grad f_D of some nodes at a point of each, shape (nodes, K, d).

        The sum over an allocated batch is divided by its expected size, a public number.
        """
        clip = None if self.clipping_norm is None else self.clipping_norm * sqrt(self.models)
        shape = len(point), self.models, -1
        if self.allocated is None:
            return gradient_of(problem, point, batches, clipping_norm=clip).reshape(shape)
        sizes = expected_sizes(problem, self.allocated.steps)[nodes, np.newaxis]
        sums = gradient_sums(problem, point, batches, clipping_norm=clip)
        g: Floats = (sums / sizes + problem.regularization * point).reshape(shape)
        return g

    def _delta(self, problem: LinearProblem, largest_step: Floats) -> Floats:
        """Return Lemma 4's Delta of each node's models, by the size of its mini-batches."""
        delta = self._lemma4(problem, largest_step)
        if self.allocated is None or self.epsilon is None:
            return delta
        sizes = expected_sizes(problem, self.allocated.steps)
        return delta * (self.batch_size / sizes[:, np.newaxis])

    def plan(self, rounds: int, problem: Problem | LossFacts | None = None) -> Plan:
        """Return all releases of a run; copies of an allocated record draw their own rounds."""
        plan = super().plan(rounds, problem)
        return plan if self.allocated is None else replace(plan, copies=self.copies)

    def published(self, state: WithoutReplacementState, received: Any) -> Released:
        """Return the global models, shape (1, K d)."""
        return Released(state.released.reshape(1, -1))

    def parameters(self, state: WithoutReplacementState) -> Floats:
        """Return the local models, shape (M, K d)."""
        return _flat(state.local)

    def _projected(self, w: Floats) -> Floats:
        return w if self.radius is None else kernels.clip_rows(w, self.radius)


def _flat(w: Floats) -> Floats:
    """Return the models of each node, shape (M, K d)."""
    return w.reshape(len(w), -1)
