"""Who acts in a step of SGD without replacement, and what the controller sees and decides."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._ragged import Flags, Indices, Numbers, Ragged, slices
from dpmesh._validate import fail
from dpmesh.algorithms.base import KNOWN_TO_ALL
from dpmesh.algorithms.controllers import Actions, FixedController, Observation
from dpmesh.algorithms.messages import Message
from dpmesh.algorithms.without_replacement_releases import WithoutReplacementReleases
from dpmesh.data import Dataset
from dpmesh.kernels import LinearModel
from dpmesh.keys import Key, Purpose
from dpmesh.privacy.releases import Release
from dpmesh.problems import LinearProblem


@dataclass(frozen=True, kw_only=True)
class WithoutReplacementState:
    """What the nodes know before a step, for M nodes with K models of d parameters.

    Parameters
    ----------
    local
        w_t^L, shape (M, K, d).
    released
        w_t^G, shape (K, d).
    used
        Shape (M,), of all nodes: mini-batches that each has used.
    largest_step
        Shape (M, K): the largest eta since the node's last global update, which Lemma 4 needs; 0 if
        there was no step since.
    controller
        What the controller has learned.
    """

    local: Sensitive
    released: Released = field(metadata=KNOWN_TO_ALL)
    used: Indices = field(metadata=KNOWN_TO_ALL)
    largest_step: Numbers
    controller: Any


@dataclass(frozen=True, kw_only=True)
class WithoutReplacementDecisions(WithoutReplacementReleases[WithoutReplacementState]):
    """Turns, mini-batches and decisions of `WithoutReplacement`, which explains the parameters."""

    def senders(self, t: int, turns: Indices, records: Indices, key: Key) -> Indices:
        """Return the nodes that act in step t, in their order, both drawn by public coins."""
        allocated = self.allocated
        batches = records // self.batch_size if allocated is None else allocated.steps
        has_records = turns < batches
        shape = len(has_records), 2
        arrives, place = kernels.uniform(shape, key.stream(Purpose.SAMPLE, t)).T
        acts: Flags = has_records & (arrives < self.arrival_rate)
        order: Indices = np.argsort(place)
        return order[acts[order]]

    def _acting(
        self, state: WithoutReplacementState, t: int, problem: LinearProblem, key: Key
    ) -> tuple[Indices, Flags, Ragged]:
        """Return all turns of step t; which of the nodes here act, and their mini-batches."""
        turns = self.senders(t, state.used, problem.all_records, key)
        acts = np.zeros(len(state.used), dtype=np.bool_)
        acts[turns] = True
        acting = acts[problem.members]
        if self.allocated is not None:
            secret = key.for_nodes(problem.members.astype(np.uint32))
            return turns, acting, problem.allocated(t, secret, rounds=self.allocated.steps)
        return turns, acting, self.batches(problem, state.used[problem.members], acting)

    def batches(self, problem: LinearProblem, number: Indices, nodes: Flags) -> Ragged:
        """Return mini-batch `number` of each of these nodes, and empty ones for the others."""
        starts, records = problem.everything
        b = self.batch_size
        return slices(records, starts[:-1] + number * b, np.where(nodes, b, 0))

    def _decided(
        self,
        state: WithoutReplacementState,
        t: int,
        problem: LinearProblem,
        acting: Flags,
        batches: Ragged,
        key: Key,
        answers: Released | None,
    ) -> tuple[Actions, WithoutReplacementState]:
        """Let the controller learn and decide; a public one sees nothing private (line 4)."""
        w = state.local
        public_losses = None
        if self.public_data is not None:
            public_losses = losses_on(self.public_data, state.released, problem)
        seen = unobserved(w, acting, state.released, public_losses)
        if not self.controller.public:
            used = state.used[problem.members]
            last = self.batches(problem, used - 1, acting & (used > 0))
            seen = with_private(seen, w, problem, batches, last)
        elif answers is not None:
            seen = with_answers(seen, answers)
        if self.allocated is not None:  # noise and cost are for these decisions and no others
            planned = self.allocated.global_nodes(t, problem.members)
            return np.repeat((planned & acting)[:, np.newaxis], self.models, axis=1), state
        if self.decisions == "together":
            assert isinstance(self.controller, FixedController)
            shape, own = (len(acting), 1), key.for_nodes(problem.members.astype(np.uint32))
            alike = self.controller.choose(shape, t, own) & acting[:, np.newaxis]
            return np.repeat(alike, self.models, axis=1), state
        own = self._controllers_key(problem, key)
        learned = self.controller.learn(state.controller, seen, t, own)
        decided, learned = self.controller.decide(learned, seen, t, own)
        if (actions := np.asarray(decided)).shape != w.shape[:2] or actions.dtype != np.bool_:
            fail("controller", f"bools of shape {w.shape[:2]}", f"{actions.dtype} {actions.shape}")
        return actions & acting[:, np.newaxis], replace(state, controller=learned)

    def _question(
        self,
        state: WithoutReplacementState,
        query: Release,
        problem: LinearProblem,
        acting: Flags,
        batches: Ragged,
    ) -> Message:
        """Return the losses of w^G on the coming batches, each record's cut, for the controller."""
        if not acting.any():
            return Message(None, query, travels=False)
        asked = self.controller.noisy_loss
        assert asked is not None
        w_g = np.repeat(state.released.reshape(1, -1), len(acting), axis=0)
        of_records = problem.record_losses(w_g, batches).reshape(-1) / self.models
        cut = np.minimum(of_records, asked.bound).reshape(-1, self.batch_size)
        return Message(
            Sensitive(cut.mean(axis=1)[:, np.newaxis]),
            query,
            rows=len(problem.all_records) * self.models + problem.members[acting],
            unit=asked.bound / self.batch_size if query.noise_multiplier else 1.0,
            travels=False,
        )

    def _controllers_key(self, problem: LinearProblem, key: Key) -> Key:
        """Return the key whose coins have a row for each node here, or for each of its networks."""
        rows = problem.members
        if not isinstance(self.controller, FixedController):
            rows = (rows[:, np.newaxis] * self.models + np.arange(self.models)).ravel()
        return key.for_nodes(rows.astype(np.uint32))


def unobserved(
    local: Sensitive, acting: Flags, released: Released, public_losses: Floats | None
) -> Observation:
    """Return what every controller may see: NaN stands for all that is private.

    Parameters
    ----------
    local
        Local models, shape (M, K, d), of which only the shape counts.
    acting
        Which nodes act, shape (M,).
    released
        Global models, shape (K, d).
    public_losses
        Those of the global models on public records, shape (K,); None without such records.
    """
    unseen = np.broadcast_to(local.dtype.type(np.nan), local.shape)
    return Observation(
        acting=acting.copy(),
        local_models=Sensitive(unseen),
        losses=Sensitive(unseen[:, :, 0]),
        last_losses=Sensitive(unseen[:, :, 0]),
        released_models=Released(released.copy()),
        public_losses=public_losses,
    )


def with_answers(seen: Observation, answers: Released) -> Observation:
    """Return an observation with the noisy losses of the nodes that act, shape (acting, 1)."""
    noisy = seen.losses.astype(np.float64)
    noisy[seen.acting] = answers
    return replace(seen, losses=Sensitive(noisy))


def with_private(
    seen: Observation, local: Sensitive, problem: LinearProblem, batches: Ragged, last: Ragged
) -> Observation:
    """Return an observation with the local models and their losses, without noise.

    Parameters
    ----------
    batches, last
        The coming mini-batch of each node and the one before, possibly none.
    """
    w = local.reshape(len(local), -1)
    return replace(
        seen,
        local_models=Sensitive(local.copy()),
        losses=Sensitive(problem.class_objectives(w, batches)),
        last_losses=Sensitive(problem.class_objectives(w, last)),
    )


def losses_on(public: Dataset, released: Released, problem: LinearProblem) -> Floats:
    """Return the losses of the global models, shape (K, d), on public records, shape (K,)."""
    model = LinearModel(public.features, public.labels, problem.loss, classes=problem.classes)
    measure = model.losses if len(released) == 1 else model.class_losses
    everything = np.arange(public.records)[np.newaxis]
    losses = measure(released.reshape(1, -1), everything, regularization=problem.regularization)
    return losses.reshape(-1)
