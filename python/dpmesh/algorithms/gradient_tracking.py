"""Private gradient tracking: each node steps along an estimate of all nodes' mean gradient.

Where nodes hold different records, gossip with a constant learning rate does not converge to the
optimum: each node pulls towards its local optimum. Gradient tracking (Nedić, Olshevsky and Shi,
"Achieving Geometric Convergence for Distributed Optimization over Time-Varying Graphs", 2017,
Algorithm 1) mixes two rows of each node: its model x and a tracker y. The mean of the trackers over
the nodes is the mean of the nodes' last noisy gradients h:

    h_t     = g(x_t) + n_t,   n_t ~ N(0, (z S)^2)
    y_t     = c_t + h_t - h_(t-1),   y_0 = h_0
    x_(t+1) = A (x_t - alpha y_t),   c_(t+1) = A y_t

Here g(x_t) is the mean of a node's clipped gradients, S its sensitivity, z half of the noise
multiplier, A the mixing matrix and c_t the mixed tracker.

Noise is added to each gradient, and is subtracted from the tracker together with this gradient one
round later. Independent noise on each message of the tracker would instead accumulate: the mean of
the trackers would be a random walk. Messages are functions of noisy gradients alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh.algorithms.descent import Descent
from dpmesh.algorithms.gradients import mean_gradients
from dpmesh.algorithms.messages import Message, Round
from dpmesh.keys import Key
from dpmesh.noise.mechanisms import NoNoise
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.releases import Release
from dpmesh.problems import LinearProblem
from dpmesh.schedules import at

_MESSAGES = Sensitivity(0.0, "l2", "trackers and models follow from noisy gradients alone")


@dataclass(frozen=True)
class TrackingState:
    """State of the nodes before a round, computed from releases alone.

    Parameters
    ----------
    x
        Models x_t, shape (nodes, dim).
    tracker
        Mixed trackers c_t, shape (nodes, dim).
    gradient
        Last noisy gradients h_(t-1), shape (nodes, dim); 0 before round 0.
    """

    x: Released
    tracker: Released
    gradient: Released


@dataclass(frozen=True, kw_only=True)
class GradientTracking(Descent[TrackingState]):
    """Private gradient tracking by gossip, for nodes with different (non-i.i.d.) records.

    Each node mixes a tracker beside its model: an estimate of all nodes' mean gradient, along which
    the model steps. Noise is added to each gradient. The topology has doubly stochastic matrices.
    Source: Nedić, Olshevsky and Shi, 2017, Algorithm 1; the module states the equations.

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
        Largest L2 norm L of a record's gradient; longer ones are clipped.
    batches
        Number of batches into which each node's first `records` records are split, used in turn.
    copies
        Largest number of nodes that hold the same record.
    noise, mixings
        As in `GradientDescent`.

    Guarantee
    ---------
    The unit is one record of one node, under replace-one. The adversary sees all messages. With
    independent Gaussian noise, all noisy gradients of T rounds together are mu-Gaussian-DP for one
    copy of a record, with mu = 2 sqrt(u) / `noise_multiplier`. Here u = ceil(T / `batches`) is the
    number of rounds that use a record. The reason: gradients are taken at a point that is a
    function of earlier noisy gradients. Given these, a record moves a mean of clipped gradients by
    at most 2 L / (records // batches) in L2 norm. Trackers, messages and models are functions of
    noisy gradients and of the public network, so that the guarantee covers them as well.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.GradientTracking(records=100, noise_multiplier=18.0).plan(50).cost(1e-5).epsilon < 8
    True
    """

    first_noisy_round: ClassVar[int] = 0
    parameters_are_released = True

    def sensitivity(self, t: int) -> Sensitivity:
        """Return the L2 sensitivity of a node's mean gradient in round t, given earlier ones."""
        reason = "2 L / records, one clipped gradient replaced"
        return Sensitivity(self.mean_gradient_sensitivity, "l2", reason)

    def release_of(self, t: int) -> tuple[Release, Release]:
        """Return the releases of round t: noisy gradients, and messages computed from them."""
        return self.noisy_release(t), Release(t, NoNoise(), _MESSAGES)

    def init(self, problem: LinearProblem, key: Key) -> TrackingState:
        """Return the state before round 0: all nodes at the problem's `initial`, trackers at 0."""
        x = self.initial_models(problem, key)
        return TrackingState(
            x=Released(x), tracker=Released(np.zeros_like(x)), gradient=Released(np.zeros_like(x))
        )

    def round(
        self, state: TrackingState, t: int, problem: LinearProblem, key: Key
    ) -> Round[TrackingState]:
        """Release noisy gradients h_t, update the trackers, and mix models and trackers."""
        gradient_release, message_release = self.release_of(t)
        records = self.records_of(t, problem)
        L = self.clipping_norm
        g = mean_gradients(problem, state.x, records, clipping_norm=L)
        h = yield Message(Sensitive(g), gradient_release, is_sent=False)
        y = state.tracker + (h - state.gradient)
        stepped = state.x - np.asarray(at(self.step_size, t + 1), y.dtype) * y
        rows = Sensitive(np.concatenate([stepped, y], axis=1))
        mixed_rows = yield from self.send_and_mix(Message(rows, message_release))
        x, tracker = np.split(mixed_rows, 2, axis=1)
        return TrackingState(x=Released(x), tracker=Released(tracker), gradient=h)

    def published(self, state: TrackingState, received: Released | None) -> Released | None:
        """Return the models x_t to publish, shape (nodes, dim); None before the first message."""
        if received is None:
            return None
        return state.x

    def parameters(self, state: TrackingState) -> Floats:
        """Return the models x_t, shape (nodes, dim), computed from releases alone."""
        return state.x
