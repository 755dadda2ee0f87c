"""Gossip with one noisy message and several mixings of it, after Muffliato (Cyffers, Even, 2022).

A node adds noise to its model once in a round; then all nodes mix what they received, again and
again, before they step. Mixing is post-processing, so it costs no privacy, and it averages the
noise of far more nodes than a node has neighbours:

    b_t     = W^k (x_t + n_t),   n_t ~ N(0, (z S)^2)
    x_(t+1) = b_t - alpha g(b_t)

With one mixing, k = 1, this is `GradientDescent`, and against somebody who sees every message it
costs the same for any k: what is mixed again follows from what everybody has seen.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpmesh._validate import fail, integer
from dpmesh.algorithms.gradient_descent import GradientDescent
from dpmesh.privacy.views import LossFacts, NotProved, Reaction
from dpmesh.problems import LinearProblem


@dataclass(frozen=True, kw_only=True)
class Muffliato(GradientDescent):
    """Private decentralized gradient descent with several mixings of each message.

    Parameters
    ----------
    records, noise_multiplier, step_size, clipping_norm, batches, copies, noise
        As in `GradientDescent`.
    mixings
        k, how often the messages of a round travel over the network; traffic grows with it.

    Guarantee
    ---------
    That of `GradientDescent` with the same noise: it does not depend on `mixings`. Source: Cyffers,
    Even, Bellet and Massoulié, "Muffliato: Peer-to-Peer Privacy Amplification for Decentralized
    Optimization and Averaging", 2022, Algorithms 1 and 3, without their accounting between pairs of
    nodes.
    """

    mixings: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("mixings", self.mixings, at_least=1)
        if self.noise is not None and self.noise.mixings != self.mixings:
            fail("noise", f"noise made for mixings={self.mixings}", f"{self.noise.mixings}")

    @property
    def exchanges(self) -> int:
        """Number of mixings."""
        return self.mixings

    def reaction(self, rounds: int, problem: LinearProblem | LossFacts) -> Reaction | NotProved:
        """Return why there is no cheaper view yet: relayed sums are seen along the way."""
        if self.mixings == 1:
            return super().reaction(rounds, problem)
        return NotProved(reason="sums that nodes relay within a round are not accounted for")

    @property
    def _mixings(self) -> int:
        return self.mixings
