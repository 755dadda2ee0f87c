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
  every step of the paper's runs; `theorem_4_steps` of `dpmesh.bounds.without_replacement` starts
  the same schedule late enough.
- Algorithm 1 does not project, although its constants need a bounded model: see `model_radius`.
- Theorem 2 does not cover decisions that depend on private data: the default controller looks at
  none, and the report names controllers that do.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import inf, sqrt
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._ragged import Indices, Ragged, slices
from dpmesh._validate import able, fail, integer, keep_numbers, one_of, positive, probability
from dpmesh.algorithms.base import Exchange, Info, Losses, Travel, learns, started
from dpmesh.controllers import Actions, AnyController, Observation, RandomGlobal
from dpmesh.controllers.base import PRIVATE_DECISIONS
from dpmesh.data import Dataset
from dpmesh.keys import Key, Purpose
from dpmesh.privacy.accounting import analytic_gaussian_noise_multiplier
from dpmesh.privacy.accounting.papers import without_replacement as claims
from dpmesh.privacy.events import Sensitivity
from dpmesh.privacy.mechanisms import Gaussian, Mechanism, NoNoise
from dpmesh.privacy.plan import Plan, each_round
from dpmesh.privacy.types import Floats, Released, Sensitive
from dpmesh.problems import Constants, LinearProblem
from dpmesh.schedules import Schedule, at, keep_schedules

Calibration = Literal["analytic", "classical", "paper"]


@dataclass(frozen=True)
class WithoutReplacementState:
    """What the nodes know before a step, for M nodes with K models of d parameters.

    Parameters
    ----------
    local
        w_t^L, shape (M, K, d).
    released
        w_t^G, shape (K, d).
    used
        Shape (M,): mini-batches that each node has used.
    largest_step
        Shape (M, K): the largest eta since the node's last global update, which Lemma 4 needs; 0 if
        there was no step since.
    controller
        What the controller has learned.
    """

    local: Sensitive
    released: Released
    used: npt.NDArray[np.int64]
    largest_step: npt.NDArray[np.float64]
    controller: Any


@dataclass(frozen=True)
class WithoutReplacement:
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
        b.
    step_size
        eta_t for t = 1, 2, ..: at most 1 / (2 mu), where mu is the smoothness of the objective.
    controller
        What decides. The default looks at nothing but coins; `DeepQ` is Algorithm 2.
    calibration
        ``"analytic"``: the least Gaussian noise for the budget. ``"classical"``: by Theorem 1's
        formula. ``"paper"``: by that formula for each single release, as if a record were in one
        only; the report then says what that really costs.
    copies
        The most nodes that hold the same record, once each: two copies at a node could move the
        same release together. The paper's experiments give each node all of the data.
    model_radius
        Local models, and global ones after their noise, are projected onto the ball of this radius
        around 0, each of the K by itself; None for no projection. Its diameter is the paper's R.
    arrival_rate
        Probability that a node acts in a step, by a public coin: with 1 all act, with less they are
        asynchronous.
    public_data
        Public records, on which a controller may score the global model.

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
    releases costs nothing. Local models, and metrics made from them, are not covered.
    """

    travels: ClassVar[Travel] = "token"

    epsilon: float | None = 1.0
    delta: float = 1e-5
    models: int = 1
    batch_size: int = 50
    step_size: float | Schedule = 0.1
    controller: AnyController = RandomGlobal(0.05)
    calibration: Calibration = "analytic"
    copies: int = 1
    model_radius: float | None = None
    arrival_rate: float = 1.0
    public_data: Dataset | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        keep_numbers(self)
        if self.epsilon is not None:
            positive("epsilon", self.epsilon)
        probability("delta", self.delta, zero=False, one=False)
        for name in ("models", "batch_size", "copies"):
            integer(name, getattr(self, name), at_least=1)
        keep_schedules(self, "step_size")
        able("controller", self.controller, "a controller", "init", "learn", "decide")
        one_of("calibration", self.calibration, ("analytic", "classical", "paper"))
        if self.model_radius is not None:
            positive("model_radius", self.model_radius)
        probability("arrival_rate", self.arrival_rate, zero=False)
        if self.public_data is not None:
            able("public_data", self.public_data, "a Dataset, or None", "take")

    @property
    def mechanism(self) -> Mechanism:
        """The door: Gaussian noise on all that a record can move, relative to how far it can."""
        if self.epsilon is None:
            return NoNoise()
        if self.calibration == "analytic":
            return Gaussian(
                analytic_gaussian_noise_multiplier(
                    target_epsilon=self.epsilon, target_delta=self.delta
                )
            )
        multiplier = claims.classical_noise_std(
            target_epsilon=self.epsilon, target_delta=self.delta, sensitivity=1.0
        )
        if self.calibration == "paper":
            multiplier /= self.sensitivity.bound
        return Gaussian(multiplier)

    @property
    def sensitivity(self) -> Sensitivity:
        """How far a record moves all releases that it affects, together."""
        return Sensitivity(
            sqrt(self.models * self.copies),
            "l2",
            f"{self.models} models x {self.copies} copies of a record, each in units of "
            "max 2 eta L / b since the node's last release (Lemma 4)",
        )

    def plan(self, rounds: int) -> Plan:
        """Return the releases of `rounds` rounds, from public numbers alone.

        Rounds in which, by chance, nobody updates the global model are in the plan and not in the
        ledger. They do not change the cost, as long as there is at least one release.
        """
        mechanism, sensitivity = self.mechanism, self.sensitivity
        releases = tuple(
            mechanism.planned(t, sensitivity, batch=t)
            for t in each_round(rounds)
            if self.controller.may_be_global(t)
        )
        told = list(self.controller.assumptions)
        if not self.controller.public:
            told.insert(0, PRIVATE_DECISIONS)
        if self.copies > 1:
            told.append(f"no record is held by more than {self.copies} nodes, nor twice by one")
        return Plan(releases, "replace_one", "record", tuple(told))

    def most_rounds(self, problem: LinearProblem) -> int | None:
        """Return how many steps the largest node's mini-batches last, if all nodes always act."""
        learns(self, problem, "class_objectives", "gradient", "model_constants")
        if self.arrival_rate < 1:
            return None
        return int(problem.records.max()) // self.batch_size

    def init(self, problem: LinearProblem, key: Key) -> WithoutReplacementState:
        """Start all models at the problem's `initial`: 0, but for a problem of one's own."""
        if problem.models != self.models:
            fail("models", f"{problem.models}, as the problem has", self.models)
        if self.public_data is problem.train:
            fail("public_data", "public records, which no node holds", "those of the nodes")
        if self.epsilon is not None:
            self._constants(problem)
        start = started(problem, key, problem.nodes)
        local = self._projected(start.reshape(problem.nodes, self.models, -1))
        return WithoutReplacementState(
            local=Sensitive(local),
            released=Released(local[0].copy()),
            used=np.zeros(problem.nodes, dtype=np.int64),
            largest_step=np.zeros(local.shape[:2]),
            controller=self.controller.init(local.shape, key),
        )

    def step(
        self,
        state: WithoutReplacementState,
        round: int,
        problem: LinearProblem,
        exchange: Exchange,
        key: Key,
    ) -> tuple[WithoutReplacementState, Info]:
        """Run step t: all that arrive decide and act (lines 3 to 6)."""
        turns = self.turns(state, round, problem, key)
        acting = np.zeros(problem.nodes, dtype=np.bool_)
        acting[turns] = True
        batches = self.batches(problem, state.used, acting)
        losses = cache(partial(problem.class_objectives, _flat(state.local), batches))
        actions, state = self.decide(state, round, problem, acting, losses, key)
        state = self.update_local(state, round, problem, acting[:, np.newaxis] & ~actions, batches)
        state = self.update_global(state, round, problem, turns, actions, batches, exchange, key)
        released = (self.mechanism.planned(round, self.sensitivity, batch=round),)
        return replace(state, used=state.used + acting), Info(
            releases=released if actions.any() else (),
            bits_per_node=8 * state.released[0].nbytes,
            received=Released(state.released.reshape(1, -1)),
            losses=(lambda: losses()[acting].sum(axis=1)) if len(turns) else None,
            messages=int(actions.sum()),
            records=batches[1].reshape(-1, self.batch_size),
        )

    def turns(
        self, state: WithoutReplacementState, t: int, problem: LinearProblem, key: Key
    ) -> Indices:
        """Return the nodes that act in step t, in their order, both drawn by public coins."""
        has_records = state.used < problem.records // self.batch_size
        arrives, place = kernels.uniform((problem.nodes, 2), key.stream(Purpose.SAMPLE, t)).T
        acts: npt.NDArray[np.bool_] = has_records & (arrives < self.arrival_rate)
        order: Indices = np.argsort(place)
        return order[acts[order]]

    def batches(
        self, problem: LinearProblem, number: Indices, nodes: npt.NDArray[np.bool_]
    ) -> Ragged:
        """Return mini-batch `number` of each of these nodes, and empty ones for the others."""
        starts, records = problem.everything
        b = self.batch_size
        return slices(records, starts[:-1] + number * b, np.where(nodes, b, 0))

    def decide(
        self,
        state: WithoutReplacementState,
        t: int,
        problem: LinearProblem,
        acting: npt.NDArray[np.bool_],
        losses: Losses,
        key: Key,
    ) -> tuple[Actions, WithoutReplacementState]:
        """Let the controller learn and decide; a public one sees nothing private (line 4)."""
        w = state.local
        unseen = np.broadcast_to(w.dtype.type(np.nan), w.shape)
        seen = Observation(
            acting=acting.copy(),
            local_models=Sensitive(unseen),
            losses=Sensitive(unseen[:, :, 0]),
            last_losses=Sensitive(unseen[:, :, 0]),
            released_models=Released(state.released.copy()),
            public_losses=self._public_losses(state.released, problem),
        )
        if not self.controller.public:
            last = self.batches(problem, state.used - 1, acting & (state.used > 0))
            seen = replace(
                seen,
                local_models=Sensitive(w.copy()),
                losses=Sensitive(losses()),
                last_losses=Sensitive(problem.class_objectives(_flat(w), last)),
            )
        learned = self.controller.learn(state.controller, seen, t, key)
        decided, learned = self.controller.decide(learned, seen, t, key)
        if (actions := np.asarray(decided)).shape != w.shape[:2] or actions.dtype != np.bool_:
            fail("controller", f"bools of shape {w.shape[:2]}", f"{actions.dtype} {actions.shape}")
        return actions & acting[:, np.newaxis], replace(state, controller=learned)

    def update_local(
        self,
        state: WithoutReplacementState,
        t: int,
        problem: LinearProblem,
        chosen: npt.NDArray[np.bool_],
        batches: Ragged,
    ) -> WithoutReplacementState:
        """Step the chosen local models, all at once, since they are independent."""
        if not chosen.any():
            return state
        w, eta = state.local, at(self.step_size, t + 1)
        g = problem.gradient(_flat(w), batches).reshape(w.shape)
        moved = self._projected(kernels.weighted_sum((1.0, w), (-2 * eta, g)))
        np.copyto(moved, w, where=~chosen[:, :, np.newaxis])
        return replace(
            state,
            local=Sensitive(moved),
            largest_step=np.where(chosen, np.maximum(state.largest_step, eta), state.largest_step),
        )

    def update_global(
        self,
        state: WithoutReplacementState,
        t: int,
        problem: LinearProblem,
        turns: Indices,
        actions: Actions,
        batches: Ragged,
        exchange: Exchange,
        key: Key,
    ) -> WithoutReplacementState:
        """Update the global models in turn: each node starts where the last one ended."""
        if not actions.any():
            return state
        mechanism, sensitivity = self.mechanism, self.sensitivity
        w_l, w_g, eta = state.local.copy(), state.released.copy(), at(self.step_size, t + 1)
        delta = self._lemma4(problem, np.maximum(state.largest_step, eta)).astype(w_g.dtype)
        indptr, records = batches
        for m in turns[actions[turns].any(axis=1)]:
            k = np.flatnonzero(actions[m])
            batch = records[np.newaxis, indptr[m] : indptr[m + 1]]
            g = problem.gradient(w_g.reshape(1, -1), batch).reshape(w_g.shape)
            update = (w_g[k] + w_l[m, k]) / 2 - eta * g[k]
            unit = delta[m, k, np.newaxis]
            noise = key.for_nodes((m * self.models + k).astype(np.uint32)).stream(Purpose.NOISE, t)
            noisy = mechanism.release(
                Sensitive(update / unit), sensitivity, noise, round=t, batch=t
            )
            w_g[k] = exchange(t, Released(self._projected(noisy.values * unit)))  # (5)
            w_l[m, k] = w_g[k]  # (6)
        return replace(
            state,
            local=Sensitive(w_l),
            released=Released(w_g),
            largest_step=np.where(actions, 0.0, state.largest_step),
        )

    def parameters(self, state: WithoutReplacementState) -> Floats:
        """Return the local models, shape (M, K d)."""
        return _flat(state.local)

    def _projected(self, w: Floats) -> Floats:
        return w if self.model_radius is None else kernels.clip_rows(w, self.model_radius)

    def _constants(self, problem: LinearProblem) -> Constants:
        """Return what Lemma 4 rests on."""
        constants = problem.model_constants(self.model_radius)
        if constants.smoothness == inf:
            fail("problem", "one of a smooth loss, as Lemma 4 does", f"{problem.loss!r}")
        if constants.loss_lipschitz == inf:
            fail("model_radius", f"one, to bound the gradients of the {problem.loss} loss", None)
        return constants

    def _lemma4(self, problem: LinearProblem, largest_step: Floats) -> Floats:
        """Return Delta of releases, given the largest steps since the last; 1 without noise."""
        if self.epsilon is None:
            return np.ones_like(largest_step)
        constants = self._constants(problem)
        L, mu = constants.loss_lipschitz, constants.smoothness
        largest = float(largest_step.max())
        bound = claims.sensitivity(largest, lipschitz=L, batch_size=self.batch_size, smoothness=mu)
        return bound * (largest_step / largest)

    def _public_losses(self, w_g: Released, problem: LinearProblem) -> Floats | None:
        """Return the global models' losses on public data, shape (K,)."""
        if (public := self.public_data) is None:
            return None
        x, y = public.features, public.labels
        arguments = w_g.reshape(1, -1), x, y, np.arange(len(y))[np.newaxis], problem.loss
        settings: Any = {"classes": problem.classes, "regularization": problem.regularization}
        measure = kernels.linear_loss if self.models == 1 else kernels.linear_class_losses
        return measure(*arguments, **settings).reshape(-1)


def _flat(w: Floats) -> Floats:
    """Return the models of each node, shape (M, K d)."""
    return w.reshape(len(w), -1)
