"""Regret and convergence of the online paper: sensitivity, Lemmas 3 and 4, Theorems 2 and 4.

What the paper prints and does not prove has a name that ends in `_as_printed`; all else is proved.

The paper's proof of Theorem 2 fails in several places (its Lemma 5 compares a norm with its square,
Lemma 4 overlooks that noise leads out of the ball), so `regret_as_printed` is not a proved bound.
`regret` and `learner_regret` are proved, and grow with dim^2 / epsilon^2 where the paper has
dim / epsilon. All of them bound expected regret, summed over rounds and learners.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, pi, sqrt

import numpy as np
import numpy.typing as npt

from dpmesh._validate import as_python_numbers, fail, integer, non_negative, positive, probability
from dpmesh.topology import MixingMatrix, Static, Topology
from dpmesh_papers.bounds.connectivity import check_jointly_connected, check_weights
from dpmesh_papers.bounds.floats import held_by_floats


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """Geometric bound on a network's mixing: ``|[phi(k, s)]_ij - 1/m| <= theta beta^(k - s)``.

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
        as_python_numbers(self)
        positive("theta", self.theta)
        probability("beta", self.beta, one=False)

    @classmethod
    def of_assumption2(cls, nodes: int, smallest_weight: float, window: int) -> Mixing:
        """Return theta and beta of Lemma 3, from m, eta and N of Assumption 2.

        The nodes' own weights must be at least eta, too; see `check_weights`.

        Raises
        ------
        ValueError
            If an argument is out of its range.
        """
        nodes = integer("nodes", nodes, at_least=1)
        eta = probability("smallest_weight", smallest_weight, zero=False)
        contraction = 1 - eta / (4 * nodes**2)
        return cls(
            theta=contraction**-2, beta=contraction ** (1 / integer("window", window, at_least=1))
        )

    @classmethod
    def of_topology(cls, topology: Topology, window: int, rounds: int) -> Mixing:
        """Return theta and beta of Lemma 3 for a network that is checked against Assumption 2.

        Parameters
        ----------
        topology
            The network; eta is the smallest weight of the run.
        window
            N: the union of the graphs of any N consecutive rounds is connected.
        rounds
            Length of the run.

        Raises
        ------
        ValueError
            If the assumption does not hold.
        """
        check_jointly_connected(topology, window, rounds)
        checked_rounds = rounds
        if isinstance(topology, Static):
            checked_rounds = 1
        eta = min(topology.matrix(t).smallest_weight for t in range(checked_rounds))
        check_weights(topology, eta, rounds)
        return cls.of_assumption2(topology.nodes, eta, window)

    @classmethod
    def of_matrix(cls, matrix: MixingMatrix) -> Mixing:
        """Return theta = 1, beta = 1 - spectral gap: for one matrix in all rounds, far sharper.

        Raises
        ------
        ValueError
            If the gap is 0: the graph is disconnected or periodic.
        """
        return cls(theta=1.0, beta=max(0.0, 1 - matrix.spectral_gap))


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
        as_python_numbers(self)
        for name in ("nodes", "dim", "rounds"):
            integer(name, getattr(self, name), at_least=1)
        positive("lipschitz", self.lipschitz)
        positive("diameter", self.diameter)
        non_negative("strong_convexity", self.strong_convexity)
        non_negative("noise", self.noise)
        if not self.bounded_outside and self.strong_convexity == 0:
            fail("strong_convexity", "greater than 0 without bounded_outside", 0)

    @property
    def _steps(self) -> npt.NDArray[np.float64]:
        """alpha_1, .., alpha_T."""
        t = np.arange(1, self.rounds + 1)
        return 1 / (self.strong_convexity * t) if self.strong_convexity else 1 / (2 * np.sqrt(t))

    @property
    def _noise_lengths(self) -> npt.NDArray[np.float64]:
        """Root mean square of |sigma_0|, .., |sigma_(T-1)|; sigma_0 = 0."""
        lengths = sqrt(self.dim) * self.noise * self._steps
        return np.concatenate([[0.0], lengths[:-1]])


def laplace_noise(epsilon: float, dim: int, lipschitz: float, batch_size: int = 1) -> float:
    """Return the `noise` of the paper's mechanism: 2 sqrt(2 n) L / (epsilon h).

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    n = integer("dim", dim, at_least=1)
    h = integer("batch_size", batch_size, at_least=1)
    return 2 * sqrt(2 * n) * positive("lipschitz", lipschitz) / (positive("epsilon", epsilon) * h)


@held_by_floats
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
    m = learning.nodes
    L = learning.lipschitz
    lambda_ = learning.strong_convexity
    energy = learning.dim * learning.noise**2
    if lambda_ == 0:
        per_node = learning.diameter**2 + L**2 / 2 + energy / sqrt(2)
        return m * sqrt(learning.rounds) * per_node
    bound = (1 + log(learning.rounds)) * (L**2 + energy) / 2
    if not learning.bounded_outside:
        bound += L * sqrt(energy) + (pi**2 / 12 - 0.5) * energy
    return m / lambda_ * bound


@held_by_floats
def disagreement(learning: Learning, mixing: Mixing) -> npt.NDArray[np.float64]:
    """Bound E|w_t^i - mean of w_t|, for t = 0, .., T - 1: Lemma 4, corrected.

    A step moves a learner by |w_(t+1) - b_t|: at most by alpha L plus the distance of b_t from W,
    out of which the noise of round t leads. (22) has alpha L alone.

    Parameters
    ----------
    learning, mixing
        The run and its network.

    Returns
    -------
    Shape (rounds,).
    """
    sigma = learning._noise_lengths
    outside = learning.strong_convexity
    if learning.bounded_outside:
        outside = 0.0
    steepest = learning.lipschitz + outside * sigma
    moves = np.concatenate([[0.0], learning._steps * steepest + sigma])  # |d_t|
    bounds = np.zeros(learning.rounds)
    earlier_moves = 0.0
    for t in range(1, learning.rounds):
        bounds[t] = learning.nodes * mixing.theta * earlier_moves + 2 * moves[t]
        earlier_moves = mixing.beta * (earlier_moves + sigma[t] + moves[t])
    return bounds


@held_by_floats
def learner_regret(learning: Learning, mixing: Mixing) -> float:
    """Bound the expected regret of Definition 2, of any one learner: Theorem 2, corrected.

    As in the paper, w_(t+1) is projected onto the ball.

    A learner j that predicts all examples with its own w_t^j pays, on top of `regret`, for its
    distance from the points b_t^i: m L times the sum of 2 E|w_t^j - mean| + E|sigma_t|.

    Parameters
    ----------
    learning, mixing
        The run and its network.
    """
    distances = 2 * disagreement(learning, mixing) + learning._noise_lengths
    return regret(learning) + learning.nodes * learning.lipschitz * float(distances.sum())


@held_by_floats
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
    m = learning.nodes
    n = learning.dim
    L = learning.lipschitz
    lambda_ = learning.strong_convexity
    T = learning.rounds
    steps = (1 + log(T)) / lambda_ if lambda_ else sqrt(T) - 0.5  # (47), (50)
    slow = 3 * mixing.beta * mixing.theta * m * L / (1 - mixing.beta)
    bound = m * L * (learning.diameter + slow + 13 / 2 * L) * steps + m * learning.diameter / 2
    if epsilon is not None:
        noise = 2 * sqrt(2) * m * n * L / positive("epsilon", epsilon) * steps  # (49), (51)
        bound += (slow + (2 * L + 1) / (2 * m)) * noise
    return bound


@held_by_floats
def convergence(
    regret: float,
    *,
    rounds: int,
    lipschitz: float,
    strong_convexity: float,
    failure: float,
    loss_bound: float = 1.0,
) -> float:
    """Bound F(mean of w_t) - F(w*) for independent examples: Kakade and Tewari's theorem (Lemma 9).

    It holds with probability at least 1 - 4 `failure` ln(rounds), from 3 rounds on and for a
    `failure` below 1/e. Where the theorem has ln(1 / failure) under the root, the paper prints ln
    T; and it assumes losses below 1.

    Parameters
    ----------
    regret
        Realised (not expected) regret of one learner on its own examples, summed over the rounds,
        not averaged.
    rounds
        Number of iterates, at least 3: T, or T / h with mini-batches of h, whose mean loss counts
        as one loss.
    lipschitz, strong_convexity
        L and lambda of the losses, regularizer included.
    failure
        gamma, in (0, 1/e) and below 1 / (4 ln(rounds)), from which on the bound holds with
        probability 0.
    loss_bound
        Largest value of a loss in W.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    T = integer("rounds", rounds, at_least=3)
    regret = non_negative("regret", regret)
    L = positive("lipschitz", lipschitz)
    lambda_ = positive("strong_convexity", strong_convexity)
    least = min(exp(-1), 1 / (4 * log(T)))
    if not probability("failure", failure, zero=False) < least:
        fail("failure", f"a number below {least:.6g}, from which on nothing is proved", failure)
    risk = log(1 / failure)
    tail = max(16 * L**2 / lambda_, 6 * positive("loss_bound", loss_bound)) * risk
    return (regret + 4 * sqrt(L**2 * risk / lambda_ * regret) + tail) / T


@held_by_floats
def l1_sensitivity(step_size: float, dim: int, lipschitz: float, batch_size: int = 1) -> float:
    """Return the L1 sensitivity of a broadcast: ``2 alpha sqrt(n) L / h`` (Lemmas 1 and 7).

    Equation (8) has h = 1, (56) any batch. Replacing one record changes one of h averaged
    subgradients, each no longer than L, so the mean moves by at most 2 L / h in L2 and sqrt(n)
    times that in L1. Lemma 1 argues that a projection does not expand L1 distances, which is false;
    it does not expand L2 distances, and the constant stands.

    Parameters
    ----------
    step_size
        alpha_t, positive.
    dim
        n, the number of parameters.
    lipschitz
        L, the largest L2 norm of a subgradient.
    batch_size
        h.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    alpha = positive("step_size", step_size)
    n = integer("dim", dim, at_least=1)
    h = integer("batch_size", batch_size, at_least=1)
    return 2 * alpha * sqrt(n) * positive("lipschitz", lipschitz) / h


@held_by_floats
def disagreement_as_printed(learning: Learning, mixing: Mixing) -> npt.NDArray[np.float64]:
    """Return the right-hand side of (19), Lemma 4 as printed, for t = 0, .., T - 1.

    ``m L theta sum_k beta^(t-k) alpha_k + theta sum_k beta^(t-k) sum_i E|sigma_k^i| + 2 alpha_t L``
    with k from 1 to t - 1 and the root mean square for E|sigma|. It is not a proved bound: (22)
    leaves out the distance of b_t from the ball, out of which the noise leads; see
    `disagreement`.

    Parameters
    ----------
    learning, mixing
        The run and its network.

    Returns
    -------
    Shape (rounds,).
    """
    steps = learning._steps
    sigma = learning._noise_lengths
    bounds = np.zeros(learning.rounds)
    remembered_steps = 0.0
    remembered_noise = 0.0
    for t in range(1, learning.rounds):
        slow = learning.nodes * mixing.theta
        gradients = learning.lipschitz * remembered_steps
        bounds[t] = slow * (gradients + remembered_noise) + 2 * steps[t - 1] * learning.lipschitz
        remembered_steps = mixing.beta * (remembered_steps + steps[t - 1])
        remembered_noise = mixing.beta * (remembered_noise + sigma[t])
    return bounds


def batch_regret_as_printed(regret: float, batch_size: int) -> float:
    """Return ``h R``, the bound (59) on the regret of a learner that steps once a batch.

    The paper cites it from a source on mini-batches and does not prove it.

    Parameters
    ----------
    regret
        R_C, of a learner that steps at every example.
    batch_size
        h.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    return non_negative("regret", regret) * integer("batch_size", batch_size, at_least=1)


@held_by_floats
def convergence_as_printed(
    regret: float,
    *,
    rounds: int,
    lipschitz: float,
    strong_convexity: float,
    failure: float,
    batch_size: int = 1,
    nodes: int = 1,
) -> float:
    """Return the right-hand side of (58), (60) or (61): Lemmas 9 and 10 and Theorem 4 as printed.

    With R = ``regret / nodes`` and h = `batch_size` it is

        h^2 R / T + 4 sqrt(L^2 ln(T / h) / lambda) h sqrt(h R) / T
            + max(16 L^2 / lambda, 6) h ln(1 / gamma) / T

    Lemma 9 (58) has h = m = 1, Lemma 10 (60) m = 1. None of them is proved: where the theorem that
    they cite has ln(1 / gamma) under the root, they print ln T; see `convergence`. It concerns
    the mean of the models w_t, which no noise protects.

    Parameters
    ----------
    regret
        R_D of Algorithm 1 on all examples (R_C for one learner), summed over the rounds.
    rounds
        T, the number of examples of a learner: at least 2, and a multiple of `batch_size`.
    lipschitz, strong_convexity
        L and lambda, positive.
    failure
        gamma, in (0, 1): printed to fail with probability 4 gamma ln T.
    batch_size, nodes
        h and m.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    T = integer("rounds", rounds, at_least=2)
    h = integer("batch_size", batch_size, at_least=1)
    if T % h:
        fail("batch_size", f"a divisor of rounds = {T}", h)
    R = non_negative("regret", regret) / integer("nodes", nodes, at_least=1)
    L = positive("lipschitz", lipschitz)
    lambda_ = positive("strong_convexity", strong_convexity)
    risk = log(1 / probability("failure", failure, zero=False, one=False))
    first = h * batch_regret_as_printed(R, h) / T
    second = 4 * sqrt(L**2 * log(T / h) / lambda_) * h * sqrt(batch_regret_as_printed(R, h)) / T
    third = max(16 * L**2 / lambda_, 6.0) * h * risk / T
    return first + second + third
