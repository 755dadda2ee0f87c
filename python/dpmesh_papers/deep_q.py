"""Deep Q-learning of when to update the global model (without-replacement paper, Algorithm 2).

Each node has, for each of its classifiers, a network Q that maps a state s to the values of the two
actions, 0 for a local and 1 for a global update, and a target network Q' that imitates it. With the
node's local model w_t^L and the loss f on its mini-batch sample_t, in round t, line by line:

    s_t = [w_t^L, f(w_t^L, sample_t)],  r_(t-1) = -f(w_t^L, sample_(t-1))                line 2
    store (s_(t-1), a_(t-1), r_(t-1), s_t) in the replay memory                          line 3
    y_j = r_j + gamma max_a Q'(s_(j+1), a) on a random mini-batch (7); one step of Adam
    on (y_j - Q(s_j, a_j))^2; Q' = Q every C steps                                       line 4
    a_t = a random action with probability p_explr, else argmax_a Q(s_t, a)              line 5

Our reading of the paper, where it is unclear:

- Its networks have d + 2 inputs for samples of d features: the weights of a model, its intercept,
  and the loss. Without an intercept there are d + 1.
- "A gradient descent step on y - Q" is one on the squared error.
- "A learning rate of gamma_DQ = 0.01" has the symbol of the discount: we take the number as the
  learning rate, and gamma = 0.99 from the paper's source (Mnih et al. 2015). A discount of 0.01
  reaches the same accuracy on MNIST.
- It does not give C. Its source has 10,000, which is longer than its runs of some hundred rounds:
  ours is 10.
- A mini-batch is drawn without replacement, the first one as soon as the memory holds enough.
- A run is one episode: nothing is decided after its last round, so "if terminates" never holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from dpmesh._privacy_types import Floats
from dpmesh._validate import (
    as_python_numbers,
    fail,
    instance,
    integer,
    one_of,
    positive,
    probability,
)
from dpmesh.algorithms.controllers import Actions, NoisyLoss, Observation
from dpmesh.kernels.draws import uniform
from dpmesh.keys import Key, Purpose, Stream
from dpmesh_papers.qnet import (
    ACTIVATIONS,
    LANES,
    Activation,
    Float32s,
    QReplay,
    QTrained,
    q_init,
    q_learn,
    q_values,
)

_BEFORE_THE_RUN = 2**32 - 1
"""The round whose coins initialize the networks: the last that a key has."""
_COINS_OF_DECISION = 2
"""Coins of a network and round: whether it explores, and the random action."""


@dataclass(frozen=True, kw_only=True)
class DeepQState:
    """State of the networks and their replay memories, one row for each node and classifier.

    Parameters
    ----------
    trained
        The networks Q, and their optimizer.
    targets
        The parameters of the target networks Q'.
    replay
        The replay memories, as ring buffers.
    stored
        Shape (networks,): number of transitions that each memory has taken in so far.
    last_states, last_actions
        Shapes (networks, inputs) and (networks,): s_(t-1) and a_(t-1), of the last round in which
        the network's node acted.
    decided
        Shape (networks,): True where the last state and action exist.
    """

    trained: QTrained
    targets: Float32s
    replay: QReplay
    stored: npt.NDArray[np.int64]
    last_states: Float32s
    last_actions: npt.NDArray[np.uint8]
    decided: npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class DeepQ:
    """Algorithm 2, for all nodes and classifiers at once.

    Parameters
    ----------
    anneal_rounds
        Rounds in which exploration falls to its final rate: n / (2 M b) in the paper, half of a
        run of n / M samples a node in batches of b.
    sees
        ``"local"``, the paper's: a state is a node's local model and its loss on the coming batch,
        the reward is minus the loss of the updated model. ``"released"``: a state is the last
        global model, its loss on public data, and time (rounds / `anneal_rounds`); the reward is
        minus that loss. Then decisions reveal nothing about private data. ``"noisy"``: the same
        with the `NoisyLoss` of the node's coming batch in place of public data; the reward is minus
        the next one. Decisions then reveal nothing beyond those answers, which the plan has.
    hidden
        Hidden units of a network, a multiple of 16.
    activation
        Activation of the hidden units: ``"linear"``, the paper's, or ``"relu"``.
    learning_rate
        Learning rate of Adam.
    discount
        The paper's gamma_DQ.
    memory_size
        Transitions that a replay memory holds.
    batch_size
        Transitions of a mini-batch, at most `memory_size`.
    target_update_period
        The paper's C.
    loss
        With ``sees="noisy"``, the query of private losses.
    initial_exploration, final_exploration
        p_explr in round 0, and from round `anneal_rounds` on.

    Guarantee
    ---------
    With ``sees="released"`` decisions are post-processing of releases and public data, with
    ``"noisy"`` of releases, the noisy losses among them. With
    ``"local"`` there is no guarantee: a record affects the decisions of all later rounds, through
    its loss, its reward, the replay memory and the networks, and decisions are visible in which
    node releases when.
    """

    anneal_rounds: int
    sees: Literal["local", "released", "noisy"] = "local"
    hidden: int = 128
    activation: Activation = "linear"
    learning_rate: float = 0.01
    discount: float = 0.99
    memory_size: int = 20
    batch_size: int = 10
    target_update_period: int = 10
    loss: NoisyLoss = field(default_factory=NoisyLoss)
    initial_exploration: float = 1.0
    final_exploration: float = 0.1

    def __post_init__(self) -> None:
        as_python_numbers(self)
        integer("anneal_rounds", self.anneal_rounds, at_least=1)
        one_of("sees", self.sees, ("local", "released", "noisy"))
        instance("loss", self.loss, "a NoisyLoss", NoisyLoss)
        if integer("hidden", self.hidden, at_least=1) % LANES:
            fail("hidden", f"a positive multiple of {LANES}", self.hidden)
        one_of("activation", self.activation, ACTIVATIONS)
        positive("learning_rate", self.learning_rate)
        probability("discount", self.discount)
        integer("memory_size", self.memory_size, at_least=1)
        integer("batch_size", self.batch_size, at_least=1, below=self.memory_size + 1)
        integer("target_update_period", self.target_update_period, at_least=1)
        probability("initial_exploration", self.initial_exploration)
        probability("final_exploration", self.final_exploration)

    @property
    def public(self) -> bool:
        """True if decisions depend on releases, public data and coins only."""
        return self.sees != "local"

    @property
    def noisy_loss(self) -> NoisyLoss | None:
        """The query of private losses; None if the controller asks for none."""
        if self.sees == "noisy":
            return self.loss
        return None

    @property
    def scores_public_data(self) -> bool:
        """True if released models are scored on public data."""
        return self.sees == "released"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions about the decisions, for a privacy report."""
        if not self.scores_public_data:
            return ()
        return ("the data on which the controller scores released models is public",)

    def may_be_global(self, round: int) -> bool:
        """Return True: decisions are not known beforehand, and exploration never stops."""
        return True

    def exploration(self, round: int) -> float:
        """Return p_explr: linear until round `anneal_rounds`, constant from then on."""
        share = min(1.0, integer("round", round) / self.anneal_rounds)
        return (1 - share) * self.initial_exploration + share * self.final_exploration

    def init(self, shape: tuple[int, int, int], key: Key) -> DeepQState:
        """Return fresh networks with empty memories.

        Parameters
        ----------
        shape
            Number of nodes, of classifiers and of parameters of a classifier.
        key
            Source of the initial weights.
        """
        nodes, classifiers, dim = (integer("shape", size, at_least=1) for size in shape)
        networks = nodes * classifiers
        inputs = dim + 1
        if self.public:
            inputs += 1
        coins = key.stream(Purpose.CONTROLLER, _BEFORE_THE_RUN)
        parameters = q_init(networks, inputs, coins, hidden=self.hidden)
        memory_shape = (networks, self.memory_size)
        return DeepQState(
            trained=QTrained(
                parameters,
                np.zeros_like(parameters),
                np.zeros_like(parameters),
                np.zeros(networks, dtype=np.uint32),
            ),
            targets=parameters.copy(),
            replay=QReplay(
                states=np.zeros((*memory_shape, 2, inputs), dtype=np.float32),
                actions=np.zeros(memory_shape, dtype=np.uint8),
                rewards=np.zeros(memory_shape, dtype=np.float32),
                discounts=np.full(memory_shape, self.discount, dtype=np.float32),
            ),
            stored=np.zeros(networks, dtype=np.int64),
            last_states=np.zeros((networks, inputs), dtype=np.float32),
            last_actions=np.zeros(networks, dtype=np.uint8),
            decided=np.zeros(networks, dtype=np.bool_),
        )

    def learn(
        self, state: DeepQState, observation: Observation, round: int, key: Key
    ) -> DeepQState:
        """Store the transitions since the last actions, and take one step (lines 2 to 4)."""
        observing = np.flatnonzero(_acting(observation) & state.decided)
        s = _finite(self._states(observation, round)[observing])
        r = _finite(self._rewards(observation)[observing])
        state = self._store(state, observing, s, r)
        learns = np.zeros_like(state.decided)
        learns[observing] = state.stored[observing] >= self.batch_size
        if learns.any():
            q_learn(
                state.trained,
                state.targets,
                state.replay,
                self._minibatches(state.stored, key.stream(Purpose.CONTROLLER, round)),
                learns=learns,
                activation=self.activation,
                learning_rate=self.learning_rate,
            )
            due = learns & (state.trained.steps % self.target_update_period == 0)
            state.targets[due] = state.trained.parameters[due]
        return state

    def decide(
        self, state: DeepQState, observation: Observation, round: int, key: Key
    ) -> tuple[Actions, DeepQState]:
        """Explore or take the better action (line 5): True for a global update."""
        s = self._states(observation, round)
        acting = _acting(observation)
        _finite(s[acting])
        q = q_values(state.trained.parameters, s, activation=self.activation)
        coins = _coins(key.stream(Purpose.CONTROLLER, round), len(s), _COINS_OF_DECISION)
        explores = coins[:, 0] < self.exploration(round)
        random_action = coins[:, 1] < 0.5
        better_action = q[:, 1] > q[:, 0]
        a = np.where(explores, random_action, better_action)
        state = replace(
            state,
            last_states=np.where(acting[:, np.newaxis], s, state.last_states),
            last_actions=np.where(acting, a, state.last_actions).astype(np.uint8),
            decided=state.decided | acting,
        )
        return (a & acting).reshape(observation.losses.shape), state

    def _store(
        self, state: DeepQState, networks: npt.NDArray[np.intp], s: Float32s, r: Floats
    ) -> DeepQState:
        """Put (s_(t-1), a_(t-1), r, s) into the memories of some networks, in place (line 3).

        The oldest transition of a full memory goes. `networks`, `s` and `r` have one entry or row
        for each of these networks.
        """
        slots = networks, state.stored[networks] % self.memory_size
        state.replay.states[slots] = np.stack((state.last_states[networks], s), axis=1)
        state.replay.actions[slots] = state.last_actions[networks]
        state.replay.rewards[slots] = r
        stored = state.stored.copy()
        stored[networks] += 1
        return replace(state, stored=stored)

    def _minibatches(self, stored: npt.NDArray[np.int64], stream: Stream) -> npt.NDArray[np.intp]:
        """Draw slots of each memory, without replacement; shape (networks, batch_size)."""
        coins = _coins(stream, len(stored), _COINS_OF_DECISION + self.memory_size)
        order = coins[:, _COINS_OF_DECISION:]
        is_empty = np.arange(self.memory_size) >= stored[:, np.newaxis]
        order[is_empty] = 2  # after all coins, so that empty slots come last
        return np.argsort(order, axis=1)[:, : self.batch_size]

    def _states(self, observation: Observation, round: int) -> Float32s:
        """Return s_t of all networks (line 2), shape (networks, inputs)."""
        if self.public:
            losses = self._known_losses(observation)
            time = np.full_like(losses, round / self.anneal_rounds)
            models = observation.released_models
            w = np.broadcast_to(models, (len(losses), *models.shape))
            parts = [w, losses[:, :, np.newaxis], time[:, :, np.newaxis]]
        else:
            parts = [observation.local_models, observation.losses[:, :, np.newaxis]]
        s = np.concatenate(parts, axis=2)
        return s.reshape(-1, s.shape[2]).astype(np.float32)

    def _rewards(self, observation: Observation) -> Floats:
        """Return r_(t-1) of all networks (line 2), shape (networks,)."""
        if self.public:
            return -self._known_losses(observation).reshape(-1)
        return -observation.last_losses.reshape(-1)

    def _known_losses(self, observation: Observation) -> Floats:
        """Return each network's loss on noisy or public data, shape (nodes, classifiers)."""
        if self.sees == "noisy":
            return observation.losses
        if observation.public_losses is None:
            expectation = (
                "losses on public data: sees='released' needs an algorithm with public_data"
            )
            fail("observation.public_losses", expectation, None)
        return np.broadcast_to(observation.public_losses, observation.losses.shape)


def _acting(observation: Observation) -> npt.NDArray[np.bool_]:
    """Return True for each network whose node acts in this round, shape (networks,)."""
    return np.repeat(observation.acting, observation.losses.shape[1])


def _finite(values: Floats) -> Floats:
    """Return values; raise a ValueError if one is NaN or infinite."""
    if not np.isfinite(values).all():
        fail("observation", "finite models and losses of acting nodes", "NaN or infinity")
    return values


def _coins(stream: Stream, networks: int, count: int) -> Float32s:
    """Return the first numbers of each network's stream, in [0, 1); shape (networks, count).

    The first two decide; the others draw a mini-batch.
    """
    return uniform((networks, count), stream, dtype=np.float32)
