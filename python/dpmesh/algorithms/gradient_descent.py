"""Private decentralized gradient descent: gossip, and a gradient over all of a node's records.

The simplest algorithm of this package, and the worked example of how to add one. In a round a node
averages its neighbours' noisy models, and steps against the mean g of its records' clipped
gradients at the averaged model:

    b_t     = A^k (x_t + n_t),   n_t ~ N(0, (z S_t)^2)
    x_(t+1) = b_t - alpha g(b_t)

A is the mixing matrix, S_t = 2 alpha L / (batch size) the sensitivity of x_t, and z half of the
noise multiplier.

With k > 1 mixings of each noisy message this is Muffliato (Cyffers, Even, Bellet and Massoulié,
"Muffliato: Peer-to-Peer Privacy Amplification for Decentralized Optimization and Averaging", 2022,
Algorithms 1 and 3, without their accounting between pairs of nodes). Mixing is post-processing: it
costs no privacy, and averages the noise of far more nodes than a node has neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from dpmesh._privacy_types import Floats, Sensitive
from dpmesh.algorithms.descent import Descent
from dpmesh.algorithms.gradients import gradient_step
from dpmesh.algorithms.messages import Message, Round
from dpmesh.keys import Key
from dpmesh.noise.rounding import ROUNDINGS, SINGLE, most_noise
from dpmesh.privacy.releases import Release
from dpmesh.privacy.views import LossFacts, NotProved, Reaction
from dpmesh.privacy.views.steps import reaction_of_steps
from dpmesh.problems import LinearProblem
from dpmesh.schedules import at


@dataclass(frozen=True)
class GradientDescentState:
    """The nodes' models x_t, shape (nodes, dim). They stay inside their nodes."""

    x: Sensitive


@dataclass(frozen=True, kw_only=True)
class GradientDescent(Descent[GradientDescentState]):
    """Private decentralized gradient descent by gossip, without a server.

    In a round each node sends its model x_t with noise n_t and averages what it receives:
    b_t = A^k (x_t + n_t), with the mixing matrix A of the topology. Then it steps against the mean
    g of its records' clipped gradients at b_t: x_(t+1) = b_t - alpha g(b_t).

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
        Largest L2 norm L of a record's gradient; longer ones are clipped (max_grad_norm in Opacus).
    batches
        Number of batches of a node's records: its first `records` records are split in their order.
        Rounds use the batches in turn. With 1 every round uses all records of a node.
    copies
        Largest number of copies of a record, each at another node. Each of these nodes adds
        independent noise, so that the run costs as much as `copies` runs on one copy.
    noise
        Kind of noise: a class of mechanisms, such as `dpmesh.noise.Laplace` or a custom one; or
        correlated noise of `dpmesh.noise`: `correlated.BetweenPartners`, and with several batches
        also `correlated.InTime` and `correlated.Both`. None for independent Gaussian noise.
    mixings
        Number k of times that the noisy messages of a round are mixed over the network; traffic
        grows with it, epsilon does not. None for the number that `noise` was made for, or 1.

    Guarantee
    ---------
    The unit is one record of one node, under replace-one. The adversary sees all messages. With
    independent Gaussian noise, all messages of T rounds together are mu-Gaussian-DP for one copy of
    a record, with mu = 2 sqrt(u) / `noise_multiplier`. Here u = ceil((T - 1) / `batches`) is the
    number of rounds that use a record; `mixings` does not matter. The reason: b_t is made of
    messages alone. Given all earlier messages, a record moves only the message after a round that
    uses it, by at most 2 alpha L / (records // batches) in L2 norm.

    Noise between partners (`BetweenPartners`, `Both`) protects a record unless the adversary
    includes a link partner of its node (Theorems 1 and 3 of
    ``docs/privacy/correlated_noise_proofs.md``). The nodes' un-noised models x_t are not covered.

    Source: with k > 1 this is Muffliato (Cyffers, Even, Bellet and Massoulié, 2022, Algorithms 1
    and 3), without its accounting between pairs of nodes.

    Examples
    --------
    >>> import dpmesh as dm
    >>> plan = dm.GradientDescent(records=100, noise_multiplier=18.0).plan(50)
    >>> dm.privacy.rounded_up(plan.cost(1e-5).epsilon, 3)
    '3.28'
    """

    messages_need_no_trust = "a node steps from what it received, by a mean of clipped gradients"

    def release_of(self, t: int) -> Release:
        """Return the release of x_t + n_t, which depends on the batch of round t - 1."""
        return self.noisy_release(t)

    def outgrows_single(self, rounds: int, dim: int) -> bool:
        """Return True if rounding models to float32 might exceed what the noise covers.

        The sensitivity of a message does not count its rounding. The noise covers the rounding of a
        model as long as its norm is below a multiple of the smallest sensitivity. A step moves a
        model by at most alpha L. So its norm is at most the sum of all steps plus, with a
        probability above ``1 - 2^-63``, the noise of as many rounds. All these numbers are public.

        Parameters
        ----------
        rounds
            Number of rounds of the run.
        dim
            Length of the model.
        """
        if self.noise_to_sensitivity is None or rounds < 2:
            return False
        if self.mechanism.norm != "l2":
            return True  # the bound below is for Gaussian noise
        steps = [at(self.step_size, t) * self.clipping_norm for t in range(1, rounds)]
        sensitivities = [self.sensitivity(t).bound for t in range(1, rounds)]
        largest_scale = self.noise_to_sensitivity * max(sensitivities)
        noise = sqrt(rounds) * most_noise(dim, largest_scale, "l2")
        longest_model = sum(steps) + noise
        return longest_model > SINGLE.longest(ROUNDINGS) * min(sensitivities)

    def reaction(self, rounds: int, problem: LinearProblem | LossFacts) -> Reaction | NotProved:
        """Return bounds on how far x_(t+1) moves with a record and with received messages.

        There is no proof with several mixings or several batches: see `Algorithm.reaction`.
        """
        if self.mixing_count > 1:
            return NotProved(reason="sums that nodes relay within a round are not accounted for")
        if self.batches > 1:
            return NotProved(reason="rounds that use some of the records are not accounted for")
        return reaction_of_steps(
            LossFacts.of(problem),
            [self.sensitivity(t) for t in range(rounds)],
            self.mechanism,
            step_size=self.step_size,
            clipping_norm=self.clipping_norm,
        )

    def init(self, problem: LinearProblem, key: Key) -> GradientDescentState:
        """Return the state before round 0: all models at the problem's `initial`, 0 by default."""
        return GradientDescentState(Sensitive(self.initial_models(problem, key)))

    def round(
        self, state: GradientDescentState, t: int, problem: LinearProblem, key: Key
    ) -> Round[GradientDescentState]:
        """Send x_t + n_t, mix to b_t, and step from b_t against the mean clipped gradient."""
        b = yield from self.send_and_mix(Message(state.x, self.release_of(t)))
        alpha = at(self.step_size, t + 1)
        records = self.records_of(t, problem)
        x = gradient_step(problem, b, alpha, records, clipping_norm=self.clipping_norm)
        return GradientDescentState(Sensitive(x))

    def parameters(self, state: GradientDescentState) -> Floats:
        """Return the nodes' un-noised models x_t, shape (nodes, dim), which are not covered."""
        return state.x
