"""Private push-sum: gradient descent over directed networks that change over time.

A node of a directed network knows to whom it sends, and seldom who sends to it. It can split its
message, so that a network's matrix P has columns that sum to 1, but rows need not: mixing then
favours some nodes. Push-sum mixes a weight beside the model, which meets the same bias, and divides
by it (Kempe, Dobra and Gehrke, "Gossip-Based Computation of Aggregate Information", 2003;
subgradient-push of Nedić and Olshevsky, "Distributed Optimization Over Time-Varying Directed
Graphs", 2015, equation (4)):

    b_t     = P_t (x_t + n_t),   w_(t+1) = P_t w_t,   w_0 = 1
    z_t     = b_t / w_(t+1)
    x_(t+1) = b_t - alpha g(z_t)

Over a doubly stochastic matrix all weights stay 1, and this is `GradientDescent`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh.algorithms.descent import Descent
from dpmesh.algorithms.gradients import gradient_of
from dpmesh.algorithms.messages import Message, Round
from dpmesh.keys import Key
from dpmesh.noise.mechanisms import NoNoise
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.releases import Release
from dpmesh.problems import LinearProblem
from dpmesh.schedules import at

_OF_THE_NETWORK = Sensitivity(0.0, "l2", "weights follow from the network alone")


@dataclass(frozen=True)
class PushSumState:
    """State of the nodes before a round.

    Parameters
    ----------
    x
        Sums x_t, shape (nodes, dim), which stay inside their nodes.
    weight
        w_t, shape (nodes, 1).
    z
        The last mixtures over their weights, shape (nodes, dim).
    """

    x: Sensitive
    weight: Released
    z: Released


@dataclass(frozen=True, kw_only=True)
class PushSum(Descent[PushSumState]):
    """Private gradient descent by push-sum, also over directed networks.

    Parameters
    ----------
    records
        Records of the smallest node, a public number.
    noise_multiplier
        Standard deviation of the noise on a sum of clipped gradients over `clipping_norm`; None
        runs without noise, for comparison.
    step_size
        Learning rate alpha of each round.
    clipping_norm
        Largest norm L of a record's gradient.
    batches
        Number of batches of a node's records, taken in turn.
    copies
        The most nodes that hold the same record.
    noise, mixings
        As in `GradientDescent`.

    Guarantee
    ---------
    That of `GradientDescent` with the same parameters, over any network. Weights depend on the
    network alone, which is public, so z_t is made of messages alone: given all earlier messages, a
    record moves x_(t+1) = b_t - alpha g(z_t) by at most 2 alpha L / (records // batches), as g is a
    mean of clipped gradients. The nodes' own models x_t / w_t are not covered; the mixtures z_t,
    which are published, are.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.PushSum(records=100, noise_multiplier=18.0).plan(50).cost(1e-5).epsilon < 8
    True
    """

    takes_directed = True

    def release_of(self, t: int) -> tuple[Release, Release]:
        """Return the messages x_t + n_t, and beside them the weights, which depend on no data."""
        return self.noisy(t), Release(t, NoNoise(), _OF_THE_NETWORK)

    def init(self, problem: LinearProblem, key: Key) -> PushSumState:
        """Start all nodes at the problem's `initial`, with weight 1."""
        x = self.start(problem, key)
        return PushSumState(Sensitive(x), Released(np.ones((len(x), 1), x.dtype)), Released(x))

    def round(
        self, state: PushSumState, t: int, problem: LinearProblem, key: Key
    ) -> Round[PushSumState]:
        """Mix sums and weights, and step from the mixture against the gradient at their ratio."""
        of_sums, of_weights = self.release_of(t)
        b = yield from self.mixed(Message(state.x, of_sums))
        weight = yield from self.mixed(Message(Sensitive(state.weight), of_weights))
        z = Released(b / weight)
        alpha = at(self.step_size, t + 1)
        g = gradient_of(problem, z, self.records_of(t, problem), clipping_norm=self.clipping_norm)
        return PushSumState(Sensitive(kernels.weighted_sum((1.0, b), (-alpha, g))), weight, z)

    def published(self, state: PushSumState, received: Released | None) -> Released | None:
        """Return z_t, the mixtures over their weights; None before the first message."""
        if received is None:
            return None
        return state.z

    def parameters(self, state: PushSumState) -> Floats:
        """Return the nodes' own models x_t / w_t."""
        return np.asarray(state.x / state.weight, state.x.dtype)
