"""Regret of the online paper: Theorem 2, corrected.

The paper's proof fails in several places: its Lemma 5 compares a norm with its square, Lemma 4
overlooks that noise leads out of the ball. `regret` is proved, and grows with dim^2 / epsilon^2
where the paper has dim / epsilon; `regret_as_printed` is not proved. Both bound expected regret,
summed over rounds and learners.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi, sqrt

from dpmesh._validate import every, fail, integer, non_negative, positive, probability


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """How fast a network mixes: ``|[phi(k, s)]_ij - 1/m| <= theta beta^(k - s)``.

    phi(k, s) is the product of the mixing matrices of k - s consecutive rounds (16).

    Parameters
    ----------
    theta
        Positive.
    beta
        In [0, 1).
    """

    theta: float
    beta: float

    def __post_init__(self) -> None:
        every(self, positive, "theta")
        every(self, probability, "beta", one=False)

    @classmethod
    def of_assumption2(cls, nodes: int, smallest_weight: float, window: int) -> Mixing:
        """Return theta and beta of Lemma 3, from m, eta and N of Assumption 2.

        The nodes' own weights must be at least eta, too.

        Raises
        ------
        ValueError
            If an argument is out of its range.
        """
        nodes = integer("nodes", nodes, at_least=1)
        eta = probability("smallest_weight", smallest_weight, zero=False)
        left = 1 - eta / (4 * nodes**2)
        return cls(theta=left**-2, beta=left ** (1 / integer("window", window, at_least=1)))


@dataclass(frozen=True, kw_only=True)
class Learning:
    """Parameters of a run whose steps are 1 / (lambda t), or 1 / (2 sqrt t) if lambda is 0.

    Parameters
    ----------
    nodes, dim, rounds
        m, n, T.
    lipschitz
        L: largest norm of a subgradient in W, regularizer included.
    diameter
        R, of W: twice the radius of the ball.
    strong_convexity
        lambda; 0 for convex losses.
    noise
        Standard deviation of each coordinate of the noise, over alpha_t: ``noise_std(t, dim) /
        step_size(t)`` of the algorithm, or `laplace_noise`.
    bounded_outside
        Whether L also bounds subgradients outside W, where noise puts the points b_t at which they
        are taken. It does for losses like hinge and logistic; and with ``projection="mixture"`` the
        points are never outside. If False, subgradients may grow by lambda per unit of distance, as
        a regularizer's do.
    """

    nodes: int
    dim: int
    rounds: int
    lipschitz: float
    diameter: float
    strong_convexity: float = 0.0
    noise: float = 0.0
    bounded_outside: bool = True

    def __post_init__(self) -> None:
        every(self, integer, "nodes", "dim", "rounds", at_least=1)
        every(self, positive, "lipschitz", "diameter")
        non_negative("strong_convexity", self.strong_convexity)
        non_negative("noise", self.noise)
        if not self.bounded_outside and self.strong_convexity == 0:
            fail("strong_convexity", "greater than 0 without bounded_outside", 0)


def laplace_noise(epsilon: float, dim: int, lipschitz: float, batch_size: int = 1) -> float:
    """Return the `noise` of the paper's mechanism: 2 sqrt(2 n) L / (epsilon h).

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    n, h = integer("dim", dim, at_least=1), integer("batch_size", batch_size, at_least=1)
    return 2 * sqrt(2 * n) * positive("lipschitz", lipschitz) / (positive("epsilon", epsilon) * h)


def regret(learning: Learning) -> float:
    """Bound sum over t, i of E[f_t^i(b_t^i) - f_t^i(w*)]: each learner on its own examples.

    It predicts with b_t, the mixture that it received (projected, with ``projection="mixture"``),
    and disagreement costs nothing, so the network does not matter. With c the `noise`:

        lambda > 0    (m / lambda) (1 + ln T) (L^2 + n c^2) / 2
        lambda = 0    m sqrt(T) (R^2 + L^2 / 2 + n c^2 / sqrt 2)

    and without `bounded_outside` (m / lambda) (L c sqrt(n) + (pi^2 / 12 - 1/2) n c^2) on top.
    Proof: projection does not expand, Jensen over the doubly stochastic A, and E sigma = 0.

    Parameters
    ----------
    learning
        The run.
    """
    m, L, lambda_ = learning.nodes, learning.lipschitz, learning.strong_convexity
    energy = learning.dim * learning.noise**2
    if lambda_ == 0:
        per_node = learning.diameter**2 + L**2 / 2 + energy / sqrt(2)
        return m * sqrt(learning.rounds) * per_node
    bound = (1 + log(learning.rounds)) * (L**2 + energy) / 2
    if not learning.bounded_outside:
        bound += L * sqrt(energy) + (pi**2 / 12 - 0.5) * energy
    return m / lambda_ * bound


def regret_as_printed(learning: Learning, mixing: Mixing, *, epsilon: float | None) -> float:
    """Return the right-hand sides of (45) and (46), whose proof does not hold.

    In (46) the factor 1 / lambda is omitted: lambda is 0 there, and (50) has no such factor.

    Parameters
    ----------
    learning, mixing
        The run and its network; `noise` is ignored.
    epsilon
        Of the paper's Laplace noise; None for none.

    Raises
    ------
    ValueError
        If `epsilon` is not finite and positive.
    """
    m, n, L = learning.nodes, learning.dim, learning.lipschitz
    lambda_, T = learning.strong_convexity, learning.rounds
    steps = (1 + log(T)) / lambda_ if lambda_ else sqrt(T) - 0.5  # (47), (50)
    slow = 3 * mixing.beta * mixing.theta * m * L / (1 - mixing.beta)
    bound = m * L * (learning.diameter + slow + 13 / 2 * L) * steps + m * learning.diameter / 2
    if epsilon is not None:
        noise = 2 * sqrt(2) * m * n * L / positive("epsilon", epsilon) * steps  # (49), (51)
        bound += (slow + (2 * L + 1) / (2 * m)) * noise
    return bound
