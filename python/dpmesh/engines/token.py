"""SGD without replacement over MPI: each rank computes for its own nodes, and the token hops.

Rank 0 draws the order of a step. Every rank makes its nodes' decisions and local updates; then all
learn which nodes update the global models, and these travel, from the rank of one node to the rank
of the next and nowhere else. A learning controller looks at them before it decides, so with one all
ranks get them once a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from dpmesh._ragged import rows
from dpmesh.algorithms.base import Exchange, Info, Travel
from dpmesh.algorithms.without_replacement import WithoutReplacement, WithoutReplacementState
from dpmesh.controllers import Actions
from dpmesh.controllers.fixed import FixedController
from dpmesh.keys import Key
from dpmesh.privacy.compression import Compressed
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.types import Floats, Released, Sensitive
from dpmesh.problems import LinearProblem
from dpmesh.run.codec import Arrays, classes_in, decode, encode
from dpmesh.run.carriers import Broadcast

if TYPE_CHECKING:
    from dpmesh._ragged import Indices, Ragged
    from dpmesh.engines.mpi import MpiEngine


@dataclass(frozen=True)
class TokenState:
    """What a rank knows before a step.

    Parameters
    ----------
    own
        State of its own nodes. Its global models are the newest on the rank with the token.
    used
        Mini-batches that each node of all ranks has used.
    holder
        The rank of the token.
    """

    own: WithoutReplacementState
    used: npt.NDArray[np.int64]
    holder: int = 0


class MpiToken(Broadcast):
    """How global models travel between ranks, by `hop`, and which rank has the newest.

    Parameters
    ----------
    engine
        The ranks.
    """

    def __init__(self, engine: MpiEngine) -> None:
        self.engine, self._communicator = engine, engine.communicator
        self.holder = 0
        """Where the token is now, also in the middle of a step or after one that failed."""
        self.bytes_sent = self.bytes_least = 0
        """To other ranks so far, as `Sent`."""

    def note(self, packed: Compressed) -> None:
        """Global models travel as they are."""

    def hop(self, token: Released, to: int) -> Released:
        """Send the token on; return it on its new rank, and the given one elsewhere."""
        came, self.holder = self._sent(token, to), to
        return came

    def to_all(self, token: Released) -> Released:
        """Return the token on all ranks; it stays where it is."""
        came = token.copy()
        self._communicator.Bcast(came, root=self.holder)
        if self._communicator.rank == self.holder:
            self._count((self._communicator.size - 1) * token.nbytes)
        return Released(came)

    def heard(self, received: Released) -> Released:
        """Return the newest global models, on rank 0."""
        before = self.bytes_sent, self.bytes_least
        came = self._sent(received, 0)
        self.bytes_sent, self.bytes_least = before  # measuring does not count as traffic
        return came

    def whole(self, state: TokenState, received: Any) -> tuple[Any, Any]:
        """Return the state of all nodes and the global models on rank 0."""
        own, everybody, self.holder = state.own, self.engine.rows, state.holder
        local, largest_step = everybody(own.local), everybody(own.largest_step)
        released = self.heard(own.released)
        heard = None if received is None else self.heard(received)
        arrays: Arrays = {}
        tree = encode(own.controller, arrays)
        nodes = len(own.local)
        together = {
            name: everybody(array.reshape(nodes, -1, *array.shape[1:]))
            for name, array in arrays.items()
        }
        if not self.engine.is_root:
            return None, None
        learned = {name: array.reshape(-1, *array.shape[2:]) for name, array in together.items()}
        controller = decode(tree, learned, classes_in(own.controller))
        return (
            WithoutReplacementState(local, released, state.used, largest_step, controller),
            heard,
        )

    def part(self, state: WithoutReplacementState | None, received: Any) -> tuple[Any, Any]:
        """Return this rank's part of rank 0's state, and its global models."""
        state, received = self._communicator.bcast((state, received))
        assert state is not None
        nodes, models = self.engine.nodes, state.local.shape[1]
        arrays: Arrays = {}
        tree = encode(state.controller, arrays)
        networks = _networks(nodes, models)
        mine = {name: array[networks] for name, array in arrays.items()}
        own = WithoutReplacementState(
            Sensitive(state.local[nodes]),
            state.released,
            state.used[nodes],
            state.largest_step[nodes],
            decode(tree, mine, classes_in(state.controller)),
        )
        self.holder = 0
        return TokenState(own, state.used), received

    def _sent(self, token: Released, to: int) -> Released:
        rank = self._communicator.rank
        if rank == self.holder != to:
            self._communicator.Send(np.ascontiguousarray(token), dest=to)
            self._count(token.nbytes)
        elif rank == to != self.holder:
            came = np.empty_like(token)
            self._communicator.Recv(came, source=self.holder)
            return Released(came)
        return token

    def _count(self, length: int) -> None:
        self.bytes_sent += length
        self.bytes_least += length


class TokenOnRanks:
    """`WithoutReplacement` for the nodes of one rank, built from its own methods.

    Parameters
    ----------
    algorithm
        The algorithm.
    whole
        The problem of all nodes, of which only the numbers of records are used.
    token
        How the global models travel.
    """

    travels: ClassVar[Travel] = "token"

    def __init__(self, algorithm: WithoutReplacement, whole: LinearProblem, token: MpiToken):
        self._algorithm, self._whole, self._token = algorithm, whole, token
        self._engine = token.engine
        self._nodes = self._engine.nodes
        self._owner = np.repeat(
            np.arange(len(self._engine.parts)), [len(part) for part in self._engine.parts]
        )

    @property
    def learns(self) -> bool:
        """Whether the controller has a state, which it changes in place."""
        return not isinstance(self._algorithm.controller, FixedController)

    def plan(self, rounds: int) -> Plan:
        """Return the releases of all nodes."""
        return self._algorithm.plan(rounds)

    def init(self, problem: LinearProblem, key: Key) -> TokenState:
        """Start all models of this rank's nodes at 0."""
        own = self._algorithm.init(problem, self._controllers_key(key))
        return TokenState(own, np.zeros(self._whole.nodes, dtype=np.int64))

    def step(
        self, state: TokenState, round: int, problem: LinearProblem, exchange: Exchange, key: Key
    ) -> tuple[TokenState, Info]:
        """Run step t, as `WithoutReplacement.step` does for all nodes."""
        algorithm, own = self._algorithm, replace(state.own, used=state.used[self._nodes])
        self._token.holder = state.holder
        turns = self._turns(state, round, key)
        acting = np.zeros(self._whole.nodes, dtype=np.bool_)
        acting[turns] = True
        mine = acting[self._nodes]
        batches = algorithm.batches(problem, own.used, mine)
        losses = cache(partial(problem.class_objectives, algorithm.parameters(own), batches))
        if self.learns:
            own = replace(own, released=self._token.to_all(own.released))
        keys = self._controllers_key(key)
        actions, own = algorithm.decide(own, round, problem, mine, losses, keys)
        own = algorithm.update_local(own, round, problem, mine[:, np.newaxis] & ~actions, batches)
        everybody, largest = self._announced(actions, own)
        own = self._update_global(own, round, problem, turns, everybody, largest, batches, key)
        planned = algorithm.mechanism.planned(round, algorithm.sensitivity, batch=round)
        return TokenState(own, state.used + acting, self._token.holder), Info(
            releases=(planned,) if everybody.any() else (),
            bits_per_node=8 * own.released[0].nbytes,
            received=Released(own.released.reshape(1, -1)),
            losses=(lambda: losses()[mine].sum(axis=1)) if len(turns) else None,
            messages=int(actions.sum()),
            records=batches[1].reshape(-1, algorithm.batch_size),
        )

    def parameters(self, state: TokenState) -> Floats:
        """Return the local models of this rank's nodes, shape (own nodes, K d)."""
        return self._algorithm.parameters(state.own)

    def _turns(self, state: TokenState, t: int, key: Key) -> Indices:
        """Return the order of all nodes that act, as rank 0 draws it."""

        def draw() -> Indices:
            public = replace(state.own, used=state.used)
            return self._algorithm.turns(public, t, self._whole, key)

        turns: Indices = self._engine.communicator.bcast(self._engine.on_root(draw))
        return turns

    def _announced(self, actions: Actions, own: WithoutReplacementState) -> tuple[Actions, float]:
        """Return the decisions of all nodes, and the largest step since a release of any."""
        self._engine.agree()
        told = self._engine.communicator.allgather((actions, own.largest_step.max()))
        return np.concatenate([decided for decided, _ in told]), max(step for _, step in told)

    def _update_global(
        self,
        own: WithoutReplacementState,
        t: int,
        problem: LinearProblem,
        turns: Indices,
        actions: Actions,
        largest: float,
        batches: Ragged,
        key: Key,
    ) -> WithoutReplacementState:
        """Pass the token through all nodes that update the global models, in their order.

        If a node fails, NaN goes on in place of the token. So no rank waits, and no later node
        makes a release now that it would make again, with another value and the same noise, after a
        resume. The step fails at its end.
        """
        order = turns[actions[turns].any(axis=1)]
        local, token, failure = own.local.copy(), own.released, None
        for run in np.split(order, np.flatnonzero(np.diff(self._owner[order])) + 1):
            if not len(run):
                continue
            rank = int(self._owner[run[0]])
            token = self._token.hop(token, rank)
            if rank != self._engine.communicator.rank or np.isnan(token).any():
                continue
            places = run - self._nodes[0]
            some = self._some(replace(own, local=Sensitive(local), released=token), places, largest)
            acts = np.vstack([actions[run], np.zeros((1, actions.shape[1]), np.bool_)])
            there = np.arange(len(run)), rows(batches, places)
            noise = key.for_nodes(_networks(run, actions.shape[1]).astype(np.uint32))
            try:
                some = self._algorithm.update_global(
                    some, t, problem, there[0], acts, there[1], self._token, noise
                )
            except Exception as error:
                failure, token = error, Released(np.full_like(token, np.nan))
                continue
            local[places], token = some.local, some.released
        if failure is not None:
            raise failure
        return replace(
            own,
            local=Sensitive(local),
            released=token,
            largest_step=np.where(actions[self._nodes], 0.0, own.largest_step),
        )

    def _some(
        self, own: WithoutReplacementState, places: Indices, largest: float
    ) -> WithoutReplacementState:
        """Return some nodes' state; a last row of steps has the largest of all others."""
        others = np.full((1, own.largest_step.shape[1]), largest)
        return WithoutReplacementState(
            Sensitive(own.local[places]),
            own.released,
            own.used[places],
            np.vstack([own.largest_step[places], others]),
            None,
        )

    def _controllers_key(self, key: Key) -> Key:
        """Return the key for coins with one row per node or, with learning, per network."""
        if not self.learns:
            return key.for_nodes(self._nodes.astype(np.uint32))
        return key.for_nodes(_networks(self._nodes, self._algorithm.models).astype(np.uint32))


def _networks(nodes: Indices, models: int) -> Indices:
    """Return the indices of these nodes' classifiers, node by node."""
    numbers: Indices = (nodes[:, np.newaxis] * models + np.arange(models)).ravel()
    return numbers
