"""Private push-sum: gradient descent over directed networks that change over time.

A node of a directed network knows to whom it sends, and seldom who sends to it. It can split its
message among its receivers, so that the columns of the network's matrix P sum to 1. Its rows need
not sum to 1: mixing then favours some nodes. Push-sum also mixes a weight w, which is biased in the
same way, and divides by it (Kempe, Dobra and Gehrke, "Gossip-Based Computation of Aggregate
Information", 2003;
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
from dpmesh.algorithms.gradients import mean_gradients
from dpmesh.algorithms.messages import Message, Round
from dpmesh.keys import Key
from dpmesh.noise.mechanisms import NoNoise
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.releases import Release
from dpmesh.problems import LinearProblem
from dpmesh.schedules import at

_WEIGHTS = Sensitivity(0.0, "l2", "weights follow from the network alone")


@dataclass(frozen=True)
class PushSumState:
    """State of the nodes before a round.

    Parameters
    ----------
    x
        Un-noised sums x_t, shape (nodes, dim), which no node sends.
    weight
        Push-sum weights w_t, shape (nodes, 1).
    z
        Last released models z_(t-1) = b_(t-1) / w_t, shape (nodes, dim); x_0 before round 0.
    """

    x: Sensitive
    weight: Released
    z: Released


@dataclass(frozen=True, kw_only=True)
class PushSum(Descent[PushSumState]):
    """Private decentralized gradient descent by push-sum, for directed networks.

    Over a directed network (such as `dpmesh.topology.random_directed`) mixing favours some nodes.
    Each node mixes a weight w beside its noisy sum x + n, and divides the mixture b of sums by the
    mixed weight: z = b / w. Then it steps: x_(t+1) = b_t - alpha g(z_t), with the mean g of its
    records' clipped gradients. Source: Nedić and Olshevsky, 2015, equation (4).

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
    All messages have the guarantee of `GradientDescent` with the same parameters, over any network.
    Weights depend on the public network alone, so that z_t is made of messages alone. Given all
    earlier messages, a record therefore moves x_(t+1) by at most 2 alpha L / (records // batches)
    in L2 norm. The guarantee covers the published models z_t, and not the nodes' un-noised models
    x_t / w_t.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.PushSum(records=100, noise_multiplier=18.0).plan(50).cost(1e-5).epsilon < 8
    True
    """

    takes_directed = True

    def release_of(self, t: int) -> tuple[Release, Release]:
        """Return the releases of round t: noisy sums x + n, and weights, which have no noise."""
        return self.noisy_release(t), Release(t, NoNoise(), _WEIGHTS)

    def init(self, problem: LinearProblem, key: Key) -> PushSumState:
        """Return the state before round 0: all nodes at the problem's `initial`, with weight 1."""
        x = self.initial_models(problem, key)
        return PushSumState(Sensitive(x), Released(np.ones((len(x), 1), x.dtype)), Released(x))

    def round(
        self, state: PushSumState, t: int, problem: LinearProblem, key: Key
    ) -> Round[PushSumState]:
        """Mix sums and weights, and step from the mixture b_t against the gradient at z_t."""
        sum_release, weight_release = self.release_of(t)
        b = yield from self.send_and_mix(Message(state.x, sum_release))
        weight = yield from self.send_and_mix(Message(Sensitive(state.weight), weight_release))
        z = Released(b / weight)
        alpha = at(self.step_size, t + 1)
        g = mean_gradients(
            problem, z, self.records_of(t, problem), clipping_norm=self.clipping_norm
        )
        return PushSumState(Sensitive(kernels.weighted_sum((1.0, b), (-alpha, g))), weight, z)

    def published(self, state: PushSumState, received: Released | None) -> Released | None:
        """Return the models z_t to publish, shape (nodes, dim); None before the first message."""
        if received is None:
            return None
        return state.z

    def parameters(self, state: PushSumState) -> Floats:
        """Return the nodes' un-noised models x_t / w_t, shape (nodes, dim): not covered."""
        return np.asarray(state.x / state.weight, state.x.dtype)
