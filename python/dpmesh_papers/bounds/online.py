"""Regret and convergence of the online paper: sensitivity, Lemmas 3 and 4, Theorems 2 and 4.

What the paper prints and does not prove has a name that ends in `_as_printed`; all else is proved.

Symbols of Algorithm 1: m learners, n parameters, T rounds. In round t learner i has the model w_t^i
in the ball W of diameter R, receives the mixture ``b_t^i = sum_j a_ij (w_t^j + sigma_t^j)`` of
models with noise sigma, and moves to the projection of ``b_t^i - alpha_(t+1) g_t^i`` onto W, with a
subgradient g_t^i of its loss f_t^i at b_t^i. Learners start at one point, as in (23), and sigma_0
is 0.

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
from dpmesh_papers.bounds.floats import refuse_overflow


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
    def from_assumption_2(cls, nodes: int, smallest_weight: float, window: int) -> Mixing:
        """Return ``theta = c^-2`` and ``beta = c^(1/N)`` of Lemma 3, with c = 1 - eta / (4 m^2).

        Parameters
        ----------
        nodes
            m.
        smallest_weight
            eta, in (0, 1]: the smallest positive weight of any round. The nodes' own weights must
            be at least eta, too; see `check_weights`.
        window
            N: the union of the graphs of any N consecutive rounds is connected.

        Raises
        ------
        ValueError
            If an argument is out of its range.
        """
        nodes = integer("nodes", nodes, at_least=1)
        eta = probability("smallest_weight", smallest_weight, zero=False)
        N = integer("window", window, at_least=1)
        contraction = 1 - eta / (4 * nodes**2)
        return cls(theta=contraction**-2, beta=contraction ** (1 / N))

    @classmethod
    def from_topology(cls, topology: Topology, window: int, rounds: int) -> Mixing:
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
        return cls.from_assumption_2(topology.nodes, eta, window)

    @classmethod
    def from_matrix(cls, matrix: MixingMatrix) -> Mixing:
        """Return theta = 1, beta = 1 - spectral gap: for one matrix in all rounds.

        Far smaller than the constants of Lemma 3.

        Raises
        ------
        ValueError
            If the gap is 0: the graph is disconnected or periodic.
        """
        return cls(theta=1.0, beta=max(0.0, 1 - matrix.spectral_gap))


@dataclass(frozen=True, kw_only=True)
class OnlineRun:
    """Parameters of a run of Algorithm 1 with the steps of Theorem 2.

    alpha_t is 1 / (lambda t), or 1 / (2 sqrt t) if lambda is 0.

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
        if self.strong_convexity == 0:
            return 1 / (2 * np.sqrt(t))
        return 1 / (self.strong_convexity * t)

    @property
    def _noise_lengths(self) -> npt.NDArray[np.float64]:
        """Root mean square of |sigma_0|, .., |sigma_(T-1)|; sigma_0 = 0."""
        lengths = sqrt(self.dim) * self.noise * self._steps
        return np.concatenate([[0.0], lengths[:-1]])


def laplace_noise(epsilon: float, dim: int, lipschitz: float, batch_size: int = 1) -> float:
    """Return the `noise` of the paper's mechanism: 2 sqrt(2 n) L / (epsilon h), from (8) and (11).

    Laplace noise of scale mu = S(t) / epsilon has the standard deviation sqrt(2) mu. S(t) is
    `l1_sensitivity`, 2 alpha_t sqrt(n) L / h.

    Parameters
    ----------
    epsilon
        The budget of a record, positive.
    dim, lipschitz, batch_size
        n, L and h, as in `l1_sensitivity`.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    n = integer("dim", dim, at_least=1)
    h = integer("batch_size", batch_size, at_least=1)
    return 2 * sqrt(2 * n) * positive("lipschitz", lipschitz) / (positive("epsilon", epsilon) * h)


@refuse_overflow
def regret(run: OnlineRun) -> float:
    """Bound sum over t, i of E[f_t^i(b_t^i) - f_t^i(w*)]: each learner on its own examples.

    It predicts with b_t, the mixture that it received (projected, with ``projection="mixture"``),
    and disagreement costs nothing, so the network does not matter. With c the `noise`:

        lambda > 0    (m / lambda) (1 + ln T) (L^2 + n c^2) / 2
        lambda = 0    m sqrt(T) (R^2 + L^2 / 2 + n c^2 / sqrt 2)

    and without `bounded_outside` (m / lambda) (L c sqrt(n) + (pi^2 / 12 - 1/2) n c^2) on top.
    Proof: projection does not expand, Jensen over the doubly stochastic A, and E sigma = 0.

    Parameters
    ----------
    run
        The run.
    """
    m = run.nodes
    L = run.lipschitz
    lambda_ = run.strong_convexity
    noise_energy = run.dim * run.noise**2  # n c^2
    if lambda_ == 0:
        learner_bound = run.diameter**2 + L**2 / 2 + noise_energy / sqrt(2)
        return m * sqrt(run.rounds) * learner_bound
    bound = (1 + log(run.rounds)) * (L**2 + noise_energy) / 2
    if not run.bounded_outside:
        bound += L * sqrt(noise_energy) + (pi**2 / 12 - 0.5) * noise_energy
    return m / lambda_ * bound


@refuse_overflow
def disagreement(run: OnlineRun, mixing: Mixing) -> npt.NDArray[np.float64]:
    """Bound E|w_t^i - mean of w_t|, for t = 0, .., T - 1: Lemma 4, corrected.

    ``m theta sum_(k < t) beta^(t-k) (E|sigma_k| + D_k) + 2 D_t``, where D_t bounds the length of
    the step d_t = w_t - b_(t-1): at most alpha_t L plus the distance of b_(t-1) from W, out of
    which the noise of round t - 1 leads. (22) has alpha_t L alone.

    Parameters
    ----------
    run, mixing
        The run and its network.

    Returns
    -------
    Shape (rounds,).
    """
    sigma = run._noise_lengths
    gradient_growth = run.strong_convexity
    if run.bounded_outside:
        gradient_growth = 0.0
    gradient_lengths = run.lipschitz + gradient_growth * sigma
    step_lengths = np.concatenate([[0.0], run._steps * gradient_lengths + sigma])  # D_t
    bounds = np.zeros(run.rounds)
    remembered = 0.0
    for t in range(1, run.rounds):
        bounds[t] = run.nodes * mixing.theta * remembered + 2 * step_lengths[t]
        remembered = mixing.beta * (remembered + sigma[t] + step_lengths[t])
    return bounds


@refuse_overflow
def learner_regret(run: OnlineRun, mixing: Mixing) -> float:
    """Bound the expected regret of Definition 2, of any one learner: Theorem 2, corrected.

    A learner j that predicts all examples with its own w_t^j pays, on top of `regret`, for its
    distance from the points b_t^i: m L times the sum of 2 E|w_t^j - mean| + E|sigma_t|. Proved for
    w_(t+1) projected onto the ball, as in the paper, not for ``projection="mixture"``.

    Parameters
    ----------
    run, mixing
        The run and its network.
    """
    distances = 2 * disagreement(run, mixing) + run._noise_lengths
    return regret(run) + run.nodes * run.lipschitz * float(distances.sum())


@refuse_overflow
def regret_as_printed(run: OnlineRun, mixing: Mixing, *, epsilon: float | None) -> float:
    """Return the right-hand sides of (45) and (46), whose proof does not hold.

    With ``c = 3 beta theta m L / (1 - beta)`` and a sum s of the steps, (1 + ln T) / lambda by (47)
    or sqrt(T) - 1/2 by (50):

        m L (R + c + 13 L / 2) s + m R / 2 + (c + (2 L + 1) / (2 m)) 2 sqrt(2) m n L s / epsilon

    In (46) the factor 1 / lambda is omitted: lambda is 0 there, and (50) has no such factor. By
    (42) the factor of the noise has R besides, which (38) and so (45) and (46) leave out.

    Parameters
    ----------
    run, mixing
        The run and its network; `noise` is ignored.
    epsilon
        Of the paper's Laplace noise; None for none.

    Raises
    ------
    ValueError
        If `epsilon` is not finite and positive.
    """
    m = run.nodes
    n = run.dim
    L = run.lipschitz
    lambda_ = run.strong_convexity
    T = run.rounds
    if lambda_ == 0:
        step_sum = sqrt(T) - 0.5  # (50)
    else:
        step_sum = (1 + log(T)) / lambda_  # (47)
    mixing_price = 3 * mixing.beta * mixing.theta * m * L / (1 - mixing.beta)
    bound = m * L * (run.diameter + mixing_price + 13 / 2 * L) * step_sum + m * run.diameter / 2
    if epsilon is not None:
        noise_sum = 2 * sqrt(2) * m * n * L / positive("epsilon", epsilon) * step_sum  # (49), (51)
        bound += (mixing_price + (2 * L + 1) / (2 * m)) * noise_sum
    return bound


@refuse_overflow
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

    F is the expected loss of an example. With the bound B on a loss and g = ln(1 / gamma) it is

        (regret + 4 sqrt(L^2 g regret / lambda) + max(16 L^2 / lambda, 6 B) g) / T

    with probability at least 1 - 4 gamma ln T, from 3 rounds on and for gamma below 1/e. Where the
    theorem has ln(1 / gamma) under the root, the paper prints ln T in (58); and it assumes B = 1.

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
        B: losses in W lie in [0, B].

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
    log_risk = log(1 / failure)
    deviation = 4 * sqrt(L**2 * log_risk / lambda_ * regret)
    tail = max(16 * L**2 / lambda_, 6 * positive("loss_bound", loss_bound)) * log_risk
    return (regret + deviation + tail) / T


@refuse_overflow
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


@refuse_overflow
def disagreement_as_printed(run: OnlineRun, mixing: Mixing) -> npt.NDArray[np.float64]:
    """Return the right-hand side of (19), Lemma 4 as printed, for t = 0, .., T - 1.

    ``m L theta sum_k beta^(t-k) alpha_k + theta sum_k beta^(t-k) sum_i E|sigma_k^i| + 2 alpha_t L``
    with k from 1 to t - 1 and the root mean square for E|sigma|. It is not a proved bound: (22)
    leaves out the distance of b_t from the ball, out of which the noise leads; see
    `disagreement`.

    Parameters
    ----------
    run, mixing
        The run and its network.

    Returns
    -------
    Shape (rounds,).
    """
    steps = run._steps
    sigma = run._noise_lengths
    bounds = np.zeros(run.rounds)
    remembered_steps = 0.0
    remembered_noise = 0.0
    for t in range(1, run.rounds):
        remembered = run.lipschitz * remembered_steps + remembered_noise
        step_length = steps[t - 1] * run.lipschitz
        bounds[t] = run.nodes * mixing.theta * remembered + 2 * step_length
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


@refuse_overflow
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
    gamma = probability("failure", failure, zero=False, one=False)
    batch_regret = batch_regret_as_printed(R, h)
    mean_regret = h * batch_regret / T
    deviation = 4 * sqrt(L**2 * log(T / h) / lambda_) * h * sqrt(batch_regret) / T
    tail = max(16 * L**2 / lambda_, 6.0) * h * log(1 / gamma) / T
    return mean_regret + deviation + tail
