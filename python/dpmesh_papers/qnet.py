"""Many small Q-networks as one batch: each node has its own; one call evaluates or trains all.

A network takes `inputs` numbers, has one layer of `hidden` units, and gives the values of two
actions. The parameters of all networks are one float32 array of shape (networks, rows, 16), in the
order in which the kernels read it:

- hidden units come in groups of 16, side by side in a row;
- each group has `inputs` rows of weights, one for each input, then a row of biases and two rows of
  weights to the two values;
- the last row of a network holds the biases of the two values, then zeros.

`q_weights` returns them as ordinary matrices.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._core import Stream
from dpmesh._validate import fail, integer
from dpmesh.kernels.draws import uniform

Activation = Literal["linear", "relu"]
ACTIVATIONS: tuple[Activation, ...] = ("linear", "relu")

LANES = 16
"""Hidden units in a group."""

Float32s = npt.NDArray[np.float32]


class QWeights(NamedTuple):
    """The weights of all networks as matrices."""

    hidden_weights: Float32s
    """Shape (networks, hidden, inputs)."""
    hidden_biases: Float32s
    """Shape (networks, hidden)."""
    value_weights: Float32s
    """Shape (networks, 2, hidden)."""
    value_biases: Float32s
    """Shape (networks, 2)."""


class QTrained(NamedTuple):
    """Networks in training, with Adam's moments."""

    parameters: Float32s
    """Shape (networks, rows, 16)."""
    first_moments: Float32s
    """Like `parameters`; zeros before the first step."""
    second_moments: Float32s
    """Like `parameters`; zeros before the first step."""
    steps: npt.NDArray[np.uint32]
    """Shape (networks,): number of steps of Adam that each network has taken."""


class QReplay(NamedTuple):
    """The transitions in each network's replay memory, in any order."""

    states: Float32s
    """Shape (networks, capacity, 2, inputs): a state and the one that followed it."""
    actions: npt.NDArray[np.uint8]
    """Shape (networks, capacity): 0 or 1."""
    rewards: Float32s
    """Shape (networks, capacity): the reward of the action."""
    discounts: Float32s
    """Shape (networks, capacity): weight of future rewards; 0 where the run ended."""


def q_init(networks: int, inputs: int, stream: Stream, *, hidden: int = 128) -> Float32s:
    """Return parameters by Xavier's rule: weights in +-sqrt(6 / (fan_in + fan_out)), biases 0.

    Weights are uniform in that range.

    Parameters
    ----------
    networks, inputs
        Number of networks, and of inputs of each; at least 1.
    stream
        Source of the randomness: network i takes the sequence of node i.
    hidden
        Hidden units of a network, a positive multiple of 16.

    Returns
    -------
    Shape (networks, rows, 16), float32.

    Raises
    ------
    ValueError
        If an argument does not fit.
    """
    networks = integer("networks", networks, at_least=1)
    inputs = integer("inputs", inputs, at_least=1)
    hidden = integer("hidden", hidden, at_least=LANES)
    if hidden % LANES:
        fail("hidden", f"a positive multiple of {LANES}", hidden)
    rows = hidden // LANES * (inputs + 3) + 1
    uniforms = uniform((networks, rows * LANES), stream, dtype=np.float32)
    parameters: Float32s = (2 * uniforms - 1).reshape(networks, rows, LANES)
    groups = _groups(parameters, inputs)
    groups[:, :, :inputs] *= np.float32(np.sqrt(6 / (inputs + hidden)))
    groups[:, :, inputs] = 0
    groups[:, :, inputs + 1 :] *= np.float32(np.sqrt(6 / (hidden + 2)))
    parameters[:, -1] = 0
    return parameters


def q_weights(parameters: Float32s, inputs: int) -> QWeights:
    """Return copies of the weights in `parameters`, as matrices.

    Parameters
    ----------
    parameters
        Shape (networks, rows, 16), float32.
    inputs
        Inputs of a network.

    Raises
    ------
    ValueError
        If `parameters` is not what `q_init` makes for networks of `inputs` inputs.
    """
    hidden = _hidden(parameters, inputs)
    groups = _groups(parameters, inputs)
    rows = np.moveaxis(groups, 2, 1).reshape(len(parameters), inputs + 3, hidden)
    return QWeights(
        hidden_weights=np.moveaxis(rows[:, :inputs], 1, 2).copy(),
        hidden_biases=rows[:, inputs].copy(),
        value_weights=rows[:, inputs + 1 :].copy(),
        value_biases=parameters[:, -1, :2].copy(),
    )


def q_values(
    parameters: Float32s, states: npt.ArrayLike, *, activation: Activation = "linear"
) -> Float32s:
    """Return Q(s, a) of both actions a, for each network in states s of its own.

    Parameters
    ----------
    parameters
        Shape (networks, rows, 16), float32.
    states
        Shape (networks, inputs), or (networks, samples, inputs) for several states of each;
        rounded to float32. NaN and infinity are passed on.
    activation
        Activation of the hidden units: ``"linear"`` or ``"relu"``.

    Returns
    -------
    Shape (networks, 2) or (networks, samples, 2), float32.

    Raises
    ------
    ValueError
        If an argument does not fit.
    """
    states = np.ascontiguousarray(states, np.float32)
    values = np.empty((*states.shape[:-1], 2), dtype=np.float32)
    _core.q_values(parameters, states, _hidden(parameters, states.shape[-1]), activation, values)
    return values


def q_learn(
    trained: QTrained,
    targets: Float32s,
    replay: QReplay,
    picks: npt.NDArray[np.integer],
    *,
    learns: npt.NDArray[np.bool_] | None = None,
    activation: Activation = "linear",
    learning_rate: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> Float32s:
    """Take one step of deep Q-learning in place: a batch of replayed transitions for each network.

    Each network descends by Adam (Kingma and Ba 2015, Algorithm 1) on the mean over its batch of
    ``(Q(state)[action] - reward - discount * max(Q_target(next_state)))**2``.

    Parameters
    ----------
    trained
        The networks and their optimizer; all four arrays change.
    targets
        Parameters of the target networks, like ``trained.parameters``.
    replay
        The networks' replay memories.
    picks
        Shape (networks, batch): places in the memory of the transitions to learn from.
    learns
        Shape (networks,): True for networks that take a step; all of them by default.
    activation
        Activation of the hidden units: ``"linear"`` or ``"relu"``.
    learning_rate, beta1, beta2, epsilon
        Adam's alpha (positive), decay rates (in [0, 1)) and epsilon (positive).

    Returns
    -------
    Shape (networks,), float32: the losses before the step; NaN for networks that took none.

    Raises
    ------
    ValueError
        If an argument does not fit; nothing has changed then. NaN and infinity are passed on.
    """
    networks = len(trained.parameters)
    inputs = replay.states.shape[-1]
    if learns is None:
        learns = np.ones(networks, dtype=np.bool_)
    losses = np.full(networks, np.nan, dtype=np.float32)
    places = np.ascontiguousarray(picks, np.uint32)
    hidden = _hidden(trained.parameters, inputs)
    adam = (learning_rate, beta1, beta2, epsilon)
    _core.q_learn(trained, targets, replay, places, learns, hidden, activation, adam, losses)
    return losses


def _groups(parameters: Float32s, inputs: int) -> Float32s:
    """Return a view of all but the last row, shape (networks, groups, inputs + 3, 16)."""
    return parameters[:, :-1].reshape(len(parameters), -1, inputs + 3, LANES)


def _hidden(parameters: Float32s, inputs: int) -> int:
    """Return the number of hidden units of networks of `inputs` inputs."""
    rows: int = parameters.shape[1]
    if rows < inputs + 4 or (rows - 1) % (inputs + 3):
        expectation = f"1 more than a positive multiple of {inputs + 3} rows, for {inputs} inputs"
        fail("parameters", expectation, f"shape {parameters.shape}")
    return (rows - 1) // (inputs + 3) * LANES
